//! Who may call, and what is told to whom.

use crate::support::daemon::ORDER;
use crate::support::{Answer, Counts, Database, Setup, fresh_key};

const JSON: &str = "Content-Type: application/json";

#[test]
fn without_a_valid_token_the_answer_is_the_same_whatever_is_asked() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .principal("a", "good-token")
        .set("http.max_body", "1KiB")
        .start();
    let known = fresh_key();
    assert_eq!(daemon.client_with("good-token").post("orders", &known, ORDER).status, 201);
    let before = database.counts();
    let known = format!("Idempotency-Key: {known}");
    let large = "x".repeat(2000);
    let credentials: [&[&str]; 8] = [
        &[],
        &["Authorization: Bearer wrong-token"],
        &["Authorization: Bearer"],
        &["Authorization: Bearer "],
        &["Authorization:"],
        &["Authorization: Basic Z29vZC10b2tlbg=="],
        &["Authorization: good-token"],
        &["Authorization: Bearer good-token", "Authorization: Bearer good-token"],
    ];
    let asked: [(&str, &[&str], &str); 6] = [
        ("orders", &[JSON, &known], ORDER),
        ("orders", &[JSON, &known], r#"{"item": "other"}"#),
        ("nope", &[JSON, &known], ORDER),
        ("orders", &[JSON], "{"),
        ("orders", &[JSON, &known], &large),
        ("orders", &["Content-Type: text/plain"], ORDER),
    ];
    for credential in credentials {
        let mut seen: Option<Answer> = None;
        for (operation, headers, body) in asked {
            let answer =
                daemon.client().post_with(operation, &[credential, headers].concat(), body);
            assert_eq!(
                answer.refusal(),
                (401, "unauthorized".to_owned()),
                "{credential:?} {operation}"
            );
            assert!(answer.header("www-authenticate").is_some_and(|v| v.starts_with("Bearer")));
            let differs = |a: &Answer, b: &Answer| a.json()["detail"] != b.json()["detail"];
            assert!(!seen.as_ref().is_some_and(|seen| differs(seen, &answer)), "{answer:?}");
            seen = Some(answer);
        }
    }
    assert_eq!(daemon.client().get("/v1/requests/any").status, 401);
    assert_eq!(database.counts(), before);
    assert!(!daemon.log().contains("good-token"));
}

#[test]
fn the_scheme_of_a_credential_is_taken_in_any_case() {
    let database = Database::new();
    let daemon = Setup::on(&database).principal("a", "good-token").start();
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let headers = [
            JSON,
            &format!("Authorization: {scheme} good-token"),
            &format!("Idempotency-Key: {}", fresh_key()),
        ];
        assert_eq!(daemon.client().post_with("orders", &headers, ORDER).status, 201, "{scheme}");
    }
}

#[test]
fn a_principal_calls_only_the_operations_it_may() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("echo")
        .principal("all", "all-token")
        .principal_for("limited", "limited-token", &["orders"])
        .start();
    let limited = daemon.client_with("limited-token");
    assert_eq!(limited.post("orders", &fresh_key(), ORDER).status, 201);
    let refused = limited.post("echo", &fresh_key(), "{}");
    assert_eq!(refused.refusal(), (403, "forbidden".to_owned()));
    assert_eq!(limited.post("nope", &fresh_key(), "{}").refusal(), (404, "not-found".to_owned()));
    assert_eq!(daemon.client_with("all-token").post("echo", &fresh_key(), "{}").status, 200);
}

#[test]
fn a_principal_that_changes_its_token_keeps_its_keys() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).principal("a", "first-token").start();
    let key = fresh_key();
    let first = daemon.client_with("first-token").post("orders", &key, ORDER);
    daemon.stop();
    daemon.restart(|setup| setup.without_principals().principal("a", "second-token"));
    let again = daemon.client_with("second-token").post("orders", &key, ORDER);
    assert_eq!((again.is_replay(), again.body), (true, first.body));
    assert_eq!(daemon.client_with("first-token").post("orders", &key, ORDER).status, 401);
}

#[test]
fn a_public_address_needs_principals_or_a_word_of_consent() {
    let database = Database::new();
    let public = || Setup::on(&database).set("http.listen", "0.0.0.0:0");
    let ended = public().run(&["check-config"]);
    assert_eq!(ended.code(), 78, "{ended:#?}");
    assert!(ended.stderr.contains("allow_anonymous"), "{}", ended.stderr);
    assert_eq!(public().set("http.allow_anonymous", true).run(&["check-config"]).code(), 0);
    assert_eq!(public().principal("a", "token").run(&["check-config"]).code(), 0);
    let both = public().set("http.allow_anonymous", true).principal("a", "token");
    assert_eq!(both.run(&["check-config"]).code(), 78);
    let admin = Setup::on(&database).set("admin.listen", "0.0.0.0:0").run(&["check-config"]);
    assert_eq!(admin.code(), 78, "{admin:#?}");
}

#[test]
fn where_nobody_authenticates_only_a_loopback_host_is_taken() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("http.hosts", vec!["inside.example"]).start();
    let post = |host: &str| {
        let key = fresh_key();
        let length = ORDER.len();
        let bytes = format!(
            "POST /v1/orders HTTP/1.1\r\nHost: {host}\r\n{JSON}\r\nIdempotency-Key: {key}\r\n\
             Content-Length: {length}\r\n\r\n{ORDER}"
        );
        daemon.client().raw(bytes).remove(0).status
    };
    for host in [
        "localhost",
        "localhost:8080",
        "127.0.0.1",
        "[::1]:80",
        "inside.example",
        "inside.example:8080",
    ] {
        assert_eq!(post(host), 201, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"] {
        assert_eq!(post(host), 403, "{host}");
    }
}

