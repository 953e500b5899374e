//! The cache of replays: without the database for a second, wrong for no longer, and only where the manual says so.

use std::time::{Duration, Instant};

use crate::support::postgres::ROLE;
use crate::support::proxy::Proxy;
use crate::support::server::{Server, Stop};
use crate::support::wait::{LIMIT, pause, until, until_eq};
use crate::support::{Daemon, Database, Setup, fresh_key};

/// A second, and what a busy machine needs to notice.
const A_SECOND: Duration = Duration::from_millis(1300);

/// An operation that answers something else each time that it runs.
const CLOCK: &str = "SELECT 201 AS status, to_jsonb(clock_timestamp()) AS response";

/// Calls the operation `clock` without a pause until it runs anew. Gives how long that took.
fn until_it_runs_anew(daemon: &Daemon, key: &str) -> Duration {
    let start = Instant::now();
    until("the key counts as new", || {
        let answer = daemon.post("clock", key, "1");
        assert_eq!(answer.status, 201, "{answer:?}");
        if answer.is_replay() { Err(format!("{answer:?}")) } else { Ok(()) }
    });
    start.elapsed()
}

fn writes(proxy: &Proxy) -> usize {
    let is_write = |statement: &String| statement.contains("FROM pg_temp.onced_write(");
    proxy.trips().iter().filter(|trip| trip.statements.iter().any(is_write)).count()
}

#[test]
fn a_hot_key_is_replayed_from_memory_and_asked_for_anew_every_second() {
    let database = Database::new();
    let proxy = Proxy::to(&database);
    let daemon = Setup::at(&database.url_through(proxy.address()))
        .set("writers.replay_cache", 10)
        .inline("clock", CLOCK)
        .start();
    let key = fresh_key();
    let first = daemon.post("clock", &key, "1");
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(3) {
        let again = daemon.post("clock", &key, "1");
        assert_eq!((again.status, again.is_replay(), &again.body), (201, true, &first.body));
        assert_eq!(daemon.post("clock", &key, "2").refusal().1, "idempotency-key-reused");
        calls += 2;
    }
    // Renewed when half a second old; another body's call asks too, and renews nothing.
    let asked = writes(&proxy);
    assert!((4..40).contains(&asked) && calls > 2 * asked, "{asked} of {calls} calls");
}

#[test]
fn without_a_cache_every_replay_is_asked_for() {
    let database = Database::new();
    let proxy = Proxy::to(&database);
    let daemon = Setup::at(&database.url_through(proxy.address())).inline("clock", CLOCK).start();
    let key = fresh_key();
    for _ in 0..5 {
        assert_eq!(daemon.post("clock", &key, "1").status, 201);
    }
    assert_eq!(writes(&proxy), 5);
}

#[test]
fn a_record_that_is_removed_by_hand_is_replayed_for_a_second_at_most() {
    let database = Database::new();
    let daemon =
        Setup::on(&database).set("writers.replay_cache", 10).inline("clock", CLOCK).start();
    let key = fresh_key();
    for by_command in [false, true] {
        daemon.post("clock", &key, "1");
        assert!(daemon.post("clock", &key, "1").is_replay());
        let removed = Instant::now();
        if by_command {
            let ended = daemon.setup().run(&["forget", &key, "--yes"]);
            assert_eq!(ended.code(), 0, "{ended:?}");
        } else {
            database.execute("DELETE FROM idempotency_records");
        }
        until_it_runs_anew(&daemon, &key);
        let took = removed.elapsed();
        assert!(by_command || took < A_SECOND, "{took:?}");
    }
}

#[test]
fn a_record_that_another_daemon_purges_is_replayed_for_a_second_at_most() {
    let database = Database::new();
    let caching =
        Setup::on(&database).set("writers.replay_cache", 10).inline("clock", CLOCK).start();
    let key = fresh_key();
    caching.post("clock", &key, "1");
    let _purging =
        Setup::on(&database).set("retention.records", "1s").set("retention.every", "100ms").start();
    let purged = until("it is purged", || {
        // The key stays hot.
        caching.post("clock", &key, "1");
        match database.record(&key) {
            None => Ok(Instant::now()),
            Some(record) => Err(format!("{record:?}")),
        }
    });
    until_it_runs_anew(&caching, &key);
    assert!(purged.elapsed() < A_SECOND, "{:?}", purged.elapsed());
}

#[test]
fn a_record_that_this_daemon_purges_is_never_replayed_after_it() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .set("writers.replay_cache", 10)
        .set("retention.records", "2s")
        .set("retention.every", "100ms")
        .inline("clock", CLOCK)
        .start();
    let key = fresh_key();
    let (start, mut runs) = (Instant::now(), 0);
    while runs < 3 {
        assert!(start.elapsed() < LIMIT, "{runs} runs");
        let was_purged = database.record(&key).is_none();
        let answer = daemon.post("clock", &key, "1");
        assert_eq!(answer.status, 201);
        assert!(!(was_purged && answer.is_replay()), "{answer:?}");
        runs += usize::from(!answer.is_replay());
    }
    // The third run comes when two records have had their retention.
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn an_answer_of_one_daemon_is_another_daemons_answer() {
    let database = Database::new();
    let daemons = [(); 2].map(|()| {
        Setup::on(&database).set("writers.replay_cache", 10).inline("clock", CLOCK).start()
    });
    let key = fresh_key();
    let first = daemons[0].post("clock", &key, "1");
    for daemon in daemons.iter().cycle().take(6) {
        let again = daemon.post("clock", &key, "1");
        assert_eq!((again.is_replay(), &again.body), (true, &first.body));
        assert_eq!(daemon.post("clock", &key, "2").status, 409);
    }
}

#[test]
fn a_failover_that_loses_a_write_does_not_leave_its_answer_in_memory() {
    let mut one = Server::start(&[]);
    one.migrate();
    let other = one.standby("other");
    let ports = format!("{},{}", one.port(), other.port());
    let url = format!(
        "host=127.0.0.1,127.0.0.1 port={ports} user={ROLE} dbname=app target_session_attrs=read-write"
    );
    let daemon = Setup::at(&url)
        .set("http.wait", "3s")
        .set("writers.statement_timeout", "2s")
        .set("writers.replay_cache", 10)
        .inline("clock", CLOCK)
        .start();
    // What is written from now on does not reach the standby.
    other.configure(&[("primary_conninfo", "")]);
    other.reload();
    let follows = "SELECT count(*) FROM pg_stat_replication";
    until_eq("the standby is cut off", &0, || {
        one.session("app").query_one(follows, &[]).unwrap().get::<_, i64>(0)
    });
    let key = fresh_key();
    assert_eq!(daemon.post("clock", &key, "1").status, 201);
    one.stop(Stop::Immediate);
    let lost = Instant::now();
    other.promote();
    until("the key counts as new", || {
        let before = Instant::now();
        let answer = daemon.post("clock", &key, "1");
        if answer.is_replay() {
            assert!(before.duration_since(lost) < A_SECOND, "{answer:?}");
        }
        if answer.status == 201 && !answer.is_replay() {
            return Ok(());
        }
        pause(Duration::from_millis(20));
        Err(format!("{answer:?}"))
    });
}
