//! Input that means harm. Each time: a right answer or a closed connection, memory and threads that stay bounded, and
//! others who are served meanwhile.

use std::io;
use std::time::Duration;

use crate::support::daemon::ORDER;
use crate::support::vitals::ticks;
use crate::support::wait::{pause, until, until_eq};
use crate::support::{Answer, Connection, Counts, Daemon, Database, Setup, Vitals, fresh_key};

const JSON: &str = "Content-Type: application/json";
const HTTP_CONNECTIONS: &str = r#"onced_connections{listener="http"}"#;

/// Limits under which a call of a test may wait long.
fn patient(database: &Database) -> Setup {
    Setup::on(database)
        .operation("sleepy")
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
}

/// Limits the descriptors that the daemon may have open from now on to `more` than it has.
fn leave_descriptors(daemon: &Daemon, more: usize) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let limit = open + more;
    let status = std::process::Command::new("prlimit")
        .arg(format!("--pid={}", daemon.pid()))
        .arg(format!("--nofile={limit}:"))
        .status()
        .expect("prlimit of util-linux runs");
    assert!(status.success());
}

/// The head of a call with a body of JSON, ended, and no body.
fn head_of(daemon: &Daemon, extra: &[&str]) -> Vec<u8> {
    let key = format!("Idempotency-Key: {}", fresh_key());
    daemon.client().head("POST /v1/orders HTTP/1.1", &[&[JSON, &key], extra].concat())
}

#[test]
fn without_descriptors_it_waits_quietly_and_all_comes_back_with_them() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.threads", 512).start();
    leave_descriptors(&daemon, 12);
    let mut crowd: Vec<_> = (0..100)
        .filter_map(|_| {
            let mut connection = Connection::try_open(daemon.setup().http()).ok()?;
            connection.send_what_goes(head_of(&daemon, &["Content-Length: 9"])).ok()?;
            Some(connection)
        })
        .collect();
    until_eq("it says so", &true, || daemon.log().contains("Too many open files"));
    // The writers' connections go, and no descriptor is there for others.
    database.kill_sessions();

    let before = ticks(&daemon);
    pause(Duration::from_secs(2));
    let used = ticks(&daemon) - before;

    assert!(used < 100, "{used} ticks of 10 ms in 2 s");
    assert!(daemon.log().len() < 100_000, "the log holds {} bytes", daemon.log().len());
    crowd.clear();
    until_eq("calls are served again", &201, || daemon.client().order_status());
    until_eq("and health is told", &200, || {
        daemon.operator().try_get("/readyz").map_or(0, |answer| answer.status)
    });
    assert!(daemon.is_alive());
}

#[test]
fn thousands_of_idle_connections_cost_little_and_calls_go_on() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.threads", 4096).start();
    let before = Vitals::of(&daemon);
    let mut idle: Vec<_> = (0..2000).map(|_| Connection::open(daemon.setup().http())).collect();
    until_eq("all are open", &2000.0, || daemon.metric(HTTP_CONNECTIONS));

    for _ in 0..20 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }

    let with_them = Vitals::of(&daemon);
    assert!(with_them.threads < before.threads + 2020, "{with_them:?}");
    let each_kib = (with_them.resident_mib - before.resident_mib) * 1024 / 2000;
    assert!(each_kib < 64, "an idle connection takes {each_kib} KiB");
    // They are as good as new.
    for connection in idle.iter_mut().step_by(100) {
        connection.send(daemon.client().request("orders", &fresh_key(), ORDER));
        assert_eq!(connection.answer().status, 201);
    }
    drop(idle);
    until_eq("their threads have ended", &true, || {
        Vitals::of(&daemon).threads < before.threads + 10
    });
}

#[test]
fn more_idle_connections_than_places_shut_nobody_out() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.threads", 32).start();
    let before = Vitals::of(&daemon);
    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.extend((0..100).filter_map(|_| Connection::try_open(daemon.setup().http()).ok()));
        until_eq("a call is served", &201, || daemon.client().order_status());
        let now = Vitals::of(&daemon);
        assert!(now.threads <= before.threads + 34, "{before:?} {now:?}");
    }
    assert_eq!(daemon.operator().get("/healthz").status, 200);
}

