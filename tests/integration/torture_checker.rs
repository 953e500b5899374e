//! The checker of the torture run, fed with histories that are wrong in each way, and with one that is not.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::checker::{Finding, Terms, check, fingerprint};
use crate::history::{
    Absence, Answer, Away, Call, Delivery, Effect, Event, Form, History, Outcome, Record,
};

const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SECOND: i64 = 1_000_000;

fn request(n: u64, end: &str) -> Value {
    json!({"n": n, "counter": "c1", "events": 2, "order": "o1", "sleep_ms": 0, "end": end})
}

fn problem(status: u16, kind: &str, detail: &str, retryable: bool) -> Answer {
    let body = json!({
        "type": format!("urn:onced:problem:{kind}"), "status": status, "detail": detail,
        "retryable": retryable
    });
    Answer {
        status,
        replayed: false,
        media: "application/problem+json".to_owned(),
        retry_after: retryable.then(|| "1".to_owned()),
        request_id: None,
        body: body.to_string(),
    }
}

fn success(body: &str, replayed: bool) -> Answer {
    Answer {
        status: 201,
        replayed,
        media: "application/json".to_owned(),
        retry_after: None,
        request_id: None,
        body: body.to_owned(),
    }
}

fn unavailable() -> Answer {
    problem(503, "unavailable", "Nothing was written. Try again later.", true)
}

fn call(id: &str, sent: i64, outcome: Outcome) -> Call {
    let outcome = match outcome {
        Outcome::Answered(answer) => {
            let request_id = answer.request_id.clone().or_else(|| Some(id.to_owned()));
            Outcome::Answered(Answer { request_id, ..answer })
        }
        other @ (Outcome::HungUp | Outcome::Unanswered(_) | Outcome::Nonsense(_)) => other,
    };
    Call {
        id: id.to_owned(),
        daemon: 0,
        scope: "alice".to_owned(),
        key: "k".to_owned(),
        operation: "transfers".to_owned(),
        request: request(1, "ok"),
        form: Form::Whole,
        since: sent * SECOND,
        sent: sent * SECOND,
        ended: sent * SECOND + SECOND / 2,
        outcome,
    }
}

fn delivery(event: &Event, status: u16) -> Delivery {
    let body = json!({
        "type": event.event_type, "timestamp": "2026-12-01T09:30:00.123456Z", "event_id": event.id,
        "event_key": event.event_key, "principal": event.scope, "idempotency_key": event.key,
        "data": event.payload
    });
    signed(&event.event_key, body.to_string(), status)
}

