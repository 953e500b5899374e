//! The checks themselves. Each uses keys that no other run has, and takes nothing away afterwards.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_channel::bounded;

use super::Verdict;
use super::delivery;
use crate::cli::client::{Client, Reply};
use crate::config::Config;
use crate::store::rows::{Counter, Rows};
use crate::threads;

/// Calls that A1 sends at once.
pub(super) const CALLERS: usize = 20;
/// How long A1 waits for all of its answers.
const CALLS_LIMIT: Duration = Duration::from_secs(120);
const ROUTE: &str = "/v1/orders";
const ORDER: &str = r#"{"item": "widget", "quantity": 2}"#;
const OTHER_ORDER: &str = r#"{"item": "widget", "quantity": 3}"#;
/// What one request to `orders` writes.
const ONE: Rows = Rows { records: 1, orders: 1, events: 2 };
const NONE: Rows = Rows { records: 0, orders: 0, events: 0 };

/// One check.
pub(super) type Check = fn(&mut Run) -> anyhow::Result<Verdict>;

/// All of them, in order.
pub(super) const ALL: [(&str, &str, Check); 7] = [
    ("A1", "20 calls at once with one new key take effect once", concurrent_calls),
    ("A2", "a new key adds one record, one order and two events", new_key),
    ("A3", "the same key with another body is a conflict and writes nothing", other_body),
    ("A4", "one request writes two events, and a replay leaves two", replay),
    ("A5", "a consumer that drops known ids has one effect for each event", delivery::one_effect),
    ("A6", "no event is claimed by two relays at a time", claims),
    ("A7", "after a kill -9 in a write the retry gives one effect", killed),
];

/// What a run of the checks works with.
pub(super) struct Run {
    pub(super) client: Client,
    /// Common to the keys of this run, and to no others.
    pub(super) prefix: String,
    /// Where events go, or why that is not known.
    pub(super) sink: Result<String, String>,
    /// Counts rows, or why there is no counting.
    rows: Result<Counter, String>,
}

/// What was found wrong, one remark each; nothing where all is right.
#[derive(Default)]
struct Remarks(Vec<String>);

impl Remarks {
    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.0.push(otherwise());
        }
    }

    /// Passed, with what was seen, or failed with it and the remarks.
    fn verdict(self, seen: String) -> Verdict {
        if self.0.is_empty() {
            Verdict::Passed(seen)
        } else {
            Verdict::Failed(format!("{}; saw {seen}", self.0.join("; ")))
        }
    }
}

impl Run {
    pub(super) fn new(client: Client, config: Option<&Config>) -> anyhow::Result<Run> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system gives no random bytes")?;
        let prefix = random.iter().fold("verify-".to_owned(), |mut prefix, byte| {
            write!(prefix, "{byte:02x}").expect("a string takes every character");
            prefix
        });
        let rows = match config {
            None => Err("no configuration given".to_owned()),
            Some(config) => Counter::open(&config.database).map_err(|error| error.to_string()),
        };
        Ok(Run { client, prefix, sink: delivery::sink_of(config), rows })
    }

    fn key(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn order(&self, key: &str) -> anyhow::Result<Reply> {
        let reply = self.client.call(ROUTE, key, ORDER)?;
        match reply.status {
            401 => anyhow::bail!("the daemon asks for a token: give one with --token-file"),
            404 => {
                anyhow::bail!("the daemon does not serve {ROUTE}, the shipped operation `orders`")
            }
            _ => Ok(reply),
        }
    }

    /// Counts the rows of a key; remarks on it where they are not what they should be. Returns what to tell of it.
    fn rows(&mut self, key: &str, expected: Rows, remarks: &mut Remarks) -> anyhow::Result<String> {
        let counter = match &mut self.rows {
            Ok(counter) => counter,
            Err(reason) => return Ok(format!("rows not counted ({reason})")),
        };
        let found = counter.count(key).context("cannot count rows")?;
        let told = format!("rows: {}", tell(found));
        remarks.expect(found == expected, || format!("there should be {}", tell(expected)));
        Ok(told)
    }

    /// The ids of the events of a key, as the daemon tells them.
    pub(super) fn events(&self, key: &str) -> anyhow::Result<Vec<String>> {
        let reply = self.client.get(&format!("/v1/requests/{key}"))?;
        anyhow::ensure!(reply.status == 200, "looking up {key} gave {}", reply.status);
        let value = reply.json();
        let events = value["events"].as_array().context("the look-up shows no events")?;
        Ok(events.iter().filter_map(|e| Some(e["event_key"].as_str()?.to_owned())).collect())
    }
}

fn tell(rows: Rows) -> String {
    let counted =
        |count: i64, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    format!(
        "{}, {}, {}",
        counted(rows.records, "record"),
        counted(rows.orders, "order"),
        counted(rows.events, "event")
    )
}

