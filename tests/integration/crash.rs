//! A daemon that is killed, a database that goes away: nothing is lost, and nothing happens twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::daemon::ORDER;
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::{until, until_eq};
use crate::support::{Answer, Counts, Daemon, Database, Setup, fresh_key};

const ONE_ORDER: Counts = Counts { records: 1, events: 2, business: 1 };

/// Calls again until the answer is neither "come again" nor a broken connection, as a client does.
fn persist(daemon: &Daemon, operation: &str, key: &str, body: &str) -> Answer {
    until("a retry is answered for good", || match daemon.client().try_post(operation, key, body) {
        Ok(answer) if ![503, 409].contains(&answer.status) => Ok(answer),
        Ok(answer) => {
            assert_eq!(answer.retry_after(), Some(1), "{answer:?}");
            Err(answer.text().to_owned())
        }
        Err(error) => Err(error.to_string()),
    })
}

#[test]
fn a7_killed_in_the_middle_of_a_write_that_then_fails_the_retry_runs() {
    let database = Database::new();
    let mut daemon =
        Setup::on(&database).operation("sleepy").set("writers.lock_timeout", "9s").start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1, "fail": 1}"#);
    let _call = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    daemon.kill();
    gate.open();
    daemon.restart(|setup| setup);

    let answer = persist(&daemon, "sleepy", &key, body);

    assert_eq!((answer.status, answer.is_replay()), (201, false));
    assert_eq!(database.counts(), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn a7_killed_in_the_middle_of_a_write_that_hangs_the_retry_is_answered_within_seconds() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).operation("sleepy").start();
    let (key, body) = (fresh_key(), r#"{"hang": 1}"#);
    let _call = daemon.client().begin("sleepy", &key, body);
    until_eq("the write hangs", &1, || {
        database
            .value::<i64>("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'", &[])
    });
    daemon.kill();
    daemon.restart(|setup| setup);

    let answer = persist(&daemon, "sleepy", &key, body);

    assert_eq!((answer.status, answer.is_replay()), (201, false));
    assert_eq!(database.counts(), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn a7_killed_under_load_every_key_has_one_effect() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let keys: Vec<Vec<String>> = (0..8).map(|_| (0..1000).map(|_| fresh_key()).collect()).collect();
    let client = daemon.client();
    let answered: Vec<BTreeMap<String, Vec<u8>>> = thread::scope(|scope| {
        let callers: Vec<_> = keys
            .iter()
            .map(|keys| {
                let client = client.clone();
                scope.spawn(move || {
                    let mut answered = BTreeMap::new();
                    for key in keys {
                        match client.try_post("orders", key, ORDER) {
                            Ok(answer) if answer.status == 201 => {
                                answered.insert(key.clone(), answer.body)
                            }
                            _ => break,
                        };
                    }
                    answered
                })
            })
            .collect();
        until_eq("there is load", &true, || database.rows("orders") > 100);
        daemon.kill();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    daemon.restart(|setup| setup);

    for (keys, answered) in keys.iter().zip(&answered) {
        assert!(answered.len() < keys.len(), "it was killed under load");
        // All that were answered, and the one that was in flight.
        for key in keys.iter().take(answered.len() + 1) {
            let answer = persist(&daemon, "orders", key, ORDER);
            assert_eq!(answer.status, 201);
            assert_eq!(database.counts_of(key), ONE_ORDER);
            if let Some(body) = answered.get(key) {
                assert!(answer.is_replay());
                assert_eq!(answer.body, *body);
            }
        }
    }
    let sent: usize = answered.iter().map(|answered| answered.len() + 1).sum();
    assert_eq!(database.rows("orders"), i64::try_from(sent).unwrap());
}

#[test]
fn without_a_database_calls_are_told_to_come_again_and_it_recovers_by_itself() {
    let database = Database::new();
    let proxy = Proxy::to(&database);
    proxy.set(Mode::Cut);
    let mut daemon = Setup::at(&database.url_through(proxy.address()))
        .set("http.wait", "5s")
        .set("writers.statement_timeout", "2s")
        .start_without_database();
    let pid = daemon.pid();
    let key = fresh_key();

    let refused = daemon.order(&key);

    assert_eq!(refused.refusal(), (503, "unavailable".to_owned()));
    assert_eq!((refused.retry_after(), &refused.json()["retryable"]), (Some(1), &true.into()));
    proxy.set(Mode::Forward);
    let answer = persist(&daemon, "orders", &key, ORDER);
    assert_eq!((answer.status, answer.is_replay()), (201, false));
    daemon.wait_until_ready();
    assert_eq!(daemon.pid(), pid);
    assert_eq!(database.counts(), ONE_ORDER);
}

#[test]
fn a_database_that_goes_away_and_comes_back_needs_no_restart() {
    let database = Database::new();
    let proxy = Proxy::to(&database);
    let mut daemon = Setup::at(&database.url_through(proxy.address()))
        .set("http.wait", "3s")
        .set("writers.statement_timeout", "2s")
        .start();
    let before = fresh_key();
    let first = daemon.order(&before);
    assert_eq!(first.status, 201);
    let health = |daemon: &Daemon, path: &str| daemon.operator().get(path);
    for mode in [Mode::Cut, Mode::Stall] {
        proxy.set(mode);
        let key = fresh_key();
        let refused = daemon.order(&key);
        // A silent server may keep the outcome open until the wait is over.
        assert!([503, 409].contains(&refused.status), "{mode:?}: {refused:?}");
        assert_eq!(refused.retry_after(), Some(1), "{mode:?}");
        until_eq("readyz says so", &503, || health(&daemon, "/readyz").status);
        assert!(health(&daemon, "/readyz").json()["reason"].is_string());
        assert_eq!(health(&daemon, "/healthz").status, 200);
        until_eq("the metric says so", &0.0, || daemon.metric("onced_database_up"));

        proxy.set(Mode::Forward);
        assert_eq!(persist(&daemon, "orders", &key, ORDER).status, 201, "{mode:?}");
        assert_eq!(database.counts_of(&key), ONE_ORDER);
        daemon.wait_until_ready();
    }
    let again = daemon.order(&before);
    assert_eq!((again.is_replay(), again.body), (true, first.body));
}

#[test]
fn sessions_that_are_ended_under_load_cost_nothing_but_retries() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let pid = daemon.pid();
    let done = AtomicBool::new(false);
    let used: usize = thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut used = 0;
                    while !done.load(Ordering::Relaxed) {
                        let key = fresh_key();
                        let answer = persist(&daemon, "orders", &key, ORDER);
                        assert_eq!(answer.status, 201, "{answer:?}");
                        used += 1;
                    }
                    used
                })
            })
            .collect();
        for _ in 0..8 {
            let before = database.rows("orders");
            until_eq("calls go on", &true, || database.rows("orders") > before + 20);
            database.kill_sessions();
            // writers.threads + relay.connections + 3
            assert!(database.sessions() <= 7);
        }
        done.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    let used = i64::try_from(used).unwrap();
    assert_eq!(database.counts(), Counts { records: used, events: 2 * used, business: used });
    let stored = "SELECT count(*) FROM idempotency_records WHERE status <> 'succeeded'";
    assert_eq!(database.value::<i64>(stored, &[]), 0);
    assert!(daemon.is_alive());
    assert_eq!(daemon.pid(), pid);
    until_eq("no transaction is left open", &0, || database.idle_in_transaction());
}

