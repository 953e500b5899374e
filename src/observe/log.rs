//! The log: where lines go, which of them, and how one looks.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Stderr, Write};

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Starts the log, on standard error. `ONCED_LOG` overrides the configured level with a filter of `tracing`.
///
/// A line has no time of its own where the journal puts one.
pub fn start_log(log: &Log) {
    let filter = std::env::var("ONCED_LOG").unwrap_or_else(|_| log.level.clone());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(directives(&filter)))
        .with_writer(|| OneLine(io::stderr()))
        // Colours are control characters, which a line must not have.
        .with_ansi(false)
        // A line that cannot be written must not end the thread that wanted to say it.
        .log_internal_errors(false);
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some() && !io::stderr().is_terminal();
    let started = match (log.format, in_journal) {
        (LogFormat::Json, _) => builder.json().flatten_event(true).try_init(),
        (LogFormat::Text, true) => builder.with_target(false).without_time().try_init(),
        (LogFormat::Text, false) => builder.with_target(false).try_init(),
    };
    // It fails only where a log was started before, as tests do.
    started.unwrap_or_default();
}

/// A bare level is for our own lines: below `warn` the libraries tell every statement with its parameters, which are
/// the callers' data.
fn directives(filter: &str) -> String {
    match filter.to_ascii_lowercase().as_str() {
        level @ ("info" | "debug" | "trace") => format!("warn,onced={level}"),
        _ => filter.to_owned(),
    }
}

/// Standard error, on which each event is one line: what callers, the database or a sink wrote can neither begin another
/// line nor speak to the terminal.
struct OneLine(Stderr);

impl Write for OneLine {
    /// Takes a whole event, as `tracing-subscriber` writes it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        self.0.write_all(format!("{}\n", one_line(&String::from_utf8_lossy(line))).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes control characters as their escapes.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(escaped).collect::<String>().into()
}

/// Whether a log filter means what it seems to: a level, or directives such as `info,onced::relay=debug`.
///
/// # Errors
/// What is wrong with it. A word that is no level would count as the name of a target, and silence all others.
pub fn check_filter(filter: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_bare = |word: &&str| !word.contains(['=', '[']);
    let mut bare = filter.split(',').map(str::trim).filter(is_bare);
    if let Some(word) = bare.find(|word| !is_level(word)) {
        return Err(format!("{word:?} is not one of {}", LEVELS.join(", ")));
    }
    let parsed = EnvFilter::builder().parse(filter);
    parsed.map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_as_escapes() {
        assert_eq!(
            one_line("a\n2026 ERROR\r\u{1b}[31m\u{9b}é"),
            "a\\n2026 ERROR\\r\\u{1b}[31m\\u{9b}é"
        );
        assert!(matches!(one_line("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_bare_level_below_warn_is_for_our_own_lines() {
        assert_eq!(directives("DEBUG"), "warn,onced=debug");
        assert_eq!(directives("error"), "error");
        assert_eq!(directives("info,postgres=debug"), "info,postgres=debug");
    }
}
