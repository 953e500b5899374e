//! Which bodies are the same request, which are another, and which are none.

use crate::support::{Answer, Counts, Daemon, Database, Setup, fresh_key};

fn with_echo(database: &Database) -> Daemon {
    Setup::on(database).operation("echo").start()
}

/// Sends all bodies under one key: the first runs, the others replay it.
fn assert_same(daemon: &Daemon, bodies: &[&str]) {
    let key = fresh_key();
    let first = daemon.post("echo", &key, bodies[0]);
    assert_eq!((first.status, first.is_replay()), (200, false), "{}: {}", bodies[0], first.text());
    for body in &bodies[1..] {
        let again = daemon.post("echo", &key, body);
        assert_eq!((again.status, again.is_replay()), (200, true), "{} and {body}", bodies[0]);
        assert_eq!(again.body, first.body);
    }
}

/// Sends two bodies under one key, in both orders: the second is refused.
fn assert_differ(daemon: &Daemon, one: &str, other: &str) {
    for [first, second] in [[one, other], [other, one]] {
        let key = fresh_key();
        let answer = daemon.post("echo", &key, first);
        assert_eq!(answer.status, 200, "{first}: {}", answer.text());
        let refused = daemon.post("echo", &key, second);
        assert_eq!(
            refused.refusal(),
            (409, "idempotency-key-reused".to_owned()),
            "{first}, {second}"
        );
    }
}

