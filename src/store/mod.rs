//! All SQL, and all that knows PostgreSQL: the pools of connections, and free functions with a verb over one of them.
//! No other module sees a `postgres::Error`.

pub mod events;
pub mod fault;
pub mod outbox;
mod pool;
pub mod retention;

use std::sync::Arc;
use std::time::Duration;

use crate::config;
use crate::outcome::Fault;
pub use pool::{Client, Install};
/// A connection, from a pool or outside it: what the functions of this module take.
pub use postgres::Client as Session;

use pool::Pool;

/// Connections that are neither a writer's nor a relay's: the pruner's, the prober's and the reader's.
const OTHER_CONNECTIONS: usize = 3;

/// The database. Cloning it shares the connections: at most `writers.threads` for writes, and `relay.connections` and
/// three for the rest, so that neither side can starve the other.
#[derive(Clone)]
pub struct Store {
    writers: Pool,
    others: Pool,
}

/// The settings of `[database]` that no connection can be made with.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection string is wrong.
    #[error("the connection string is not usable: {0}")]
    Dsn(String),
}

impl Store {
    /// Makes the pools. Nothing is connected yet: a database that is down is found by the first who needs it.
    ///
    /// `install` runs on each new connection of a writer, after its settings were checked.
    pub fn open(
        database: &config::Database,
        writers: &config::Writers,
        relay: &config::Relay,
        install: Install,
    ) -> Result<Store, OpenError> {
        let session: postgres::Config = database
            .url
            .reveal()
            .parse()
            .map_err(|error: postgres::Error| OpenError::Dsn(fault::chain(&error)))?;
        let nothing: Install = Box::new(|_| Ok(()));
        Ok(Store {
            writers: Pool::new(session.clone(), writers.threads.get(), Arc::from(install)),
            others: Pool::new(
                session,
                relay.connections.get() + OTHER_CONNECTIONS,
                Arc::from(nothing),
            ),
        })
    }

    /// A connection for anything but writes, waited for at most `wait`.
    pub fn client(&self, wait: Duration) -> Result<Client, Fault> {
        self.others.get(wait)
    }

    /// A connection on which `install` ran, waited for at most `wait`.
    pub fn writer(&self, wait: Duration) -> Result<Client, Fault> {
        self.writers.get(wait)
    }
}

/// Whether a connection string has the right form. The message never shows it.
///
/// # Errors
/// What is wrong with it.
pub fn check_dsn(dsn: &str) -> Result<(), String> {
    dsn.parse::<postgres::Config>().map(|_| ()).map_err(|error| error.to_string())
}
