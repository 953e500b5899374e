//! P1: for one key at most one execution ever commits, whoever else is working on it.

use std::thread;

use crate::support::wait::until_eq;
use crate::support::{Answer, Connection, Counts, Daemon, Database, Setup, fresh_key};

/// What one call of `sleepy` leaves.
const ONE_NOTE: Counts = Counts { records: 1, events: 1, business: 1 };

/// A daemon with `sleepy`, whose locks may take longer than a test does.
fn patient(database: &Database) -> Setup {
    Setup::on(database)
        .operation("sleepy")
        .set("writers.lock_timeout", "20s")
        .set("writers.statement_timeout", "20s")
        .set("http.wait", "25s")
}

fn parked(daemon: &Daemon, expected: f64) {
    until_eq("duplicates wait beside the key", &expected, || daemon.metric("onced_parked_waiting"));
}

#[test]
fn where_the_first_of_two_equal_calls_rolls_back_the_waiting_second_runs() {
    let database = Database::new();
    let daemon = patient(&database).start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1, "fail": 1}"#);
    let mut first = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut second = daemon.client().begin("sleepy", &key, body);
    parked(&daemon, 1.0);

    gate.open();

    assert_eq!(first.answer().refusal(), (500, "operation-failed".to_owned()));
    let second = second.answer();
    assert_eq!((second.status, second.is_replay()), (201, false));
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn where_the_first_rolls_back_in_another_daemon_the_waiting_second_runs() {
    let database = Database::new();
    let daemons = [patient(&database).start(), patient(&database).start()];
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1, "fail": 1}"#);
    let mut first = daemons[0].client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut second = daemons[1].client().begin("sleepy", &key, body);
    until_eq("the second waits for the first's claim", &1, || waiting_for_a_claim(&database));

    gate.open();

    assert_eq!(first.answer().status, 500);
    let second = second.answer();
    assert_eq!((second.status, second.is_replay()), (201, false));
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn a_call_that_waited_for_another_daemon_replays_its_answer() {
    let database = Database::new();
    let daemons = [patient(&database).start(), patient(&database).start()];
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut first = daemons[0].client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut second = daemons[1].client().begin("sleepy", &key, body);
    until_eq("the second waits for the first's claim", &1, || waiting_for_a_claim(&database));

    gate.open();

    let (first, second) = (first.answer(), second.answer());
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!((second.status, second.is_replay()), (201, true));
    assert_eq!(first.body, second.body);
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn equal_calls_to_two_daemons_at_once_have_one_effect() {
    let database = Database::new();
    let daemons = [Daemon::start(&database), Daemon::start(&database)];
    for _ in 0..20 {
        let key = fresh_key();
        let answers: Vec<Answer> = thread::scope(|scope| {
            let calls: Vec<_> = (0..10)
                .map(|n| {
                    scope.spawn({
                        let (daemon, key) = (&daemons[n % 2], &key);
                        move || daemon.order(key)
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|a| a.status == 201), "{answers:#?}");
        assert!(answers.iter().all(|a| a.body == answers[0].body), "{answers:#?}");
        assert_eq!(answers.iter().filter(|a| !a.is_replay()).count(), 1);
        assert_eq!(database.counts_of(&key), Counts { records: 1, events: 2, business: 1 });
    }
}

fn waiting_for_a_claim(database: &Database) -> i64 {
    database.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted
           AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = $1)",
        &[&database.name()],
    )
}

#[test]
fn twenty_retries_of_one_slow_key_hold_up_no_other_key() {
    let database = Database::new();
    let daemon = patient(&database).set("writers.threads", 2).start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut slow: Vec<_> = (0..20).map(|_| daemon.client().begin("sleepy", &key, body)).collect();
    gate.wait_for(1);
    parked(&daemon, 19.0);

    // All of these are answered while the slow one is still held: it costs one writer, its retries none.
    for _ in 0..20 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    assert_eq!(gate.waiting(), 1);

    gate.open();
    let answers: Vec<_> = slow.iter_mut().map(Connection::answer).collect();
    assert!(answers.iter().all(|a| a.status == 201 && a.body == answers[0].body), "{answers:#?}");
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 19);
    assert_eq!(database.counts_of(&key), ONE_NOTE);
    parked(&daemon, 0.0);
}

#[test]
fn the_same_key_for_another_operation_is_refused_in_either_order() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("echo").start();
    let body = r#"{"item": "widget", "quantity": 2}"#;
    for [first, second] in [["orders", "echo"], ["echo", "orders"]] {
        let key = fresh_key();
        assert!(daemon.post(first, &key, body).status < 300);
        let before = database.counts();

        let answer = daemon.post(second, &key, body);

        assert_eq!(answer.refusal(), (409, "idempotency-key-reused".to_owned()));
        assert_eq!(database.counts(), before);
    }
}

#[test]
fn mismatch_status_may_say_422() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.mismatch_status", 422).start();
    let key = fresh_key();
    assert_eq!(daemon.order(&key).status, 201);
    let answer = daemon.post("orders", &key, r#"{"item": "widget", "quantity": 1}"#);
    assert_eq!(answer.refusal(), (422, "idempotency-key-reused".to_owned()));
}

#[test]
fn an_operation_that_moved_to_another_route_still_replays_its_old_keys() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let key = fresh_key();
    let first = daemon.order(&key);
    daemon.stop();

    daemon.restart(|setup| setup.set("operations.orders.route", "/v1/purchases"));

    let again = daemon.post("purchases", &key, crate::support::daemon::ORDER);
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(daemon.order(&key).refusal(), (404, "not-found".to_owned()));
}