#[test]
fn order_white_space_and_escapes_do_not_matter() {
    let database = Database::new();
    let daemon = with_echo(&database);
    assert_same(&daemon, &[r#"{"a":1,"b":"é/"}"#, "{ \"b\" : \"\\u00e9\\/\" ,\n \"a\" : 1 }"]);
    assert_same(&daemon, &[r#"{"o":{"x":[{"q":1,"p":2}]}}"#, r#" {"o":{"x":[{"p":2,"q":1}]}} "#]);
    assert_same(&daemon, &[r#"{"abc":1}"#, r#"{"\u0061b\u0063":1}"#]);
    assert_same(&daemon, &[r#""\ud83d\ude00""#, r#""😀""#]);
    assert_same(
        &daemon,
        &[
            "{\"\u{ffff}\":1,\"😀\":2,\"a\":3,\"Z\":4,\"\":5}",
            "{\"\":5,\"Z\":4,\"😀\":2,\"a\":3,\"\u{ffff}\":1}",
        ],
    );
}

#[test]
fn numbers_are_compared_by_value() {
    let database = Database::new();
    let daemon = with_echo(&database);
    assert_same(&daemon, &["1", "1.0", "1e0", "10e-1"]);
    assert_same(&daemon, &["100", "1e2", "1E+2", "1.00e2"]);
    assert_same(&daemon, &["0.00005", "0.5e-4"]);
    assert_same(&daemon, &["0", "-0", "0.0", "-0.0", "0e5"]);
    assert_differ(&daemon, "1", "1.000000000000000000000001");
    assert_differ(&daemon, "9007199254740992", "9007199254740993");
    assert_differ(&daemon, r#"{"id":12345678901234567890}"#, r#"{"id":12345678901234567891}"#);
}

#[test]
fn kinds_stay_apart_and_text_is_compared_by_code_points() {
    let database = Database::new();
    let daemon = with_echo(&database);
    for [one, other] in [
        ["1", r#""1""#],
        ["true", r#""true""#],
        [r#"{"a":null}"#, "{}"],
        ["[1,2]", "[2,1]"],
        ["[]", "{}"],
        ["\"\u{e9}\"", "\"e\u{301}\""],
        [r#""a""#, r#""A""#],
        [r#""a""#, r#""a ""#],
        ["null", "{}"],
        ["null", r#""""#],
    ] {
        assert_differ(&daemon, one, other);
    }
}

/// Each is refused with its status, and then the key runs a good body as new.
fn assert_refused(daemon: &Daemon, bodies: &[&[u8]]) {
    for body in bodies {
        let key = fresh_key();
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = daemon.post("echo", &key, body);
        assert_eq!(answer.refusal(), (400, "body-invalid".to_owned()), "{shown}");
        assert_eq!(answer.json()["retryable"], false);
        let good = daemon.post("echo", &key, "{}");
        assert_eq!((good.status, good.is_replay()), (200, false), "{shown}");
    }
}

#[test]
fn what_is_almost_json_is_refused_and_leaves_the_key_unused() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let bodies = [
        "",
        " ",
        "NaN",
        "Infinity",
        r#"{"a":1,}"#,
        "{'a':1}",
        "// c\n{}",
        "01",
        "+1",
        ".5",
        "1.",
        "1e",
        "{}{}",
        "{} x",
        "\"a\nb\"",
        "tru",
        "[1,]",
        "{\"a\"}",
        "\"\\x\"",
        "-",
        "nul",
        "\"",
        "[",
        "\t",
    ];
    assert_refused(&daemon, &bodies.map(str::as_bytes));
}

#[test]
fn a_member_name_twice_is_refused_at_any_depth() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let bodies = [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"\u0061":3}"#,
        r#"[{"x":{"y":1,"y":2}}]"#,
        r#"{"":1,"":2}"#,
        r#"{"deep":[[[{"k":{"k":0,"j":1,"k":2}}]]]}"#,
    ];
    assert_refused(&daemon, &bodies.map(str::as_bytes));
}

#[test]
fn text_that_the_database_cannot_hold_is_refused_before_it_gets_there() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let strings = [
        r#"{"a":"x\u0000y"}"#,
        r#"{"x\u0000":1}"#,
        r#"[[{"a":["\u0000"]}]]"#,
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800x""#,
        r#""\ud83c\ud83c""#,
        r#""\ude00\ud83d""#,
        r#""\uD800\u0041""#,
    ];
    assert_refused(&daemon, &strings.map(str::as_bytes));
    assert_refused(
        &daemon,
        &[
            b"\"\xc3\x28\"",
            b"\"\xc0\x80\"",
            b"\"\xed\xa0\x80\"",
            b"\"\xf5\x80\x80\x80\"",
            b"\xef\xbb\xbf{}",
            b"\xff\xfe{\0}\0",
            b"\"\x00\"",
        ],
    );
}

#[test]
fn numbers_that_would_be_written_out_for_ever_are_refused() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let bodies = [
        "1e131071",
        "1e400",
        "1e-400",
        "0e-20000",
        "[1e99999999999999999999]",
        "-1e-99999999999999999999",
    ];
    assert_refused(&daemon, &bodies.map(str::as_bytes));
    assert_same(&daemon, &["1e300", &format!("1{}", "0".repeat(300))]);
}

#[test]
fn bodies_deeper_than_64_are_refused() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(daemon.post("echo", &fresh_key(), nested(64)).status, 200);
    assert_refused(&daemon, &[nested(65).as_bytes(), "[".repeat(100_000).as_bytes()]);
    assert!(daemon.post("echo", &fresh_key(), "{}").status == 200);
}

#[test]
fn what_is_not_in_the_digest_cannot_change_the_meaning() {
    let database = Database::new();
    let daemon = with_echo(&database);
    let send = |target: &str, headers: &[&str]| -> Answer {
        let key = format!("Idempotency-Key: {}", fresh_key());
        daemon.client().post_with(target, &[headers, &[key.as_str()]].concat(), "{}")
    };
    let json = "Content-Type: application/json";
    assert_eq!(send("echo?dry=1", &[json]).refusal(), (400, "query-unsupported".to_owned()));
    let unsupported: [&[&str]; 5] = [
        &["Content-Type: text/plain"],
        &[],
        &[json, "Content-Encoding: gzip"],
        &["Content-Type: application/json; charset=utf-16"],
        &["Content-Type: application/x-www-form-urlencoded"],
    ];
    for headers in unsupported {
        let answer = send("echo", headers);
        assert!([400, 415].contains(&answer.status), "{headers:?}: {answer:?}");
    }
    assert_eq!(
        send("echo", &["Content-Type: text/plain"]).refusal(),
        (415, "media-type-unsupported".to_owned())
    );
    assert!(send("echo", &["Content-Type: text/plain"]).text().contains("--json"));
    assert_eq!(database.counts(), Counts::NONE);
    for kind in ["application/json;charset=utf-8", "application/vnd.x+json", "Application/JSON"] {
        assert_eq!(send("echo", &[&format!("Content-Type: {kind}")]).status, 200, "{kind}");
    }
}