#[test]
fn heads_and_bodies_that_never_end_hold_up_nobody_and_are_cut_off() {
    let database = Database::new();
    let daemon =
        Setup::on(&database).set("http.threads", 256).set("http.read_timeout", "4s").start();
    let before = Vitals::of(&daemon);
    let mut never: Vec<_> = (0..128)
        .map(|number| {
            let mut connection = Connection::open(daemon.setup().http());
            let head = head_of(&daemon, &["Content-Length: 100"]);
            let part = if number % 2 == 0 { &head[..head.len() - 2] } else { &head[..] };
            connection.send(part);
            connection
        })
        .collect();
    until_eq("all are in hand", &128.0, || daemon.metric(HTTP_CONNECTIONS));

    for _ in 0..30 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }

    assert_eq!(database.idle_in_transaction(), 0);
    for connection in &mut never {
        assert_eq!(connection.answer().refusal(), (408, "request-timeout".to_owned()));
        assert!(connection.is_closed());
    }
    until_eq("all places are free", &0.0, || daemon.metric(HTTP_CONNECTIONS));
    // A place is free a moment before its thread has ended.
    until_eq("their threads have ended", &true, || {
        Vitals::of(&daemon).threads <= before.threads + 4
    });
    assert_eq!(database.rows("idempotency_records"), 30);
}

#[test]
fn clients_that_ask_for_more_and_more_and_never_read_are_held_back() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .operation("big")
        .set("http.threads", 64)
        .set("http.write_timeout", "3s")
        .start();
    let (key, body) = (fresh_key(), r#"{"mb": 1}"#);
    assert_eq!(daemon.post("big", &key, body).status, 200);
    let before = Vitals::of(&daemon);
    // A hundred replays of a big answer are asked for on each connection, and no byte is read.
    let requests = daemon.client().request("big", &key, body).repeat(100);
    let mut calls: Vec<_> = (0..32)
        .map(|_| {
            let mut call = Connection::open(daemon.setup().http());
            drop(call.send_what_goes(&requests));
            call
        })
        .collect();

    for _ in 0..10 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }

    until_eq("all are cut off", &0.0, || daemon.metric(HTTP_CONNECTIONS));
    let after = Vitals::of(&daemon);
    // One answer at a time for each of them, in a few copies; not a hundred.
    assert!(after.peak_mib < before.peak_mib + 32 * 6, "{before:?} {after:?}");
    for call in &mut calls {
        let mut whole = 0;
        while let Ok(Some(answer)) = call.try_answer() {
            assert_eq!((answer.status, answer.is_replay()), (200, true));
            whole += 1;
        }
        assert!(whole < 20, "{whole} answers were written to a client that does not read");
    }
    assert!(daemon.is_alive());
}

#[test]
fn what_is_announced_reserves_nothing() {
    let database = Database::new();
    let mut daemon = Setup::on(&database)
        .set("http.threads", 256)
        .set("http.max_body", "32MiB")
        .set("http.read_timeout", "20s")
        .start();
    let before = Vitals::of(&daemon);
    let announced = [
        "Content-Length: 10737418240",
        "Content-Length: 9223372036854775807",
        "Content-Length: 33554433",
    ];
    for length in announced.iter().cycle().take(60) {
        let mut connection = Connection::open(daemon.setup().http());
        connection.send(head_of(&daemon, &[length]));
        assert_eq!(connection.answer().refusal(), (413, "body-too-large".to_owned()), "{length}");
    }
    for size in ["280000000", "7fffffffffffffff", "ffffffffffffffff"] {
        let mut connection = Connection::open(daemon.setup().http());
        connection.send(head_of(&daemon, &["Transfer-Encoding: chunked"]));
        connection.send(format!("{size}\r\nabc"));
        assert_eq!(connection.answer().refusal(), (413, "body-too-large".to_owned()), "{size}");
    }
    // 100 bodies of 32 MiB each, as may be, of which one byte comes.
    let begun: Vec<_> = (0..100)
        .map(|number| {
            let mut connection = Connection::open(daemon.setup().http());
            let (framing, first) = if number % 2 == 0 {
                ("Content-Length: 33554432", "[")
            } else {
                ("Transfer-Encoding: chunked", "2000000\r\n[")
            };
            connection.send(head_of(&daemon, &[framing]));
            connection.send(first);
            connection
        })
        .collect();
    until_eq("all are in hand", &100.0, || daemon.metric(HTTP_CONNECTIONS));
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let after = Vitals::of(&daemon);
    assert!(after.peak_mib < before.peak_mib + 50, "{before:?} {after:?}");
    drop(begun);
    assert!(daemon.is_alive());
    assert_eq!(database.rows("idempotency_records"), 1);
}