#[test]
fn the_two_conflicts_are_told_apart() {
    let database = Database::new();
    let daemon = patient(&database).set("writers.lock_timeout", "300ms").start();
    // Held by another daemon for longer than the first one waits for a lock.
    let other = patient(&database).start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut running = other.client().begin("sleepy", &key, body);
    gate.wait_for(1);

    let in_progress = daemon.post("sleepy", &key, body);

    assert_eq!(in_progress.refusal(), (409, "request-in-progress".to_owned()));
    assert_eq!(in_progress.retry_after(), Some(1));
    assert_eq!(in_progress.json()["retryable"], true);
    gate.open();
    assert_eq!(running.answer().status, 201);
    let reused = daemon.post("sleepy", &key, r#"{"gate": 2}"#);
    assert_eq!(reused.refusal(), (409, "idempotency-key-reused".to_owned()));
    assert_eq!(reused.retry_after(), None);
    assert_eq!(reused.json()["retryable"], false);
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn a_caller_whose_wait_is_over_hears_that_the_key_is_in_progress() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("http.wait", "1s")
        .set("writers.statement_timeout", "1s")
        .set("writers.lock_timeout", "1s")
        .start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut first = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);

    // The first is cut by its own timeout at about the time when the wait of the second is over, so the second is
    // told to come again, in one way or the other, and nothing is stored.
    let second = daemon.post("sleepy", &key, body);

    assert!(
        [(409, "request-in-progress"), (503, "unavailable")]
            .map(|(status, name)| (status, name.to_owned()))
            .contains(&second.refusal()),
        "{second:?}"
    );
    assert_eq!(second.retry_after(), Some(1));
    assert!([409, 503].contains(&first.answer().status));
    assert_eq!(database.counts(), Counts::NONE);
}

