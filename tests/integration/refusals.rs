//! P7: what is stored as a refusal and replayed, and what leaves the key unused.

use crate::support::daemon::ORDER;
use crate::support::wait::until_eq;
use crate::support::{Counts, Daemon, Database, Setup, fresh_key};

#[test]
fn a_refusal_raised_by_the_operation_is_stored_and_its_writes_are_gone() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).operation("refuse").start();
    let table = [
        ("PT402", 402),
        ("PT409", 409),
        ("PT499", 499),
        ("P0001", 422),
        ("22012", 422),
        ("22P02", 422),
        ("23514", 422),
        ("23502", 422),
        ("23503", 409),
        ("23505", 409),
        ("23P01", 409),
    ];
    let mut first = Vec::new();
    for (code, status) in table {
        let key = fresh_key();
        let answer = daemon.post("refuse", &key, format!(r#"{{"code": "{code}"}}"#));
        assert_eq!(answer.refusal(), (status, "refused".to_owned()), "{code}");
        assert_eq!(answer.json()["code"], code);
        assert!(!answer.is_replay());
        assert_eq!(database.counts_of(&key), Counts { records: 1, events: 0, business: 0 });
        assert_eq!(database.record(&key), Some(("rejected".to_owned(), i32::from(status))));
        let again = daemon.post("refuse", &key, format!(r#"{{"code": "{code}"}}"#));
        assert!(again.is_replay());
        assert_eq!((again.status, &again.body), (status, &answer.body));
        assert_eq!(again.header("content-type"), Some("application/problem+json"));
        first.push((key, code, answer));
    }
    daemon.stop();
    daemon.restart(|setup| setup);
    for (key, code, answer) in first {
        let again = daemon.post("refuse", &key, format!(r#"{{"code": "{code}"}}"#));
        assert_eq!(
            (again.status, again.is_replay(), &again.body),
            (answer.status, true, &answer.body)
        );
    }
}

#[test]
fn an_error_that_is_no_refusal_is_not_stored() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("refuse").start();
    for code in ["PT500", "PT999", "PT200", "XX000", "P0002", "42P01", "0A000", "P0004"] {
        let key = fresh_key();
        for _ in 0..2 {
            let answer = daemon.post("refuse", &key, format!(r#"{{"code": "{code}"}}"#));
            assert_eq!(answer.refusal(), (500, "operation-failed".to_owned()), "{code}");
            assert_eq!(answer.json()["retryable"], true);
        }
        assert_eq!(database.counts(), Counts::NONE);
    }
}

#[test]
fn a_fault_that_an_operation_raises_is_unavailable_and_not_stored() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("refuse").set("http.wait", "5s").start();
    for code in ["53100", "40001", "40P01", "55P03", "57014", "25006"] {
        let key = fresh_key();
        let answer = daemon.post("refuse", &key, format!(r#"{{"code": "{code}"}}"#));
        assert_eq!(answer.refusal(), (503, "unavailable".to_owned()), "{code}");
        assert_eq!(answer.retry_after(), Some(1));
        assert_eq!(database.counts(), Counts::NONE);
    }
}

#[test]
fn a_refusal_that_the_operation_returns_has_its_answer_and_its_events_and_none_of_its_writes() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("shape").start();
    let key = fresh_key();
    let body = r#"{"rows": [{"status": 402, "response": {"need": 5}, "events": [{"type": "payment.refused", "payload": {}}]}]}"#;
    let answer = daemon.post("shape", &key, body);
    assert_eq!((answer.status, answer.text()), (402, r#"{"need": 5}"#));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(database.counts_of(&key), Counts { records: 1, events: 1, business: 0 });
    assert_eq!(database.record(&key), Some(("rejected".to_owned(), 402)));
    assert!(daemon.post("shape", &key, body).is_replay());
}

#[test]
fn the_example_refuses_what_its_table_refuses() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    for body in [
        r#"{"item": "widget", "quantity": 0}"#,
        r#"{"item": "widget", "quantity": "many"}"#,
        "{}",
        "null",
        "[]",
    ] {
        let key = fresh_key();
        let answer = daemon.post("orders", &key, body);
        assert_eq!(answer.refusal(), (422, "refused".to_owned()), "{body}");
        assert_eq!(daemon.post("orders", &key, body).body, answer.body);
    }
    assert_eq!(database.counts(), Counts { records: 5, events: 0, business: 0 });
}

#[test]
fn a_request_that_is_mended_runs_under_the_same_key() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.max_body", "1KiB").start();
    let key = fresh_key();
    let key_header = format!("Idempotency-Key: {key}");
    let bad_json = daemon.post("orders", &key, "{\"item\":");
    let text =
        daemon.client().post_with("orders", &["Content-Type: text/plain", &key_header], ORDER);
    let large = daemon.post("orders", &key, format!("\"{}\"", "x".repeat(2000)));
    let query = daemon.client().post_with(
        "orders?a=b",
        &["Content-Type: application/json", &key_header],
        ORDER,
    );
    assert_eq!(bad_json.refusal(), (400, "body-invalid".to_owned()));
    assert_eq!(text.refusal(), (415, "media-type-unsupported".to_owned()));
    assert_eq!(large.refusal(), (413, "body-too-large".to_owned()));
    assert_eq!(query.refusal(), (400, "query-unsupported".to_owned()));
    assert_eq!(database.counts(), Counts::NONE);

    let good = daemon.order(&key);

    assert_eq!((good.status, good.is_replay()), (201, false));
}

#[test]
fn a_missing_table_fails_the_call_and_its_retry_runs_when_the_table_is_back() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let key = fresh_key();
    database.execute("ALTER TABLE orders RENAME TO orders_away");

    let answer = daemon.order(&key);
    assert_eq!(answer.refusal(), (500, "operation-failed".to_owned()));

    database.execute("ALTER TABLE orders_away RENAME TO orders");
    assert_eq!(database.record(&key), None);
    assert_eq!(daemon.order(&key).status, 201);
    until_eq("no transaction is left open", &0, || database.idle_in_transaction());
}

#[test]
fn a_statement_timeout_is_unavailable_and_the_retry_runs() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("operations.sleepy.timeout", "300ms")
        .set("writers.lock_timeout", "20s")
        .start();
    let gate = database.shut_gate(1);
    let (key, body) = (fresh_key(), r#"{"gate": 1}"#);

    let answer = daemon.post("sleepy", &key, body);

    assert_eq!(answer.refusal(), (503, "unavailable".to_owned()));
    assert_eq!((answer.retry_after(), &answer.json()["retryable"]), (Some(1), &true.into()));
    assert_eq!(database.counts(), Counts::NONE);
    gate.open();
    let again = daemon.post("sleepy", &key, body);
    assert_eq!((again.status, again.is_replay()), (201, false));
    until_eq("no transaction is left open", &0, || database.idle_in_transaction());
}

#[test]
fn a_lock_timeout_in_the_operation_is_unavailable_and_the_retry_runs() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("swap")
        .set("writers.lock_timeout", "200ms")
        .set("http.wait", "5s")
        .start();
    let (key, body) = (fresh_key(), r#"{"first": 1, "second": 2}"#);
    let mut session = database.session();
    let mut holding = session.transaction().unwrap();
    holding.execute("UPDATE balances SET amount = amount WHERE id = 1", &[]).unwrap();

    let answer = daemon.post("swap", &key, body);

    assert_eq!(answer.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(answer.retry_after(), Some(1));
    holding.rollback().unwrap();
    assert_eq!(database.counts(), Counts::NONE);
    let again = daemon.post("swap", &key, body);
    assert_eq!((again.status, again.is_replay()), (201, false));
    until_eq("no transaction is left open", &0, || database.idle_in_transaction());
}

#[test]
fn what_is_ill_formed_in_the_operations_row_fails_and_writes_nothing() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("shape").start();
    let event =
        |members: &str| format!(r#"{{"rows": [{{"status": 200, "events": [{{{members}}}]}}]}}"#);
    let many = vec![r#"{"type": "t", "payload": 1}"#; 1001].join(",");
    let bodies = [
        r#"{"rows": []}"#.to_owned(),
        r#"{"rows": [{"status": 200}, {"status": 200}]}"#.to_owned(),
        r#"{"rows": [{"status": 99}]}"#.to_owned(),
        r#"{"rows": [{"status": 302}]}"#.to_owned(),
        r#"{"rows": [{"status": 500}]}"#.to_owned(),
        r#"{"rows": [{"status": 1000}]}"#.to_owned(),
        r#"{"rows": [{"status": -200}]}"#.to_owned(),
        r#"{"rows": [{"status": 200, "events": {}}]}"#.to_owned(),
        r#"{"rows": [{"status": 200, "events": [1]}]}"#.to_owned(),
        event(r#""payload": 1"#),
        event(r#""type": 7, "payload": 1"#),
        event(r#""type": "two words", "payload": 1"#),
        event(r#""type": "", "payload": 1"#),
        event(r#""type": "t", "payload": 1, "key": "7up""#),
        event(r#""type": "t", "payload": 1, "key": "k"}, {"type": "t", "payload": 1, "key": "k""#),
        // The first one is good, and is not written either.
        event(r#""type": "t", "payload": 1}, {"payload": 1"#),
        format!(r#"{{"rows": [{{"status": 200, "events": [{many}]}}]}}"#),
    ];
    for body in bodies {
        let key = fresh_key();
        let answer = daemon.post("shape", &key, &body);
        let shown = &body[..body.len().min(120)];
        assert_eq!(answer.refusal(), (500, "operation-failed".to_owned()), "{shown}");
        assert_eq!(database.counts(), Counts::NONE, "{shown}");
    }
    let many = vec![r#"{"type": "t", "payload": null}"#; 1000].join(",");
    let full = format!(r#"{{"rows": [{{"status": 200, "events": [{many}]}}]}}"#);
    assert_eq!(daemon.post("shape", &fresh_key(), full).status, 200);
    assert_eq!(database.rows("outbox_events"), 1000);
}

#[test]
fn a_response_past_its_limit_fails_and_writes_nothing() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("big").set("writers.max_response", "1MiB").start();
    let key = fresh_key();
    assert_eq!(
        daemon.post("big", &key, r#"{"mb": 1}"#).refusal(),
        (500, "operation-failed".to_owned())
    );
    assert_eq!(database.counts(), Counts::NONE);
    assert_eq!(daemon.post("big", &key, r#"{"mb": 0}"#).status, 200);
}

#[test]
fn an_operation_that_tries_to_commit_leaves_no_row_without_its_record() {
    let database = Database::new();
    database.execute(
        "CREATE FUNCTION committing(k text) RETURNS jsonb LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO notes (idempotency_key, body) VALUES (k, '{}'); COMMIT; RETURN '{}'; END $$",
    );
    let daemon = Setup::on(&database)
        .inline("committing", "SELECT 200 AS status, committing($2) AS response")
        .inline(
            "semicolons",
            "SELECT 200 AS status, to_jsonb('a;b'::text) AS response -- and ; here\n/* ; */",
        )
        .start();
    let answer = daemon.post("committing", &fresh_key(), "{}");
    assert_eq!(answer.refusal(), (500, "operation-failed".to_owned()));
    assert_eq!(database.counts(), Counts::NONE);
    assert_eq!(daemon.post("semicolons", &fresh_key(), "{}").text(), r#""a;b""#);
}

#[test]
fn a_column_that_is_added_while_calls_run_costs_no_call() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    database.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'");
    for _ in 0..10 {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    assert_eq!(database.rows("orders"), 11);
}

#[test]
fn what_only_an_operator_can_mend_is_no_refusal() {
    let database = Database::new();
    database.execute(
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id);
         CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
         CREATE SEQUENCE short MAXVALUE 2; SELECT nextval('short'), nextval('short');
         GRANT ALL ON parts, parts_1 TO onced_test; GRANT ALL ON SEQUENCE short TO onced_test",
    );
    let daemon = Setup::on(&database)
        .inline("part", "INSERT INTO parts VALUES (($1 ->> 'id')::int) RETURNING 201 AS status")
        .inline("short", "SELECT to_jsonb(nextval('short')) AS response")
        .start();
    let key = fresh_key();
    let body = r#"{"id": 11}"#;
    assert_eq!(daemon.post("part", &key, body).refusal(), (500, "operation-failed".to_owned()));
    let used_up = daemon.post("short", &fresh_key(), "{}");
    assert_eq!(used_up.refusal(), (500, "operation-failed".to_owned()));
    assert_eq!(database.record(&key), None);

    database.execute("CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)");
    let mended = daemon.post("part", &key, body);
    assert_eq!((mended.status, mended.is_replay()), (201, false));
}

#[test]
fn the_log_says_why_an_operation_refused() {
    let database = Database::new();
    let daemon = Setup::on(&database).start();
    let answer = daemon.post("orders", &fresh_key(), r#"{"item": "w", "quantity": 0}"#);
    assert_eq!(answer.status, 422);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("a call was refused")).expect(&log);
    assert!(line.contains("orders_quantity_check") && line.contains("23514"), "{line}");
    assert!(line.contains(answer.header("x-request-id").unwrap()), "{line}");
}
