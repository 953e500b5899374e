//! Which values of `Idempotency-Key` are the same key, and which are none.

use crate::support::daemon::ORDER;
use crate::support::{Answer, Counts, Daemon, Database, Setup, fresh_key};

const JSON: &str = "Content-Type: application/json";

fn post_headers(daemon: &Daemon, headers: &[&str]) -> Answer {
    daemon.client().post_with("orders", &[&[JSON], headers].concat(), ORDER)
}

fn keys(database: &Database) -> Vec<String> {
    database
        .value("SELECT coalesce(array_agg(key ORDER BY key), '{}') FROM idempotency_records", &[])
}

#[test]
fn a_call_without_a_key_is_refused_and_writes_nothing() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_eq!(post_headers(&daemon, &[]).refusal(), (400, "idempotency-key-missing".to_owned()));
    for header in [
        "Idempotency-Key:",
        "Idempotency-Key:    ",
        r#"Idempotency-Key: """#,
        r#"Idempotency-Key: "   ""#,
    ] {
        let answer = post_headers(&daemon, &[header]);
        assert_eq!(answer.status, 400, "{header}");
        assert!(answer.problem().starts_with("idempotency-key-"), "{header}");
        assert_eq!(answer.json()["retryable"], false);
    }
    let twice = ["Idempotency-Key: a", "Idempotency-Key: a"];
    assert_eq!(
        post_headers(&daemon, &twice).refusal(),
        (400, "idempotency-key-invalid".to_owned())
    );
    assert_eq!(database.counts(), Counts::NONE);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
}

#[test]
fn a_quoted_key_is_the_same_as_the_bare_one() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let first = daemon.order("demo-001");
    for spelling in [r#""demo-001""#, r#""demo-001";p=1"#, r#"  "demo-001"  "#] {
        let again = daemon.order(spelling);
        assert_eq!((again.status, again.is_replay()), (201, true), "{spelling}");
        assert_eq!(again.body, first.body);
    }
    assert_eq!(keys(&database), ["demo-001"]);
}

#[test]
fn escapes_of_structured_fields_are_undone_and_ill_formed_values_refused() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    for value in [r#""a\"b""#, r#""a\\b""#, ":YWJj:", "?1"] {
        assert_eq!(daemon.order(value).status, 201, "{value}");
    }
    assert_eq!(keys(&database), [":YWJj:", "?1", r#"a"b"#, r"a\b"]);
    for value in [
        r#""abc"#,
        r#"abc""#,
        r#""a"b"#,
        r#""a\x""#,
        "K, K",
        "a;b",
        r"a\b",
        r#"" a""#,
        r#""a ""#,
        "two words",
    ] {
        let answer = daemon.order(value);
        assert_eq!(answer.refusal(), (400, "idempotency-key-invalid".to_owned()), "{value}");
    }
    assert_eq!(database.rows("idempotency_records"), 4);
}

#[test]
fn keys_of_255_characters_are_taken_whole_and_longer_ones_refused() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let longest = "x".repeat(255);
    assert_eq!(daemon.order(&longest).status, 201);
    assert!(daemon.order(&format!("\"{longest}\"")).is_replay());
    for key in [format!("{longest}y"), format!("\"{longest}z\""), "x".repeat(10_000)] {
        assert_eq!(daemon.order(&key).refusal(), (400, "idempotency-key-invalid".to_owned()));
    }
    assert_eq!(daemon.order("x").status, 201);
    assert_eq!(database.rows("orders"), 2);
}

#[test]
fn letter_case_tells_keys_apart() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_eq!(daemon.order("Abc-K").status, 201);
    let other = daemon.post("orders", "abc-K", r#"{"item": "bolt", "quantity": 7}"#);
    assert_eq!((other.status, other.is_replay()), (201, false));
}

#[test]
fn a_key_that_looks_like_code_or_a_path_is_a_plain_key() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let odd = [
        "'; drop table outbox_events;--",
        "a/b?c#d",
        "%00",
        "..",
        "$1",
        r#"{"a":1}"#,
        "a:b",
        "%2e",
    ];
    for key in odd {
        let quoted = format!("\"{}\"", key.replace('\\', r"\\").replace('"', "\\\""));
        assert_eq!(daemon.order(&quoted).status, 201, "{key}");
        assert!(daemon.order(&quoted).is_replay(), "{key}");
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let stored = daemon.look_up(&encoded).unwrap_or_else(|| panic!("{key} is found"));
        assert_eq!(stored["key"], key);
        assert_eq!(database.counts_of(key), Counts { records: 1, events: 2, business: 1 });
    }
    assert_eq!(database.rows("orders"), i64::try_from(odd.len()).unwrap());
}

#[test]
fn equal_keys_of_two_principals_never_meet() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .principal("a", "token-of-a")
        .principal("b", "token-of-b")
        .principal("a:b", "token-of-both")
        .start();
    let post = |token: &str, key: &str| daemon.client_with(token).post("orders", key, ORDER);
    let first = post("token-of-a", "same");
    let second = post("token-of-b", "same");
    assert_eq!((first.status, second.status), (201, 201));
    assert!(!second.is_replay());
    assert_ne!(first.body, second.body);
    assert_eq!(post("token-of-a", "same").body, first.body);
    assert_eq!(post("token-of-b", "same").body, second.body);

    assert_eq!(post("token-of-a", "b:c").status, 201);
    assert!(!post("token-of-both", "c").is_replay());
    let scopes: Vec<String> = database.value(
        "SELECT array_agg(scope || '|' || key ORDER BY 1) FROM
            (SELECT scope, key FROM idempotency_records ORDER BY scope, key) AS r",
        &[],
    );
    assert_eq!(scopes.len(), 4);
    for scope in ["a|same", "b|same", "a|b:c", "a:b|c"] {
        assert!(scopes.iter().any(|s| s == scope), "{scope} of {scopes:?}");
    }
    assert_eq!(daemon.client_with("token-of-b").get("/v1/requests/b:c").status, 404);
}