#[test]
fn the_words_of_the_database_stay_inside() {
    let database = Database::new();
    database.execute(
        "CREATE TABLE secret_table (secret_column int CHECK (secret_column > 0)); REVOKE ALL ON secret_table FROM PUBLIC;
         INSERT INTO skus VALUES ('taken', 'other@example.com', 1)",
    );
    let daemon = Setup::on(&database)
        .operation("refuse")
        .operation("sku")
        .inline("denied", "SELECT 200 AS status, secret_read() AS response")
        .set("log.level", "debug");
    database.execute(
        "CREATE FUNCTION secret_read() RETURNS jsonb LANGUAGE plpgsql AS $$
         BEGIN PERFORM secret_column FROM secret_table; RETURN '{}'; END $$",
    );
    let daemon = daemon.start();
    let mut answers = vec![
        daemon.post("sku", &fresh_key(), r#"{"sku": "taken", "email": "mine@example.com"}"#),
        daemon.post("sku", &fresh_key(), r#"{"sku": "other", "units": "secret_column"}"#),
        daemon.post("sku", &fresh_key(), r#"{"sku": "third", "units": 99999}"#),
        daemon.post("denied", &fresh_key(), "{}"),
    ];
    for code in ["23505", "23503", "22P02", "23514", "42501", "40P01", "XX000", "57014"] {
        let body =
            format!(r#"{{"code": "{code}", "message": "relation secret_table of db.internal"}}"#);
        answers.push(daemon.post("refuse", &fresh_key(), body));
    }
    for answer in &answers {
        assert!(answer.status >= 400, "{answer:?}");
        for word in [
            "secret",
            "other@example.com",
            "db.internal",
            "skus",
            "relation",
            "DETAIL",
            "duplicate key",
        ] {
            assert!(!answer.text().contains(word), "{word} in {}", answer.text());
        }
        let id = answer.json()["instance"].as_str().unwrap().to_owned();
        assert!(daemon.log().contains(&id), "{id} is in the log");
    }
    for code in ["P0001", "PT422"] {
        let body = format!(r#"{{"code": "{code}", "message": "the shop is closed"}}"#);
        let answer = daemon.post("refuse", &fresh_key(), body);
        assert_eq!(answer.json()["detail"], "the shop is closed");
        assert!(!answer.text().contains("other@example.com"));
        assert!(!answer.text().contains("secret"));
    }
}

#[test]
fn what_a_caller_sends_cannot_forge_a_log_line_or_a_header() {
    let database = Database::new();
    let daemon = Setup::on(&database).set("log.format", "json").set("log.level", "debug").start();
    let forged = r#"{"level":"ERROR","fields":{"message":"forged"},"target":"onced"}"#;
    let quoted = format!("\"{}\"", forged.replace('"', "\\\""));
    assert_eq!(daemon.order(&quoted).status, 201);
    for path in [
        "/v1/%0d%0aX-Evil:%201",
        "/v1/%1b[31mred",
        "/v1/requests/%0d%0aX-Evil:%201",
        "/v1/requests/%1b[31m",
    ] {
        let answer = daemon.client().get(path);
        assert!(answer.status >= 400);
        assert_eq!(answer.header("x-evil"), None);
        assert!(!answer.text().contains('\u{1b}'));
    }
    let log = daemon.log();
    assert!(!log.contains('\u{1b}'), "{log}");
    for line in log.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(line["message"].is_string() && line["message"] != "forged", "{line}");
    }
    assert!(log.lines().count() > 3);
}

#[test]
fn text_logs_hold_one_line_for_each_event_too() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("refuse").set("log.level", "debug").start();
    let body = r#"{"code": "XX000", "message": "one\n2026-01-01T00:00:00Z ERROR onced: forged\u001b[31m"}"#;
    assert_eq!(daemon.post("refuse", &fresh_key(), body).status, 500);
    let log = daemon.log();
    assert!(log.contains("forged"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z ERROR")), "{log}");
    assert!(!log.contains("forged\u{1b}"), "{log}");
}

#[test]
fn the_admin_listener_is_apart_and_takes_only_its_hosts() {
    let database = Database::new();
    let daemon = Setup::on(&database).start();
    for path in ["/healthz", "/readyz", "/metrics", "/api/outbox", "/"] {
        assert_eq!(daemon.client().get(path).status, 404, "{path}");
    }
    let evil = |path: &str| {
        daemon
            .operator()
            .raw(format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"))
            .remove(0)
    };
    for path in ["/", "/api/outbox"] {
        assert_eq!(evil(path).status, 403, "{path}");
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(evil(path).status, 200, "{path}");
    }
    assert_eq!(daemon.operator().get("/nope").status, 404);
    assert_eq!(database.counts(), Counts::NONE);
}

#[test]
fn secrets_reach_neither_log_nor_error_nor_metrics() {
    let database = Database::new();
    let sink = crate::support::sink::Sink::start();
    let setup = Setup::at(&format!("{} password=hunter2", database.url()))
        .sink(&sink)
        .set("log.level", "trace")
        .principal("a", "good-token");
    let checked = setup.run(&["check-config", "--json"]);
    let mut daemon = setup.start();
    assert_eq!(daemon.client_with("good-token").post("orders", &fresh_key(), ORDER).status, 201);
    sink.wait_for(2);
    let metrics = daemon.operator().get("/metrics").text().to_owned();
    daemon.stop();
    for text in [daemon.log(), metrics, checked.stdout, checked.stderr] {
        for secret in ["hunter2", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "good-token"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
