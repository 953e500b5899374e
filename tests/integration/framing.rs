//! HTTP that could be read in two ways, or never ends, is refused, and the connection closed.

use std::time::Duration;

use crate::support::daemon::ORDER;
use crate::support::{Answer, Connection, Counts, Daemon, Database, Setup, fresh_key};

/// The lines of a POST to `orders`, with a fresh key; `extra` stands where Content-Length would.
fn post(extra: &str, body: &str) -> String {
    let key = fresh_key();
    format!(
        "POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\n{extra}\r\n\r\n{body}"
    )
}

/// The only answer to these bytes; the connection was closed after it.
fn only_answer(daemon: &Daemon, bytes: impl AsRef<[u8]>) -> Answer {
    let mut connection = Connection::open(daemon.setup().http());
    drop(connection.send_what_goes(&bytes));
    let answer = connection.answer();
    assert!(connection.is_closed(), "{:?}", String::from_utf8_lossy(bytes.as_ref()));
    answer
}

fn assert_untouched(daemon: &mut Daemon, database: &Database) {
    assert_eq!(database.counts(), Counts::NONE);
    assert!(daemon.is_alive());
    assert_eq!(daemon.order(&fresh_key()).status, 201);
}

#[test]
fn lengths_that_are_no_length_are_refused() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let length = ORDER.len();
    for extra in [
        format!("Content-Length: {length}\r\nContent-Length: {}", length + 1),
        format!("Content-Length: {length}\r\nContent-Length: {length}"),
        format!("Content-Length: {length}, {length}"),
        format!("Content-Length: +{length}"),
        "Content-Length: 0x22".to_owned(),
        "Content-Length: -1".to_owned(),
        "Content-Length: 3 4".to_owned(),
        "Content-Length:".to_owned(),
        "Content-Length: abc".to_owned(),
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked"),
    ] {
        let answer = only_answer(&daemon, post(&extra, ORDER));
        assert_eq!(answer.refusal(), (400, "request-malformed".to_owned()), "{extra}");
    }
    for huge in ["18446744073709551616", "9000000000000000000", "100000000000000"] {
        let answer = only_answer(&daemon, post(&format!("Content-Length: {huge}"), "0123456789"));
        assert!([400, 413].contains(&answer.status), "{huge}: {answer:?}");
    }
    assert_untouched(&mut daemon, &database);
}

#[test]
fn a_body_in_chunks_is_taken_and_broken_chunks_are_refused() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let chunked = "Transfer-Encoding: chunked";
    for body in [
        "zz\r\n{}\r\n0\r\n\r\n".to_owned(),
        "FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n".to_owned(),
        format!("2;ext={}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(100_000)),
        "1\r\n{}\r\n0\r\n\r\n".to_owned(),
        "2\n{}\n0\n\n".to_owned(),
        "-2\r\n{}\r\n0\r\n\r\n".to_owned(),
    ] {
        let answer = only_answer(&daemon, post(chunked, &body));
        let shown = &body[..body.len().min(40)];
        assert!([400, 413].contains(&answer.status), "{shown:?}: {answer:?}");
    }
    for coding in [
        "gzip, chunked",
        "chunked, chunked",
        "identity",
        "xchunked",
        "chunked\r\nTransfer-Encoding: chunked",
    ] {
        let answer =
            only_answer(&daemon, post(&format!("Transfer-Encoding: {coding}"), "0\r\n\r\n"));
        assert!([400, 501].contains(&answer.status), "{coding}: {answer:?}");
    }
    // A key in a trailer is no key.
    let keyless = format!(
        "POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{chunked}\r\n\r\n\
         {:x}\r\n{ORDER}\r\n0\r\nIdempotency-Key: T\r\n\r\n",
        ORDER.len()
    );
    let answers = daemon.client().raw(keyless);
    assert_eq!(answers[0].refusal(), (400, "idempotency-key-missing".to_owned()));
    assert_untouched(&mut daemon, &database);

    let (head, tail) = ORDER.split_at(7);
    let good = format!("{:x}\r\n{head}\r\n{:X};a=b\r\n{tail}\r\n0\r\n\r\n", head.len(), tail.len());
    let answers = daemon.client().raw(post(chunked, &good));
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [201]);
}

#[test]
fn a_body_that_ends_too_early_is_no_request() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.read_timeout", "500ms").start();
    let cut = post(&format!("Content-Length: {}", ORDER.len() + 1), ORDER);
    for answer in daemon.client().raw(&cut) {
        assert!([400, 408].contains(&answer.status), "{answer:?}");
    }
    // The same, but the client only falls silent.
    assert_eq!(only_answer(&daemon, cut).refusal(), (408, "request-timeout".to_owned()));
    assert_untouched(&mut daemon, &database);
}

