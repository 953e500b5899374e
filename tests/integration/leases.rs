//! No event is with two relays at a time, and a claim that nobody ends is taken over.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use onced::store::events::{
    self, Claiming, Failure, Fate, GivenBack, KeyCursor, STATEMENTS, claim, claim_in_order,
};

use crate::outbox::{New, Outbox, PLAIN, Reply, Running, Sink, insert, relay, sink_at};

const FEW: Claiming = Claiming { limit: 10, lease: Duration::from_secs(30) };
const LONG: Duration = Duration::from_secs(3600);

fn take(outbox: &Outbox) -> Vec<events::Claim> {
    outbox.with(|client| claim(client, FEW, None).unwrap().0)
}

fn failed(claim: &events::Claim) -> Failure {
    Failure {
        id: claim.event.id,
        number: claim.number,
        attempts: claim.attempts,
        delay: Duration::ZERO,
        error: "no".to_owned(),
        fate: Fate::Retry,
    }
}

#[test]
fn a_claim_leases_what_is_due_and_nothing_else() {
    let outbox = Outbox::new();
    outbox.insert(12, PLAIN);
    outbox.execute("UPDATE outbox_events SET due_at = now() + interval '1 hour' WHERE id = 1");
    let first = take(&outbox);
    assert_eq!(
        first.iter().map(|claim| claim.event.id).collect::<Vec<_>>(),
        (2..12).collect::<Vec<_>>()
    );
    assert!(first.iter().all(|claim| (claim.number, claim.attempts) == (1, 0)));
    assert_eq!(take(&outbox).len(), 1);
    assert_eq!(take(&outbox).len(), 0);
    let leased: i64 = outbox.value(
        "SELECT count(*) FROM outbox_events WHERE claims = 1
         AND due_at BETWEEN now() + interval '20 seconds' AND now() + interval '30 seconds'",
        &[],
    );
    assert_eq!(leased, 11);
}

#[test]
fn a_late_failure_changes_nothing_and_a_late_success_is_recorded() {
    let outbox = Outbox::new();
    outbox.insert(2, PLAIN);
    let late = take(&outbox);
    outbox.execute("UPDATE outbox_events SET due_at = now()");
    let now = take(&outbox);
    assert!(now.iter().all(|claim| claim.number == 2));
    outbox.with(|client| {
        assert_eq!(events::settle_failed(client, &[failed(&late[0])], LONG), Ok(Vec::new()));
        let back =
            GivenBack { id: late[0].event.id, number: late[0].number, delay: Duration::ZERO };
        events::give_back(client, &[back]).unwrap();
        assert_eq!(claim(client, FEW, None).unwrap().0.len(), 0, "both are still leased");
        events::settle_sent(client, &[late[0].event.id]).unwrap();
        assert_eq!(events::settle_failed(client, &[failed(&now[0])], LONG), Ok(Vec::new()));
        assert_eq!(events::settle_failed(client, &[failed(&now[1])], LONG).unwrap().len(), 1);
    });
    assert_eq!(outbox.sent(), 1);
}

#[test]
fn settling_twice_is_as_settling_once() {
    let outbox = Outbox::new();
    outbox.insert(2, PLAIN);
    let claims = take(&outbox);
    outbox.with(|client| {
        for _ in 0..2 {
            events::settle_sent(client, &[claims[0].event.id]).unwrap();
            events::settle_failed(client, &[failed(&claims[1])], LONG).unwrap();
        }
    });
    let attempts: i64 = outbox.value("SELECT sum(attempts) FROM outbox_events", &[]);
    assert_eq!(attempts, 2);
}

#[test]
fn what_is_given_back_costs_no_attempt() {
    let outbox = Outbox::new();
    outbox.insert(1, PLAIN);
    let claims = take(&outbox);
    let back =
        GivenBack { id: claims[0].event.id, number: claims[0].number, delay: Duration::ZERO };
    outbox.with(|client| events::give_back(client, &[back]).unwrap());
    let again = take(&outbox);
    assert_eq!((again[0].number, again[0].attempts), (2, 0));
}

#[test]
fn a_lease_that_nobody_ends_is_taken_over() {
    let outbox = Outbox::new();
    outbox.insert(5, PLAIN);
    let short = Claiming { lease: Duration::from_millis(1500), ..FEW };
    outbox.with(|client| claim(client, short, None).unwrap());
    let begun = Instant::now();
    let sink = Sink::start(|_, _| Reply::status(204));
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    outbox.until_sent(5);
    running.stop();
    assert!(begun.elapsed() > Duration::from_millis(1200), "{:?}", begun.elapsed());
    assert_eq!(outbox.value::<i64>("SELECT sum(claims)::bigint FROM outbox_events", &[]), 10);
}

