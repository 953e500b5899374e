//! Tells people what a run was like, and what it found.

use std::collections::{BTreeMap, BTreeSet};

use crate::checker::Finding;
use crate::faults::Came;
use crate::history::{Call, Form, History, Micros, Outcome};

/// What is checked, in the order in which it is told.
const PROMISES: [(&str, &str); 11] = [
    ("P1", "one effect per key"),
    ("P2", "one answer per key, byte for byte"),
    ("P3", "no silent reuse of a key"),
    ("P4", "record, business row and events: all or none"),
    ("P5", "every event delivered, always as the same bytes"),
    ("P6", "several events per request"),
    ("P7", "only what is final is stored"),
    ("P8", "every request is answered, in time and rightly; nothing is stuck"),
    ("P9", "what was answered stays on record"),
    ("order", "events of one order key come in order"),
    ("alive", "daemons and database come through every fault"),
];
/// Findings that are told in full; the others only as one line each.
const IN_FULL: usize = 5;
const LINES: usize = 40;
/// Lines of a key's history that are printed.
const CALLS_SHOWN: usize = 60;

/// One run.
pub struct Report<'a> {
    pub seed: u64,
    pub started: Micros,
    pub history: &'a History,
    pub faults: &'a [Came],
    /// Replies to writes that the relays threw away.
    pub lost_replies: u32,
    pub findings: &'a [Finding],
}

impl Report<'_> {
    /// Prints everything; the closing line comes last.
    pub fn print(&self) {
        if !self.findings.is_empty() {
            self.print_findings();
            self.print_faults();
        }
        println!();
        self.print_counts();
        println!();
        let mut failed = 0;
        for (name, about) in PROMISES {
            let found = self.findings.iter().filter(|finding| finding.promise == name).count();
            failed += usize::from(found > 0);
            match found {
                0 => println!("passed  {name:5}  {about}"),
                _ => println!("FAILED  {name:5}  {about}: broken {found} times"),
            }
        }
        println!("\nseed {}: {} passed, {failed} failed", self.seed, PROMISES.len() - failed);
    }

    fn seconds(&self, at: Micros) -> String {
        format!("{:8.3}s", (at - self.started) as f64 / 1e6)
    }

    fn print_findings(&self) {
        println!("\nBroken, with seed {}:", self.seed);
        let mut told = BTreeSet::new();
        for (number, finding) in self.findings.iter().enumerate().take(LINES) {
            let key = finding.key.as_ref().map(|(scope, key)| format!(" {scope}/{key}"));
            println!("  {}{}: {}", finding.promise, key.unwrap_or_default(), finding.text);
            if let Some(key) = &finding.key
                && number < IN_FULL
                && told.insert(key)
            {
                self.print_key(&key.0, &key.1);
            }
        }
        if self.findings.len() > LINES {
            println!("  … and {} more", self.findings.len() - LINES);
        }
    }

    fn print_key(&self, scope: &str, key: &str) {
        let is_its = |call: &&Call| (call.scope.as_str(), call.key.as_str()) == (scope, key);
        let mut calls: Vec<_> = self.history.calls.iter().filter(is_its).collect();
        calls.sort_by_key(|call| call.sent);
        for call in calls.iter().take(CALLS_SHOWN) {
            let (sent, ended) = (self.seconds(call.sent), self.seconds(call.ended));
            let Call { id, daemon, operation, request, form, outcome, .. } = call;
            println!(
                "    {sent} to {ended}  {id} to daemon {daemon}: {form:?} {operation} {request}"
            );
            println!("        {outcome:?}");
        }
        for record in self
            .history
            .records
            .iter()
            .filter(|r| (r.scope.as_str(), r.key.as_str()) == (scope, key))
        {
            println!("    record of {}: {record:?}", self.seconds(record.created_at));
        }
        for effect in self
            .history
            .effects
            .iter()
            .filter(|e| (e.scope.as_str(), e.key.as_str()) == (scope, key))
        {
            println!("    {effect:?}");
        }
        for event in self
            .history
            .events
            .iter()
            .filter(|e| (e.scope.as_str(), e.key.as_str()) == (scope, key))
        {
            println!("    {event:?}");
            for delivery in self.history.deliveries.iter().filter(|d| d.id == event.event_key) {
                let at = self.seconds(delivery.at);
                println!("        {at} to the sink: {} {}", delivery.status, delivery.body);
            }
        }
    }

    fn print_faults(&self) {
        println!("\nThe faults:");
        for came in self.faults {
            let (from, to) = (self.seconds(came.from), self.seconds(came.to));
            let result = match &came.result {
                Ok(()) if came.skipped => " (skipped)".to_owned(),
                Ok(()) => String::new(),
                Err(error) => format!(" {error}"),
            };
            println!("  {from} to {to}  {:?}{result}", came.fault);
        }
    }

    fn print_counts(&self) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &self.history.calls {
            *counts.entry(outcome_of(call)).or_default() += 1;
        }
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!("requests  {}: {}", self.history.calls.len(), counts.join(", "));
        let answered = self.history.calls.iter().filter(|call| call.answer().is_some());
        let slowest = answered.map(|call| call.ended - call.sent).max().unwrap_or(0);
        println!("slowest   answer after {:.1} s", slowest as f64 / 1e6);
        let mut faults: BTreeMap<String, usize> = BTreeMap::new();
        for came in self.faults.iter().filter(|came| !came.skipped) {
            *faults.entry(came.fault.kind()).or_default() += 1;
        }
        let kinds: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        println!("faults    {}: {}", faults.values().sum::<usize>(), kinds.join(", "));
        println!("lost      {} replies to writes, by LoseReplies", self.lost_replies);
        if self.faults.iter().any(|came| came.skipped) {
            println!(
                "skipped   FillDisk: PostgreSQL has no disk of its own, as root a tmpfs would be mounted"
            );
        }
        let deliveries = &self.history.deliveries;
        let accepted = deliveries.iter().filter(|d| (200..300).contains(&d.status)).count();
        let ids: BTreeSet<_> = deliveries.iter().map(|delivery| &delivery.id).collect();
        println!(
            "rows      {} records, {} business rows, {} events, {} of them dead as they should be",
            self.history.records.len(),
            self.history.effects.len(),
            self.history.events.len(),
            self.history.events.iter().filter(|event| event.is_dead).count()
        );
        println!(
            "sink      {} deliveries of {} events, {accepted} of them accepted",
            deliveries.len(),
            ids.len()
        );
    }
}

fn outcome_of(call: &Call) -> &'static str {
    let answer = match &call.outcome {
        Outcome::Answered(answer) => answer,
        Outcome::HungUp => return "hung up",
        Outcome::Unanswered(_) => return "unanswered",
        Outcome::Nonsense(_) => return "nonsense",
    };
    match (call.form, answer.status, answer.problem().as_deref()) {
        (Form::LookUp, 200, _) => "found",
        (Form::LookUp, 404, _) => "not found",
        (_, _, Some("idempotency-key-reused")) => "reused",
        (_, _, Some("request-in-progress")) => "in progress",
        (_, _, Some("operation-failed")) => "failed",
        (_, _, Some("unavailable")) => "unavailable",
        (Form::Malformed | Form::Stranger, ..) => "invalid",
        _ if !answer.is_stored() => "others",
        _ if answer.replayed => "replayed",
        (_, 200..300, _) => "executed",
        _ => "refused",
    }
}
