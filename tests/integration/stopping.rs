//! P8: every accepted request is answered, also while stopping.

use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::daemon::{ORDER, Process};
use crate::support::sink::Sink;
use crate::support::wait::until_eq;
use crate::support::{Connection, Counts, Daemon, Database, Setup, fresh_key};

/// Calls one key after the other on one connection until the daemon closes it; gives the keys that were answered 201.
/// An answer that is cut off, or that is neither 201 nor 503, fails the test.
fn call_until_closed(daemon: &crate::support::Client) -> Vec<String> {
    let mut done = Vec::new();
    let Ok(mut connection) = Connection::try_open(daemon.address) else { return done };
    loop {
        let key = fresh_key();
        if connection.send_what_goes(daemon.request("orders", &key, ORDER)).is_err() {
            return done;
        }
        // No answer at all is right only where the daemon took no byte of the request before it closed.
        let Some(answer) = connection.try_answer().expect("no answer is cut off") else {
            return done;
        };
        match answer.status {
            201 => done.push(key),
            503 => assert_eq!(answer.retry_after(), Some(1)),
            _ => panic!("{answer:?}"),
        }
        if answer.header("connection") == Some("close") {
            assert!(connection.is_closed());
            return done;
        }
    }
}

#[test]
fn a_signal_under_load_ends_well_and_every_accepted_request_is_answered() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let database = Database::new();
        let sink = Sink::start();
        let mut daemon = Setup::on(&database).sink(&sink).start();
        let client = daemon.client();
        let done: Vec<String> = thread::scope(|scope| {
            let callers: Vec<_> =
                (0..16).map(|_| scope.spawn(|| call_until_closed(&client))).collect();
            until_eq("there is load", &true, || database.rows("orders") > 200);
            daemon.signal(signal);
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        let status = daemon.wait();
        assert_eq!(status.code(), Some(0), "{signal}");
        // What was answered is stored. A request that no answer was read for may be stored too.
        let stored: i64 = database
            .value("SELECT count(*) FROM idempotency_records WHERE key = ANY($1)", &[&done]);
        assert_eq!(stored, i64::try_from(done.len()).unwrap());
        let counts = database.counts();
        assert_eq!(counts.events, 2 * counts.records);
        assert_eq!(counts.business, counts.records);
        until_eq("no session is left", &0, || database.sessions());
    }
}

#[test]
fn a_request_in_work_when_the_signal_comes_gets_its_answer_and_the_connection_closes() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .operation("sleepy")
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let mut call = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut parked = daemon.client().begin("sleepy", &key, body);
    until_eq("the duplicate waits", &1.0, || daemon.metric("onced_parked_waiting"));
    let mut idle = Connection::open(daemon.setup().http());
    idle.send(daemon.client().request("orders", &fresh_key(), ORDER));
    assert_eq!(idle.answer().status, 201);

    daemon.signal(Signal::SIGTERM);

    assert!(idle.is_closed());
    until_eq("no new connection is taken", &true, || {
        Connection::try_open(daemon.setup().http()).is_err()
    });
    until_eq("readyz says so", &503, || daemon.operator().get("/readyz").status);
    gate.open();
    let (first, second) = (call.answer(), parked.answer());
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!((second.status, second.is_replay()), (201, true));
    assert_eq!(first.header("connection"), Some("close"));
    assert!(call.is_closed());
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(database.counts_of(&key), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn a_second_signal_stops_at_once() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .operation("sleepy")
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let _call = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 1}"#);
    gate.wait_for(1);
    daemon.signal(Signal::SIGTERM);
    until_eq("it drains", &503, || daemon.operator().get("/readyz").status);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(70));
}

#[test]
fn what_does_not_end_within_the_shutdown_timeout_is_said_and_given_up() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .operation("sleepy")
        .set("shutdown_timeout", "1s")
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let _call = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 1}"#);
    gate.wait_for(1);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(daemon.log().contains("writer-"), "{}", daemon.log());
}

#[test]
fn a_signal_without_any_work_ends_well() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    daemon.stop();
    until_eq("no session is left", &0, || database.sessions());
}

#[test]
fn a_signal_while_the_database_is_away_ends_well() {
    let database = Database::new();
    let proxy = crate::support::proxy::Proxy::to(&database);
    let mut daemon = Setup::at(&database.url_through(proxy.address())).start();
    proxy.set(crate::support::proxy::Mode::Cut);
    until_eq("readyz says so", &503, || daemon.operator().get("/readyz").status);
    daemon.stop();
}

#[test]
fn sighup_is_taken_and_brings_new_principals() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).principal("old", "old-token").start();
    assert_eq!(daemon.client_with("new-token").order_status(), 401);
    daemon.change(|setup| setup.principal("new", "new-token"));

    daemon.signal(Signal::SIGHUP);

    until_eq("the new one is known", &201, || daemon.client_with("new-token").order_status());
    assert_eq!(daemon.client_with("old-token").order_status(), 201);
    assert!(daemon.is_alive());
}

#[test]
fn a_reload_of_a_broken_configuration_changes_nothing() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).principal("old", "old-token").start();
    let before = daemon.log().len();
    daemon.change(|setup| setup.principal("new", "new-token").set("http.threads", 0));

    daemon.signal(Signal::SIGHUP);

    until_eq("the log says why", &true, || daemon.log()[before..].contains("http.threads"));
    assert_eq!(daemon.client_with("old-token").order_status(), 201);
    assert_eq!(daemon.client_with("new-token").order_status(), 401);
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let database = Database::new();
    let setup = Setup::on(&database).set("log.level", "debug");
    let mut command = setup.command(&["serve"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut daemon = Process(child.expect("the program starts"));
    let mut log = daemon.0.stderr.take().expect("a pipe");
    log.read_exact(&mut [0]).expect("it logs something");
    drop(log);
    let client = crate::support::Client { address: setup.http(), token: None };

    for _ in 0..20 {
        until_eq("a call is served", &201, || client.order_status());
    }

    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn standard_streams_that_are_closed_at_the_start_end_nothing() {
    let database = Database::new();
    let setup = Setup::on(&database);
    let config = setup.config_file();
    let script = r#"exec "$0" serve --config "$1" <&- >&- 2>&-"#;
    let child = std::process::Command::new("sh")
        .args(["-c", script, crate::support::daemon::PROGRAM])
        .arg(config)
        .spawn();
    let daemon = Process(child.expect("a shell starts"));
    let client = crate::support::Client { address: setup.http(), token: None };
    for _ in 0..5 {
        until_eq("a call is served", &201, || client.order_status());
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_client_that_closes_in_the_middle_of_an_answer_ends_nothing() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).operation("big").start();
    for _ in 0..10 {
        let mut call = daemon.client().begin("big", &fresh_key(), r#"{"mb": 5}"#);
        call.read_within(Duration::from_secs(20));
        call.read_some();
        drop(call);
    }
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    assert!(daemon.is_alive());
    until_eq("all places are free", &0.0, || {
        daemon.metric(r#"onced_connections{listener="http"}"#)
    });
}
