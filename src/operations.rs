//! What a write does: one SQL statement in a file of its own, behind a route.

use std::path::PathBuf;
use std::time::Duration;

/// A configured operation, read from its files and checked for form. Whether its SQL fits the database is the store's
/// to find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// `[a-z][a-z0-9_-]*`, at most 63 characters, never `requests`.
    pub name: String,
    /// The path that calls it, by default `/v1/NAME`.
    pub route: String,
    /// The statement: `$1` request (jsonb), `$2` key (text), `$3` principal (text).
    pub statement: Script,
    /// What `onced migrate` runs for it, any number of times.
    pub setup: Option<Script>,
    /// Its own `statement_timeout`, where it has one.
    pub timeout: Option<Duration>,
}

/// A SQL file and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Where it was read from, for messages.
    pub path: PathBuf,
    /// The text as it stands in the file.
    pub sql: String,
}
