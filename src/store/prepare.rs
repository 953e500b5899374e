//! Whether an operation's SQL fits the database: one statement, with the columns that an operation may have.

use std::fmt;
use std::path::{Path, PathBuf};

use postgres::Client;
use postgres::error::ErrorPosition;
use postgres::types::Type;

use super::fault::classify;
use super::lexer::{Kind, Tokens};
use crate::operations::Operation;
use crate::outcome::{Fault, FaultKind};

pub use super::lexer::statement_body;

/// The types of an operation's parameters: request, key, principal.
const PARAMETERS: [Type; 3] = [Type::JSONB, Type::TEXT, Type::TEXT];

/// The words that a statement may begin with which can be an operation.
const FIRST_WORDS: [&str; 8] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE"];

/// A line and a column of a file, both from 1; a column is a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// What is wrong with an operation's SQL, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationProblem {
    /// The file.
    pub path: PathBuf,
    /// The place in it, where it is known.
    pub at: Option<Place>,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Why an operation could not be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// Its SQL is not fit to be an operation.
    #[error(transparent)]
    Problem(#[from] OperationProblem),
    /// The database could not tell.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A column that an operation may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnName {
    /// The HTTP status.
    Status,
    /// The answer's body.
    Response,
    /// The events.
    Events,
}

/// A column that an operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Which one.
    pub name: ColumnName,
    /// Its type as SQL knows it: `smallint`, `integer`, `bigint`, `numeric`, `json` or `jsonb`.
    pub sql_type: &'static str,
}

/// The columns that an operation returns, in its order: each name at most once, and at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(Vec<Column>);

impl Columns {
    /// In the order of the result.
    pub fn iter(&self) -> impl Iterator<Item = Column> {
        self.0.iter().copied()
    }

    /// Whether the operation returns this one.
    pub fn has(&self, name: ColumnName) -> bool {
        self.iter().any(|column| column.name == name)
    }
}

impl ColumnName {
    /// As it stands in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            ColumnName::Status => "status",
            ColumnName::Response => "response",
            ColumnName::Events => "events",
        }
    }

    fn of(name: &str) -> Option<ColumnName> {
        [ColumnName::Status, ColumnName::Response, ColumnName::Events]
            .into_iter()
            .find(|column| column.as_str() == name)
    }

    /// The type as SQL knows it, where this column may have it.
    fn sql_type(self, type_: &Type) -> Option<&'static str> {
        let types: &[(Type, &'static str)] = match self {
            ColumnName::Status => &[
                (Type::INT2, "smallint"),
                (Type::INT4, "integer"),
                (Type::INT8, "bigint"),
                (Type::NUMERIC, "numeric"),
            ],
            ColumnName::Response | ColumnName::Events => {
                &[(Type::JSONB, "jsonb"), (Type::JSON, "json")]
            }
        };
        types.iter().find(|(known, _)| known == type_).map(|(_, name)| *name)
    }

    fn remedy(self) -> &'static str {
        match self {
            ColumnName::Status => "must be an integer: cast it with ::integer",
            ColumnName::Response => "must be jsonb: use to_jsonb(…), or cast it with ::jsonb",
            ColumnName::Events => {
                "must be jsonb, an array of objects: use jsonb_build_array(…), or cast it with ::jsonb"
            }
        }
    }
}

impl Place {
    /// The place of the character with this index in a text.
    fn of_character(text: &str, index: usize) -> Place {
        let (mut line, mut column) = (1, 1);
        for c in text.chars().take(index) {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        Place { line, column }
    }

    fn of_byte(text: &str, offset: usize) -> Place {
        Place::of_character(text, text[..offset].chars().count())
    }

    /// Where in `text` PostgreSQL found an error, as far as it said.
    pub(super) fn of_error(error: &postgres::Error, text: &str) -> Option<Place> {
        match error.as_db_error()?.position()? {
            ErrorPosition::Original(position) => {
                let index = usize::try_from(*position).ok()?.checked_sub(1)?;
                Some(Place::of_character(text, index))
            }
            ErrorPosition::Internal { .. } => None,
        }
    }
}

/// A file and a place in it, as compilers write them.
pub(super) fn in_file(path: &Path, at: Option<Place>) -> String {
    match at {
        Some(Place { line, column }) => format!("{}:{line}:{column}", path.display()),
        None => path.display().to_string(),
    }
}

impl fmt::Display for OperationProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", in_file(&self.path, self.at), self.message)
    }
}

impl std::error::Error for OperationProblem {}

/// Finds out what an operation returns. Nothing runs: the statement is prepared and its columns are read.
pub fn describe(client: &mut Client, operation: &Operation) -> Result<Columns, DescribeError> {
    let script = &operation.statement;
    let problem = |at: Option<Place>, message: String| OperationProblem {
        path: script.path.clone(),
        at,
        message,
    };
    check_form(&script.sql).map_err(|(at, message)| problem(Some(at), message))?;
    let statement =
        client.prepare_typed(statement_body(&script.sql), &PARAMETERS).map_err(|error| {
            match classify(&error) {
                fault @ Fault { kind: FaultKind::Broken, .. } => {
                    problem(Place::of_error(&error, &script.sql), fault.to_string()).into()
                }
                fault => DescribeError::Fault(fault),
            }
        })?;
    let columns: Vec<(&str, &Type)> =
        statement.columns().iter().map(|column| (column.name(), column.type_())).collect();
    check_columns(&columns).map_err(|message| problem(None, message).into())
}

