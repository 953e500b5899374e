//! Everything is bounded: sizes, clients, waits; and who does not read holds up nobody.

use crate::support::daemon::ORDER;
use crate::support::wait::until_eq;
use crate::support::{Connection, Counts, Daemon, Database, Setup, fresh_key};

/// A JSON string of exactly so many bytes, with its quotes.
fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

#[test]
fn a_body_of_exactly_max_body_runs_and_one_byte_more_is_refused() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("echo").set("http.max_body", "10KiB").start();
    let key = fresh_key();
    let refused = daemon.post("echo", &key, text_of(10 * 1024 + 1));
    assert_eq!(refused.refusal(), (413, "body-too-large".to_owned()));
    assert_eq!(database.counts(), Counts::NONE);
    let taken = daemon.post("echo", &key, text_of(10 * 1024));
    assert_eq!((taken.status, taken.body.len()), (200, 10 * 1024));
}

#[test]
fn a_body_that_is_too_large_is_refused_without_reading_to_its_end() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.max_body", "10KiB").start();
    let key = format!("Idempotency-Key: {}", fresh_key());
    let json = "Content-Type: application/json";
    let declared = daemon
        .client()
        .head("POST /v1/orders HTTP/1.1", &[&key, json, "Content-Length: 2147483648"]);
    let mut connection = Connection::open(daemon.setup().http());
    connection.send(declared);
    // It is refused by its head alone.
    assert_eq!(connection.answer().refusal(), (413, "body-too-large".to_owned()));

    let chunked = daemon
        .client()
        .head("POST /v1/orders HTTP/1.1", &[&key, json, "Transfer-Encoding: chunked"]);
    let mut connection = Connection::open(daemon.setup().http());
    connection.send(chunked);
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let mut taken = 0;
    while taken < 5000 && connection.send_what_goes(&chunk).is_ok() {
        taken += 1;
    }
    assert!(taken < 5000, "20 MB were taken");
    assert!(resident_mib(&daemon) < 200, "{} MiB", resident_mib(&daemon));
    assert_eq!(database.counts(), Counts::NONE);
    assert!(daemon.is_alive());
}

fn resident_mib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024
}

#[test]
fn clients_past_http_threads_are_told_so_and_idle_ones_make_room() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("http.threads", 4)
        .set("writers.threads", 4)
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    // Four idle ones would fill all places; calls push them out.
    let mut idle: Vec<_> = (0..4).map(|_| Connection::open(daemon.setup().http())).collect();
    for connection in &mut idle {
        connection.send(daemon.client().request("orders", &fresh_key(), ORDER));
        assert_eq!(connection.answer().status, 201);
    }
    let mut busy: Vec<_> = Vec::new();
    for waiting in 1..=4 {
        busy.push(begin_when_there_is_room(&daemon));
        gate.wait_for(waiting);
    }

    let refused = daemon.order(&fresh_key());

    assert_eq!(refused.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(refused.retry_after(), Some(1));
    assert_eq!(refused.header("connection"), Some("close"));
    assert_eq!(daemon.operator().get("/healthz").status, 200);
    gate.open();
    assert!(busy.iter_mut().all(|call| call.answer().status == 201));
    drop(busy);
    until_eq("there is room again", &201, || daemon.client().order_status());
}

/// Begins a call at the gate. A place may be on its way to be free, so a refusal comes again.
fn begin_when_there_is_room(daemon: &Daemon) -> Connection {
    crate::support::wait::until("there is room for a call", || {
        let mut call = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 1}"#);
        if call.is_silent() { Ok(call) } else { Err("the call was refused".to_owned()) }
    })
}

