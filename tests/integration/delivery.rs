//! Every event arrives, and what fails is not lost from sight.

use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onced::config::{OnDead, Secret};
use onced::observe::METRICS;
use onced::relay::signature::sign;
use onced::store::outbox::{self, Change, Filter, State};

use crate::outbox::{
    Delivery, New, Outbox, PLAIN, Reply, Running, SECRET, Sink, insert, pause, relay, sink_at,
    until,
};

const BAD: New<'static> = New { event_type: "bad", ..PLAIN };

fn accepts() -> Sink {
    Sink::start(|_, _| Reply::status(204))
}

/// A sink that refuses the type `bad`.
fn picky() -> Sink {
    Sink::start(|delivery, _| {
        if delivery.event_type == "bad" {
            Reply::text("HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\nno \0thing")
        } else {
            Reply::status(204)
        }
    })
}

fn of_id<'a>(deliveries: &'a [Delivery], id: &str) -> Vec<&'a Delivery> {
    deliveries.iter().filter(|delivery| delivery.id == id).collect()
}

#[test]
fn every_event_arrives_once_signed_and_is_recorded() {
    let outbox = Outbox::new();
    outbox.insert(300, PLAIN);
    let sink = accepts();
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    outbox.until_sent(300);
    running.stop();
    let deliveries = sink.deliveries();
    assert_eq!(deliveries.len(), 300);
    let ids: HashSet<&str> = deliveries.iter().map(|delivery| delivery.id.as_str()).collect();
    assert_eq!(ids.len(), 300);
    for delivery in &deliveries {
        let timestamp = delivery.timestamp.parse().unwrap();
        let secrets = [Secret::new(SECRET.to_vec())];
        assert_eq!(delivery.signature, sign(&delivery.id, timestamp, &delivery.body, &secrets));
    }
    let attempts: i64 = outbox.value("SELECT sum(attempts) FROM outbox_events", &[]);
    assert_eq!(attempts, 300);
    assert!(sink.connections() <= 4, "connections are kept alive: {}", sink.connections());
}

#[test]
fn the_body_is_that_of_the_contract() {
    let outbox = Outbox::new();
    outbox.execute(
        "INSERT INTO outbox_events (id, scope, idempotency_key, event_key, event_type, payload, created_at)
         VALUES (17, '', 'demo-001', 'u:1', 'order.created', '{\"b\":1.50, \"a\":[ ]}',
                 '2026-12-01 10:30:00.1234+01')",
    );
    let sink = accepts();
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    let deliveries = sink.wait_for(1);
    running.stop();
    assert_eq!(
        deliveries[0].body,
        r#"{"type": "order.created", "timestamp": "2026-12-01T09:30:00.123400Z", "event_id": 17, "event_key": "u:1", "principal": "", "idempotency_key": "demo-001", "data": {"a": [], "b": 1.50}}"#
    );
}

#[test]
fn a_failed_attempt_comes_again_with_equal_bytes_long_before_the_next_poll() {
    let outbox = Outbox::new();
    outbox.insert(1, PLAIN);
    let sink = Sink::start(|_, before| {
        Reply::status(if before < 2 { 500 } else { 200 }).after(Duration::from_millis(60))
    });
    let hour = Duration::from_secs(3600);
    let patient = onced::config::Relay { poll: hour, lease: hour, ..relay() };
    let running = Running::start(outbox.store(), &patient, &sink_at(&sink.url()));
    outbox.until_sent(1);
    running.stop();
    let deliveries = sink.deliveries();
    assert_eq!(deliveries.len(), 3);
    assert!(
        deliveries.iter().all(|one| one.body == deliveries[0].body && one.id == deliveries[0].id)
    );
    let waits: Vec<Duration> = deliveries.windows(2).map(|two| two[1].at - two[0].at).collect();
    assert!(waits.iter().all(|wait| *wait >= Duration::from_millis(100)), "{waits:?}");
    let error: String = outbox.value("SELECT last_error FROM outbox_events", &[]);
    assert_eq!(error, "HTTP 500");
}

