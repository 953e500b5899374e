//! Clocks that jump, and a daemon that is frozen: times are measured, not read off a clock that somebody sets.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;

use crate::support::daemon::ORDER;
use crate::support::sink::{Reply, Sink};
use crate::support::wait::{pause, until, until_eq};
use crate::support::{Daemon, Database, Setup, fresh_key};

/// Debian's package `faketime` puts it here.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const DAY: i64 = 24 * 3600;

/// A clock that the daemon goes by and the test sets; what measures time is not touched, as when a clock is set.
struct Clock {
    file: tempfile::NamedTempFile,
}

impl Clock {
    /// `None`, with a word, where libfaketime is not installed.
    fn new() -> Option<Clock> {
        if !Path::new(FAKETIME).exists() {
            eprintln!("skipped: libfaketime is not installed");
            return None;
        }
        let clock = Clock { file: tempfile::NamedTempFile::new().unwrap() };
        clock.set(0);
        Some(clock)
    }

    fn given_to(&self, setup: Setup) -> Setup {
        setup
            .env("LD_PRELOAD", FAKETIME)
            .env("FAKETIME_TIMESTAMP_FILE", self.file.path().to_str().unwrap())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Sets it so many seconds off.
    fn set(&self, offset: i64) {
        fs::write(self.file.path(), format!("{offset:+}")).unwrap();
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// The time that the process has computed, in hundredths of a second.
fn computed(daemon: &Daemon) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum()
}

#[test]
fn a_clock_that_is_set_moves_the_webhooks_timestamp_and_nothing_else() {
    let Some(clock) = Clock::new() else { return };
    let database = Database::new();
    let sink = Sink::start();
    let setup = Setup::on(&database)
        .operation("sleepy")
        .set("retention.records", "1h")
        .set("retention.events", "1h")
        .set("retention.every", "100ms")
        .sink(&sink);
    let mut daemon = clock.given_to(setup).start();
    for (round, offset) in [0, -DAY, DAY].into_iter().enumerate() {
        let gate = database.shut_gate(1);
        let (waiting, key) = (fresh_key(), fresh_key());
        let mut call = daemon.client().begin("sleepy", &waiting, r#"{"gate": 1}"#);
        gate.wait_for(1);
        clock.set(offset);
        // Who waits goes on waiting, and is answered.
        assert!(call.is_silent());
        gate.open();
        assert_eq!(call.answer().status, 201);
        assert_eq!(daemon.order(&key).status, 201);
        let deliveries = sink.wait_for(3 * (round + 1));
        for delivery in &deliveries[3 * round..] {
            let off = delivery.timestamp.parse::<i64>().unwrap() - now() - offset;
            assert!((-20..=1).contains(&off), "{off} of {offset}");
        }
    }
    // By the daemon's clock all is a day old, or of tomorrow.
    until_eq("all is settled", &9, || {
        database.value::<i64>("SELECT count(sent_at) FROM outbox_events", &[])
    });
    assert_eq!((database.rows("idempotency_records"), database.rows("outbox_events")), (6, 9));
    assert_eq!(sink.deliveries().len(), 9);
    assert!(daemon.is_alive());
}

#[test]
fn a_clock_that_steps_to_and_fro_makes_no_busy_loop_and_no_early_attempt() {
    let Some(clock) = Clock::new() else { return };
    let database = Database::new();
    // The first attempt fails, and says when to come again.
    let sink = Sink::answering(|_, before| match before {
        0 => Reply { header: Some(("Retry-After", "2".to_owned())), ..Reply::status(503) },
        _ => Reply::status(204),
    });
    let setup = Setup::on(&database)
        .inline("tell", r#"SELECT '[{"type": "told", "payload": null}]'::jsonb AS events"#);
    let daemon = clock.given_to(setup.sink(&sink)).start();
    assert_eq!(daemon.post("tell", &fresh_key(), "1").status, 200);
    sink.wait_for(1);
    let (begun, before) = (Instant::now(), computed(&daemon));
    let mut came = None;
    for step in 0..8 {
        clock.set(if step % 2 == 0 { 5 } else { -5 });
        pause(Duration::from_millis(500));
        if came.is_none() && sink.deliveries().len() > 1 {
            came = Some(begun.elapsed());
        }
    }
    let came = came.expect("the second attempt is made");
    assert!(came >= Duration::from_millis(1900), "{came:?}");
    assert_eq!(sink.deliveries().len(), 2);
    let used = computed(&daemon) - before;
    assert!(used < 100, "{used} hundredths of a second in four");
}

/// All that settling changes of the one event.
fn event(database: &Database) -> (i64, i32, Option<String>, bool, String) {
    let sql =
        "SELECT claims, attempts, last_error, sent_at IS NOT NULL, due_at::text FROM outbox_events";
    let row = database.session().query_one(sql, &[]).unwrap();
    (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
}

#[test]
fn a_daemon_that_is_thawed_does_not_settle_what_is_another_ones_by_now() {
    let database = Database::new();
    let sink = Sink::answering(|_, before| Reply {
        // The first one sits in the frozen daemon's connection.
        after: Duration::from_millis(if before == 0 { 300 } else { 0 }),
        ..Reply::status(500)
    });
    let setup = || {
        Setup::on(&database)
            .inline("tell", r#"SELECT '[{"type": "told", "payload": null}]'::jsonb AS events"#)
            .sink(&sink)
            .set("sink.timeout", "500ms")
            .set("relay.lease", "1s")
            .set("relay.backoff_min", "1h")
    };
    let frozen = setup().start();
    assert_eq!(frozen.post("tell", &fresh_key(), "1").status, 200);
    sink.wait_for(1);
    frozen.signal(Signal::SIGSTOP);
    let other = setup().start();
    // It takes over when the lease is over, and its attempt fails too.
    sink.wait_for(2);
    let settled = until("the other one has settled", || match event(&database) {
        settled @ (2, 1, Some(_), false, _) => Ok(settled),
        seen => Err(format!("{seen:?}")),
    });

    frozen.signal(Signal::SIGCONT);

    let failed = r#"onced_delivery_attempts_total{result="failed"}"#;
    until_eq("the thawed one has its answer", &1.0, || frozen.metric(failed));
    // A write and its wake-up are behind it by then.
    assert_eq!(frozen.order(&fresh_key()).status, 201);
    pause(Duration::from_millis(300));
    let sql =
        "SELECT claims, attempts, last_error, sent_at IS NOT NULL, due_at::text FROM outbox_events
               WHERE event_type = 'told'";
    let row = database.session().query_one(sql, &[]).unwrap();
    assert_eq!(
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)),
        settled,
        "nothing has changed"
    );
    drop(other);
}

#[test]
fn a_daemon_that_is_frozen_in_the_middle_of_a_write_holds_up_nobody_and_answers_when_thawed() {
    let database = Database::new();
    let setup = || Setup::on(&database).operation("sleepy").set("writers.lock_timeout", "4s");
    let (frozen, other) = (setup().start(), setup().start());
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut call = frozen.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    frozen.signal(Signal::SIGSTOP);
    assert_eq!(other.order(&fresh_key()).status, 201);
    gate.open();
    let replayed = until("the other one has the answer", || {
        let answer = other.post("sleepy", &key, body);
        if answer.status == 201 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    assert!(replayed.is_replay());
    database.kill_sessions();

    frozen.signal(Signal::SIGCONT);

    // It may have been too late for the caller; the next one is answered.
    let answer = call.answer();
    assert!([201, 409, 503].contains(&answer.status), "{answer:?}");
    let again = until("the thawed one works", || {
        let answer = frozen.post("sleepy", &key, body);
        if answer.status == 201 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    assert_eq!((again.is_replay(), &again.body), (true, &replayed.body));
    assert_eq!(frozen.post("orders", &fresh_key(), ORDER).status, 201);
    assert_eq!(database.rows("notes"), 1);
}