fn signed(id: &str, body: String, status: u16) -> Delivery {
    let mut mac = Hmac::<Sha256>::new_from_slice(&STANDARD.decode(SECRET).unwrap()).unwrap();
    mac.update(format!("{id}.17.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    Delivery {
        at: 17 * SECOND,
        id: id.to_owned(),
        timestamp: "17".to_owned(),
        signature,
        body,
        status,
    }
}

fn event(id: i64, n: i64) -> Event {
    Event {
        id,
        scope: "alice".to_owned(),
        key: "k".to_owned(),
        event_key: format!("execution:{n}"),
        event_type: "torture.done".to_owned(),
        payload: json!({"effect": 7, "n": n}),
        order_key: Some("o1".to_owned()),
        is_sent: true,
        is_dead: false,
    }
}

/// One key: refused for a while, executed, replayed, and asked for with another body; its two events arrived, the first
/// of them at the second attempt.
fn good() -> History {
    let response = r#"{"effect": 7, "request": {}}"#;
    let answered = Outcome::Answered;
    let mut other = call("a.4", 5, answered(problem(409, "idempotency-key-reused", "", false)));
    other.request = request(2, "ok");
    let (one, two) = (event(11, 1), event(12, 2));
    let hash = fingerprint("transfers", &request(1, "ok"));
    let deliveries = vec![delivery(&one, 500), delivery(&one, 204), delivery(&two, 204)];
    History {
        calls: vec![
            call("a.1", 1, answered(unavailable())),
            call("a.2", 3, answered(success(response, false))),
            call("a.3", 4, answered(success(response, true))),
            other,
        ],
        records: vec![Record {
            scope: "alice".to_owned(),
            key: "k".to_owned(),
            operation: "transfers".to_owned(),
            hash,
            status: "succeeded".to_owned(),
            http_status: 201,
            response: response.to_owned(),
            is_problem: false,
            created_at: 3 * SECOND + SECOND / 4,
        }],
        effects: vec![Effect {
            id: 7,
            operation: "transfers".to_owned(),
            scope: "alice".to_owned(),
            key: "k".to_owned(),
            request: request(1, "ok"),
        }],
        events: vec![one, two],
        counters: vec![("c1".to_owned(), 1)],
        deliveries,
        absences: Vec::new(),
        stuck: Vec::new(),
    }
}

/// The same key, refused by the operation itself.
fn refused() -> History {
    let mut history = good();
    let body = json!({"type": "urn:onced:problem:refused", "status": 422, "code": "PT422",
                      "retryable": false, "instance": "a.2"})
    .to_string();
    for call in &mut history.calls {
        call.request = request(1, "raise");
    }
    history.calls.truncate(3);
    for (number, call) in history.calls.iter_mut().enumerate().skip(1) {
        call.outcome = Outcome::Answered(Answer {
            status: 422,
            replayed: number == 2,
            media: "application/problem+json".to_owned(),
            retry_after: None,
            request_id: Some(call.id.clone()),
            body: body.clone(),
        });
    }
    let record = &mut history.records[0];
    record.hash = fingerprint("transfers", &request(1, "raise"));
    record.status = "rejected".to_owned();
    record.http_status = 422;
    record.response = body;
    record.is_problem = true;
    history.effects.clear();
    history.events.clear();
    history.deliveries.clear();
    history.counters[0].1 = 0;
    history
}

fn found(history: &History) -> Vec<Finding> {
    check(history, Terms { answer_limit: 5 * SECOND, secret: SECRET })
}

/// What is found in the good history once it is spoiled. It must be something.
fn spoiled(spoil: impl FnOnce(&mut History)) -> Vec<&'static str> {
    let mut history = good();
    spoil(&mut history);
    promises(&history)
}

fn promises(history: &History) -> Vec<&'static str> {
    let mut promises: Vec<_> = found(history).iter().map(|finding| finding.promise).collect();
    promises.dedup();
    promises
}

fn answer(history: &mut History, call: usize) -> &mut Answer {
    match &mut history.calls[call].outcome {
        Outcome::Answered(answer) => answer,
        Outcome::HungUp | Outcome::Unanswered(_) | Outcome::Nonsense(_) => panic!("no answer"),
    }
}

#[test]
fn a_history_in_which_all_is_well_is_not_objected_to() {
    assert_eq!(found(&good()), []);
    assert_eq!(found(&refused()), []);
    assert_eq!(found(&History::default()), []);
}

#[test]
fn the_fingerprint_is_that_of_the_manual() {
    let spelled = json!({"quantity": 2.0, "item": "widget"});
    assert_eq!(
        fingerprint("orders", &spelled),
        "v1:602548ab2c85786fa52ef3ff2a905ca3728a265cfae471b2d359ca1d0d375b78"
    );
}

#[test]
fn a_second_effect_is_found() {
    let twice = spoiled(|history| {
        let again = Effect { id: 8, ..history.effects[0].clone() };
        history.effects.push(again);
    });
    assert_eq!(twice, ["P1", "P4"]);
}

#[test]
fn an_effect_that_ran_twice_and_kept_one_row_is_found_by_its_counter() {
    assert_eq!(spoiled(|history| history.counters[0].1 = 2), ["P4"]);
}

#[test]
fn answers_that_differ_are_found() {
    let other_bytes = spoiled(|history| answer(history, 2).body.push(' '));
    assert_eq!(other_bytes, ["P2"]);
    let other_status = spoiled(|history| answer(history, 2).status = 200);
    assert_eq!(other_status, ["P2", "P8"]);
    let other_media = spoiled(|history| answer(history, 2).media = "text/plain".to_owned());
    assert_eq!(other_media, ["P2"]);
    let two_first = spoiled(|history| answer(history, 2).replayed = false);
    assert_eq!(two_first, ["P2"]);
}

