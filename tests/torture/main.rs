//! The torture run: many callers, two daemons on one PostgreSQL, a sink, and a fault every few seconds, drawn from a
//! seed. At the end everything that was asked, answered, stored and delivered is held against the promises.
//!
//! `scripts/torture --minutes N --seed S` runs it. The faults of a seed are always the same; what they meet is not.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a run that cannot go on ends, and tells why"
)]
#![expect(unreachable_pub, reason = "nobody can use a test from outside")]

mod checker; // the promises, held against a history
mod clients; // what callers send, and what they note
mod clock; // the time of a run
mod faults; // brings the faults that were planned
mod history; // what is known of a run from outside
mod plan; // seed to faults
mod proxy; // cuts, stalls, delays, and loses replies
mod report; // what people are told
#[path = "../integration/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the suite of tests uses the rest")]
mod support;
mod tables; // reads the tables
mod world; // what is tortured

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use crossbeam_channel::bounded;
use nix::sys::signal::Signal;

use checker::{Finding, Terms};
use clients::{Caller, Intent};
use clock::now;
use faults::Came;
use history::{Call, Form, History};
use plan::{LANES, Limits, Mood};
use proxy::Mode;
use support::wait::pause;
use world::{DAEMONS, PRINCIPALS, SECRET, WAIT, World, within};

