//! What the file and the environment say, before anybody asks what it means.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::problem::{Place, Problem};

/// The variables whose names start with `ONCED_`.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Environment {
        std::env::vars_os().collect()
    }

    /// The text of a variable.
    ///
    /// # Errors
    /// It is set, but not UTF-8.
    pub(super) fn text(&self, name: &str) -> Option<Result<String, NotUtf8>> {
        let value = self.0.get(name)?;
        Some(value.to_str().map(str::to_owned).ok_or(NotUtf8))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Result<String, NotUtf8>> {
        let text = self.text(name);
        self.0.remove(name);
        text
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// A variable that holds bytes which are no text.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotUtf8;

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Environment {
        let ours = pairs.into_iter().filter_map(|(name, value)| {
            let name = name.into().into_string().ok()?;
            name.starts_with("ONCED_").then(|| (name, value.into()))
        });
        Environment(ours.collect())
    }
}

/// A table of the file.
pub(super) type Table = BTreeMap<String, Entry>;

/// Something in the file, and the byte at which it starts: a table's entry its key, an item of a list itself.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) start: usize,
    pub(super) value: Value,
}

/// A value of the file.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// The text of a whole number, and the number, where it is not too large for any use.
    Integer(String, Option<i128>),
    Fraction(String),
    Boolean(bool),
    Date,
    List(Vec<Entry>),
    Table(Table),
    /// The parser stumbled in it, which is a problem of its own.
    Unreadable,
}

/// A value of the parser as one of ours; `broken` are the bytes at which the text is not TOML.
pub(super) fn owned(value: Spanned<DeValue<'_>>, broken: &[usize]) -> Value {
    let span = value.span();
    let value = value.into_inner();
    let items = value.as_array().into_iter().flatten();
    let holds_tables = value.is_table() || items.into_iter().any(|item| item.get_ref().is_table());
    if !holds_tables && broken.iter().any(|at| (span.start..=span.end).contains(at)) {
        return Value::Unreadable;
    }
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            Value::Integer(number.to_string(), parsed.ok())
        }
        DeValue::Float(number) => Value::Fraction(number.to_string()),
        DeValue::Boolean(truth) => Value::Boolean(truth),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(items) => Value::List(
            items
                .into_iter()
                .map(|item| Entry { start: item.span().start, value: owned(item, broken) })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(owned_table(table, broken)),
    }
}

fn owned_table(table: DeTable<'_>, broken: &[usize]) -> Table {
    let entry = |(key, value): (Spanned<DeString<'_>>, Spanned<DeValue<'_>>)| {
        let start = key.span().start;
        (key.into_inner().into_owned(), Entry { start, value: owned(value, broken) })
    };
    table.into_iter().map(entry).collect()
}

/// The file, taken apart but not yet understood.
pub(super) struct Document {
    /// Its path, for messages.
    file: PathBuf,
    /// The byte at which each line starts.
    line_starts: Vec<usize>,
    text: String,
    /// What could be read, also where there are syntax errors.
    pub(super) root: Table,
    /// Where it is not TOML.
    pub(super) syntax_errors: Vec<Problem>,
}

impl Document {
    pub(super) fn parse(file: &Path, text: &str) -> Document {
        let (root, errors) = DeTable::parse_recoverable(text);
        let spans = errors.iter().filter_map(toml::de::Error::span);
        let broken: Vec<usize> = spans.map(|span| span.start).collect();
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        let mut document = Document {
            file: file.to_owned(),
            line_starts,
            text: text.to_owned(),
            root: owned_table(root.into_inner(), &broken),
            syntax_errors: Vec::new(),
        };
        // The error's own Display quotes the line, which may hold a secret; its message does not.
        let problems = errors.iter().map(|error| Problem {
            place: error.span().map_or_else(|| document.whole(), |span| document.place(span.start)),
            key: String::new(),
            message: format!("not TOML: {}", error.message()),
        });
        document.syntax_errors = problems.collect();
        document.syntax_errors.sort();
        // What follows on the same line is mostly the parser finding its way back.
        document.syntax_errors.dedup_by_key(|problem| match &problem.place {
            Place::Line { line, .. } => Some(*line),
            Place::File(_) | Place::Variable(_) => None,
        });
        document
    }

