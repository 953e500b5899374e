//! `postgres::Error` to [`Fault`]: the only place that reads an SQLSTATE to decide what follows from it.

use std::error::Error;
use std::io;

use postgres::error::DbError;

use crate::outcome::{Fault, FaultKind};

/// A fault's text is cut past this many characters: the detail of an error may quote whole rows.
const LONGEST_TEXT: usize = 2000;

/// What an error of a statement means. Exhaustive over the classes of SQLSTATE: what is in none of them is a statement
/// that is wrong.
pub fn classify(error: &postgres::Error) -> Fault {
    match error.as_db_error() {
        Some(db) => Fault {
            kind: kind_of(db.code().code(), db.message(), db.routine().unwrap_or_default()),
            sqlstate: Some(db.code().code().to_owned()),
            text: cut(server_text(db)),
        },
        None => Fault {
            kind: if error.is_closed() || has_io_error(error) {
                FaultKind::Unreachable
            } else {
                FaultKind::Broken
            },
            sqlstate: None,
            text: cut(chain(error)),
        },
    }
}

/// As [`classify`], for an error from the attempt to connect: whatever it is, there is no connection.
pub fn classify_connect(error: &postgres::Error) -> Fault {
    let fault = classify(error);
    let kind = match fault.kind {
        FaultKind::Overloaded => FaultKind::Overloaded,
        // A host that is not the asked-for kind of server (`target_session_attrs`) is refused with this one.
        FaultKind::ReadOnly => FaultKind::ReadOnly,
        FaultKind::Unusable => FaultKind::Unusable,
        FaultKind::Unreachable
        | FaultKind::Conflict
        | FaultKind::LockTimeout
        | FaultKind::StatementTimeout
        | FaultKind::Stale
        | FaultKind::Broken => FaultKind::Unreachable,
    };
    Fault { kind, ..fault }
}

/// The kind of an SQLSTATE. Where a code has several meanings, the server's routine (which no locale translates) or a
/// name of ours in the message tells them apart.
pub(super) fn kind_of(sqlstate: &str, message: &str, routine: &str) -> FaultKind {
    match sqlstate {
        "25006" => FaultKind::ReadOnly,
        "55P03" => FaultKind::LockTimeout,
        "57014" => FaultKind::StatementTimeout,
        // The server ends the session with these two: idle in a transaction, or too long in one.
        "25P03" | "25P04" => FaultKind::Unreachable,
        // The statement's end is unknown, as with a broken connection.
        "40003" => FaultKind::Unreachable,
        // A transaction that failed before, a prepared statement or a cursor that is gone: the session is not what we
        // think it is.
        "25P02" | "26000" | "34000" => FaultKind::Stale,
        "0A000" if routine == "RevalidateCachedQuery" => FaultKind::Stale,
        // Somebody dropped our functions, as DISCARD ALL does.
        "42883" | "3F000" if message.contains("pg_temp") => FaultKind::Stale,
        "57000" => FaultKind::Overloaded,
        // An object that another session uses; the rest of its class is a wrong statement.
        "55006" => FaultKind::Conflict,
        _ => kind_of_class(sqlstate.get(..2).unwrap_or_default()),
    }
}

fn kind_of_class(class: &str) -> FaultKind {
    match class {
        // Connection; operator intervention: shut down, starting up.
        "08" | "57" => FaultKind::Unreachable,
        // A deadlock, a serialization failure.
        "40" => FaultKind::Conflict,
        // Resources; the server's own input and output.
        "53" | "58" => FaultKind::Overloaded,
        _ => FaultKind::Broken,
    }
}

fn has_io_error(error: &postgres::Error) -> bool {
    sources(error).any(<dyn Error>::is::<io::Error>)
}

/// The causes of an error, the nearest first.
pub(super) fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |source| (*source).source())
}

/// An error and its causes, in one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    sources(error).fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// Everything that the server said, in one line.
fn server_text(db: &DbError) -> String {
    let mut text = db.message().to_owned();
    let parts = [
        ("detail", db.detail()),
        ("hint", db.hint()),
        ("table", db.table()),
        ("column", db.column()),
        ("constraint", db.constraint()),
        ("where", db.where_()),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            text.push_str(&format!("; {name}: {}", value.replace('\n', " | ")));
        }
    }
    text
}

fn cut(text: String) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_sqlstate_has_its_kind() {
        let table = [
            ("08006", FaultKind::Unreachable),
            ("08P01", FaultKind::Unreachable),
            ("57P01", FaultKind::Unreachable),
            ("57P02", FaultKind::Unreachable),
            ("57P03", FaultKind::Unreachable),
            ("57P04", FaultKind::Unreachable),
            ("57P05", FaultKind::Unreachable),
            ("25P03", FaultKind::Unreachable),
            ("25P04", FaultKind::Unreachable),
            ("40003", FaultKind::Unreachable),
            ("53000", FaultKind::Overloaded),
            ("53100", FaultKind::Overloaded),
            ("53200", FaultKind::Overloaded),
            ("53300", FaultKind::Overloaded),
            ("57000", FaultKind::Overloaded),
            ("58030", FaultKind::Overloaded),
            ("25006", FaultKind::ReadOnly),
            ("40001", FaultKind::Conflict),
            ("40P01", FaultKind::Conflict),
            ("55006", FaultKind::Conflict),
            ("55P03", FaultKind::LockTimeout),
            ("57014", FaultKind::StatementTimeout),
            ("25P02", FaultKind::Stale),
            ("26000", FaultKind::Stale),
            ("34000", FaultKind::Stale),
            ("0A000", FaultKind::Broken),
            ("22P02", FaultKind::Broken),
            ("23505", FaultKind::Broken),
            ("25000", FaultKind::Broken),
            ("28P01", FaultKind::Broken),
            ("3D000", FaultKind::Broken),
            ("42501", FaultKind::Broken),
            ("42883", FaultKind::Broken),
            ("42P01", FaultKind::Broken),
            ("P0001", FaultKind::Broken),
            ("PT409", FaultKind::Broken),
            ("XX000", FaultKind::Broken),
            ("", FaultKind::Broken),
        ];
        for (sqlstate, kind) in table {
            assert_eq!(kind_of(sqlstate, "", ""), kind, "{sqlstate}");
        }
    }

    #[test]
    fn a_code_of_several_meanings_is_told_apart_in_any_language() {
        let message = "gecachter Plan darf den Ergebnistyp nicht ändern";
        assert_eq!(kind_of("0A000", message, "RevalidateCachedQuery"), FaultKind::Stale);
        let message = "Funktion pg_temp.onced_write(jsonb) existiert nicht";
        assert_eq!(kind_of("42883", message, "ParseFuncOrColumn"), FaultKind::Stale);
        assert_eq!(kind_of("42883", "function f() does not exist", ""), FaultKind::Broken);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(cut("é".repeat(LONGEST_TEXT)).chars().count(), LONGEST_TEXT);
        assert_eq!(cut("é".repeat(LONGEST_TEXT + 5)).chars().count(), LONGEST_TEXT + 1);
    }
}
