//! P2: every call with the same key and the same request gets the same status and the same bytes.

use crate::support::{Database, Setup, fresh_key};

/// Answers members in an order of its own, numbers as people write them, and what differs from run to run.
const PECULIAR: &str = r#"
SELECT 200 AS status,
       jsonb_build_object('z', 1.10, 'a', 1e2::numeric, 'bb', 12345678901234567890, 'e', 'é"\',
                          'now', clock_timestamp(), 'random', random(), 'request', $1) AS response
"#;

#[test]
fn first_answer_parked_twin_replay_and_replay_after_a_restart_are_equal_bytes() {
    let database = Database::new();
    let sql = format!(
        "{} FROM (SELECT take_time($1) OFFSET 0) AS waited(done) WHERE done IS NOT NULL",
        PECULIAR.trim()
    );
    let mut daemon = Setup::on(&database)
        .inline("peculiar", &sql)
        .set("writers.lock_timeout", "20s")
        .set("operations.peculiar.timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1, "n": 1.10, "e": 1e2, "s": 0, "t": "\u00e9"}"#);
    let mut first = daemon.client().begin("peculiar", &key, body);
    gate.wait_for(1);
    let mut twin = daemon.client().begin("peculiar", &key, body);
    crate::support::wait::until_eq("the twin waits", &1.0, || {
        daemon.metric("onced_parked_waiting")
    });
    gate.open();

    let (first, twin) = (first.answer(), twin.answer());
    let replay = daemon.post("peculiar", &key, body);
    daemon.stop();
    daemon.restart(|setup| setup);
    let restarted = daemon.post("peculiar", &key, body);

    assert_eq!(first.status, 200, "{}", first.text());
    assert!(!first.is_replay());
    assert_eq!(first.json()["request"]["n"].to_string(), "1.1");
    for later in [twin, replay, restarted] {
        assert_eq!((later.status, later.is_replay()), (200, true));
        assert_eq!(later.body, first.body);
        assert_eq!(later.header("content-type"), first.header("content-type"));
        let names = |answer: &crate::support::Answer| -> Vec<String> {
            let names = answer.headers.iter().map(|(name, _)| name.clone());
            names.filter(|name| name != "idempotent-replayed").collect()
        };
        assert_eq!(names(&later), names(&first));
    }
}

#[test]
fn what_jsonb_keeps_of_a_request_comes_back_unchanged() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("echo").start();
    for body in
        [r#""\\u0000""#, r#""é/😀""#, "12345678901234567890", "1.10", "null", "[]", r#"{"a": ""}"#]
    {
        let key = fresh_key();
        let first = daemon.post("echo", &key, body);
        let again = daemon.post("echo", &key, body);
        assert_eq!(first.status, 200, "{body}: {}", first.text());
        assert_eq!(first.text(), body);
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
    }
}

#[test]
fn an_answer_without_a_response_is_null_and_replays_so() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .inline("bare", "SELECT 204 + 0 * length($2) - 2 AS status")
        .inline("nothing", "SELECT 1 AS status WHERE false")
        .inline(
            "empty",
            "SELECT NULL::int AS status, NULL::jsonb AS response, NULL::jsonb AS events",
        )
        .start();
    for (operation, status) in [("bare", 202), ("empty", 200)] {
        let key = fresh_key();
        let first = daemon.post(operation, &key, "{}");
        let again = daemon.post(operation, &key, "{}");
        assert_eq!((first.status, first.text()), (status, "null"), "{operation}");
        assert_eq!((again.status, again.text(), again.is_replay()), (status, "null", true));
    }
    let key = fresh_key();
    assert_eq!(daemon.post("nothing", &key, "{}").refusal(), (500, "operation-failed".to_owned()));
    assert_eq!(database.record(&key), None);
}

#[test]
fn every_answer_carries_a_request_id_the_callers_where_it_is_well_formed() {
    let database = Database::new();
    let daemon = Setup::on(&database).start();
    let headers = |id: &str| {
        daemon.client().post_with(
            "orders",
            &["Content-Type: application/json", &format!("Idempotency-Key: {}", fresh_key()), id],
            crate::support::daemon::ORDER,
        )
    };
    let id = |answer: &crate::support::Answer| {
        answer.header("x-request-id").expect("every answer has one").to_owned()
    };
    assert_eq!(id(&headers("X-Request-Id: Job:17_a.b-c")), "Job:17_a.b-c");
    for bad in
        ["X-Request-Id: two words", &format!("X-Request-Id: {}", "x".repeat(129)), "X-Request-Id:"]
    {
        let answer = headers(bad);
        assert_eq!(answer.status, 201);
        assert!(!id(&answer).is_empty() && !bad.ends_with(&id(&answer)), "{answer:?}");
    }
    let missing = daemon.client().get("/v1/nope");
    assert_eq!(missing.json()["instance"], id(&missing).as_str());
}

#[test]
fn a_record_of_an_unknown_recipe_is_neither_replayed_nor_run() {
    let database = Database::new();
    let daemon = Setup::on(&database).start();
    let key = fresh_key();
    assert_eq!(daemon.order(&key).status, 201);
    let hash: String = database.value("SELECT request_hash FROM idempotency_records", &[]);
    assert_eq!(hash, "v1:602548ab2c85786fa52ef3ff2a905ca3728a265cfae471b2d359ca1d0d375b78");
    let before = database.counts();
    database.execute("UPDATE idempotency_records SET request_hash = 'v9:00'");

    let answer = daemon.order(&key);

    assert_eq!(answer.refusal(), (500, "fingerprint-unknown".to_owned()));
    assert_eq!(answer.json()["retryable"], false);
    assert_eq!(database.counts(), before);
}
