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

/// The status that a refusal gets which the operation raised with `sqlstate`; `None` where that is no refusal but a
/// fault or a broken operation. Only for errors that were raised while the operation itself ran.
///
/// `PT4xx` sets the status by the convention that PostgREST's users know.
pub fn refusal_status(sqlstate: &str) -> Option<u16> {
    if let Some(status) = sqlstate.strip_prefix("PT") {
        return status.parse().ok().filter(|status| (400..500).contains(status));
    }
    match sqlstate {
        "P0001" => Some(422),
        "23505" | "23503" | "23P01" => Some(409),
        _ if sqlstate.starts_with("22") || sqlstate.starts_with("23") => Some(422),
        _ => None,
    }
}

/// Whether the operation wrote the message of a refusal on purpose, so that the caller may read it.
pub fn message_is_for_the_caller(sqlstate: &str) -> bool {
    sqlstate == "P0001" || sqlstate.starts_with("PT4")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_sqlstate_is_a_refusal_or_none() {
        let table = [
            ("PT402", Some(402)),
            ("PT409", Some(409)),
            ("PT499", Some(499)),
            ("PT500", None),
            ("PT999", None),
            ("PT4x2", None),
            ("P0001", Some(422)),
            ("P0002", None),
            ("22012", Some(422)),
            ("23514", Some(422)),
            ("23502", Some(422)),
            ("23503", Some(409)),
            ("23505", Some(409)),
            ("23P01", Some(409)),
            ("40001", None),
            ("40P01", None),
            ("42P01", None),
            ("53100", None),
            ("55P03", None),
            ("57014", None),
            ("XX000", None),
        ];
        for (sqlstate, status) in table {
            assert_eq!(refusal_status(sqlstate), status, "{sqlstate}");
        }
    }
}
