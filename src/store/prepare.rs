//! Whether an operation's SQL fits the database: one statement, with the columns that an operation may have.

use std::fmt;
use std::path::{Path, PathBuf};

use postgres::Client;
use postgres::error::ErrorPosition;
use postgres::types::Type;

use super::fault::classify;
use crate::operations::Operation;
use crate::outcome::{Fault, FaultKind};

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

/// The statement without the semicolon, the blanks and the comments at its end, so that other SQL can follow it. It
/// begins where the file begins: places in it are places in the file.
pub fn statement_body(sql: &str) -> &str {
    let end = Tokens::of(sql).filter(|token| token.kind != Kind::End).last();
    end.map_or("", |token| &sql[..token.end])
}

/// What a piece of SQL is, as far as it matters here. Blanks and comments are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Parameter(usize),
    Quoted,
    Open,
    End,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

/// Splits SQL into tokens by PostgreSQL's lexical rules with `standard_conforming_strings` on. What has no end goes to
/// the end of the text: PostgreSQL reports it.
struct Tokens<'a> {
    sql: &'a str,
    at: usize,
}

impl Tokens<'_> {
    fn of(sql: &str) -> Tokens<'_> {
        Tokens { sql, at: 0 }
    }

    fn rest(&self) -> &str {
        &self.sql[self.at..]
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            let skipped = if blank > 0 {
                blank
            } else if rest.starts_with("--") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                comment_length(rest)
            } else {
                return;
            };
            self.at += skipped;
        }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.skip_blanks_and_comments();
        let rest = self.rest();
        let first = rest.chars().next()?;
        let (kind, length) = match first {
            '\'' => (Kind::Quoted, quoted_length(rest, '\'', false)),
            '"' => (Kind::Quoted, quoted_length(rest, '"', false)),
            'e' | 'E' if rest[1..].starts_with('\'') => {
                (Kind::Quoted, 1 + quoted_length(&rest[1..], '\'', true))
            }
            '$' => dollar_token(rest),
            ';' => (Kind::End, 1),
            '(' => (Kind::Open, 1),
            c if is_word_start(c) => (Kind::Word, word_length(rest)),
            // A number keeps its letters: `1e5` is not a number and a word.
            c if c.is_ascii_digit() => (Kind::Other, word_length(rest)),
            c => (Kind::Other, c.len_utf8()),
        };
        let start = self.at;
        self.at += length;
        Some(Token { kind, start, end: self.at })
    }
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn word_length(text: &str) -> usize {
    let ends = |c: char| !(is_word_start(c) || c.is_ascii_digit() || c == '$');
    text.find(ends).unwrap_or(text.len())
}

/// Comments nest.
fn comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// A doubled quote is two strings side by side here, which comes to the same.
fn quoted_length(text: &str, quote: char, backslash: bool) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let was_escaped = escaped;
        escaped = backslash && *c == '\\' && !was_escaped;
        *c == quote && !was_escaped
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// A parameter, or a string between dollar signs.
fn dollar_token(text: &str) -> (Kind, usize) {
    let digits = text[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - 1);
    if digits > 0 {
        return (Kind::Parameter(text[1..=digits].parse().unwrap_or(usize::MAX)), 1 + digits);
    }
    let tag_ends = |c: char| !(is_word_start(c) || c.is_ascii_digit());
    let tag = text[1..].find(tag_ends).filter(|at| text[1 + at..].starts_with('$'));
    let Some(tag) = tag.map(|at| &text[..at + 2]) else { return (Kind::Other, 1) };
    let end = text[tag.len()..].find(tag).map(|at| 2 * tag.len() + at);
    (Kind::Quoted, end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_ends_with_the_last_token_of_the_statement() {
        let table = [
            ("SELECT 1", "SELECT 1"),
            ("SELECT 1;", "SELECT 1"),
            ("SELECT 1 ; ;\n", "SELECT 1"),
            ("-- what it does\nSELECT 1 -- done;", "-- what it does\nSELECT 1"),
            ("SELECT 1; -- done", "SELECT 1"),
            ("SELECT 1 /* ; */", "SELECT 1"),
            ("SELECT 1 /* a /* ; */ b */;", "SELECT 1"),
            ("SELECT ';--' ;", "SELECT ';--'"),
            ("SELECT 'it''s;'", "SELECT 'it''s;'"),
            ("SELECT 'c:\\';", "SELECT 'c:\\'"),
            ("SELECT E'a\\';b' ;", "SELECT E'a\\';b'"),
            ("SELECT \";\";", "SELECT \";\""),
            ("SELECT $$ ; -- $$ ;", "SELECT $$ ; -- $$"),
            ("SELECT $é$ ; $$ $é$;", "SELECT $é$ ; $$ $é$"),
            ("SELECT 1 -", "SELECT 1 -"),
            ("SELECT a$b$c ; -- ", "SELECT a$b$c"),
            ("SELECT '", "SELECT '"),
            (" ; -- nothing", ""),
            ("", ""),
        ];
        for (sql, body) in table {
            assert_eq!(statement_body(sql), body, "{sql}");
        }
    }

    #[test]
    fn what_is_no_single_statement_of_the_right_kind_is_refused_at_its_place() {
        let table = [
            ("SELECT 1;\nSELECT 2", Some((2, 1)), "second statement"),
            ("SELECT 1; -- x\n/* y */ ; COMMIT", Some((2, 13)), "second statement"),
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
