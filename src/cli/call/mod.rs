//! `onced call`: the caller's half, for cron and scripts: one stable key, kept until the outcome is known, and retries
//! that are safe.

mod intent;
mod kept;
mod tries;
mod verdict;

use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use super::client::{Client, Reply};
use super::output::{Style, complain, cut, plain, shell_word, styled_error};
use super::{Failure, settings};
use crate::call::{Fingerprint, read_body};
use intent::Intent;
use kept::{Open, Place};
use tries::{End, Ended, described, persist};
use verdict::Conclusion;

/// Exit code: the operation refused the request, and the refusal is stored.
const REFUSED: u8 = 3;
/// Exit code: the key was used for another request.
const KEY_REUSED: u8 = 4;
/// Exit code: the outcome is not known within the deadline.
const UNKNOWN: u8 = 5;

/// The longest body that is read, in bytes.
const BODY_MAX: u64 = 32 << 20;
/// The longest line on standard error, in characters.
const LINE_MAX: usize = 500;

/// What `onced call --help` ends with.
pub(super) const HELP: &str = "\
The key is kept in a file until the outcome is known, so the next run of the job asks with the same key, whatever \
happened to this one. What may be retried is retried: lost connections, and answers that say so.

Exit codes:
  0  success, stored: the answer is on standard output
  1  another failure, as 401, 404 or a body that is not valid; calling again does not help
  2  wrong usage
  3  refused by the operation, and the refusal is stored
  4  the key was used for another request
  5  not known within --deadline: run it again, with the same key and body

Examples:
  onced call orders --key demo-001 --data '{\"item\": \"widget\", \"quantity\": 2}'
  onced call orders --key-from job=billing,date=2026-12-01 --data @order.json --deadline 5m
  onced call orders --url https://onced.example --token-file token --key demo-001 --data - < order.json";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The operation's name, or its path where that begins with /
    #[arg(value_name = "OPERATION")]
    operation: String,
    /// The idempotency key, without quotes of its own: one for each intent
    #[arg(long, required_unless_present = "key_from")]
    key: Option<String>,
    /// What identifies the intent: the same parts give the same key, in whatever order
    #[arg(long, value_name = "NAME=VALUE,…", conflicts_with = "key")]
    key_from: Vec<String>,
    /// The body: JSON, or @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    data: String,
    /// Where the daemon listens
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A file with the bearer token to call with
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How long to try
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    deadline: humantime::Duration,
    /// Where open calls are kept; by default $XDG_STATE_HOME/onced/calls (~/.local/state/onced/calls)
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print what came of it as JSON, instead of the answer alone
    #[arg(long)]
    json: bool,
    /// Tell of every attempt that is followed by another
    #[arg(long, short)]
    verbose: bool,
}

/// What is printed with `--json`. Members are only ever added.
#[derive(Serialize)]
struct Report<'a> {
    outcome: &'static str,
    exit_code: u8,
    key: &'a str,
    attempts: u32,
    http_status: Option<u16>,
    replayed: bool,
    request_id: Option<&'a str>,
    /// The line for people; null on success.
    message: Option<&'a str>,
    /// Where the call is kept; null where its outcome is known.
    state_file: Option<String>,
    body: Option<Box<RawValue>>,
}

/// What came of the call.
struct Outcome {
    name: &'static str,
    code: u8,
    message: Option<String>,
    /// Whether nothing is left to be found out.
    is_known: bool,
}