#[test]
fn heads_without_end_from_many_at_once_take_no_memory() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.threads", 128).start();
    let before = Vitals::of(&daemon);
    let many: String = (0..1000).map(|number| format!("X-{number}: x\r\n")).collect();
    let start = "POST /v1/orders HTTP/1.1\r\nHost: localhost\r\n";
    let heads = [
        format!("{start}{many}\r\n"),
        format!("{start}{}", many.repeat(100)),
        format!("{start}X-Long: {}", "x".repeat(1024 * 1024)),
        format!("POST /{} HTTP/1.1\r\n", "x".repeat(1024 * 1024)),
        format!("{start}{}", "A:\r\n".repeat(101)) + "\r\n",
    ];
    std::thread::scope(|scope| {
        for head in heads.iter().cycle().take(40) {
            let address = daemon.setup().http();
            scope.spawn(move || {
                for _ in 0..3 {
                    let mut connection = Connection::open(address);
                    drop(connection.send_what_goes(head));
                    // Where the answer is lost, the connection was reset over what was still being sent.
                    if let Ok(Some(answer)) = connection.try_answer() {
                        assert_eq!(answer.refusal(), (431, "head-too-large".to_owned()));
                    }
                }
            });
        }
    });
    let after = Vitals::of(&daemon);
    assert!(after.peak_mib < before.peak_mib + 40, "{before:?} {after:?}");
    assert!(daemon.is_alive());
    assert_eq!(database.counts(), Counts::NONE);
}

/// A request of a pipelined flood: what is sent, and what the answer must be.
fn of_a_flood(daemon: &Daemon, number: usize, stored: &str) -> (Vec<u8>, u16, String) {
    let client = daemon.client();
    let body = format!(r#"{{"number": {number}}}"#);
    let id = format!("X-Request-Id: id-{number}");
    let length = format!("Content-Length: {}", body.len());
    let call = |operation: &str, key: &str, headers: &[&str]| {
        let key = format!("Idempotency-Key: {key}");
        let line = format!("POST /v1/{operation} HTTP/1.1");
        let mut bytes = client.head(&line, &[headers, &[&key, &id, &length]].concat());
        bytes.extend_from_slice(body.as_bytes());
        bytes
    };
    match number % 5 {
        0 => (call("echo", &fresh_key(), &[JSON]), 200, body.clone()),
        1 => (client.head("GET /v1/echo HTTP/1.1", &[&id]), 405, String::new()),
        2 => (client.head("GET /v1/requests/never-used HTTP/1.1", &[&id]), 404, String::new()),
        3 => (call("echo", stored, &[JSON]), 409, String::new()),
        _ => (call("echo", &fresh_key(), &[JSON, "X-Odd: {\"number\": 0}"]), 200, body.clone()),
    }
}

#[test]
fn a_pipelined_flood_is_answered_in_order_each_request_with_its_own_answer() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("echo").set("http.threads", 64).start();
    let before = Vitals::of(&daemon);
    let stored = fresh_key();
    assert_eq!(daemon.post("echo", &stored, "{}").status, 200);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let flood: Vec<_> = (0..500).map(|n| of_a_flood(&daemon, n, &stored)).collect();
                let mut connection = Connection::open(daemon.setup().http());
                let bytes: Vec<u8> = flood.iter().flat_map(|(bytes, ..)| bytes.clone()).collect();
                connection.send(bytes);
                for (number, (_, status, body)) in flood.iter().enumerate() {
                    let answer = connection.answer();
                    assert_eq!(answer.status, *status, "{number}: {answer:?}");
                    let id = format!("id-{number}");
                    assert_eq!(answer.header("x-request-id"), Some(id.as_str()), "{answer:?}");
                    if !body.is_empty() {
                        assert_eq!(answer.text(), body);
                    }
                }
            });
        }
    });
    let after = Vitals::of(&daemon);
    assert!(after.peak_mib < before.peak_mib + 40, "{before:?} {after:?}");
    assert_eq!(database.rows("idempotency_records"), 1 + 6 * 200);
}