#[test]
fn a_request_that_drips_is_cut_off_at_its_deadline() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).set("http.read_timeout", "500ms").start();
    let mut connection = Connection::open(daemon.setup().http());
    connection.send("POST /v1/orders HTTP/1.1\r\n");
    // One header each 50 ms would hold a limit on each read for ever.
    let mut sent = 0;
    while connection.send_what_goes("X-Drip: 1\r\n").is_ok() && sent < 100 {
        sent += 1;
        crate::support::wait::pause(Duration::from_millis(50));
        if connection.has_bytes() {
            break;
        }
    }
    assert!(sent < 100, "it was never cut off");
    assert_eq!(connection.answer().refusal(), (408, "request-timeout".to_owned()));
    assert_untouched(&mut daemon, &database);
}

#[test]
fn expect_100_continue_is_answered_once_the_head_is_accepted() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.max_body", "1KiB").start();
    let expecting = |key: &str, length: usize, kind: &str| {
        let headers = [
            &format!("Idempotency-Key: {key}"),
            &format!("Content-Type: {kind}"),
            &format!("Content-Length: {length}"),
            "Expect: 100-continue",
        ];
        daemon.client().head("POST /v1/orders HTTP/1.1", &headers)
    };
    let mut connection = Connection::open(daemon.setup().http());
    connection.send(expecting(&fresh_key(), ORDER.len(), "application/json"));
    assert_eq!(connection.answer().status, 100);
    connection.send(ORDER);
    assert_eq!(connection.answer().status, 201);

    // A refusal comes instead of it, before any byte of the body.
    for (length, kind, status) in
        [(2000, "application/json", 413), (ORDER.len(), "text/plain", 415)]
    {
        let mut connection = Connection::open(daemon.setup().http());
        connection.send(expecting(&fresh_key(), length, kind));
        assert_eq!(connection.answer().status, status);
        assert!(connection.is_closed());
    }
    let other = post("Expect: something\r\nContent-Length: 2", "");
    assert_eq!(only_answer(&daemon, other).refusal(), (417, "expectation-failed".to_owned()));
}

#[test]
fn the_body_of_a_refused_request_is_never_taken_for_a_request() {
    let database = Database::new();
    let mut daemon =
        Setup::on(&database).principal("a", "token").set("http.max_body", "20KiB").start();
    let smuggled = daemon.client_with("token").request("orders", &fresh_key(), ORDER);
    let mut body = b" ".repeat(10_000);
    while body.len() < 50_000 {
        body.extend_from_slice(&smuggled);
    }
    let token = "Authorization: Bearer token";
    let json = "Content-Type: application/json";
    for (line, headers, status) in [
        ("POST /v1/orders HTTP/1.1", vec![json], 401),
        ("POST /v1/nope HTTP/1.1", vec![token, json], 404),
        ("PUT /v1/orders HTTP/1.1", vec![token, json], 405),
        ("POST /v1/orders HTTP/1.1", vec![token, json, "Idempotency-Key: k"], 413),
        (
            "POST /v1/orders HTTP/1.1",
            vec![token, "Content-Type: text/plain", "Idempotency-Key: k"],
            415,
        ),
    ] {
        let length = format!("Content-Length: {}", body.len());
        let mut bytes = daemon.client().head(line, &[&headers[..], &[length.as_str()]].concat());
        bytes.extend_from_slice(&body);
        let answers = daemon.client().raw(bytes);
        assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [status], "{line}");
    }
    assert_eq!(database.counts(), Counts::NONE);
    assert!(daemon.is_alive());
}

#[test]
fn an_endless_head_is_cut_off() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let heads = [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(2_000_000)),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}", "X: y\r\n".repeat(100_000)),
        format!("GET /{} HTTP/1.1\r\n", "x".repeat(1_000_000)),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(101)),
    ];
    for head in heads {
        let answer = only_answer(&daemon, &head);
        assert_eq!(answer.refusal(), (431, "head-too-large".to_owned()), "{}", &head[..60]);
    }
    assert_untouched(&mut daemon, &database);
}