/// Calls. Returns the exit code of what came of it.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let url = base_url(&arguments.url)?;
    let deadline: Duration = arguments.deadline.into();
    if deadline.is_zero() {
        return Err(Failure::Usage("--deadline: some time is needed for one attempt".to_owned()));
    }
    let route = route(&arguments.operation)?;
    let intent = match &arguments.key {
        Some(key) => Intent::of_key(key),
        None => Intent::of_parts(&arguments.key_from),
    };
    let intent = intent.map_err(Failure::Usage)?;
    let token = settings::token(arguments.token_file.as_deref())?;
    let (body, fingerprint) = body(&arguments.operation, &arguments.data)?;
    let directory = match &arguments.state {
        Some(directory) => directory.clone(),
        None => settings::state_directory("calls")?,
    };
    let place = Place::new(directory, &url, &arguments.operation, &intent.text);
    let earlier = place.find()?;
    if let Some(open) = &earlier
        && !is_same(open, &fingerprint)
    {
        return finish(arguments, &place, open, &another_is_open(&place, open), None);
    }
    // An open call is sent as it was: its bytes, and its key, however keys are made by then.
    let was_open = earlier.is_some();
    let open = earlier.unwrap_or_else(|| Open {
        url: url.clone(),
        operation: arguments.operation.clone(),
        intent: intent.text,
        key: intent.key.as_str().to_owned(),
        body,
    });
    place.keep(&open).context("nothing was sent")?;
    let client = Client::new(&url, token, 1);
    let mut ended = persist(&client, &route, &open, deadline, arguments.verbose);
    ended.is_open |= was_open;
    let outcome = outcome(&ended, deadline, &place);
    finish(arguments, &place, &open, &outcome, Some(&ended))
}