/// A1
fn concurrent_calls(run: &mut Run) -> anyhow::Result<Verdict> {
    let key = run.key("a1");
    run.order(&run.key("a1-first-contact"))?;
    let replies = call_at_once(&run.client, &key)?;
    let mut remarks = Remarks::default();
    let good = replies.iter().filter(|reply| reply.is_success()).count();
    let bodies: HashSet<&[u8]> = replies.iter().map(|reply| reply.body.as_slice()).collect();
    let replayed = replies.iter().filter(|reply| reply.replayed).count();
    remarks.expect(good == CALLERS, || format!("all {CALLERS} should succeed"));
    remarks.expect(bodies.len() == 1, || "all should get the same body".to_owned());
    remarks.expect(replayed == CALLERS - 1, || "all but one should be replays".to_owned());
    let rows = run.rows(&key, ONE, &mut remarks)?;
    let bodies = match bodies.len() {
        1 => "all bodies equal".to_owned(),
        count => format!("{count} different bodies"),
    };
    Ok(remarks
        .verdict(format!("{good} of {CALLERS} succeeded, {replayed} replayed, {bodies}; {rows}")))
}

/// Sends the same order on as many threads, and waits for all answers.
fn call_at_once(client: &Client, key: &str) -> anyhow::Result<Vec<Reply>> {
    let (deaths, _died) = bounded(CALLERS);
    let (answers, answered) = bounded(CALLERS);
    for number in 0..CALLERS {
        let (client, key, answers) = (client.clone(), key.to_owned(), answers.clone());
        let call = move || {
            // Nobody waits any more where the other end is gone.
            answers.send(client.call(ROUTE, &key, ORDER)).ok();
        };
        threads::spawn(format!("verify-{number}"), &deaths, call)
            .context("cannot start a thread")?;
    }
    drop(answers);
    let deadline = Instant::now() + CALLS_LIMIT;
    let mut replies = Vec::new();
    while replies.len() < CALLERS {
        replies.push(answered.recv_deadline(deadline).context("an answer is missing")??);
    }
    Ok(replies)
}

/// A2
fn new_key(run: &mut Run) -> anyhow::Result<Verdict> {
    let key = run.key("a2");
    let mut remarks = Remarks::default();
    run.rows(&key, NONE, &mut remarks)?;
    let reply = run.order(&key)?;
    remarks.expect(reply.is_success() && !reply.replayed, || "it should run as new".to_owned());
    let rows = run.rows(&key, ONE, &mut remarks)?;
    Ok(remarks.verdict(format!("status {}; {rows}", reply.status)))
}

/// A3
fn other_body(run: &mut Run) -> anyhow::Result<Verdict> {
    let key = run.key("a3");
    let mut remarks = Remarks::default();
    let first = run.order(&key)?;
    let other = run.client.call(ROUTE, &key, OTHER_ORDER)?;
    let problem = other.problem();
    remarks.expect(first.is_success(), || format!("the first call gave {}", first.status));
    remarks
        .expect(matches!(other.status, 409 | 422) && problem == "idempotency-key-reused", || {
            "the other body should be refused as idempotency-key-reused".to_owned()
        });
    let rows = run.rows(&key, ONE, &mut remarks)?;
    Ok(remarks.verdict(format!("first {}, then {} {problem}; {rows}", first.status, other.status)))
}

/// A4
fn replay(run: &mut Run) -> anyhow::Result<Verdict> {
    let key = run.key("a4");
    let mut remarks = Remarks::default();
    let first = run.order(&key)?;
    let before = run.events(&key)?;
    let second = run.order(&key)?;
    let after = run.events(&key)?;
    remarks.expect(first.is_success(), || format!("the first call gave {}", first.status));
    remarks.expect(second.replayed, || "the second call should be a replay".to_owned());
    remarks.expect(first.body == second.body, || "both bodies should be equal".to_owned());
    remarks.expect(before.len() == 2, || "the first call should write two events".to_owned());
    remarks.expect(before == after, || "the replay should leave the same two events".to_owned());
    let rows = run.rows(&key, ONE, &mut remarks)?;
    let (before, after) = (before.len(), after.len());
    Ok(remarks.verdict(format!("{before} events, after the replay {after}; {rows}")))
}

/// A6
#[expect(clippy::unnecessary_wraps, reason = "all checks have one shape")]
fn claims(_: &mut Run) -> anyhow::Result<Verdict> {
    let reason = "which relay holds an event at what moment cannot be seen from outside";
    Ok(Verdict::Skipped(reason.to_owned()))
}

/// A7
#[expect(clippy::unnecessary_wraps, reason = "all checks have one shape")]
fn killed(_: &mut Run) -> anyhow::Result<Verdict> {
    Ok(Verdict::Skipped("it needs a daemon that may be killed; this one is in use".to_owned()))
}
