//! The process dies at a named place on an event's way, and is started again: every event arrives, and what comes twice
//! is the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::sink::Sink;
use crate::support::wait::until_eq;
use crate::support::{Database, Setup};

const EVENTS: usize = 20;

/// Dies where `point` is met after so many times, and starts again without it.
fn die_and_start_again(point: &str, times: u32) {
    let actions = if times == 0 { "return".to_owned() } else { format!("{times}*off->return") };
    let database = Database::new();
    let sink = Sink::start();
    let mut daemon = Setup::on(&database)
        .sink(&sink)
        .set("sink.timeout", "500ms")
        .set("relay.lease", "1500ms")
        .env("FAILPOINTS", &format!("{point}={actions}"))
        .start();
    database.execute(&format!(
        "INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
         SELECT '', 'k', gen_random_uuid() || ':' || n, 'order.created', jsonb_build_object('n', n)
         FROM generate_series(1, {EVENTS}) n"
    ));
    let status = daemon.wait();
    assert_eq!(status.code(), None, "it died by a signal, not in order\n{}", daemon.log());
    let unsent = "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL";
    daemon.restart(|setup| setup.env("FAILPOINTS", ""));

    until_eq("all events are settled", &0, || database.value::<i64>(unsent, &[]));
    daemon.stop();
    let mut bodies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for delivery in sink.deliveries() {
        bodies.entry(delivery.id).or_default().insert(delivery.body);
    }
    assert_eq!(
        bodies.len(),
        EVENTS,
        "a consumer that drops known ids has one effect for each event"
    );
    assert!(
        bodies.values().all(|bodies| bodies.len() == 1),
        "equal ids have equal bytes: {bodies:?}"
    );
}

// The first two are also met by every poll of an idle relay, so they wait until it is ready.

#[test]
fn a_death_before_a_claim_loses_nothing() {
    die_and_start_again("relay::before_claim", 25);
}

#[test]
fn a_death_after_a_claim_loses_nothing() {
    die_and_start_again("relay::after_claim", 25);
}

#[test]
fn a_death_in_the_middle_of_a_batch_loses_nothing() {
    die_and_start_again("relay::mid_batch", 7);
}

#[test]
fn a_death_after_publishing_loses_nothing() {
    die_and_start_again("relay::after_publish", 7);
}

#[test]
fn a_death_before_settling_loses_nothing() {
    die_and_start_again("relay::before_settle", 0);
}