#[test]
fn an_event_is_dead_after_exactly_max_attempts_and_a_person_decides() {
    let outbox = Outbox::new();
    outbox.insert(2, BAD);
    let is_open = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&is_open);
    let sink = Sink::start(move |_, _| {
        if open.load(Ordering::SeqCst) {
            return Reply::status(204);
        }
        Reply::text("HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\nno \0thing")
    });
    let limited =
        onced::config::Relay { max_attempts: 3, backoff_min: Duration::from_millis(10), ..relay() };
    let running = Running::start(outbox.store(), &limited, &sink_at(&sink.url()));
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    let listed = || outbox.with(|client| outbox::list_events(client, &dead, None, 10).unwrap());
    until("both are dead", || listed().len() == 2);
    running.stop();
    let running = Running::start(outbox.store(), &limited, &sink_at(&sink.url()));
    let entries = listed();
    assert_eq!(sink.count(), 6, "three attempts each, and none after a restart");
    assert!(entries.iter().all(|entry| entry.attempts == 3));
    assert_eq!(entries[0].last_error.as_deref(), Some("HTTP 400: no \\u{0}thing"));
    assert_eq!(outbox.with(|client| outbox::backlog(client).unwrap()).dead, 2);

    is_open.store(true, Ordering::SeqCst);
    let only = |key: &str| Filter { event_key: Some(key.to_owned()), ..Filter::default() };
    let (first, second) = (entries[1].event_key.clone(), entries[0].event_key.clone());
    outbox.with(|client| {
        assert_eq!(outbox::change_events(client, Change::Retry, &only(&first), 10), Ok(1));
        assert_eq!(
            outbox::change_events(client, Change::Discard("eve"), &only(&second), 10),
            Ok(1)
        );
        assert_eq!(outbox::change_events(client, Change::Retry, &only(&second), 10), Ok(0));
    });
    running.ring.try_send(()).unwrap_or_default();
    outbox.until_sent(1);
    running.stop();
    assert_eq!(of_id(&sink.deliveries(), &first).len(), 4);
    assert_eq!(of_id(&sink.deliveries(), &second).len(), 3);
    let by: String =
        outbox.value("SELECT discarded_by FROM outbox_events WHERE sent_at IS NULL", &[]);
    assert_eq!(by, "eve");
    assert_eq!(outbox.with(|client| outbox::backlog(client).unwrap()), outbox::Backlog::default());
}

#[test]
fn a_retried_event_has_all_its_attempts_before_it_again() {
    let outbox = Outbox::new();
    outbox.insert(1, BAD);
    let sink = picky();
    let limited =
        onced::config::Relay { max_attempts: 2, backoff_min: Duration::from_millis(5), ..relay() };
    let running = Running::start(outbox.store(), &limited, &sink_at(&sink.url()));
    let dead = "SELECT count(*) FROM outbox_events WHERE dead_at IS NOT NULL AND attempts = $1";
    until("it is dead", || outbox.value::<i64>(dead, &[&2]) == 1);
    outbox
        .with(|client| outbox::change_events(client, Change::Retry, &Filter::default(), 1))
        .unwrap();
    until("it is dead again", || outbox.value::<i64>(dead, &[&4]) == 1);
    running.stop();
    assert_eq!(sink.count(), 4);
}

#[test]
fn events_that_always_fail_do_not_hold_up_those_behind_them() {
    let outbox = Outbox::new();
    let small = onced::config::Relay { batch: std::num::NonZeroUsize::new(10).unwrap(), ..relay() };
    outbox.insert(30, BAD);
    outbox.insert(40, PLAIN);
    let sink = picky();
    let running = Running::start(outbox.store(), &small, &sink_at(&sink.url()));
    outbox.until_sent(40);
    running.stop();
    let bad = sink.deliveries().iter().filter(|delivery| delivery.event_type == "bad").count();
    let recorded: i64 =
        outbox.value("SELECT sum(attempts) FROM outbox_events WHERE event_type = 'bad'", &[]);
    assert_eq!(i64::try_from(bad).unwrap(), recorded, "attempts are the POSTs that were begun");
}

