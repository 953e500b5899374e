//! How many rows of each table belong to one key: what `onced verify` counts.

use postgres::Client;

use super::fault::classify;
use super::{ConnectError, connect};
use crate::config;
use crate::outcome::Fault;

const COUNT: &str = "
    SELECT (SELECT count(*) FROM idempotency_records WHERE key = $1),
           (SELECT count(*) FROM orders WHERE idempotency_key = $1),
           (SELECT count(*) FROM outbox_events WHERE idempotency_key = $1)";

/// Rows of one key, of whatever principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// In `idempotency_records`.
    pub records: i64,
    /// In `orders`, the table of the shipped example.
    pub orders: i64,
    /// In `outbox_events`.
    pub events: i64,
}

/// Counts rows on a connection of its own.
pub struct Counter(Client);

impl Counter {
    /// Connects.
    pub fn open(database: &config::Database) -> Result<Counter, ConnectError> {
        connect(database).map(Counter)
    }

    /// Counts the rows of a key, all at one moment.
    pub fn count(&mut self, key: &str) -> Result<Rows, Fault> {
        let row = self.0.query_one(COUNT, &[&key]).map_err(|error| classify(&error))?;
        Ok(Rows { records: row.get(0), orders: row.get(1), events: row.get(2) })
    }
}