#[test]
fn hundreds_of_retries_of_one_slow_key_leave_nothing_behind_and_new_keys_run() {
    let database = Database::new();
    let daemon =
        patient(&database).set("http.threads", 512).set("http.waiters_per_key", 300).start();
    let before = Vitals::of(&daemon);
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);
    let first = daemon.client().begin("sleepy", &key, body);
    gate.wait_for(1);
    for _ in 0..3 {
        let retries: Vec<_> =
            (0..250).map(|_| daemon.client().begin("sleepy", &key, body)).collect();
        until_eq("all wait", &250.0, || daemon.metric("onced_parked_waiting"));
        assert_eq!(daemon.order(&fresh_key()).status, 201);
        // All hang up at once.
        drop(retries);
        until_eq("their places are free", &0.0, || daemon.metric("onced_parked_waiting"));
    }
    let mut retries: Vec<_> =
        (0..300).map(|_| daemon.client().begin("sleepy", &key, body)).collect();
    until_eq("all wait", &300.0, || daemon.metric("onced_parked_waiting"));
    let kept = retries.split_off(150);
    drop(retries);
    for _ in 0..10 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    let with_them = Vitals::of(&daemon);
    assert_eq!(gate.waiting(), 1, "one of them runs");

    gate.open();

    let answers: Vec<Answer> = kept.into_iter().map(|mut call| call.answer()).collect();
    let first = {
        let mut first = first;
        first.answer()
    };
    assert!(answers.iter().all(|answer| (answer.status, &answer.body) == (201, &first.body)));
    assert!(answers.iter().all(Answer::is_replay) && !first.is_replay());
    until_eq("nobody waits any more", &0.0, || daemon.metric("onced_parked_waiting"));
    until_eq("all places are free", &0.0, || daemon.metric(HTTP_CONNECTIONS));
    until_eq("their threads have ended", &true, || {
        Vitals::of(&daemon).threads <= before.threads + 4
    });
    assert!(with_them.peak_mib < before.peak_mib + 60, "{before:?} {with_them:?}");
    assert_eq!(database.counts_of(&key), Counts { records: 1, events: 1, business: 1 });
}

/// Bodies that are as long as they may be, each meant to cost more than its length: what, and the right statuses.
fn hostile_bodies() -> Vec<(&'static str, String, u16)> {
    const LENGTH: usize = 1_000_000;
    let members = |name: &dyn Fn(usize) -> String, count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!("\"{}\":0", name(n))).collect();
        format!("{{{}}}", members.join(","))
    };
    // Strings of equal length over two blocks of equal hash are equal in a multiplicative hash of base 31.
    let colliding = |n: usize| -> String {
        (0..16).map(|bit| if n >> bit & 1 == 0 { "Aa" } else { "BB" }).collect()
    };
    let long_prefix = "p".repeat(2000);
    vec![
        ("names in falling order", members(&|n| format!("{:07}", 9_999_999 - n), 80_000), 200),
        ("names whose simple hash is equal", members(&colliding, 25_000), 200),
        ("names that differ at their end", members(&|n| format!("{long_prefix}{n:05}"), 480), 200),
        ("one name twice, far apart", members(&|n| (n % 79_999).to_string(), 80_000), 400),
        ("arrays without end", "[".repeat(LENGTH), 400),
        ("objects without end", "{\"a\":".repeat(LENGTH / 5), 400),
        ("empty arrays side by side", format!("[{}[]]", "[],".repeat(LENGTH / 3 - 2)), 200),
        ("one long number", format!("[{}]", "9".repeat(LENGTH)), 400),
        ("a long run of zeros", format!("[0.{}1]", "0".repeat(LENGTH)), 400),
        ("numbers that grow", format!("[{}1e399]", "1e399,".repeat(3000)), 200),
        ("a far exponent", format!("[{}1]", "1e999999999999,".repeat(60_000)), 400),
        ("one long string", format!("[\"{}\"]", "x".repeat(LENGTH)), 200),
        ("a string of escapes", format!("[\"{}\"]", "\\u0001".repeat(LENGTH / 6 - 1)), 200),
        ("an unclosed string", format!("[\"{}", "\\\"".repeat(LENGTH / 2)), 400),
        ("a pair that is no pair", format!("[\"{}\"]", "\\ud800".repeat(LENGTH / 6 - 1)), 400),
        ("white space", format!("{}1", " \n\t\r".repeat(LENGTH / 4 - 1)), 200),
    ]
}

