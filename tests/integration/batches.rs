//! Requests that share one transaction do not notice each other.

use serde_json::json;

use crate::support::postgres::Gate;
use crate::support::wait::until_eq;
use crate::support::{Connection, Counts, Daemon, Database, Setup, fresh_key};

/// A daemon with one writer, so that what waits while it is held becomes one batch.
pub fn one_writer(database: &Database) -> Setup {
    Setup::on(database)
        .operation("sleepy")
        .set("writers.threads", 1)
        .set("writers.lock_timeout", "20s")
        .set("writers.statement_timeout", "20s")
        .set("http.wait", "25s")
}

/// Holds the writer, queues the calls behind it in their order, lets the writer go, and gives their connections.
pub fn behind_a_held_writer(
    database: &Database,
    daemon: &Daemon,
    calls: &[(&str, &str, &str)],
) -> Vec<Connection> {
    let gate = database.shut_gate(100);
    let mut holder = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 100}"#);
    gate.wait_for(1);
    let mut waiting = 0.0;
    let mut begun = Vec::new();
    for (operation, key, body) in calls {
        begun.push(daemon.client().begin(operation, key, body));
        waiting += 1.0;
        until_eq("the call waits", &waiting, || daemon.metric("onced_jobs_waiting"));
    }
    gate.open();
    assert_eq!(holder.answer().status, 201);
    begun
}