fn check_columns(found: &[(&str, &Type)]) -> Result<Columns, String> {
    let mut columns: Vec<Column> = Vec::new();
    for (name, type_) in found {
        let Some(name) = ColumnName::of(name) else {
            return Err(format!(
                "it returns a column {name:?}; an operation returns any of status, response and events (AS \
                 gives a column its name)"
            ));
        };
        if columns.iter().any(|column| column.name == name) {
            return Err(format!("it returns the column {} twice", name.as_str()));
        }
        let Some(sql_type) = name.sql_type(type_) else {
            let (column, found) = (name.as_str(), type_.name());
            return Err(format!("its column {column} is {found} and {}", name.remedy()));
        };
        columns.push(Column { name, sql_type });
    }
    if columns.is_empty() {
        return Err(
            "it returns no columns: end it with RETURNING or SELECT, with one row that has any of \
                    status, response and events"
                .to_owned(),
        );
    }
    Ok(Columns(columns))
}

/// Checks what can be seen without the database: one statement, of the right kind, with our parameters.
fn check_form(sql: &str) -> Result<(), (Place, String)> {
    let at = |offset| Place::of_byte(sql, offset);
    let mut ended = false;
    let mut first = None;
    for token in Tokens::of(sql) {
        match token.kind {
            Kind::End => ended = first.is_some(),
            _ if ended => {
                return Err((
                    at(token.start),
                    "a second statement begins here; an operation is one: join \
                                              them with WITH, or put them into a function"
                        .to_owned(),
                ));
            }
            Kind::Parameter(number) if number > PARAMETERS.len() => {
                return Err((
                    at(token.start),
                    format!(
                        "${number} does not exist: $1 is the request (jsonb), $2 the key (text), $3 the \
                     principal (text)"
                    ),
                ));
            }
            Kind::Word | Kind::Parameter(_) | Kind::Quoted | Kind::Open | Kind::Other => {}
        }
        if first.is_none() && !matches!(token.kind, Kind::End | Kind::Open) {
            first = Some(token);
        }
    }
    let Some(first) = first else {
        return Err((Place { line: 1, column: 1 }, "it holds no statement".to_owned()));
    };
    let word = &sql[first.start..first.end];
    let is_allowed = FIRST_WORDS.iter().any(|allowed| allowed.eq_ignore_ascii_case(word));
    // What does not begin with a word is a syntax error, and PostgreSQL has the better words for it.
    if first.kind == Kind::Word && !is_allowed {
        return Err((
            at(first.start),
            format!(
                "it begins with {word}; an operation is one SELECT, INSERT, UPDATE, DELETE or MERGE, with WITH or \
             without. Its transaction is onced's, so it cannot begin or end one"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_single_statement_of_the_right_kind_is_refused_at_its_place() {
        let table = [
            ("SELECT 1;\nSELECT 2", Some((2, 1)), "second statement"),
            ("SELECT 1; -- x\n/* y */ ; COMMIT", Some((2, 11)), "second statement"),
            ("-- é\n  commit", Some((2, 3)), "begins with commit"),
            ("DO $$ begin commit; end $$", Some((1, 1)), "begins with DO"),
            ("CALL p()", Some((1, 1)), "begins with CALL"),
            ("rollback;", Some((1, 1)), "begins with rollback"),
            ("create table t ()", Some((1, 1)), "begins with create"),
            ("SELECT 'é', $4", Some((1, 13)), "$4 does not exist"),
            ("", Some((1, 1)), "no statement"),
            ("-- only words;", Some((1, 1)), "no statement"),
        ];
        for (sql, place, words) in table {
            let (found, message) = check_form(sql).unwrap_err();
            assert_eq!(Some((found.line, found.column)), place, "{sql}");
            assert!(message.contains(words), "{sql}: {message}");
        }
        for sql in ["(SELECT 1)", "with x as (select 1) select 2", "SELECT '$4', $$ ;$9 $$;", "?"] {
            assert_eq!(check_form(sql), Ok(()), "{sql}");
        }
    }

    #[test]
    fn columns_are_known_by_name_and_type() {
        let columns =
            check_columns(&[("events", &Type::JSON), ("status", &Type::NUMERIC)]).unwrap();
        let found: Vec<_> = columns.iter().map(|column| (column.name, column.sql_type)).collect();
        assert_eq!(found, [(ColumnName::Events, "json"), (ColumnName::Status, "numeric")]);
        assert!(!columns.has(ColumnName::Response));
        let table: [(&[(&str, &Type)], &str); 6] = [
            (&[], "no columns"),
            (&[("id", &Type::INT8)], "\"id\""),
            (&[("status", &Type::INT4), ("status", &Type::INT4)], "twice"),
            (&[("status", &Type::TEXT)], "::integer"),
            (&[("response", &Type::TEXT)], "to_jsonb"),
            (&[("events", &Type::JSONB_ARRAY)], "jsonb_build_array"),
        ];
        for (columns, words) in table {
            let problem = check_columns(columns).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }
}