#[test]
fn an_event_that_cannot_be_sent_is_set_aside_alone() {
    let outbox = Outbox::new();
    outbox.insert(2, PLAIN);
    outbox.execute("UPDATE outbox_events SET event_key = E'a\\nb' WHERE id = 1");
    outbox.insert(1, PLAIN);
    outbox.execute("UPDATE outbox_events SET format = 99 WHERE id = 3");
    let sink = accepts();
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    until("the first is dead and the second sent", || {
        let dead = "SELECT count(*) FROM outbox_events WHERE id = 1 AND dead_at IS NOT NULL";
        outbox.sent() == 1 && outbox.value::<i64>(dead, &[]) == 1
    });
    until("the third is left to a later version", || {
        let left = "SELECT attempts = 0 AND due_at > now() + interval '40 seconds' AND due_at < now() + interval '61 seconds'
                    FROM outbox_events WHERE id = 3";
        outbox.value::<bool>(left, &[])
    });
    running.stop();
    assert_eq!(sink.count(), 1);
}

#[test]
fn a_slow_event_holds_up_no_other() {
    let outbox = Outbox::new();
    outbox.insert(1, New { event_type: "slow", ..PLAIN });
    outbox.insert(60, PLAIN);
    let sink = Sink::start(|delivery, _| {
        let slow = delivery.event_type == "slow";
        Reply::status(204).after(Duration::from_millis(if slow { 1500 } else { 0 }))
    });
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    let begun = Instant::now();
    outbox.until_sent(60);
    assert!(begun.elapsed() < Duration::from_millis(1400), "recorded before the slow one ends");
    outbox.until_sent(61);
    running.stop();
}

#[test]
fn a_success_that_came_too_late_is_a_failed_attempt() {
    let outbox = Outbox::new();
    outbox.insert(1, PLAIN);
    let sink = Sink::start(|_, before| {
        Reply::status(204).after(Duration::from_millis(if before == 0 { 600 } else { 0 }))
    });
    let quick = onced::config::Sink { timeout: Duration::from_millis(300), ..sink_at(&sink.url()) };
    let calm = onced::config::Relay { backoff_min: Duration::from_millis(500), ..relay() };
    let running = Running::start(outbox.store(), &calm, &quick);
    outbox.until_sent(1);
    running.stop();
    let deliveries = sink.deliveries();
    assert_eq!(deliveries.len(), 2);
    assert_eq!((&deliveries[0].id, &deliveries[0].body), (&deliveries[1].id, &deliveries[1].body));
    assert_eq!(sink.overlaps(), 0);
    let (attempts, error): (i32, String) = outbox.with(|client| {
        let row = client.query_one("SELECT attempts, last_error FROM outbox_events", &[]).unwrap();
        (row.get(0), row.get(1))
    });
    assert_eq!((attempts, error.as_str()), (2, "no answer within the sink's timeout"));
}

#[test]
fn a_reply_that_never_ends_or_is_too_long_fails_and_a_redirect_is_not_followed() {
    let outbox = Outbox::new();
    outbox.insert(4, PLAIN);
    let long = format!("HTTP/1.1 200 X\r\ncontent-length: 70000\r\n\r\n{}", "x".repeat(70_000));
    let fits = format!("HTTP/1.1 200 X\r\ncontent-length: 65536\r\n\r\n{}", "x".repeat(65_536));
    let sink = Sink::start(move |_, before| match before {
        0 => Reply::text("HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\nunfinished"),
        1 => Reply::text(&long),
        2 => Reply::text("HTTP/1.1 302 X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"),
        _ => Reply::text(&fits),
    });
    let quick = onced::config::Sink { timeout: Duration::from_millis(400), ..sink_at(&sink.url()) };
    let single = onced::config::Relay {
        threads: std::num::NonZeroUsize::MIN,
        backoff_min: Duration::from_secs(60),
        ..relay()
    };
    let running = Running::start(outbox.store(), &single, &quick);
    outbox.until_sent(1);
    running.stop();
    let errors: Vec<String> = outbox.with(|client| {
        let sql = "SELECT last_error FROM outbox_events WHERE sent_at IS NULL ORDER BY id";
        client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    });
    assert_eq!(
        errors,
        [
            "HTTP 200, and the reply: no answer within the sink's timeout",
            "HTTP 200, and the reply: longer than 65536 bytes",
            "HTTP 302",
        ]
    );
    assert_eq!(sink.count(), 4);
}