    pub(super) fn whole(&self) -> Place {
        Place::File(self.file.clone())
    }

    pub(super) fn place(&self, at: usize) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= at);
        let start = line.checked_sub(1).map_or(0, |before| self.line_starts[before]);
        let before = self.text.get(start..at).unwrap_or_default();
        Place::Line { file: self.file.clone(), line, column: before.chars().count() + 1 }
    }
}

/// A value as it was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    value: Value,
    /// From a variable, or a default in our own words: text, whatever the type.
    is_text: bool,
}

impl Given {
    pub(super) fn is_readable(&self) -> bool {
        !matches!(self.value, Value::Unreadable)
    }

    pub(super) fn of_file(value: Value) -> Given {
        Given { value, is_text: false }
    }

    pub(super) fn of_text(text: &str) -> Given {
        Given { value: Value::Text(text.to_owned()), is_text: true }
    }

    /// The value as text.
    pub(super) fn text(&self) -> Result<&str, String> {
        self.as_text().ok_or_else(|| format!("{} is not a string; put it in quotes", self.shown()))
    }

    /// The value as text, in a message that does not tell it.
    pub(super) fn secret_text(&self) -> Result<&str, String> {
        self.as_text().ok_or_else(|| format!("this is {}, not a string", kind_of(&self.value)))
    }

    /// The value as a whole number.
    pub(super) fn integer(&self) -> Result<i128, String> {
        let number = if let Value::Integer(_, number) = &self.value {
            *number
        } else {
            self.typed_text().and_then(|text| text.trim().parse().ok())
        };
        number.ok_or_else(|| format!("{} is not a whole number", self.shown()))
    }

    /// Whether the value is a bare number.
    pub(super) fn is_number(&self) -> bool {
        let is_finite = |text: &str| text.trim().parse::<f64>().is_ok_and(f64::is_finite);
        matches!(self.value, Value::Integer(..) | Value::Fraction(_))
            || self.as_text().is_some_and(is_finite)
    }

    /// The value as a truth.
    pub(super) fn boolean(&self) -> Result<bool, String> {
        if let Value::Boolean(truth) = self.value {
            return Ok(truth);
        }
        let truth = self.typed_text().and_then(|text| text.parse().ok());
        truth.ok_or_else(|| format!("{} is neither true nor false", self.shown()))
    }

    /// The items of a list. As text it is written with commas, or as TOML writes it.
    pub(super) fn items(&self) -> Result<Vec<Given>, String> {
        if let Value::List(items) = &self.value {
            return Ok(items.iter().map(|item| Given::of_file(item.value.clone())).collect());
        }
        let text = self.typed_text();
        text.map_or_else(|| Err(format!("this is {}, not a list", kind_of(&self.value))), items_of)
    }

    fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Text that may stand for another type.
    fn typed_text(&self) -> Option<&str> {
        self.as_text().filter(|_| self.is_text)
    }

    /// The value for a message: short, on one line.
    pub(super) fn shown(&self) -> String {
        match &self.value {
            Value::Text(text) => quoted(text),
            Value::Integer(number, _) | Value::Fraction(number) => number.clone(),
            Value::Boolean(truth) => truth.to_string(),
            other @ (Value::Date | Value::List(_) | Value::Table(_) | Value::Unreadable) => {
                format!("this, {},", kind_of(other))
            }
        }
    }
}

fn items_of(text: &str) -> Result<Vec<Given>, String> {
    let text = text.trim();
    if !text.starts_with('[') {
        let items = text.split(',').map(str::trim);
        return Ok(if text.is_empty() { Vec::new() } else { items.map(Given::of_text).collect() });
    }
    let list = DeValue::parse(text).map_err(|error| format!("no list: {}", error.message()))?;
    Given::of_file(owned(list, &[])).items()
}

/// Text in quotes, cut where it is long, with nothing in it that a terminal would act upon.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let cut: String = text.chars().take(LONGEST).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

/// What kind of thing a value is, in words.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Text(_) => "a string",
        Value::Integer(..) => "a whole number",
        Value::Fraction(_) => "a fraction",
        Value::Boolean(_) => "true or false",
        Value::Date => "a date",
        Value::List(_) => "a list",
        Value::Table(_) => "a table",
        Value::Unreadable => "unreadable",
    }
}