#[test]
fn a_success_that_the_table_does_not_have_is_found() {
    let lost = spoiled(|history| {
        history.records.clear();
        history.effects.clear();
        history.events.clear();
        history.deliveries.clear();
        history.counters[0].1 = 0;
        history.calls.truncate(3);
    });
    assert_eq!(lost, ["P9"]);
}

#[test]
fn an_answer_to_another_request_is_found() {
    let given = spoiled(|history| history.calls[2].request = request(3, "ok"));
    assert_eq!(given, ["P3"]);
    let other_operation = spoiled(|history| history.calls[2].operation = "refunds".to_owned());
    assert_eq!(other_operation, ["P3"]);
}

#[test]
fn a_conflict_without_another_request_is_found() {
    assert_eq!(spoiled(|history| history.calls[3].request = request(1, "ok")), ["P3"]);
    let without_record = spoiled(|history| {
        *history = History { calls: vec![history.calls[3].clone()], ..History::default() };
    });
    assert_eq!(without_record, ["P3"]);
}

#[test]
fn torn_writes_are_found() {
    let tears: [fn(&mut History); 7] = [
        |history| history.effects.clear(),
        |history| {
            history.events.pop();
            history.deliveries.pop();
        },
        |history| history.effects[0].request = request(2, "ok"),
        |history| history.effects[0].id = 8,
        |history| history.records[0].hash = fingerprint("transfers", &request(9, "ok")),
        |history| history.records[0].status = "rejected".to_owned(),
        |history| {
            history.events[1].payload = json!({"effect": 6, "n": 2});
            history.deliveries[2] = delivery(&history.events[1], 204);
        },
    ];
    for (number, tear) in tears.into_iter().enumerate() {
        assert!(spoiled(tear).contains(&"P4"), "{number}: {:?}", spoiled(tear));
    }
    let no_record = spoiled(|history| {
        history.records.clear();
        history.calls.truncate(1);
    });
    assert_eq!(no_record, ["P4"]);
}

#[test]
fn rows_of_a_key_that_nobody_sent_are_found() {
    assert_eq!(spoiled(|history| history.records[0].key = "x".to_owned())[0], "P4");
    assert_eq!(spoiled(|history| history.effects[0].scope = "bob".to_owned())[0], "P4");
    assert_eq!(spoiled(|history| history.events[0].key = "x".to_owned())[0], "P4");
}

#[test]
fn a_request_that_was_never_sent_whole_and_ran_is_found() {
    let ran = spoiled(|history| {
        history.calls.truncate(1);
        history.calls[0].form = Form::Partial;
        history.calls[0].outcome = Outcome::HungUp;
    });
    assert_eq!(ran, ["P4"]);
}

#[test]
fn events_that_are_not_those_of_one_execution_are_found() {
    let two_executions = spoiled(|history| {
        history.events[1].event_key = "another:2".to_owned();
        history.deliveries[2] = delivery(&history.events[1], 204);
    });
    assert_eq!(two_executions, ["P6"]);
    let equal_events = spoiled(|history| {
        history.events[1].payload = history.events[0].payload.clone();
        history.deliveries[2] = delivery(&history.events[1], 204);
    });
    assert_eq!(equal_events, ["P6"]);
}

#[test]
fn what_may_not_be_stored_is_found() {
    let mut broken = refused();
    for call in &mut broken.calls {
        call.request = request(1, "broken");
    }
    broken.records[0].hash = fingerprint("transfers", &request(1, "broken"));
    assert!(promises(&broken).contains(&"P7"));
}