#[test]
fn retry_after_is_a_floor_in_seconds_and_as_a_date() {
    let outbox = Outbox::new();
    outbox.insert(50, PLAIN);
    let sink = Sink::start(|delivery, before| {
        if before >= 50 {
            return Reply::status(204);
        }
        let by_date = delivery.id.ends_with('1');
        let asked = if by_date { "Tue, 01 Dec 2026 09:30:02 GMT" } else { "2" };
        Reply::text(&format!(
            "HTTP/1.1 {} X\r\ndate: Tue, 01 Dec 2026 09:30:00 GMT\r\nretry-after: {asked}\r\ncontent-length: 0\r\n\r\n",
            if by_date { 503 } else { 429 }
        ))
    });
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    outbox.until_sent(50);
    running.stop();
    let deliveries = sink.deliveries();
    assert_eq!(deliveries.len(), 100);
    let mut first = HashMap::new();
    for delivery in &deliveries {
        if let Some(before) = first.insert(&delivery.id, delivery.at) {
            let wait = delivery.at - before;
            assert!(wait >= Duration::from_secs(2), "{wait:?} is too early");
            assert!(wait < Duration::from_millis(3500), "{wait:?} is much later");
        }
    }
}

#[test]
fn retry_after_is_bounded_by_the_longest_backoff() {
    let outbox = Outbox::new();
    outbox.insert(1, PLAIN);
    let sink = Sink::start(|_, before| match before {
        0 => Reply::text("HTTP/1.1 429 X\r\nretry-after: 99999999\r\ncontent-length: 0\r\n\r\n"),
        _ => Reply::status(204),
    });
    let short = onced::config::Relay { backoff_max: Duration::from_millis(300), ..relay() };
    let running = Running::start(outbox.store(), &short, &sink_at(&sink.url()));
    outbox.until_sent(1);
    running.stop();
}

#[test]
fn gone_pauses_the_sink_for_all_daemons_until_it_is_resumed() {
    let outbox = Outbox::new();
    outbox.insert(40, PLAIN);
    let is_back = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&is_back);
    let sink =
        Sink::start(move |_, _| Reply::status(if back.load(Ordering::SeqCst) { 204 } else { 410 }));
    let first = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    let paused = || outbox.with(|client| outbox::find_pause(client).unwrap());
    until("the sink is paused", || paused().is_some());
    assert_eq!(METRICS.sink_paused.get(), 1);
    assert_eq!(
        paused().map(|pause| (pause.by, pause.reason)),
        Some(("onced".into(), "HTTP 410".into()))
    );
    first.stop();
    let before = sink.count();
    assert!(before <= 4, "each publisher was at most once told: {before}");
    let held: i64 = outbox.value(
        "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL AND dead_at IS NULL AND due_at <= now()",
        &[],
    );
    assert_eq!(held, 40);

    // Also after a restart, and for somebody who never heard the sink say so.
    let second = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    pause(Duration::from_millis(600));
    assert_eq!(sink.count(), before);
    is_back.store(true, Ordering::SeqCst);
    assert_eq!(outbox.with(outbox::resume), Ok(true));
    outbox.until_sent(40);
    until("the metric says so", || METRICS.sink_paused.get() == 0);
    second.stop();
}