#[test]
fn bodies_that_are_meant_to_cost_much_cost_what_their_length_says() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).operation("echo").set("http.threads", 64).start();
    assert_eq!(daemon.post("echo", &fresh_key(), text_of(1_000_000)).status, 200);
    let before = Vitals::of(&daemon);
    let bodies = hostile_bodies();
    let mut refused = 0;
    for (what, body, status) in &bodies {
        assert!(body.len() <= 1024 * 1024, "{what}: {}", body.len());
        let answer = daemon.post("echo", &fresh_key(), body);
        let start = &answer.text()[..answer.body.len().min(300)];
        assert_eq!(answer.status, *status, "{what}: {start}");
        refused += u64::from(answer.status == 400);
        assert!(answer.status == 200 || answer.body.len() < 1000, "{what}: {start}");
    }
    // Refused by many threads at once: what one of them takes is given back.
    std::thread::scope(|scope| {
        for (_, body, _) in bodies.iter().filter(|(.., status)| *status == 400) {
            for _ in 0..4 {
                let daemon = &daemon;
                scope.spawn(move || {
                    assert_eq!(daemon.post("echo", &fresh_key(), body).status, 400);
                });
            }
        }
    });
    let after = Vitals::of(&daemon);
    assert!(after.peak_mib < before.peak_mib + 150, "{before:?} {after:?}");
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let stored = u64::try_from(database.rows("idempotency_records")).unwrap();
    assert_eq!(stored, bodies.len() as u64 - refused + 2);
    assert!(daemon.is_alive());
}

fn text_of(length: usize) -> String {
    format!("\"{}\"", "x".repeat(length - 2))
}

#[test]
fn large_bodies_do_not_pile_up_in_one_transaction() {
    let database = Database::new();
    let daemon = patient(&database)
        .inline("length", "SELECT 200 AS status, to_jsonb(length($1 ->> 0)) AS response")
        .set("http.max_body", "4MiB")
        .set("writers.threads", 1)
        .start();
    let gate = database.shut_gate(1);
    let mut slow = daemon.client().begin("sleepy", &fresh_key(), r#"{"gate": 1}"#);
    gate.wait_for(1);
    let body = format!("[{}]", text_of(3_000_000));
    let mut calls: Vec<_> =
        (0..12).map(|_| daemon.client().begin("length", &fresh_key(), &body)).collect();
    until_eq("all of them wait", &12.0, || daemon.metric("onced_jobs_waiting"));

    gate.open();

    assert_eq!(slow.answer().status, 201);
    for call in &mut calls {
        assert_eq!(call.answer().text(), "2999998");
    }
    // 12 calls of 3 MB: two in a batch, not all of them.
    assert_eq!(daemon.metric("onced_batch_size_count"), 7.0);
}

#[test]
fn bytes_of_other_protocols_are_refused_or_closed() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.read_timeout", "2s").start();
    let hello: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let startup: &[u8] = b"\x00\x00\x00\x08\x04\xd2\x16\x2f";
    let proxied =
        [b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n".as_slice(), &head_of(&daemon, &[])].concat();
    let inputs: [&[u8]; 8] = [
        hello,
        startup,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\x05\x01\x00",
        &proxied,
        &[0xff; 70_000],
    ];
    for input in inputs {
        for listener in [daemon.setup().http(), daemon.setup().admin()] {
            let mut connection = Connection::open(listener);
            drop(connection.send_what_goes(input));
            let shown = String::from_utf8_lossy(&input[..input.len().min(20)]).into_owned();
            match connection.try_answer() {
                Ok(Some(answer)) => {
                    assert!([400, 408, 501, 505].contains(&answer.status), "{shown}: {answer:?}");
                    assert_eq!(answer.header("connection"), Some("close"), "{shown}");
                }
                Ok(None) => {}
                Err(error) => assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{shown}"),
            }
        }
    }
    until("a call is served", || match daemon.client().order_status() {
        201 => Ok(()),
        status => Err(status.to_string()),
    });
    assert!(daemon.is_alive());
}
