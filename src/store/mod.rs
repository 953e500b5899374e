//! All SQL, and all that knows PostgreSQL: the pools of connections, and free functions with a verb over one of them.
//! No other module sees a `postgres::Error`.

mod dsn;
pub mod events;
pub mod fault;
mod lexer;
pub mod migrate;
pub mod once;
pub mod outbox;
mod pool;
pub mod prepare;
pub mod records;
pub mod retention;
pub mod rows;
mod settings;
mod tls;
mod wire;

use std::time::Duration;

use crate::config;
use crate::outcome::Fault;
pub use dsn::check_dsn;
pub use pool::{Client, Install};
/// A connection, from a pool or outside it: what the functions of this module take.
pub use postgres::Client as Session;

use pool::Pool;
use settings::{Limits, Recipe};

/// Every statement of ours that stands alone, with its name: a test prepares each on a migrated database.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("settings::SESSION_SETTINGS", settings::SESSION_SETTINGS),
    ("migrate::LOCK_MIGRATION", migrate::LOCK_MIGRATION),
    ("migrate::UNLOCK_MIGRATION", migrate::UNLOCK_MIGRATION),
    ("migrate::SCHEMA_RIGHTS", migrate::SCHEMA_RIGHTS),
    ("migrate::LOCATE_HISTORY", migrate::LOCATE_HISTORY),
    ("migrate::APPLIED_VERSIONS", migrate::APPLIED_VERSIONS),
    ("migrate::MINIMUM_VERSION", migrate::MINIMUM_VERSION),
    ("migrate::MISSING_RIGHTS", migrate::MISSING_RIGHTS),
    ("migrate::SETUP_MARK", migrate::SETUP_MARK),
    ("once::SET_TIMEOUT", once::SET_TIMEOUT),
    ("once::RESET_TIMEOUT", once::RESET_TIMEOUT),
    ("records::FIND_RECORD", records::FIND_RECORD),
    ("records::PROBE", records::PROBE),
];

/// Connections that are neither a writer's nor a relay's: the pruner's, the prober's, and one for questions, which the
/// reader and the clerk share.
const OTHER_CONNECTIONS: usize = 3;

/// Claims, settlements, look-ups and deletions are small by their own limits: one that takes this long is stuck.
pub const OTHER_STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The database. Cloning it shares the connections: at most `writers.threads` for writes, and `relay.connections` and
/// three for the rest, so that neither side can starve the other.
#[derive(Clone)]
pub struct Store {
    writers: Pool,
    others: Pool,
}

/// `[database]` says something that no connection can be made with; the text says what, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[database] cannot be used: {0}")]
pub struct OpenError(String);

/// One connection outside any pool, for a command such as `onced migrate`: it is made at once or not at all, and its
/// statements have no time limit.
pub fn connect(database: &config::Database) -> Result<postgres::Client, ConnectError> {
    let recipe = Recipe::new(database, None).map_err(OpenError)?;
    Ok(recipe.connect().map_err(ConnectError::Fault)?.client)
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The configuration is wrong.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The server cannot be reached, or not be used.
    #[error("cannot connect to the database: {0}")]
    Fault(Fault),
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
        let limits = Limits { statement: writers.statement_timeout, lock: writers.lock_timeout };
        let for_writers = Recipe::new(database, Some(limits)).map_err(OpenError)?;
        let for_others = for_writers.with_statement_timeout(OTHER_STATEMENT_TIMEOUT);
        let others = relay.connections.get() + OTHER_CONNECTIONS;
        Ok(Store {
            writers: Pool::new(for_writers, writers.threads.get(), install),
            others: Pool::new(for_others, others, Box::new(|_| Ok(None))),
        })
    }

    /// A connection for anything but writes, waited for at most `wait`.
    pub fn client(&self, wait: Duration) -> Result<Client, Fault> {
        self.others.get(wait)
    }

    /// How many connections have broken so far: where it rises, the database may not be the one that it was.
    pub fn breaks(&self) -> u64 {
        self.writers.breaks() + self.others.breaks()
    }

    /// A connection on which `install` ran, waited for at most `wait`.
    pub fn writer(&self, wait: Duration) -> Result<Client, Fault> {
        self.writers.get(wait)
    }
}