/// Tortures onced for some minutes, and checks all that it promises
#[derive(Parser)]
struct Arguments {
    /// How long the faults go on
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: f32,
    /// What the faults and the requests are drawn from; by default another one each time
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn minutes(text: &str) -> Result<f32, String> {
    let minutes = text.parse::<f32>().ok().filter(|minutes| (0.1..=600.0).contains(minutes));
    minutes.ok_or_else(|| "a number from 0.1 to 600".to_owned())
}

const CALLERS: usize = 32;
/// How long a daemon may take until it serves again once nothing is wrong any more, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long the callers may take at the end until every key has its answer.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// How long the relays may take at the end until every event is sent.
const DELIVERY_LIMIT: Duration = Duration::from_secs(40);
/// Keys with an answer that are asked for it once more at the end.
const ASKED_AGAIN: usize = 1500;
/// What an answer may take beyond `http.wait`, on a busy machine.
const SLACK: Duration = Duration::from_secs(6);
/// What a daemon may hold when nobody calls.
const THREADS_AT_REST: usize = 64;
const FILES_AT_REST: usize = 64;

fn main() -> ExitCode {
    // Whoever runs all tests asks this one for a list, or passes it a filter. There is nothing to do then.
    if !std::env::args().any(|argument| argument.starts_with("--minutes") || argument == "--help") {
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    match run(arguments.minutes, seed) {
        Ok(Some(true)) => ExitCode::SUCCESS,
        Ok(Some(false)) => ExitCode::FAILURE,
        Ok(None) => {
            println!("stopped by a signal; nothing was checked");
            ExitCode::from(130)
        }
        Err(error) => {
            println!("seed {seed}: the run could not go on: {error:#}\n0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything held; `None` where a signal ended it.
fn run(minutes: f32, seed: u64) -> anyhow::Result<Option<bool>> {
    let signalled = onced::signals::stop_flag().context("cannot listen to signals")?;
    let length = Duration::from_secs_f32(minutes * 60.0);
    let limits = Limits::draw(seed);
    println!("torture: seed {seed}, {minutes} minutes, {limits:?}");
    let world = World::start(minutes, limits)?;
    let started = now();
    let came = Mutex::new(Vec::new());
    let mut calls = attack(&world, seed, length, &signalled, &came);
    if signalled.load(Ordering::Relaxed) {
        return Ok(None);
    }
    println!("the faults are over after {:.0} s; settling", (now() - started) as f64 / 1e6);
    restore(&world)?;
    let settling = Instant::now();
    let (settled, left) = clients::settle(&world, unsettled(&calls, seed), seed, &|| {
        signalled.load(Ordering::Relaxed) || settling.elapsed() > SETTLE_LIMIT
    });
    calls.extend(settled);
    let mut history = History { calls, ..History::default() };
    let stuck = left.iter().map(|intent| format!("{}: still no answer: {intent:?}", intent.key));
    history.stuck.extend(stuck);
    observe(&world, &mut history, &signalled)?;
    if signalled.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let faults = came.into_inner().unwrap();
    let answer_limit = i64::try_from((WAIT + SLACK).as_micros())?;
    let mut findings = checker::check(&history, Terms { answer_limit, secret: SECRET });
    let troubles = world.troubles.lock().unwrap().clone();
    findings.extend(troubles.into_iter().map(|text| Finding { promise: "alive", key: None, text }));
    let lost_replies = world.to_database.iter().map(proxy::Proxy::lost).sum();
    let (history, faults, findings) = (&history, &faults, &findings);
    report::Report { seed, started, history, faults, lost_replies, findings }.print();
    if !findings.is_empty() {
        keep_logs(&world, seed)?;
    }
    Ok(Some(findings.is_empty()))
}

/// Calls and faults, until the time is over or a signal comes.
fn attack(
    world: &World,
    seed: u64,
    length: Duration,
    signalled: &AtomicBool,
    came: &Mutex<Vec<Came>>,
) -> Vec<Call> {
    let (stop, stopped) = bounded::<Infallible>(0);
    let stopped = &stopped;
    thread::scope(|scope| {
        for lane in LANES {
            let planned = plan::plan(lane, seed, length);
            scope.spawn(move || faults::bring(world, &planned, stopped, came));
        }
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let caller_seed = seed.wrapping_mul(1000).wrapping_add(number as u64);
                let caller = Caller::new(world, format!("c{number}"), caller_seed);
                scope.spawn(move || caller.run(stopped))
            })
            .collect();
        let deadline = Instant::now() + length;
        while Instant::now() < deadline && !signalled.load(Ordering::Relaxed) {
            pause(Duration::from_millis(100));
        }
        drop(stop);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

/// Takes all faults back, and waits until the daemons are ready.
fn restore(world: &World) -> anyhow::Result<()> {
    for proxy in world.to_database.iter().chain([&world.to_sink]) {
        proxy.set(Mode::Forward);
        proxy.lose_replies(0);
    }
    world.sink.set(Mood::Well);
    world.postgres().see_that_it_runs()?;
    world.look_after_daemons()?;
    for (number, daemon) in world.daemons.iter().enumerate() {
        daemon.signal(Signal::SIGCONT)?;
        let began = Instant::now();
        if !daemon.comes_to("/readyz") || began.elapsed() > READY_LIMIT {
            let (took, log) = (began.elapsed(), daemon.log_tail());
            world.trouble(format!("daemon {number} was not ready {took:?} after all:\n{log}"));
        }
    }
    Ok(())
}

/// What has no stored answer yet, and some of what has.
fn unsettled(calls: &[Call], seed: u64) -> Vec<Intent> {
    let mut keys: BTreeMap<(&str, &str), (bool, &Call)> = BTreeMap::new();
    let can_end = |call: &Call| call.request["end"] != "broken" && call.request["sleep_ms"] != 3500;
    for call in calls.iter().filter(|call| call.form == Form::Whole && can_end(call)) {
        let is_answered = call.answer().is_some_and(history::Answer::is_stored);
        let entry = keys.entry((&call.scope, &call.key)).or_insert((is_answered, call));
        if is_answered && !entry.0 {
            *entry = (true, call);
        }
    }
    let (answered, mut open): (Vec<_>, Vec<_>) = keys.into_values().partition(|(done, _)| *done);
    println!("{} keys have an answer, {} have none", answered.len(), open.len());
    open.extend(fastrand::Rng::with_seed(seed).choose_multiple(answered, ASKED_AGAIN));
    open.into_iter().map(|(_, call)| intent_of(call)).collect()
}

fn intent_of(call: &Call) -> Intent {
    let principal = PRINCIPALS.iter().position(|(name, _)| *name == call.scope);
    Intent {
        principal: principal.expect("a principal of ours"),
        key: call.key.clone(),
        operation: if call.operation == "transfers" { "transfers" } else { "refunds" },
        request: call.request.clone(),
    }
}

/// Waits until all is quiet, and reads everything.
fn observe(world: &World, history: &mut History, signalled: &AtomicBool) -> anyhow::Result<()> {
    let mut session = world.postgres().session()?;
    let mut count = |sql: &str| session.query_one(sql, &[]).map_or(-1, |row| row.get::<_, i64>(0));
    within(DELIVERY_LIMIT, || {
        signalled.load(Ordering::Relaxed)
            || count("SELECT count(*) FROM outbox_events WHERE sent_at IS NULL AND dead_at IS NULL")
                == 0
    });
    let quiet = [
        (
            "transactions are open without doing anything",
            "SELECT count(*) FROM pg_stat_activity
             WHERE usename = 'onced_torture' AND state LIKE 'idle in transaction%'",
        ),
        (
            "advisory locks are held",
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
             WHERE usename = 'onced_torture' AND locktype = 'advisory'",
        ),
        (
            "sessions are too many",
            "SELECT greatest(count(*) - 18, 0) FROM pg_stat_activity WHERE usename = 'onced_torture'",
        ),
    ];
    for (what, sql) in quiet {
        if !within(Duration::from_secs(10), || count(sql) == 0) {
            history.stuck.push(format!("{} {what}", count(sql)));
        }
    }
    let dead = count("SELECT count(*) FROM outbox_events WHERE dead_at IS NOT NULL");
    for number in 0..DAEMONS {
        check_rest(world, number, dead, history);
    }
    tables::read(&mut session, history)?;
    history.deliveries = world.sink.deliveries();
    history.absences = world.absences.lock().unwrap().clone();
    Ok(())
}

fn check_rest(world: &World, number: usize, dead: i64, history: &mut History) {
    let daemon = &world.daemons[number];
    let mut seen = None;
    let rests = within(Duration::from_secs(10), || {
        seen = daemon.size();
        seen.is_some_and(|(threads, files)| threads <= THREADS_AT_REST && files <= FILES_AT_REST)
    });
    if !rests {
        history.stuck.push(format!("daemon {number} at rest has (threads, files) {seen:?}"));
    }
    let metrics = [
        ("onced_jobs_waiting", 0),
        ("onced_parked_waiting", 0),
        ("onced_outbox_pending", 0),
        ("onced_outbox_dead", dead),
    ];
    for (metric, value) in metrics {
        if !within(Duration::from_secs(20), || daemon.metric(metric) == Some(value as f64)) {
            let value = daemon.metric(metric);
            history.stuck.push(format!("daemon {number} at rest: {metric} is {value:?}"));
        }
    }
    for line in daemon.log_about("panic") {
        world.trouble(format!("daemon {number} tells of a panic: {line}"));
    }
}

/// Keeps the logs of a run that found something.
fn keep_logs(world: &World, seed: u64) -> anyhow::Result<()> {
    let folder = support::daemon::root().join(format!("target/torture-{seed}"));
    fs::create_dir_all(&folder)?;
    for (number, daemon) in world.daemons.iter().enumerate() {
        fs::copy(daemon.log(), folder.join(format!("daemon-{number}.log")))?;
    }
    eprintln!("the logs are in {}", folder.display());
    Ok(())
}