#[test]
fn a_batch_answers_each_call_as_if_it_were_alone() {
    let database = Database::new();
    let daemon = one_writer(&database).operation("refuse").operation("shape").start();
    let keys: Vec<_> = (0..6).map(|_| fresh_key()).collect();
    let order = r#"{"item": "widget", "quantity": 2}"#;
    assert_eq!(daemon.post("orders", &keys[5], order).status, 201);

    let mut calls = behind_a_held_writer(
        &database,
        &daemon,
        &[
            ("orders", &keys[0], order),
            ("refuse", &keys[1], r#"{"code": "PT402"}"#),
            ("shape", &keys[2], r#"{"rows": []}"#),
            ("orders", &keys[3], order),
            ("refuse", &keys[4], r#"{"code": "XX000"}"#),
            ("orders", &keys[5], r#"{"item": "widget", "quantity": 3}"#),
        ],
    );

    let statuses: Vec<_> = calls.iter_mut().map(|call| call.answer().status).collect();
    assert_eq!(statuses, [201, 402, 500, 201, 500, 409]);
    let effects: Vec<_> = keys.iter().map(|key| database.counts_of(key).business).collect();
    assert_eq!(effects, [1, 0, 0, 1, 0, 1]);
    assert!(daemon.metric("onced_batch_size_sum") > daemon.metric("onced_batch_size_count"));
}

#[test]
fn two_slow_ones_in_one_batch_are_cut_each_after_its_own_timeout() {
    let database = Database::new();
    let daemon = one_writer(&database)
        .inline("napping", "SELECT 200 AS status FROM pg_sleep(($1 ->> 's')::float8)")
        .set("operations.napping.timeout", "500ms")
        .start();
    let keys: Vec<_> = (0..12).map(|_| fresh_key()).collect();
    let mut batch: Vec<_> =
        keys[..2].iter().map(|key| ("napping", key.as_str(), r#"{"s": 30}"#)).collect();
    batch.extend(
        keys[2..].iter().map(|key| ("orders", key.as_str(), crate::support::daemon::ORDER)),
    );

    let mut calls = behind_a_held_writer(&database, &daemon, &batch);

    let answers: Vec<_> = calls.iter_mut().map(Connection::answer).collect();
    for answer in &answers[..2] {
        assert_eq!(answer.refusal(), (503, "unavailable".to_owned()));
        assert_eq!(answer.retry_after(), Some(1));
    }
    assert!(answers[2..].iter().all(|a| a.status == 201), "{answers:#?}");
    assert!(keys[..2].iter().all(|key| database.record(key).is_none()));
    assert_eq!(database.rows("orders"), 10);
}

#[test]
fn deferred_constraints_of_one_call_are_checked_at_its_end_and_not_at_the_next_ones_start() {
    let database = Database::new();
    let daemon = one_writer(&database).operation("deferred").start();
    let keys: Vec<_> = (0..3).map(|_| fresh_key()).collect();

    let mut calls = behind_a_held_writer(
        &database,
        &daemon,
        &[
            ("deferred", &keys[0], r#"{"parent": 1, "exists": true}"#),
            ("deferred", &keys[1], r#"{"parent": 2, "exists": true}"#),
            ("deferred", &keys[2], r#"{"parent": 3, "exists": false}"#),
        ],
    );

    let answers: Vec<_> = calls.iter_mut().map(Connection::answer).collect();
    let statuses: Vec<_> = answers.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [201, 201, 409], "{answers:#?}");
    assert_eq!(answers[2].json()["code"], "23503");
    assert_eq!(database.record(&keys[2]), Some(("rejected".to_owned(), 409)));
    assert_eq!((database.rows("children"), database.rows("parents")), (2, 2));
}

#[test]
fn what_an_operation_does_to_its_session_ends_with_it() {
    let database = Database::new();
    let daemon = one_writer(&database).operation("setter").start();
    let state = || daemon.post("setter", &fresh_key(), "{}").json();
    let clean = state();
    database.execute("GRANT pg_monitor TO onced_test");
    let changes = [
        "SET search_path = pg_catalog",
        "SET LOCAL search_path = pg_catalog",
        "SET statement_timeout = 1",
        "SET lock_timeout = 1",
        "SET synchronous_commit = off",
        "SET LOCAL synchronous_commit = off",
        "SET TimeZone = 'Asia/Tokyo'",
        "SET mine.own = 'left behind'",
        "SET ROLE pg_monitor",
        "SET LOCAL ROLE pg_monitor",
        "SELECT pg_advisory_lock(7, 7)",
        "LISTEN left_behind",
        "CREATE TEMP TABLE orders (id int)",
        "SET CONSTRAINTS ALL DEFERRED",
    ];
    for change in changes {
        let body = json!({ "run": change }).to_string();
        let mut changed = daemon.post("setter", &fresh_key(), &body);
        if changed.status == 500 {
            // It made the work of the daemon itself impossible: then nothing of it stays either.
            changed = daemon.post("setter", &fresh_key(), "{}");
        }
        assert_eq!(changed.status, 200, "{change}: {}", changed.text());
        let mut after = state();
        // A setting that was made up in the session reads as empty where it was taken back.
        if after["mine"] == "" {
            after["mine"] = clean["mine"].clone();
        }
        assert_eq!(after, clean, "{change}");
        assert_eq!(daemon.order(&fresh_key()).status, 201, "{change}");
    }
    assert_eq!(database.rows("public.orders"), i64::try_from(changes.len()).unwrap());
}

#[test]
fn session_changes_do_not_reach_the_next_call_of_the_same_batch() {
    let database = Database::new();
    let daemon = one_writer(&database).operation("setter").start();
    let clean = daemon.post("setter", &fresh_key(), "{}").json();
    let keys: Vec<_> = (0..6).map(|_| fresh_key()).collect();
    let run = |sql: &str| json!({ "run": sql }).to_string();
    let bodies = [
        run("SET LOCAL TimeZone = 'Asia/Tokyo'"),
        run("SELECT 1"),
        run("SET LOCAL search_path = pg_catalog, public"),
        run("SELECT 2"),
        run("SELECT pg_advisory_lock(7, 7)"),
        run("SELECT 3"),
    ];
    let batch: Vec<_> = keys
        .iter()
        .zip(&bodies)
        .map(|(key, body)| ("setter", key.as_str(), body.as_str()))
        .collect();

    let mut calls = behind_a_held_writer(&database, &daemon, &batch);

    for (call, body) in calls.iter_mut().zip(&bodies) {
        let answer = call.answer();
        assert_eq!((answer.status, answer.json()), (200, clean.clone()), "{body}");
    }
}

#[test]
fn a_full_queue_is_told_at_once() {
    let database = Database::new();
    let daemon = one_writer(&database).set("writers.queue", 2).start();
    let gate = database.shut_gate(1);
    let mut held = vec![daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 1}"#)];
    gate.wait_for(1);
    for waiting in [1.0, 2.0] {
        held.push(daemon.client().begin("orders", &fresh_key(), crate::support::daemon::ORDER));
        until_eq("the call waits", &waiting, || daemon.metric("onced_jobs_waiting"));
    }
    let key = fresh_key();

    let refused = daemon.order(&key);

    assert_eq!(refused.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(refused.retry_after(), Some(1));
    assert_eq!(gate.waiting(), 1);
    gate.open();
    assert!(held.iter_mut().all(|call| call.answer().status == 201));
    assert_eq!((daemon.order(&key).status, database.counts_of(&key).records), (201, 1));
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_batch_has_one_effect_for_each_of_its_calls() {
    let database = Database::new();
    let mut daemon = one_writer(&database).start();
    let inner = database.shut_gate(2);
    // The batch is taken in some order: all of its members are orders but one, which waits at the second gate.
    let keys: Vec<_> = (0..5).map(|_| fresh_key()).collect();
    let order = crate::support::daemon::ORDER;
    let calls = behind_a_held_writer(
        &database,
        &daemon,
        &[
            ("orders", &keys[0], order),
            ("orders", &keys[1], order),
            ("sleepy", &keys[2], r#"{"gate": 2}"#),
            ("orders", &keys[3], order),
            ("orders", &keys[4], order),
        ],
    );
    inner.wait_for(1);
    daemon.kill();
    drop(calls);
    // The session of the dead daemon goes on, and may even commit: nobody can know, and nobody need to.
    inner.open();
    daemon.restart(|setup| setup);

    for key in [&keys[0], &keys[1], &keys[3], &keys[4]] {
        assert_eq!(daemon.order(key).status, 201);
        assert_eq!(database.counts_of(key), Counts { records: 1, events: 2, business: 1 });
    }
    assert_eq!(daemon.post("sleepy", &keys[2], r#"{"gate": 2}"#).status, 201);
    assert_eq!(database.counts_of(&keys[2]), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn a_quick_call_does_not_wait_in_the_pocket_of_a_writer_that_runs_a_slow_one() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("writers.threads", 2)
        .set("writers.lock_timeout", "20s")
        .set("writers.statement_timeout", "20s")
        .set("http.wait", "25s")
        .start();
    // Two that are known to be slow, so that they go alone; one of them holds its writer.
    let gates = [database.shut_gate(1), database.shut_gate(2)];
    let mut held = Vec::new();
    for (number, gate) in gates.iter().enumerate() {
        let body = json!({ "gate": number + 1 }).to_string();
        held.push(daemon.client().begin("sleepy", &fresh_key(), body));
        // Else both might be in one batch.
        gate.wait_for(1);
    }
    pause_until_slow();
    gates.into_iter().for_each(Gate::open);
    held.iter_mut().for_each(|call| assert_eq!(call.answer().status, 201));
    let gate = database.shut_gate(3);
    let mut slow = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 3}"#);
    gate.wait_for(1);
    // The other writer is free: whatever comes now is answered while the slow one is held.
    for _ in 0..20 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    gate.open();
    assert_eq!(slow.answer().status, 201);
}

/// Long enough for a call to count as slow.
fn pause_until_slow() {
    crate::support::wait::pause(std::time::Duration::from_millis(300));
}
