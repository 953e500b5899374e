//! `onced verify`: the promises, tried on a running daemon with the shipped `orders`.

mod checks;
mod delivery;

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::client::Client;
use super::output::{Style, complain, say, say_json, styled};
use super::settings;
use crate::config::{Config, Listen};
use checks::Run;

/// Where a daemon listens that was not told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where the daemon listens; by default as its configuration says, else http://127.0.0.1:8080
    #[arg(long)]
    url: Option<String>,
    /// A file with the bearer token to call with
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It holds; what was seen.
    Passed(String),
    /// It does not; what was seen and what should have been.
    Failed(String),
    /// It was not tried; why.
    Skipped(String),
}

/// A check, what it is about, and what came of it.
struct Line {
    name: &'static str,
    about: &'static str,
    verdict: Verdict,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Verdict::Passed(_) => "passed",
            Verdict::Failed(_) => "failed",
            Verdict::Skipped(_) => "skipped",
        }
    }

    fn detail(&self) -> &str {
        let (Verdict::Passed(detail) | Verdict::Failed(detail) | Verdict::Skipped(detail)) = self;
        detail
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = match self.verdict {
            Verdict::Passed(_) => Style::Good,
            Verdict::Failed(_) => Style::Bad,
            Verdict::Skipped(_) => Style::Odd,
        };
        let word = styled(style, format_args!("{:7}", self.verdict.word()));
        write!(f, "{word}  {}  {}\n             {}", self.name, self.about, self.verdict.detail())
    }
}

/// Runs all checks. Returns whether each that could be tried has passed.
pub(super) fn run(config: Option<PathBuf>, arguments: &Arguments) -> anyhow::Result<bool> {
    let config = known_config(config, arguments)?;
    let url = url(config.as_ref(), arguments)?;
    let token = settings::token(arguments.token_file.as_deref())?;
    let client = Client::new(&url, token, checks::CALLERS);
    let mut run = Run::new(client, config.as_ref())?;
    if !arguments.json {
        say(format_args!("{} {url}, keys {}-*", styled(Style::Bold, "Verifying"), run.prefix));
    }
    let mut lines = Vec::new();
    let mut tell = |line: Line| {
        if !arguments.json {
            say(&line);
        }
        lines.push(line);
    };
    for (name, about, check) in checks::ALL {
        // What stands in the way of one check stands in the line of that check.
        let verdict = check(&mut run).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")));
        tell(Line { name, about, verdict });
    }
    let passed = !lines.iter().any(|line| matches!(line.verdict, Verdict::Failed(_)));
    if arguments.json {
        say_json(&report(&url, &lines, passed));
    } else {
        conclude(&lines, passed);
    }
    Ok(passed)
}

/// The configuration, where there is one. It must be right where it was asked for; where only a URL was given, the
/// one that lies about is somebody else's.
fn known_config(file: Option<PathBuf>, arguments: &Arguments) -> anyhow::Result<Option<Config>> {
    if file.is_none() && arguments.url.is_some() {
        return Ok(None);
    }
    let asked_for = file.is_some();
    match settings::load(file) {
        Ok(config) => Ok(Some(config)),
        Err(problems) if asked_for => Err(problems.into()),
        Err(problems) => {
            complain(format_args!("going on without a configuration:\n{problems}"));
            Ok(None)
        }
    }
}

fn url(config: Option<&Config>, arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(url) = &arguments.url {
        return Ok(url.clone());
    }
    match config.map(|config| &config.http.listen) {
        None => Ok(DEFAULT_URL.to_owned()),
        Some(Listen::Tcp(address)) if address.ip().is_unspecified() => {
            Ok(format!("http://127.0.0.1:{}", address.port()))
        }
        Some(Listen::Tcp(address)) => Ok(format!("http://{address}")),
        Some(Listen::Unix(_) | Listen::Systemd(_)) => anyhow::bail!(
            "[http] listen is no TCP address: say with --url where the daemon can be reached"
        ),
    }
}

fn conclude(lines: &[Line], passed: bool) {
    let count = |word: &str| lines.iter().filter(|line| line.verdict.word() == word).count();
    let counts = format!(
        "{} passed, {} failed, {} skipped",
        count("passed"),
        count("failed"),
        count("skipped")
    );
    say("");
    if passed {
        say(format_args!("{}: {counts}", styled(Style::Good, "Every check that was tried passed")));
    } else {
        say(format_args!("{}: {counts}", styled(Style::Bad, "Not all is well")));
    }
}

fn report(url: &str, lines: &[Line], passed: bool) -> Value {
    let checks: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({
                "check": line.name,
                "about": line.about,
                "result": line.verdict.word(),
                "detail": line.verdict.detail(),
            })
        })
        .collect();
    json!({ "url": url, "passed": passed, "checks": checks })
}