#[test]
fn a_write_by_a_call_that_says_nothing_was_written_is_found() {
    let said = |history: &mut History| history.records[0].created_at = SECOND + SECOND / 4;
    assert_eq!(spoiled(said), ["P7"]);
    let admitted = spoiled(|history| {
        said(history);
        answer(history, 0).body = answer(history, 0).body.replace("Nothing was written. ", "");
    });
    assert_eq!(admitted, <[&str; 0]>::default());
    let mut nobodys = refused();
    nobodys.records[0].response = nobodys.records[0].response.replace("a.2", "a.9");
    for call in 1..3 {
        answer(&mut nobodys, call).body = nobodys_body(&refused());
    }
    assert!(promises(&nobodys).contains(&"P4"));
}

fn nobodys_body(history: &History) -> String {
    history.records[0].response.replace("a.2", "a.9")
}

#[test]
fn answers_that_may_not_be_said_are_found() {
    let said = |answer: Answer| {
        let mut history = History::default();
        history.calls.push(call("a.1", 1, Outcome::Answered(answer)));
        promises(&history)
    };
    let fine: [&str; 0] = [];
    assert_eq!(said(unavailable()), fine);
    assert_eq!(said(problem(409, "request-in-progress", "", true)), fine);
    assert_eq!(said(Answer { retry_after: None, ..unavailable() }), ["P8"]);
    assert_eq!(said(Answer { status: 502, ..unavailable() }), ["P8"]);
    assert_eq!(said(problem(500, "operation-failed", "", true)), ["P8"]);
    assert_eq!(said(problem(500, "internal", "", true)), ["P8"]);
    assert_eq!(said(problem(400, "body-invalid", "", false)), ["P8"]);
    assert_eq!(said(problem(401, "unauthorized", "", false)), ["P8"]);
    assert_eq!(said(problem(404, "not-found", "", false)), ["P8"]);
    let of_another = Answer { request_id: Some("a.7".to_owned()), ..unavailable() };
    assert_eq!(said(of_another), ["P8"]);
}

#[test]
fn a_run_after_the_answer_is_found() {
    let ran = spoiled(|history| {
        let answer = problem(500, "operation-failed", "", true);
        history.calls.push(call("a.5", 6, Outcome::Answered(answer)));
    });
    assert!(ran.contains(&"P2"), "{ran:?}");
}

#[test]
fn requests_without_an_answer_are_found_unless_their_daemon_was_away() {
    let unanswered = || call("a.5", 6, Outcome::Unanswered("closed".to_owned()));
    assert_eq!(spoiled(|history| history.calls.push(unanswered())), ["P8"]);
    let away = |daemon, from: i64, to: i64, kind| {
        spoiled(|history| {
            history.calls.push(unanswered());
            let (from, to) = (from * SECOND, to * SECOND);
            history.absences.push(Absence { daemon, from, to, kind });
        })
    };
    let fine: [&str; 0] = [];
    assert_eq!(away(0, 5, 7, Away::Killed), fine);
    assert_eq!(away(0, 6, 7, Away::Stopped), fine);
    assert_eq!(away(0, 7, 9, Away::Killed), ["P8"]);
    assert_eq!(away(1, 5, 7, Away::Killed), ["P8"]);
    assert_eq!(away(0, 2, 4, Away::Killed), ["P8"]);
    assert_eq!(away(0, 5, 7, Away::Frozen), ["P8"]);
    let accepted = spoiled(|history| {
        history.calls.push(Call { ended: 8 * SECOND, ..unanswered() });
        let (from, to) = (7 * SECOND, 9 * SECOND);
        history.absences.push(Absence { daemon: 0, from, to, kind: Away::Stopped });
    });
    assert_eq!(accepted, ["P8"]);
    let nonsense = call("a.5", 6, Outcome::Nonsense("garbage".to_owned()));
    assert_eq!(spoiled(|history| history.calls.push(nonsense)), ["P8"]);
}

#[test]
fn answers_that_take_too_long_are_found_unless_their_daemon_was_frozen() {
    let slow = |history: &mut History| history.calls[3].ended += 6 * SECOND;
    assert_eq!(spoiled(slow), ["P8"]);
    let frozen = spoiled(|history| {
        slow(history);
        let (from, to) = (5 * SECOND, 9 * SECOND);
        history.absences.push(Absence { daemon: 0, from, to, kind: Away::Frozen });
    });
    assert_eq!(frozen, <[&str; 0]>::default());
}