#[test]
fn a_server_without_room_for_connections_is_waited_for() {
    let database = Database::new();
    let limit = |limit: i32| {
        database.execute(&format!("ALTER DATABASE {} CONNECTION LIMIT {limit}", database.name()));
    };
    limit(0);
    let mut daemon = Setup::on(&database)
        .set("http.wait", "3s")
        .set("writers.statement_timeout", "2s")
        .start_without_database();
    let key = fresh_key();

    let refused = daemon.order(&key);

    assert_eq!(refused.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(refused.retry_after(), Some(1));
    until_eq("readyz says so", &503, || daemon.operator().get("/readyz").status);
    limit(-1);
    assert_eq!(persist(&daemon, "orders", &key, ORDER).status, 201);
    daemon.wait_until_ready();
}

#[test]
fn a_database_that_became_read_only_stores_nothing_and_replays_when_it_takes_writes_again() {
    let database = Database::new();
    let mut daemon =
        Setup::on(&database).set("http.wait", "3s").set("writers.statement_timeout", "2s").start();
    let (stored, key) = (fresh_key(), fresh_key());
    let first = daemon.order(&stored);
    let read_only = |value: &str| {
        database.execute(&format!(
            "ALTER DATABASE {} SET default_transaction_read_only = {value}",
            database.name()
        ));
        database.kill_sessions();
    };
    read_only("on");

    let refused = until("the daemon has met the change", || {
        let answer = daemon.order(&key);
        if answer.status == 503 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    assert_eq!(refused.problem(), "unavailable");
    assert_eq!(refused.retry_after(), Some(1));
    assert_eq!(database.record(&key), None);

    read_only("off");
    assert_eq!(persist(&daemon, "orders", &key, ORDER).status, 201);
    let again = daemon.order(&stored);
    assert_eq!((again.is_replay(), again.body), (true, first.body));
    daemon.wait_until_ready();
}

#[test]
fn a_daemon_that_was_frozen_and_thawed_goes_on() {
    use nix::sys::signal::Signal;
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let keys: Vec<_> = (0..4).map(|_| fresh_key()).collect();
    let mut calls: Vec<_> =
        keys.iter().map(|key| daemon.client().begin("orders", key, ORDER)).collect();
    daemon.signal(Signal::SIGSTOP);
    database.kill_sessions();
    daemon.signal(Signal::SIGCONT);
    for (call, key) in calls.iter_mut().zip(&keys) {
        let answer = call.answer();
        assert!([201, 503].contains(&answer.status), "{answer:?}");
        assert_eq!(persist(&daemon, "orders", key, ORDER).status, 201);
        assert_eq!(database.counts_of(key), ONE_ORDER);
    }
    daemon.wait_until_ready();
}

#[cfg(feature = "fail-points")]
#[test]
fn a_panic_in_a_write_costs_one_call_and_no_writer() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .set("writers.threads", 1)
        .env("FAILPOINTS", "writer::before_write=1*panic(out of tea)")
        .start();
    let key = fresh_key();

    let struck = daemon.order(&key);

    assert!([201, 500, 503].contains(&struck.status), "{struck:?}");
    assert!(daemon.log().contains("out of tea"), "{}", daemon.log());
    assert_eq!(persist(&daemon, "orders", &key, ORDER).status, 201);
    assert_eq!(database.counts(), ONE_ORDER);
    assert!(daemon.is_alive());
}