#[test]
fn readers_that_do_not_read_hold_no_writer_and_are_cut_off() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .operation("big")
        .set("writers.max_response", "32MiB")
        .set("http.write_timeout", "1s")
        .start();
    let mut calls: Vec<_> =
        (0..4).map(|_| daemon.client().begin("big", &fresh_key(), r#"{"mb": 20}"#)).collect();
    until_eq("all of them are written", &4, || database.rows("idempotency_records"));
    for _ in 0..10 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    assert_eq!(database.idle_in_transaction(), 0);
    until_eq("they are cut off", &0.0, || daemon.metric(r#"onced_connections{listener="http"}"#));
    for call in &mut calls {
        assert!(call.try_answer().is_err(), "20 MiB came through");
    }
    assert!(daemon.is_alive());
}

#[test]
fn many_retries_of_one_key_and_clients_that_hang_up_leave_nothing_behind() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("http.threads", 64)
        .set("http.waiters_per_key", 16)
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let first = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    let mut calls = Vec::new();
    for _ in 0..200 {
        match Connection::try_open(daemon.setup().http()) {
            Ok(mut call) => {
                drop(call.send_what_goes(daemon.client().request("sleepy", &key, body)));
                calls.push(call);
            }
            Err(_) => continue,
        }
    }
    until_eq("as many wait as may", &16.0, || daemon.metric("onced_parked_waiting"));
    let kept = calls.split_off(calls.len() / 2);
    drop(calls);
    assert_eq!(daemon.operator().get("/healthz").status, 200);

    gate.open();

    let mut answers = 0;
    for mut call in kept {
        if let Ok(Some(answer)) = call.try_answer() {
            assert!([201, 409, 503].contains(&answer.status), "{answer:?}");
            if answer.status != 201 {
                assert_eq!(answer.retry_after(), Some(1));
            }
            answers += 1;
        }
    }
    assert!(answers > 0);
    drop(first);
    until_eq("nobody waits any more", &0.0, || daemon.metric("onced_parked_waiting"));
    until_eq("all places are free", &0.0, || {
        daemon.metric(r#"onced_connections{listener="http"}"#)
    });
    assert_eq!(database.counts_of(&key), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn running_out_of_descriptors_does_not_end_the_accepting() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.threads", 512).start();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let limit = open + 8;
    let status = std::process::Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={limit}:{limit}")])
        .status()
        .expect("prlimit of util-linux runs");
    assert!(status.success());
    let crowd: Vec<_> =
        (0..30).filter_map(|_| Connection::try_open(daemon.setup().http()).ok()).collect();
    drop(crowd);
    until_eq("calls are served again", &201, || daemon.client().order_status());
    assert!(daemon.is_alive());
}

#[test]
fn an_idle_connection_is_closed_after_keep_alive() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.keep_alive", "300ms").start();
    let mut connection = Connection::open(daemon.setup().http());
    connection.send(daemon.client().request("orders", &fresh_key(), ORDER));
    assert_eq!(connection.answer().status, 201);
    assert!(connection.is_closed());
}

#[test]
fn the_database_sees_no_more_sessions_than_the_configuration_allows() {
    let database = Database::new();
    let sink = crate::support::sink::Sink::start();
    let daemon = Setup::on(&database).sink(&sink).set("writers.threads", 3).start();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let key = fresh_key();
                    assert_eq!(daemon.order(&key).status, 201);
                    assert!(daemon.look_up(&key).is_some());
                }
            });
        }
        for _ in 0..20 {
            // writers.threads + relay.connections + 3
            assert!(database.sessions() <= 8);
        }
    });
}

#[test]
fn notices_by_the_thousand_do_no_harm() {
    let database = Database::new();
    database.execute(
        "CREATE FUNCTION chatter(n int) RETURNS int LANGUAGE plpgsql AS $$
         BEGIN FOR i IN 1..n LOOP RAISE NOTICE '% %', i, repeat('x', 1000); END LOOP; RETURN n; END $$",
    );
    let mut daemon = Setup::on(&database)
        .inline("chatter", "SELECT 200 AS status, to_jsonb(chatter(20000)) AS response")
        .start();
    assert_eq!(daemon.post("chatter", &fresh_key(), "{}").status, 200);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    assert!(daemon.log().len() < 1_000_000, "the log holds {} bytes", daemon.log().len());
    assert!(daemon.is_alive());
}
