//! Every event arrives, and what fails is not lost from sight.

use std::collections::{HashMap, HashSet};

use crate::outbox::{Outbox, PLAIN, Reply, Running, SECRET, Sink, relay, sink_at};
use onced::config::Secret;
use onced::relay::signature::sign;

#[test]
fn every_event_arrives_once_signed_and_is_recorded() {
    let outbox = Outbox::new();
    outbox.insert(300, PLAIN);
    let sink = Sink::start(|_, _| Reply::status(204));
    let running = Running::start(outbox.store(None), &relay(), &sink_at(&sink.url()));
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
    let _: HashMap<(), ()> = HashMap::new();
}