#[test]
fn a_sink_that_is_down_costs_no_attempts_and_is_found_within_seconds_when_it_is_back() {
    let outbox = Outbox::new();
    outbox.insert(500, PLAIN);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}/hook");
    let running = Running::start(outbox.store(), &relay(), &sink_at(&url));
    let faults = METRICS.delivery_attempts.with_label_values(&["sink_fault"]);
    until("a few attempts could not be begun", || faults.get() >= 4);
    pause(Duration::from_secs(1));
    let seen = faults.get();
    assert!(seen < 20, "the sink is left alone: {seen}");
    let attempts: i64 = outbox.value("SELECT sum(attempts) FROM outbox_events", &[]);
    assert_eq!(attempts, 0);
    let sink = Sink::start_at(address, |_, _| Reply::status(204));
    let begun = Instant::now();
    outbox.until_sent(500);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    running.stop();
    assert_eq!(sink.count(), 500);
    assert_eq!(outbox.value::<i64>("SELECT sum(attempts) FROM outbox_events", &[]), 500);
}

#[test]
fn tls_and_name_faults_are_the_sinks_and_not_the_events() {
    let sink = accepts();
    for url in [sink.url().replace("http:", "https:"), "http://name.invalid/hook".to_owned()] {
        let outbox = Outbox::new();
        outbox.insert(5, PLAIN);
        let running = Running::start(outbox.store(), &relay(), &sink_at(&url));
        let faults = METRICS.delivery_attempts.with_label_values(&["sink_fault"]);
        let before = faults.get();
        until("attempts could not be begun", || faults.get() > before);
        running.stop();
        assert_eq!(outbox.value::<i64>("SELECT sum(attempts) FROM outbox_events", &[]), 0);
    }
    assert_eq!(sink.count(), 0);
}

#[test]
fn an_address_that_is_not_public_is_never_connected_to() {
    let outbox = Outbox::new();
    outbox.insert(5, PLAIN);
    let sink = accepts();
    let port = sink.url().rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0.0.0.0"] {
        let guarded = onced::config::Sink {
            allow_private: false,
            ..sink_at(&format!("http://{host}:{port}"))
        };
        let faults = METRICS.delivery_attempts.with_label_values(&["sink_fault"]);
        let before = faults.get();
        let running = Running::start(outbox.store(), &relay(), &guarded);
        until(&format!("{host} is refused"), || faults.get() > before);
        running.stop();
    }
    assert_eq!(sink.connections(), 0);
    assert_eq!(outbox.value::<i64>("SELECT sum(attempts) FROM outbox_events", &[]), 0);
}

#[test]
fn new_secrets_sign_from_the_next_attempt_on() {
    let outbox = Outbox::new();
    let sink = accepts();
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    outbox.insert(1, PLAIN);
    sink.wait_for(1);
    let both = vec![Secret::new(b"new".to_vec()), Secret::new(SECRET.to_vec())];
    running.relays.reload(both.clone());
    outbox.insert(1, PLAIN);
    let last = &sink.wait_for(2)[1];
    running.stop();
    assert_eq!(last.signature, sign(&last.id, last.timestamp.parse().unwrap(), &last.body, &both));
}

#[test]
fn a_database_that_goes_away_while_events_are_published_loses_and_doubles_nothing() {
    let outbox = Outbox::new();
    outbox.insert(200, PLAIN);
    let sink = Sink::start(|_, _| Reply::status(204).after(Duration::from_millis(5)));
    // It stays away for longer than a lease: who looks first when it is back must not be the claimer.
    let brief = onced::config::Relay { lease: Duration::from_millis(1500), ..relay() };
    let quick = onced::config::Sink { timeout: Duration::from_millis(500), ..sink_at(&sink.url()) };
    let running = Running::start(outbox.store(), &brief, &quick);
    sink.wait_for(30);
    outbox.shut();
    pause(Duration::from_secs(2));
    outbox.open();
    outbox.until_sent(200);
    running.stop();
    assert_eq!(sink.count(), 200, "what was delivered meanwhile was recorded and not sent again");
}