fn base_url(text: &str) -> Result<String, Failure> {
    let bad = |why: String| Failure::Usage(format!("--url: {why}"));
    let url = url::Url::parse(text).map_err(|error| bad(format!("{text:?}: {error}")))?;
    let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if !matches!(url.scheme(), "http" | "https") || !is_plain {
        return Err(bad(format!("{text:?} is not of the form http://HOST:PORT or https://HOST")));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn route(operation: &str) -> Result<String, Failure> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if operation.len() > 1
        && operation.starts_with('/')
        && operation.bytes().all(|b| b.is_ascii_graphic())
    {
        return Ok(operation.to_owned());
    }
    if !operation.is_empty() && operation.bytes().all(is_plain) {
        return Ok(format!("/v1/{operation}"));
    }
    let what = "the name of an operation, or its path where that begins with /";
    Err(Failure::Usage(format!("{operation:?} is not {what}")))
}

/// The body, and what tells whether another one is the same request.
fn body(operation: &str, data: &str) -> anyhow::Result<(String, Fingerprint)> {
    let bytes = match data.strip_prefix('@').or((data == "-").then_some("-")) {
        Some("-") => read(stdin().lock()).context("cannot read the body from standard input")?,
        Some(file) => {
            let opened = std::fs::File::open(file).and_then(read);
            opened.with_context(|| format!("cannot read the body from {file}"))?
        }
        None => data.as_bytes().to_vec(),
    };
    let read = read_body(operation, bytes);
    let (body, fingerprint) = read.context("nothing was sent, since --data cannot be a request")?;
    Ok((body.as_str().to_owned(), fingerprint))
}

fn read(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(BODY_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BODY_MAX {
        return Err(std::io::Error::other("it is longer than 32 MiB"));
    }
    Ok(bytes)
}

/// Whether an open call is the same request as the one that is wanted now. White space, the order of members and the
/// way in which numbers are written make no difference, as in the daemon.
fn is_same(open: &Open, wanted: &Fingerprint) -> bool {
    read_body(&open.operation, open.body.clone().into_bytes())
        .is_ok_and(|(_, fingerprint)| fingerprint == *wanted)
}

fn another_is_open(place: &Place, open: &Open) -> Outcome {
    let file = shell_word(&place.file.display().to_string());
    let message = format!(
        "nothing was sent: under the key {} another body was sent before, and its outcome is not known. Send that one \
         again (jq -r .body {file}), or, if nobody needs to know, remove the file",
        open.key
    );
    Outcome { name: "key_reused", code: KEY_REUSED, message: Some(message), is_known: false }
}

fn outcome(ended: &Ended, deadline: Duration, place: &Place) -> Outcome {
    let (conclusion, reply) = match &ended.end {
        End::Answer(conclusion, reply) => (*conclusion, reply),
        End::Unknown(why) => {
            let within = humantime::format_duration(deadline);
            let message = format!(
                "not known within {within}: run it again, with the same body. The last attempt: {why}"
            );
            return Outcome {
                name: "unknown",
                code: UNKNOWN,
                message: Some(message),
                is_known: false,
            };
        }
    };
    let described = match &reply.request_id {
        Some(id) => format!("{} (request {id})", described(reply)),
        None => {
            format!(
                "{}; this answer is not from onced: is --url right?",
                cut(&described(reply), 200)
            )
        }
    };
    let known = |name, code, message| Outcome { name, code, message, is_known: true };
    match conclusion {
        Conclusion::Done => known("succeeded", 0, None),
        Conclusion::Refused => known("refused", REFUSED, Some(described)),
        Conclusion::Reused => known("key_reused", KEY_REUSED, Some(described)),
        Conclusion::Failed if ended.is_open => {
            let file = place.file.display();
            let message =
                format!("{described}. An attempt before may have taken effect; kept in {file}");
            Outcome { is_known: false, ..known("failed", 1, Some(message)) }
        }
        Conclusion::Failed => known("failed", 1, Some(described)),
    }
}

/// Says what came of the call, and then forgets it, or keeps it.
fn finish(
    arguments: &Arguments,
    place: &Place,
    open: &Open,
    outcome: &Outcome,
    ended: Option<&Ended>,
) -> Result<ExitCode, Failure> {
    let reply = ended.and_then(|ended| match &ended.end {
        End::Answer(_, reply) => Some(reply),
        End::Unknown(_) => None,
    });
    if arguments.json {
        let attempts = ended.map_or(0, |ended| ended.attempts);
        let report = report(place, open, outcome, attempts, reply);
        print(&serde_json::to_vec_pretty(&report).context("the report is no JSON")?)?;
    } else if let (0, Some(reply)) = (outcome.code, reply) {
        print(&reply.body)?;
    }
    if let (false, Some(message)) = (arguments.json, &outcome.message) {
        let line = cut(&plain(message), LINE_MAX).into_owned();
        complain(format_args!("{} {line}", styled_error(Style::Bad, "onced call:")));
    }
    // After the answer was written: where that fails, the next run gets it again. What came of the call stands, also
    // where the file does not obey; whoever finds it sends the same request, and gets the same answer.
    let settled = match (outcome.is_known, ended) {
        (true, _) => place.clear(),
        // Another run of the same job may have taken it away.
        (false, Some(_)) if !place.file.exists() => place.keep(open),
        (false, _) => Ok(()),
    };
    if let Err(error) = settled {
        complain(format_args!("{} {error:#}", styled_error(Style::Odd, "onced call:")));
    }
    Ok(ExitCode::from(outcome.code))
}

/// Writes a line to standard output, and fails where it cannot: a caller must not take silence for an answer.
fn print(line: &[u8]) -> anyhow::Result<()> {
    let mut stdout = stdout().lock();
    let end: &[u8] = if line.is_empty() { b"" } else { b"\n" };
    let written = stdout.write_all(line).and_then(|()| stdout.write_all(end));
    written.and_then(|()| stdout.flush()).context("standard output does not take the answer")
}

fn report<'a>(
    place: &Place,
    open: &'a Open,
    outcome: &'a Outcome,
    attempts: u32,
    reply: Option<&'a Reply>,
) -> Report<'a> {
    Report {
        outcome: outcome.name,
        exit_code: outcome.code,
        key: &open.key,
        attempts,
        http_status: reply.map(|reply| reply.status),
        replayed: reply.is_some_and(|reply| reply.replayed),
        request_id: reply.and_then(|reply| reply.request_id.as_deref()),
        message: outcome.message.as_deref(),
        state_file: (!outcome.is_known).then(|| place.file.display().to_string()),
        body: reply.and_then(|reply| serde_json::from_slice(&reply.body).ok()),
    }
}