#[test]
fn look_ups_that_contradict_the_tables_are_found() {
    let look_up = |history: &mut History, status, body: Value| {
        let media = "application/json".to_owned();
        let answer = Answer { status, media, ..success(&body.to_string(), false) };
        let mut look_up = call("a.5", 6, Outcome::Answered(answer));
        look_up.form = Form::LookUp;
        history.calls.push(look_up);
    };
    let record = |history: &History, http_status: u16| {
        let record = &history.records[0];
        json!({"key": record.key, "operation": record.operation, "status": record.status,
               "http_status": http_status, "request_hash": record.hash, "events": [{}, {}],
               "response": serde_json::from_str::<Value>(&record.response).unwrap()})
    };
    let fine: [&str; 0] = [];
    let right = spoiled(|history| look_up(history, 200, record(history, 201)));
    assert_eq!(right, fine);
    assert_eq!(spoiled(|history| look_up(history, 200, record(history, 200))), ["P2"]);
    let missed = |history: &mut History| {
        look_up(history, 404, json!({}));
        *answer(history, 4) =
            Answer { request_id: Some("a.5".to_owned()), ..problem(404, "not-found", "", false) };
    };
    assert_eq!(spoiled(missed), ["P2"]);
    let before_all = spoiled(|history| {
        missed(history);
        (history.calls[4].sent, history.calls[4].ended) = (0, SECOND);
    });
    assert_eq!(before_all, fine);
}

#[test]
fn events_that_were_lost_are_found() {
    let never_taken = spoiled(|history| history.deliveries[1].status = 500);
    assert_eq!(never_taken, ["P5"]);
    assert_eq!(spoiled(|history| history.events[0].is_sent = false), ["P5"]);
    let dead = spoiled(|history| {
        (history.events[0].is_sent, history.events[0].is_dead) = (false, true);
    });
    assert_eq!(dead, ["P5"]);
    let poison = spoiled(|history| {
        history.events[0].payload = json!({"effect": 7, "n": 1, "poison": true});
        (history.events[0].is_sent, history.events[0].is_dead) = (false, true);
        history.deliveries =
            vec![delivery(&history.events[0], 500), delivery(&history.events[1], 204)];
    });
    assert_eq!(poison, <[&str; 0]>::default());
}

#[test]
fn deliveries_that_are_not_their_event_are_found() {
    let other_bytes = spoiled(|history| {
        let body = format!("{} ", history.deliveries[0].body);
        history.deliveries[0] = signed("execution:1", body, 500);
    });
    assert_eq!(other_bytes, ["P5"]);
    let other_payload = spoiled(|history| {
        let event = Event { payload: json!({"effect": 6, "n": 1}), ..history.events[0].clone() };
        for number in 0..2 {
            history.deliveries[number] = delivery(&event, history.deliveries[number].status);
        }
    });
    assert_eq!(other_payload, ["P5"]);
    let unsigned = spoiled(|history| history.deliveries[0].timestamp = "18".to_owned());
    assert_eq!(unsigned, ["P5"]);
    let old = spoiled(|history| history.deliveries[0].at += 90 * SECOND);
    assert_eq!(old, ["P5"]);
    let unknown = spoiled(|history| history.deliveries.push(delivery(&event(13, 3), 204)));
    assert_eq!(unknown, ["P5"]);
}

#[test]
fn an_event_that_overtakes_another_of_its_order_key_is_found() {
    assert_eq!(spoiled(|history| history.deliveries.swap(1, 2)), ["order"]);
    let without_order = spoiled(|history| {
        history.deliveries.swap(1, 2);
        for event in &mut history.events {
            event.order_key = None;
        }
    });
    assert_eq!(without_order, <[&str; 0]>::default());
}

#[test]
fn what_is_stuck_is_told() {
    assert_eq!(spoiled(|history| history.stuck.push("a transaction".to_owned())), ["P8"]);
}