#[test]
fn a_delivery_that_cannot_be_recorded_is_no_failed_delivery_and_is_not_made_again() {
    let outbox = Outbox::new();
    outbox.insert(100, PLAIN);
    // As with a full disk: claims go through, and what came of them does not.
    outbox.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE OF sent_at ON outbox_events EXECUTE FUNCTION refuse()",
    );
    let sink = accepts();
    let brief = onced::config::Relay { lease: Duration::from_millis(700), ..relay() };
    let quick = onced::config::Sink { timeout: Duration::from_millis(500), ..sink_at(&sink.url()) };
    let running = Running::start(outbox.store(), &brief, &quick);
    sink.wait_for(4);
    pause(Duration::from_millis(1500));
    outbox.execute("DROP TRIGGER refuse ON outbox_events");
    outbox.until_sent(100);
    running.stop();
    assert_eq!(sink.count(), 100);
    let failed: i64 = outbox.value(
        "SELECT count(*) FROM outbox_events WHERE attempts <> 1 OR last_error IS NOT NULL",
        &[],
    );
    assert_eq!(failed, 0);
}

#[test]
fn a_stop_settles_what_was_begun_and_gives_back_the_rest() {
    let outbox = Outbox::new();
    outbox.insert(100, PLAIN);
    let sink = Sink::start(|_, _| Reply::status(204).after(Duration::from_millis(30)));
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    sink.wait_for(10);
    running.stop();
    let sent = outbox.sent();
    assert_eq!(usize::try_from(sent).unwrap(), sink.count());
    let free: i64 = outbox.value(
        "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL AND due_at <= now() AND attempts = 0",
        &[],
    );
    assert_eq!(free, 100 - sent, "whoever comes next need not wait for a lease");
}

#[test]
fn a_stop_does_not_wait_for_ever_for_a_database_that_is_away() {
    let outbox = Outbox::new();
    outbox.insert(100, PLAIN);
    let sink = Sink::start(|_, _| Reply::status(204).after(Duration::from_millis(20)));
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    sink.wait_for(10);
    outbox.shut();
    let begun = Instant::now();
    running.stop();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    outbox.open();
    let sent = usize::try_from(outbox.sent()).unwrap();
    assert!(sent <= sink.count(), "what is not recorded comes again after its lease");
}

#[test]
fn what_was_sent_is_replayed_once_under_the_same_id() {
    let outbox = Outbox::new();
    outbox.insert(30, PLAIN);
    outbox.insert(5, New { event_type: "other", ..PLAIN });
    let sink = accepts();
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    outbox.until_sent(35);
    let plain = Filter { event_type: Some("order.created".into()), ..Filter::default() };
    let replayed = outbox.with(|client| outbox::change_events(client, Change::Replay, &plain, 7));
    assert_eq!(replayed, Ok(30));
    running.ring.try_send(()).unwrap_or_default();
    outbox.until_sent(35);
    let deliveries = sink.wait_for(65);
    running.stop();
    assert_eq!(sink.count(), 65);
    let ids: HashSet<&str> = deliveries.iter().map(|delivery| delivery.id.as_str()).collect();
    assert_eq!(ids.len(), 35);
}

fn ordered<'a>(key: &'a str, event_type: &'a str) -> New<'a> {
    New { order_key: Some(key), event_type, ..PLAIN }
}

