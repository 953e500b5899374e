//! What can be seen of the delivery of events: only where they go to an `onced sink` on this machine, which tells what
//! it got.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Verdict;
use super::checks::Run;
use crate::cli::client::Client;
use crate::config::Config;

/// How long the events of the run may take to arrive. A relay comes by every second.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where events go, or why that cannot be asked.
pub(super) fn sink_of(config: Option<&Config>) -> Result<String, String> {
    let Some(config) = config else {
        return Err("without the configuration it is not known where events go".to_owned());
    };
    let Some(sink) = &config.sink else {
        return Err("the configuration has no [sink], so events stay in the outbox".to_owned());
    };
    let origin = sink.url.origin().ascii_serialization();
    match Client::new(&origin, None, 1).get("/") {
        Ok(reply) if reply.json()["onced_sink"].is_string() => Ok(origin),
        Ok(_) | Err(_) => Err(format!("{origin} is no `onced sink`, which would tell what it got")),
    }
}

/// A5, as far as it can be seen without killing anything: every event of the run arrives, and has one effect.
pub(super) fn one_effect(run: &mut Run) -> anyhow::Result<Verdict> {
    let sink = match &run.sink {
        Ok(url) => Client::new(url, None, 1),
        Err(reason) => return Ok(Verdict::Skipped(reason.clone())),
    };
    let mut ids = Vec::new();
    for check in ["a1", "a2", "a3", "a4"] {
        ids.extend(run.events(&format!("{}-{check}", run.prefix))?);
    }
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    let mut arrived = Vec::new();
    for id in &ids {
        arrived.extend(wait_for(&sink, id, deadline)?);
    }
    let deliveries: u64 = arrived.iter().filter_map(|event| event["deliveries"].as_u64()).sum();
    let repeats = deliveries.saturating_sub(arrived.len() as u64);
    let changed = arrived.iter().filter(|event| event["body_changed"] != false).count();
    let seen = format!(
        "{} of {} events arrived, {repeats} repeats dropped, {changed} with changed bytes \
         (that a repeat comes after a crash was not tried: it needs a kill)",
        arrived.len(),
        ids.len()
    );
    if arrived.len() < ids.len() {
        let limit = ARRIVAL_LIMIT.as_secs();
        return Ok(Verdict::Failed(format!("not all arrived within {limit} s; saw {seen}")));
    }
    if changed > 0 {
        return Ok(Verdict::Failed(format!("a repeat had other bytes; saw {seen}")));
    }
    Ok(Verdict::Passed(seen))
}

/// What the sink knows of an event, once it came.
fn wait_for(sink: &Client, id: &str, deadline: Instant) -> anyhow::Result<Option<Value>> {
    loop {
        let reply = sink.get(&format!("/events/{id}"))?;
        if reply.status == 200 {
            return Ok(Some(reply.json()));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}