#[test]
fn strange_bytes_in_a_head_are_refused() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let lines: [&[u8]; 10] = [
        b"X-A: a\0b",
        b"X-A: a\rb",
        b"X-A: a\nX-B: b",
        b"X-A: a\r\n folded",
        b"X-A : a",
        b": a",
        b"no colon",
        b"X-\xe9: a",
        b"X A: a",
        b"X-A: \x1b[31m",
    ];
    for line in lines {
        let mut bytes = b"POST /v1/orders HTTP/1.1\r\nHost: localhost\r\n".to_vec();
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\nContent-Length: 2\r\n\r\n{}");
        let answer = only_answer(&daemon, &bytes);
        assert_eq!(answer.refusal(), (400, "request-malformed".to_owned()), "{line:?}");
    }
    for value in [b"\xff\xff".as_slice(), "é".as_bytes()] {
        let mut bytes = b"POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: ".to_vec();
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(only_answer(&daemon, &bytes).status, 400);
    }
    assert_untouched(&mut daemon, &database);
}

#[test]
fn methods_other_than_post_are_not_allowed_on_an_operation() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    for method in ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answers = daemon
            .client()
            .raw(daemon.client().head(&format!("{method} /v1/orders HTTP/1.1"), &[]));
        assert_eq!(answers[0].refusal(), (405, "method-not-allowed".to_owned()), "{method}");
        assert_eq!(answers[0].header("allow"), Some("POST"));
    }
    let mut head = Connection::open(daemon.setup().http());
    head.send(daemon.client().head("HEAD /v1/orders HTTP/1.1", &["Connection: close"]));
    assert_eq!(head.answer_to_head().status, 405);
    assert!(head.is_closed(), "the answer to HEAD has no body");
    for method in ["post", "BREW", "Post"] {
        let answer = only_answer(
            &daemon,
            daemon.client().head(&format!("{method} /v1/orders HTTP/1.1"), &[]),
        );
        assert!([400, 501].contains(&answer.status), "{method}: {answer:?}");
    }
    assert_untouched(&mut daemon, &database);
}

#[test]
fn an_operation_has_no_second_name() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let key = fresh_key();
    let first = daemon.order(&key);
    let spelled = |path: &str| {
        let headers = [
            &format!("Idempotency-Key: {key}"),
            "Content-Type: application/json",
            &format!("Content-Length: {}", ORDER.len()),
        ];
        let mut bytes = daemon.client().head(&format!("POST {path} HTTP/1.1"), &headers);
        bytes.extend_from_slice(ORDER.as_bytes());
        daemon.client().raw(bytes).remove(0)
    };
    let same = spelled("/v1/%6frders");
    assert_eq!((same.status, &same.body), (201, &first.body));
    for path in [
        "/v1/nope",
        "/v1/orders/",
        "//v1/orders",
        "/v1/../v1/orders",
        "/v1/./orders",
        "/v1/orders%2f",
        "/V1/orders",
        "/v1/orders%00",
        "/v1/%256frders",
        "/",
    ] {
        assert_eq!(spelled(path).refusal(), (404, "not-found".to_owned()), "{path}");
    }
    for path in ["http://elsewhere.example/v1/orders", "v1/orders", "*"] {
        assert_eq!(spelled(path).status, 400, "{path}");
    }
    assert_eq!(database.rows("orders"), 1);
}

#[test]
fn versions_and_hosts_are_taken_strictly() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    for bytes in [
        "GET /v1/requests/k HTTP/1.1\r\n\r\n",
        "GET /v1/requests/k HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET  /v1/requests/k HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /v1/requests/k\r\nHost: localhost\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\u{7c}\x03\x03 hello\r\n\r\n",
    ] {
        assert_eq!(only_answer(&daemon, bytes).status, 400, "{bytes:?}");
    }
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(only_answer(&daemon, preface).refusal(), (505, "version-unsupported".to_owned()));
    let old = only_answer(&daemon, "GET /v1/requests/k HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_eq!(old.status, 404);
    assert_untouched(&mut daemon, &database);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("writers.lock_timeout", "9s")
        .set("operations.sleepy.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let keys: Vec<_> = (0..20).map(|_| fresh_key()).collect();
    let mut bytes = daemon.client().request("sleepy", &keys[0], r#"{"gate": 1}"#);
    for key in &keys[1..] {
        bytes.extend(daemon.client().request("orders", key, ORDER));
    }
    let mut connection = Connection::open(daemon.setup().http());
    connection.send(bytes);
    gate.wait_for(1);
    gate.open();
    assert!(connection.answer().json()["request"]["gate"].is_number());
    for key in &keys[1..] {
        assert_eq!(connection.answer().json()["idempotency_key"], key.as_str());
    }
}

#[test]
fn answers_say_when_they_were_made_and_how_long_they_are() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let answer = daemon.order(&fresh_key());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    assert!(answer.header("date").is_some_and(|date| date.ends_with(" GMT")));
}
