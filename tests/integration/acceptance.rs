//! The acceptance of the contract, in its order.

use std::thread;

use crate::support::sink::Sink;
use crate::support::wait::until_eq;
use crate::support::{Answer, Counts, Daemon, Database, Setup, fresh_key};

/// What one call of `orders` leaves.
const ONE_ORDER: Counts = Counts { records: 1, events: 2, business: 1 };

#[test]
fn a1_twenty_concurrent_calls_with_one_new_key_have_one_effect_and_one_answer() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    for round in 1..=10 {
        let key = fresh_key();
        let answers: Vec<Answer> = thread::scope(|scope| {
            let calls: Vec<_> = (0..20).map(|_| scope.spawn(|| daemon.order(&key))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });

        assert!(answers.iter().all(|a| a.status == 201), "{answers:#?}");
        assert!(answers.iter().all(|a| a.body == answers[0].body), "{answers:#?}");
        assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 19);
        assert_eq!(database.counts_of(&key), ONE_ORDER);
        assert_eq!(database.rows("orders"), round);
    }
}

#[test]
fn a2_a_new_key_adds_the_rows_of_one_request() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let before = database.counts();

    let answer = daemon.order(&fresh_key());

    assert_eq!(answer.status, 201);
    assert!(!answer.is_replay());
    assert_eq!(database.counts(), before + ONE_ORDER);
}

#[test]
fn a3_the_same_key_with_other_parameters_is_refused_and_writes_nothing() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let key = fresh_key();
    let first = daemon.order(&key);
    assert_eq!(first.status, 201);

    let other = daemon.post("orders", &key, r#"{"item": "widget", "quantity": 3}"#);

    assert_eq!(other.refusal(), (409, "idempotency-key-reused".to_owned()));
    assert_eq!(other.json()["retryable"], false);
    assert_eq!(other.retry_after(), None);
    assert_eq!(database.counts(), ONE_ORDER);
    assert_eq!(daemon.order(&key).body, first.body);
}

#[test]
fn a4_one_request_writes_two_events_and_a_replay_leaves_two() {
    let database = Database::new();
    let sink = Sink::start();
    let daemon = Setup::on(&database).sink(&sink).start();
    let key = fresh_key();

    assert_eq!(daemon.order(&key).status, 201);
    assert!(daemon.order(&key).is_replay());

    assert_eq!(database.counts(), ONE_ORDER);
    // `now()` is the start of the transaction, to the microsecond.
    let transactions = "SELECT count(DISTINCT created_at) FROM
        (SELECT created_at FROM outbox_events UNION ALL SELECT created_at FROM orders
         UNION ALL SELECT created_at FROM idempotency_records) AS rows";
    assert_eq!(database.value::<i64>(transactions, &[]), 1);

    until_eq("both events are settled", &2_i64, || {
        database.value("SELECT count(*) FROM outbox_events WHERE sent_at IS NOT NULL", &[])
    });
    let deliveries = sink.deliveries();
    let mut types: Vec<String> =
        deliveries.iter().map(|d| event(&d.body)["type"].to_string()).collect();
    types.sort();
    assert_eq!(types, [r#""audit.order_created""#, r#""order.created""#]);
    for delivery in &deliveries {
        let event = event(&delivery.body);
        assert_eq!(event["idempotency_key"], key.as_str());
        assert_eq!(event["event_key"], delivery.id.as_str());
    }
}

fn event(body: &str) -> serde_json::Value {
    serde_json::from_str(body).expect("an event is JSON")
}

#[cfg(feature = "fail-points")]
mod at_fault_points {
    use std::collections::BTreeSet;

    use super::*;
    use crate::support::daemon::ORDER;
    use crate::support::wait::until;

    /// A writer that is held at a point has taken its job, and a second call waits for it in the queue.
    fn daemon_held_at(database: &Database, point: &str) -> Daemon {
        Setup::on(database)
            .set("writers.threads", 1)
            .env("FAILPOINTS", &format!("{point}=pause"))
            .start()
    }

    fn kill_and_retry(daemon: &mut Daemon, database: &Database, key: &str) -> Answer {
        daemon.kill();
        daemon.restart(|setup| setup.env("FAILPOINTS", ""));
        let answer = daemon.order(key);
        assert_eq!(answer.status, 201);
        assert_eq!(database.counts_of(key), ONE_ORDER);
        answer
    }

    #[test]
    fn a7_killed_before_the_write_the_retry_runs() {
        let database = Database::new();
        let mut daemon = daemon_held_at(&database, "writer::before_write");
        let (key, next) = (fresh_key(), fresh_key());
        let mut held = daemon.client().begin("orders", &key, ORDER);
        // Two more, since the writer may have taken the second together with the first.
        let _waiting = [&next, &fresh_key()].map(|key| daemon.client().begin("orders", key, ORDER));
        until("the writer is held", || {
            let waiting = daemon.metric("onced_jobs_waiting");
            if waiting >= 1.0 { Ok(()) } else { Err(format!("{waiting} jobs wait")) }
        });
        assert!(held.is_silent());
        assert_eq!(database.counts(), Counts::NONE);

        assert!(!kill_and_retry(&mut daemon, &database, &key).is_replay());
    }

    #[test]
    fn a7_killed_after_the_commit_and_before_the_answer_the_retry_replays() {
        let database = Database::new();
        let mut daemon = daemon_held_at(&database, "writer::after_write");
        let key = fresh_key();
        let mut held = daemon.client().begin("orders", &key, ORDER);
        until_eq("the write is committed", &ONE_ORDER, || database.counts());
        assert!(held.is_silent());

        assert!(kill_and_retry(&mut daemon, &database, &key).is_replay());
    }

    #[test]
    fn a5_killed_after_publishing_the_event_comes_again_with_its_id_and_its_bytes() {
        let database = Database::new();
        let sink = Sink::start();
        let mut daemon = Setup::on(&database)
            .sink(&sink)
            .set("sink.timeout", "500ms")
            .set("relay.lease", "2s")
            .env("FAILPOINTS", "relay::after_publish=pause")
            .start();
        let key = fresh_key();
        assert_eq!(daemon.order(&key).status, 201);
        let before = sink.wait_for(2);
        daemon.kill();
        let unsent = "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL";
        assert_eq!(database.value::<i64>(unsent, &[]), 2);

        daemon.restart(|setup| setup.env("FAILPOINTS", ""));

        until_eq("both events are settled", &0, || database.value::<i64>(unsent, &[]));
        let all = sink.wait_for(4);
        let distinct: BTreeSet<_> = all.iter().map(|d| (d.id.clone(), d.body.clone())).collect();
        assert_eq!(distinct.len(), 2, "{all:#?}");
        assert_eq!((before.len(), all.len()), (2, 4));
    }
}