#[test]
fn another_body_while_the_first_runs_never_gets_the_first_ones_answer() {
    let database = Database::new();
    let daemon = patient(&database).start();
    let gate = database.shut_gate(1);
    let key = fresh_key();
    let mut first = daemon.client().begin("sleepy", &key, r#"{"gate": 1}"#);
    gate.wait_for(1);
    let mut other = daemon.client().begin("sleepy", &key, r#"{"s": 0}"#);
    let mut again = daemon.client().begin("sleepy", &key, r#"{"gate": 1}"#);
    // The daemon may tell the other one at once, or when the first is through.
    until_eq("the retry waits", &true, || daemon.metric("onced_parked_waiting") >= 1.0);

    gate.open();

    let (first, other, again) = (first.answer(), other.answer(), again.answer());
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(other.refusal(), (409, "idempotency-key-reused".to_owned()));
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn where_the_first_fails_no_parked_retry_gets_the_answer_of_another_body() {
    let database = Database::new();
    let daemon = patient(&database).start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1, "fail": 1}"#);
    let mut first = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut other = daemon.client().begin("sleepy", &key, r#"{"s": 0}"#);
    let mut again = daemon.client().begin("sleepy", &key, body);
    until_eq("the retry waits", &true, || daemon.metric("onced_parked_waiting") >= 1.0);

    gate.open();

    assert_eq!(first.answer().status, 500);
    let (other, again) = (other.answer(), again.answer());
    // One of them runs and the other is refused: the key was unused when its turn came.
    let mut statuses = [other.status, again.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409], "{other:?} {again:?}");
    for (answer, asked) in [(&other, r#"{"s": 0}"#), (&again, body)] {
        if answer.status == 201 {
            let asked: serde_json::Value = serde_json::from_str(asked).unwrap();
            assert_eq!(answer.json()["request"], asked);
            assert!(!answer.is_replay());
        } else {
            assert_eq!(answer.problem(), "idempotency-key-reused");
        }
    }
    assert_eq!(database.counts(), ONE_NOTE);
}

#[test]
fn waiters_of_one_key_are_bounded() {
    let database = Database::new();
    let daemon = patient(&database).set("http.waiters_per_key", 3).start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut served: Vec<_> = vec![daemon.client().begin("sleepy", &key, body)];
    gate.wait_for(1);
    served.extend((0..3).map(|_| daemon.client().begin("sleepy", &key, body)));
    parked(&daemon, 3.0);

    let surplus = daemon.post("sleepy", &key, body);
    assert_eq!(surplus.refusal(), (409, "request-in-progress".to_owned()));
    assert_eq!(surplus.retry_after(), Some(1));

    gate.open();
    assert!(served.iter_mut().all(|call| call.answer().status == 201));
    parked(&daemon, 0.0);
}

#[test]
fn clients_that_hang_up_leave_no_transaction_and_their_retries_find_one_effect() {
    let database = Database::new();
    let daemon = patient(&database).start();
    let gate = database.shut_gate(1);
    let keys: Vec<_> = (0..20).map(|_| fresh_key()).collect();
    let body = r#"{"gate": 1}"#;
    let calls: Vec<_> = keys.iter().map(|key| daemon.client().begin("sleepy", key, body)).collect();
    until_eq("a writer works", &true, || gate.waiting() >= 1);
    drop(calls);
    gate.open();

    for key in &keys {
        assert_eq!(daemon.post("sleepy", key, body).status, 201);
        assert_eq!(database.counts_of(key), ONE_NOTE);
    }
    until_eq("no transaction is left open", &0, || database.idle_in_transaction());
    until_eq("no connection is left open", &0.0, || {
        daemon.metric(r#"onced_connections{listener="http"}"#)
    });
}

#[test]
fn a_deadlock_is_never_stored_and_costs_no_neighbour() {
    let database = Database::new();
    // PostgreSQL looks for deadlocks after a second, which would be most of what this test takes.
    let often = format!("ALTER DATABASE {} SET deadlock_timeout = '50ms'", database.name());
    database.execute(&often);
    let daemon = Setup::on(&database).operation("swap").set("writers.threads", 4).start();
    thread::scope(|scope| {
        for [first, second] in [[1, 2], [2, 1]] {
            let daemon = &daemon;
            scope.spawn(move || {
                for _ in 0..15 {
                    let body = format!(r#"{{"first": {first}, "second": {second}}}"#);
                    let key = fresh_key();
                    let mut answer = daemon.post("swap", &key, &body);
                    while answer.status == 503 {
                        assert_eq!(answer.retry_after(), Some(1));
                        answer = daemon.post("swap", &key, &body);
                    }
                    assert_eq!(answer.status, 201, "{answer:?}");
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                assert_eq!(daemon.order(&fresh_key()).status, 201);
            }
        });
    });
    assert_eq!(database.rows("notes"), 30);
    let stored = "SELECT count(*) FROM idempotency_records WHERE status <> 'succeeded'";
    assert_eq!(database.value::<i64>(stored, &[]), 0);
    assert_eq!(database.value::<i64>("SELECT sum(amount) FROM balances", &[]), 0);
}