#[test]
fn events_of_one_order_key_go_one_at_a_time_by_id_also_from_overlapping_transactions() {
    let outbox = Outbox::new();
    let sink = Sink::start(|delivery, before| {
        let fails = delivery.event_type.starts_with("fails") && before.is_multiple_of(3);
        Reply::status(if fails { 500 } else { 204 }).after(Duration::from_millis(3))
    });
    let daemons: Vec<Running> =
        (0..2).map(|_| Running::start(outbox.store(), &relay(), &sink_at(&sink.url()))).collect();
    // As a write does it: the lock first, then the ids. Transactions overlap, keys cross.
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let outbox = &outbox;
            let write = move || {
                let mut session = outbox.session();
                for round in 0..12 {
                    let key = format!("key-{}", (writer + round) % 3);
                    let mut transaction = session.transaction().unwrap();
                    let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
                    transaction.execute(lock, &[&key]).unwrap();
                    insert(
                        &mut transaction,
                        2,
                        ordered(&key, if round % 4 == 0 { "fails" } else { "fine" }),
                    );
                    insert(&mut transaction, 1, PLAIN);
                    pause(Duration::from_millis(2));
                    transaction.commit().unwrap();
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, write).unwrap();
        }
    });
    outbox.until_sent(4 * 12 * 3);
    daemons.into_iter().for_each(Running::stop);
    let keys: HashMap<String, Option<String>> = outbox.with(|client| {
        let rows = client.query("SELECT event_key, order_key FROM outbox_events", &[]).unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    });
    let mut last: HashMap<&str, i64> = HashMap::new();
    for delivery in &sink.deliveries() {
        let Some(Some(key)) = keys.get(&delivery.id) else { continue };
        let json: serde_json::Value = serde_json::from_str(&delivery.body).unwrap();
        let id = json["event_id"].as_i64().unwrap();
        let before = last.insert(key, id).unwrap_or(0);
        assert!(before <= id, "{key}: {id} came after {before}");
    }
    assert_eq!(sink.overlaps(), 0);
}

#[test]
fn a_successor_follows_at_once() {
    let outbox = Outbox::new();
    outbox.insert(5, ordered("k", "fine"));
    let sink = Sink::start(|_, _| Reply::status(204).after(Duration::from_millis(40)));
    let hour = Duration::from_secs(3600);
    let patient = onced::config::Relay { poll: hour, lease: hour, ..relay() };
    let running = Running::start(outbox.store(), &patient, &sink_at(&sink.url()));
    outbox.until_sent(5);
    running.stop();
}

#[test]
fn a_dead_event_lets_its_successors_go_on_or_holds_them() {
    for (on_dead, arrive) in [(OnDead::Continue, 3), (OnDead::Hold, 1)] {
        let outbox = Outbox::new();
        outbox.insert(1, ordered("k", "bad"));
        outbox.insert(2, ordered("k", "fine"));
        outbox.insert(1, ordered("other", "fine"));
        let sink = picky();
        let limited = onced::config::Relay {
            on_dead,
            max_attempts: 2,
            backoff_min: Duration::from_millis(5),
            ..relay()
        };
        let running = Running::start(outbox.store(), &limited, &sink_at(&sink.url()));
        outbox.until_sent(arrive);
        until("the first is dead", || {
            outbox.value::<bool>("SELECT dead_at IS NOT NULL FROM outbox_events WHERE id = 1", &[])
        });
        if on_dead == OnDead::Hold {
            pause(Duration::from_millis(500));
            assert_eq!(outbox.sent(), arrive, "held until a person decides");
            let all = Filter::default();
            outbox
                .with(|client| outbox::change_events(client, Change::Discard("eve"), &all, 9))
                .unwrap();
            outbox.until_sent(3);
        }
        running.stop();
    }
}

#[test]
fn an_event_is_given_up_by_how_long_it_fails_and_not_by_how_old_it_is() {
    let outbox = Outbox::new();
    let id = outbox.insert(1, PLAIN)[0];
    outbox.execute("UPDATE outbox_events SET created_at = now() - interval '4 days'");
    let sink = Sink::start(|_, _| Reply::status(500));
    let patient = onced::config::Relay {
        give_up_after: Duration::from_secs(3 * 86400),
        backoff_min: Duration::from_millis(10),
        backoff_max: Duration::from_millis(10),
        ..relay()
    };
    let running = Running::start(outbox.store(), &patient, &sink_at(&sink.url()));
    // It waited for four days, as after an outage: its first failures do not kill it.
    sink.wait_for(3);
    let dead = "SELECT count(*) FROM outbox_events WHERE dead_at IS NOT NULL";
    assert_eq!(outbox.value::<i64>(dead, &[]), 0);

    outbox.execute("UPDATE outbox_events SET failing_since = now() - interval '73 hours'");
    until("it is dead", || outbox.value::<i64>(dead, &[]) == 1);
    running.stop();
    assert!(outbox.value::<i32>("SELECT attempts FROM outbox_events WHERE id = $1", &[&id]) >= 4);
}
