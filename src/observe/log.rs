//! The log: where lines go, which of them, and how one looks.

use std::io::{self, IsTerminal, Stderr, Write};

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Starts the log, on standard error. `ONCED_LOG` overrides the configured level with a filter of `tracing`.
///
/// A line has no time of its own where the journal puts one, and colour only on a terminal.
pub fn start_log(log: &Log) {
    let filter = std::env::var("ONCED_LOG").unwrap_or_else(|_| log.level.clone());
    let is_terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(directives(&filter)))
        .with_writer(|| OneLine(io::stderr()))
        .with_ansi(is_terminal)
        // A line that cannot be written must not end the thread that wanted to say it.
        .log_internal_errors(false);
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some() && !is_terminal;
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

/// Standard error, on which each event is one line: what callers, the database or a sink wrote cannot begin another, nor
/// speak to the terminal.
struct OneLine(Stderr);

impl Write for OneLine {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return self.0.write(event);
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for &byte in text {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                _ => line.push(byte),
            }
        }
        line.push(b'\n');
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
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
