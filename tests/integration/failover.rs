//! A PostgreSQL that is restarted, demoted, or succeeded by another: no restart of the daemon, nothing lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::daemon::ORDER;
use crate::support::load::{Load, expect_come_again};
use crate::support::postgres::ROLE;
use crate::support::server::{Server, Stop};
use crate::support::wait::{until, until_eq};
use crate::support::{Answer, Daemon, Setup, fresh_key};

/// What a database may take to be found again.
const BACK_WITHIN: Duration = Duration::from_secs(5);

fn setup(url: &str) -> Setup {
    Setup::at(url).set("http.wait", "3s").set("writers.statement_timeout", "2s")
}

/// The connection string for whichever of the two takes writes.
fn either(one: &Server, other: &Server) -> String {
    let ports = format!("{},{}", one.port(), other.port());
    format!(
        "host=127.0.0.1,127.0.0.1 port={ports} user={ROLE} dbname=app target_session_attrs=read-write"
    )
}

fn count(server: &Server, sql: &str) -> i64 {
    server.session("app").query_one(sql, &[]).unwrap().get(0)
}

/// Each key that was acknowledged has one effect on this server, and no other key has any.
fn assert_one_effect_each(server: &Server, answered: &BTreeMap<String, Vec<u8>>) {
    let keys = i64::try_from(answered.len()).unwrap();
    assert_eq!(count(server, "SELECT count(*) FROM idempotency_records"), keys);
    assert_eq!(count(server, "SELECT count(*) FROM orders"), keys);
    assert_eq!(count(server, "SELECT count(DISTINCT idempotency_key) FROM orders"), keys);
    assert_eq!(count(server, "SELECT count(*) FROM outbox_events"), 2 * keys);
}

/// A retry of each key is answered with the bytes of the first answer.
fn assert_all_replay(daemon: &Daemon, answered: &BTreeMap<String, Vec<u8>>) {
    for (key, body) in answered {
        let again = daemon.order(key);
        assert_eq!((again.status, again.is_replay(), &again.body), (201, true, body), "{key}");
    }
}

fn readyz(daemon: &Daemon) -> Answer {
    daemon.operator().get("/readyz")
}

/// Waits until `/readyz` says no, and gives the reason.
fn reason(daemon: &Daemon) -> String {
    until("readyz says no", || {
        let answer = readyz(daemon);
        if answer.status != 503 {
            return Err(format!("{answer:?}"));
        }
        Ok(answer.json()["reason"].as_str().expect("a reason").to_owned())
    })
}

fn a_restart_under_load(how: Stop) {
    let mut server = Server::start(&[]);
    server.migrate();
    let daemon = setup(&server.url()).start();
    let pid = daemon.pid();
    let answered = Load::while_doing(&daemon.client(), |load| {
        load.goes_on(50);
        server.stop(how);
        load.is_refused(5);
        assert!(!reason(&daemon).is_empty());
        server.run();
        let back = Instant::now();
        load.goes_on(1);
        assert!(back.elapsed() < BACK_WITHIN, "{:?}", back.elapsed());
        until_eq("readyz says yes", &200, || readyz(&daemon).status);
        assert!(back.elapsed() < BACK_WITHIN, "{:?}", back.elapsed());
        load.goes_on(50);
    });
    assert_eq!(daemon.pid(), pid);
    assert_one_effect_each(&server, &answered);
    assert_all_replay(&daemon, &answered);
}

#[test]
fn a_fast_restart_of_the_database_under_load_costs_nothing_but_retries() {
    a_restart_under_load(Stop::Fast);
}

#[test]
fn a_crash_of_the_database_under_load_costs_nothing_but_retries() {
    a_restart_under_load(Stop::Immediate);
}

#[test]
fn a_primary_that_turns_read_only_is_left_for_the_standby_that_is_promoted() {
    let mut one = Server::start(&[]);
    one.migrate();
    let other = one.standby("other");
    let daemon = setup(&either(&one, &other)).start();
    let (key, new) = (fresh_key(), fresh_key());
    let first = daemon.order(&key);
    let was_copied = format!("SELECT count(*) FROM orders WHERE idempotency_key = '{key}'");
    until_eq("the standby has it", &1, || count(&other, &was_copied));

    // Sessions stay, and what they begin from now on is read-only.
    one.configure(&[("default_transaction_read_only", "on")]);
    one.reload();

    let refused = until("the daemon meets it", || {
        let answer = daemon.order(&new);
        if answer.status == 503 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    expect_come_again(&refused);
    until("readyz says that no host takes writes", || {
        let reason = reason(&daemon);
        if reason.contains("does not allow writes") { Ok(()) } else { Err(reason) }
    });
    other.promote();
    let back = Instant::now();
    let second = until("the standby takes over", || {
        let answer = daemon.order(&fresh_key());
        if answer.status == 201 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    until_eq("readyz says yes", &200, || readyz(&daemon).status);
    assert!(back.elapsed() < BACK_WITHIN, "{:?}", back.elapsed());
    assert!(!second.is_replay());
    let again = daemon.order(&key);
    assert_eq!((again.is_replay(), again.body), (true, first.body));
    // Look-ups and relays have moved too.
    let kept = daemon.look_up(&key).expect("it is on the new primary");
    assert_eq!(kept["status"], "succeeded");
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}'");
    until_eq("no session is left at the old primary", &0, || count(&one, &sessions));
}

#[test]
fn with_a_synchronous_standby_no_acknowledged_write_is_lost_when_the_primary_dies_under_load() {
    let mut one = Server::start(&[]);
    one.migrate();
    let other = one.standby("other");
    one.configure(&[("synchronous_standby_names", "other")]);
    one.reload();
    let daemon = setup(&either(&one, &other)).start();
    let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until_eq("the standby is synchronous", &1, || count(&one, synchronous));
    let answered = Load::while_doing(&daemon.client(), |load| {
        load.goes_on(100);
        // What is committed from now on does not reach the standby: nobody may be told of it.
        let receiver = "SELECT pid FROM pg_stat_wal_receiver";
        let receiver: i32 = other.session("app").query_one(receiver, &[]).unwrap().get(0);
        let receiver = u32::try_from(receiver).unwrap();
        crate::support::daemon::send(receiver, nix::sys::signal::Signal::SIGSTOP);
        load.is_refused(5);
        one.stop(Stop::Immediate);
        crate::support::daemon::send(receiver, nix::sys::signal::Signal::SIGCONT);
        other.promote();
        let back = Instant::now();
        load.goes_on(1);
        assert!(back.elapsed() < BACK_WITHIN, "{:?}", back.elapsed());
        load.goes_on(100);
    });
    assert_one_effect_each(&other, &answered);
    assert_all_replay(&daemon, &answered);
    assert_eq!(daemon.post("orders", &fresh_key(), ORDER).status, 201);
}
