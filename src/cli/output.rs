//! What a command says: to people on a terminal, to programs as JSON.
//!
//! A reader who has gone away (`onced show … | head -1`) is no failure of the command, so what cannot be written to
//! standard output or standard error is dropped.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How often a line of progress changes at most.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Writes a line to standard output.
pub(super) fn say(line: impl Display) {
    writeln!(stdout().lock(), "{line}").ok();
}

/// Writes a line to standard error.
pub(super) fn complain(line: impl Display) {
    writeln!(stderr().lock(), "{line}").ok();
}

/// Writes a value as JSON, indented, to standard output.
pub(super) fn say_json(value: &impl Serialize) {
    say(serde_json::to_string_pretty(value).expect("names and values of ours are JSON"));
}

/// A line on standard error that tells how far long work has come. Where that is no terminal it is never written.
pub(super) struct Progress {
    is_terminal: bool,
    shown_at: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { is_terminal: stderr().is_terminal(), shown_at: None }
    }

    /// Writes the line over the last one, a few times a second at most.
    pub(super) fn show(&mut self, line: impl Display) {
        let is_soon = self.shown_at.is_some_and(|at| at.elapsed() < PROGRESS_EVERY);
        if self.is_terminal && !is_soon {
            let mut stderr = stderr().lock();
            write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush()).ok();
            self.shown_at = Some(Instant::now());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown_at.is_some() {
            write!(stderr().lock(), "\r\x1b[K").ok();
        }
    }
}

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Odd,
}

/// Text that is styled where standard output is a terminal and `NO_COLOR` is not set.
pub(super) fn styled(style: Style, text: impl Display) -> String {
    paint(style, text, stdout().is_terminal())
}

/// The same for standard error.
pub(super) fn styled_error(style: Style, text: impl Display) -> String {
    paint(style, text, stderr().is_terminal())
}

fn paint(style: Style, text: impl Display, terminal: bool) -> String {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if !terminal || refused {
        return text.to_string();
    }
    let code = match style {
        Style::Bold => 1,
        Style::Dim => 2,
        Style::Good => 32,
        Style::Bad => 31,
        Style::Odd => 33,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Text from outside, made fit for one line of a terminal: control characters are escaped.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| -> Vec<char> {
        if c.is_control() { c.escape_default().collect() } else { vec![c] }
    };
    Cow::Owned(text.chars().flat_map(escaped).collect())
}

/// Text as one word of a shell's line.
pub(super) fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", plain(text).replace('\'', r"'\''"))
}

/// Text of at most `width` characters; what is longer is cut, visibly.
pub(super) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return Cow::Borrowed(text);
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    Cow::Owned(format!("{}…", kept.trim_end()))
}

/// A number and what it counts: `1 event`, `2 events`.
pub(super) fn count(number: u64, one: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {one}{ending}")
}

/// Rows below a heading, each column as wide as its longest cell.
pub(super) struct Table<const COLUMNS: usize> {
    /// The headings.
    pub(super) head: [&'static str; COLUMNS],
    /// The cells.
    pub(super) rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Display for Table<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
        let line = |cells: &[String; COLUMNS]| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        f.write_str(&line(&self.head.map(str::to_owned)))?;
        self.rows.iter().try_for_each(|row| write!(f, "\n{}", line(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("order.created"), "order.created");
        assert_eq!(plain("a\u{1b}[31m\nb\u{e9}"), "a\\u{1b}[31m\\nb\u{e9}");
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = vec![["1".to_owned(), "x".to_owned()], ["1000".to_owned(), String::new()]];
        let table = Table { head: ["id", "type"], rows };
        assert_eq!(table.to_string(), "id    type\n1     x\n1000");
    }

    #[test]
    fn a_word_for_a_shell_stays_one_word() {
        assert_eq!(shell_word("demo-001"), "demo-001");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's $(x)"), r"'it'\''s $(x)'");
    }

    #[test]
    fn long_text_is_cut_and_short_text_is_not() {
        assert_eq!(cut("déjà vu", 7), "déjà vu");
        assert_eq!(cut("déjà vu!", 7), "déjà v…");
    }

    #[test]
    fn colour_is_for_terminals() {
        assert_eq!(paint(Style::Good, "ok", false), "ok");
    }
}