#[test]
fn a_slow_sink_has_events_given_back_and_not_doubled() {
    let outbox = Outbox::new();
    outbox.insert(12, PLAIN);
    let sink = Sink::start(|_, _| Reply::status(204).after(Duration::from_millis(250)));
    let brief = onced::config::Relay {
        threads: NonZeroUsize::MIN,
        lease: Duration::from_millis(900),
        ..relay()
    };
    let quick = onced::config::Sink { timeout: Duration::from_millis(600), ..sink_at(&sink.url()) };
    // Claimed by hand as a burst would: more than fits into the lease.
    outbox.with(|client| claim(client, Claiming { lease: brief.lease, ..FEW }, None).unwrap());
    let daemons: Vec<Running> =
        (0..2).map(|_| Running::start(outbox.store(), &brief, &quick)).collect();
    outbox.until_sent(12);
    daemons.into_iter().for_each(Running::stop);
    assert_eq!(sink.overlaps(), 0);
    assert_eq!(sink.count(), 12);
    assert_eq!(outbox.value::<i64>("SELECT sum(attempts) FROM outbox_events", &[]), 12);
}

#[test]
fn several_daemons_share_one_outbox_and_no_event_is_with_two_of_them() {
    let outbox = Outbox::new();
    outbox.insert(600, PLAIN);
    let sink = Sink::start(|delivery, _| {
        let slow = u64::from(delivery.id.as_bytes()[0] % 8) * 5;
        Reply::status(204).after(Duration::from_millis(slow))
    });
    let daemons: Vec<Running> =
        (0..3).map(|_| Running::start(outbox.store(), &relay(), &sink_at(&sink.url()))).collect();
    outbox.until_sent(600);
    daemons.into_iter().for_each(Running::stop);
    assert_eq!(sink.overlaps(), 0);
    assert_eq!(sink.count(), 600, "as many deliveries as events");
    let claimed: i64 = outbox.value("SELECT count(*) FROM outbox_events WHERE claims <> 1", &[]);
    assert_eq!(claimed, 0);
}

#[test]
fn an_event_that_became_visible_late_is_found_although_others_were_sent_long_past_it() {
    let outbox = Outbox::new();
    let sink = Sink::start(|_, _| Reply::status(204));
    let running = Running::start(outbox.store(), &relay(), &sink_at(&sink.url()));
    let mut session = outbox.session();
    let mut late = session.transaction().unwrap();
    insert(&mut late, 1, PLAIN);
    crate::outbox::pause(Duration::from_millis(1500));
    for _ in 0..20 {
        outbox.insert(20, PLAIN);
        running.ring.try_send(()).unwrap_or_default();
    }
    outbox.until_sent(400);
    late.commit().unwrap();
    let begun = Instant::now();
    outbox.until_sent(401);
    assert!(begun.elapsed() < Duration::from_secs(2), "by the next poll");
    running.stop();
}

#[test]
fn one_event_of_each_order_key_is_claimed_and_every_key_has_its_turn() {
    let outbox = Outbox::new();
    for key in 0..25 {
        let key = format!("key-{key:02}");
        outbox.insert(3, New { order_key: Some(&key), ..PLAIN });
    }
    let mut cursor = KeyCursor::default();
    let mut seen = Vec::new();
    let mut look = |outbox: &Outbox| {
        let found = outbox.with(|client| claim_in_order(client, FEW, false, &mut cursor).unwrap());
        seen.extend(found.claims.iter().map(|claim| claim.event.id));
        let ids: Vec<i64> = found.claims.iter().map(|claim| claim.event.id).collect();
        outbox.with(|client| events::settle_sent(client, &ids).unwrap());
        (ids.len(), found.is_complete)
    };
    assert_eq!(
        [look(&outbox), look(&outbox), look(&outbox)],
        [(10, false), (10, false), (5, true)]
    );
    assert_eq!(seen, (0..25).map(|key| key * 3 + 1).collect::<Vec<_>>(), "the first of each key");
    assert_eq!(outbox.with(|client| claim(client, FEW, None).unwrap().0.len()), 0);
}

#[test]
fn claims_go_by_their_index_whatever_lies_in_the_table_and_order_keys_change_nothing() {
    let outbox = Outbox::new();
    outbox.insert(20_000, PLAIN);
    outbox.execute(
        "UPDATE outbox_events SET sent_at = now() WHERE id % 10 > 0; ANALYZE outbox_events",
    );
    let without = outbox.plan(STATEMENTS, "events::CLAIM", &["50", "30000", "NULL::bigint"]);
    assert!(without.contains("Index Scan using outbox_events_due on"), "{without}");
    assert!(!without.contains("Seq Scan on outbox_events"), "{without}");
    let hinted = outbox.plan(STATEMENTS, "events::CLAIM", &["50", "30000", "1000000"]);
    assert!(hinted.contains("Index Scan using outbox_events_due on"), "{hinted}");
    let values = ["50", "30000", "false", "''", "''", "0", "400"];
    let ordered = outbox.plan(STATEMENTS, "events::CLAIM_IN_ORDER", &values);
    assert!(ordered.contains("outbox_events_ordered"), "{ordered}");
    assert!(!ordered.contains("Seq Scan on outbox_events"), "{ordered}");

    outbox.insert(5000, New { order_key: Some("k"), ..PLAIN });
    outbox.execute("ANALYZE outbox_events");
    let with = outbox.plan(STATEMENTS, "events::CLAIM", &["50", "30000", "NULL::bigint"]);
    let shape = |plan: &str| -> Vec<String> {
        plan.lines()
            .map(|line| line.split("  (cost").next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(shape(&without), shape(&with));
}
