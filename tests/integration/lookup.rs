//! `GET /v1/requests/KEY`: what a caller asks after a timeout, without writing anything.

use crate::support::{Counts, Daemon, Database, Setup, fresh_key};

#[test]
fn the_stored_outcome_of_a_key_is_shown_with_its_events() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let key = fresh_key();
    let answer = daemon.order(&key);

    let stored = daemon.look_up(&key).expect("it is stored");

    assert_eq!(stored["key"], key.as_str());
    assert_eq!(stored["operation"], "orders");
    assert_eq!(stored["status"], "succeeded");
    assert_eq!(stored["http_status"], 201);
    assert_eq!(
        stored["request_hash"],
        "v1:602548ab2c85786fa52ef3ff2a905ca3728a265cfae471b2d359ca1d0d375b78"
    );
    assert_eq!(stored["response"], answer.json());
    assert!(stored["created_at"].is_string());
    let events = stored["events"].as_array().expect("a list");
    assert_eq!(events.len(), 2);
    for event in events {
        assert!(event["event_id"].is_i64() && event["event_key"].is_string(), "{event}");
        assert!(event["created_at"].is_string(), "{event}");
        assert_eq!((&event["sent_at"], &event["dead_at"]), (&().into(), &().into()));
        assert_eq!(event["attempts"], 0);
    }
    assert_eq!(database.counts(), Counts { records: 1, events: 2, business: 1 });
}

#[test]
fn a_key_that_was_never_used_is_not_found_and_is_not_made() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let answer = daemon.client().get("/v1/requests/never");
    assert_eq!(answer.refusal(), (404, "not-found".to_owned()));
    assert_eq!(database.counts(), Counts::NONE);
}

#[test]
fn a_key_in_work_is_not_visible_until_all_of_it_is() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .set("writers.lock_timeout", "20s")
        .set("writers.statement_timeout", "9s")
        .start();
    let gate = database.shut_gate(1);
    let key = fresh_key();
    let mut call = daemon.client().begin("sleepy", &key, r#"{"gate": 1}"#);
    gate.wait_for(1);

    // Both come at once, although the writer still holds the key.
    assert_eq!(daemon.look_up(&key), None);
    assert_eq!(database.counts(), Counts::NONE);
    assert_eq!(gate.waiting(), 1);

    gate.open();
    assert_eq!(call.answer().status, 201);
    let stored = daemon.look_up(&key).expect("it is committed");
    assert_eq!(stored["events"].as_array().map(Vec::len), Some(1));
    assert_eq!(database.counts(), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn a_stored_refusal_is_shown_as_rejected() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("refuse").start();
    let key = fresh_key();
    let refused = daemon.post("refuse", &key, r#"{"code": "PT402"}"#);
    let stored = daemon.look_up(&key).expect("it is stored");
    assert_eq!((&stored["status"], &stored["http_status"]), (&"rejected".into(), &402.into()));
    assert_eq!(stored["response"], refused.json());
    assert_eq!(stored["events"], serde_json::json!([]));
}

#[test]
fn a_look_up_without_the_database_is_unavailable() {
    let database = Database::new();
    let proxy = crate::support::proxy::Proxy::to(&database);
    let daemon = Setup::at(&database.url_through(proxy.address())).start();
    proxy.set(crate::support::proxy::Mode::Cut);
    let answer = daemon.client().get("/v1/requests/any");
    assert_eq!(answer.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(answer.retry_after(), Some(1));
}
