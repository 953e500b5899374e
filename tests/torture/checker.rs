//! Holds a history against the promises P1 to P9. It knows nothing of how the daemon works: only what was asked and
//! answered, what stands in the tables, and what came to the sink.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::history::{
    Absence, Answer, Away, Call, Delivery, Effect, Event, Form, History, Micros, Outcome, Record,
};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub promise: &'static str,
    /// Scope and key, where it is about one.
    pub key: Option<(String, String)>,
    pub text: String,
}

/// What holds for the daemons of this run.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Longer than any answer may take while the daemon runs.
    pub answer_limit: Micros,
    /// The sink's secret, base64.
    pub secret: &'a str,
}

/// Between two clocks of one machine that are read one after the other.
const BLINK: Micros = 20_000;

/// All that belongs to one key.
struct Story<'a> {
    scope: &'a str,
    key: &'a str,
    calls: Vec<&'a Call>,
    record: Option<&'a Record>,
    effects: Vec<&'a Effect>,
    events: Vec<&'a Event>,
    findings: Vec<Finding>,
}

/// Everything that is wrong with a history.
pub fn check(history: &History, terms: Terms<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for mut story in stories(history, &mut findings) {
        story.check_tables();
        story.check_answers();
        findings.append(&mut story.findings);
    }
    for call in &history.calls {
        check_call(call, history, terms, &mut findings);
    }
    check_counters(history, &mut findings);
    check_deliveries(history, terms, &mut findings);
    check_order(history, &mut findings);
    findings.extend(history.stuck.iter().map(|text| about_all("P8", text.clone())));
    findings
}

/// The fingerprint of a request as the manual defines it, for requests whose numbers are whole.
pub fn fingerprint(operation: &str, request: &Value) -> String {
    let text = format!("{operation}\0{}", canonical(request));
    let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("v1:{digest}")
}

fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<_, _> = members.iter().collect();
            let members: Vec<_> = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Value::Number(number) => {
            let text = number.to_string();
            text.strip_suffix(".0").unwrap_or(&text).to_owned()
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
    }
}

fn about_all(promise: &'static str, text: String) -> Finding {
    Finding { promise, key: None, text }
}

/// Sorts everything by key. What belongs to a key that was never sent is a finding.
fn stories<'a>(history: &'a History, findings: &mut Vec<Finding>) -> Vec<Story<'a>> {
    let mut stories: BTreeMap<(&str, &str), Story<'a>> = BTreeMap::new();
    for call in &history.calls {
        let (scope, key) = (call.scope.as_str(), call.key.as_str());
        let story = stories.entry((scope, key)).or_insert_with(|| Story::of(scope, key));
        story.calls.push(call);
    }
    let mut stranger = |what: &str, scope: &str, key: &str| {
        let text = format!("a row of {what} has a key that nobody sent");
        let key = Some((scope.to_owned(), key.to_owned()));
        findings.push(Finding { promise: "P4", key, text });
    };
    for record in &history.records {
        match stories.get_mut(&(record.scope.as_str(), record.key.as_str())) {
            Some(story) => story.record = Some(record),
            None => stranger("idempotency_records", &record.scope, &record.key),
        }
    }
    for effect in &history.effects {
        match stories.get_mut(&(effect.scope.as_str(), effect.key.as_str())) {
            Some(story) => story.effects.push(effect),
            None => stranger("effects", &effect.scope, &effect.key),
        }
    }
    for event in &history.events {
        match stories.get_mut(&(event.scope.as_str(), event.key.as_str())) {
            Some(story) => story.events.push(event),
            None => stranger("outbox_events", &event.scope, &event.key),
        }
    }
    stories.into_values().collect()
}

/// What a request should lead to, where it is run to its end.
struct Expected {
    status: u16,
    effects: usize,
    events: usize,
    is_problem: bool,
}

/// `None` for a request that never has a stored answer.
fn expected(request: &Value) -> Option<Expected> {
    let events = request["events"].as_u64().and_then(|count| usize::try_from(count).ok());
    let refused = |status, events, is_problem| Expected { status, effects: 0, events, is_problem };
    match request["end"].as_str()? {
        "ok" | "flaky" => {
            Some(Expected { status: 201, effects: 1, events: events?, is_problem: false })
        }
        "decline" => Some(refused(402, 1, false)),
        "raise" => Some(refused(422, 0, true)),
        "unique" => Some(refused(409, 0, true)),
        _ => None,
    }
}

impl<'a> Story<'a> {
    fn of(scope: &'a str, key: &'a str) -> Story<'a> {
        let (calls, effects, events) = (Vec::new(), Vec::new(), Vec::new());
        Story { scope, key, calls, record: None, effects, events, findings: Vec::new() }
    }

    fn find(&mut self, promise: &'static str, text: impl Into<String>) {
        let key = Some((self.scope.to_owned(), self.key.to_owned()));
        self.findings.push(Finding { promise, key, text: text.into() });
    }

    fn whole_calls(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.clone().into_iter().filter(|call| call.form == Form::Whole)
    }

    /// P1, P4, P6, P7: record, business rows and events are those of one request that was sent.
    fn check_tables(&mut self) {
        if self.effects.len() > 1 {
            self.find("P1", format!("{} business rows", self.effects.len()));
        }
        let Some(record) = self.record else {
            if !self.effects.is_empty() || !self.events.is_empty() {
                let (effects, events) = (self.effects.len(), self.events.len());
                self.find("P4", format!("no record, but {effects} business rows, {events} events"));
            }
            return;
        };
        let meant = self
            .whole_calls()
            .find(|call| fingerprint(&call.operation, &call.request) == record.hash);
        let Some(meant) = meant else {
            self.find("P4", "the record has the fingerprint of no request that was sent whole");
            return;
        };
        let Some(expected) = expected(&meant.request) else {
            self.find("P7", format!("stored, though its request can only fail: {record:?}"));
            return;
        };
        self.check_rows(record, meant, &expected);
        self.check_source(record);
    }

    fn check_rows(&mut self, record: &Record, meant: &Call, expected: &Expected) {
        let status = if expected.status < 300 { "succeeded" } else { "rejected" };
        let found = (record.operation.as_str(), record.status.as_str(), record.http_status);
        if found != (meant.operation.as_str(), status, expected.status)
            || record.is_problem != expected.is_problem
        {
            self.find("P4", format!("the record is not that of its request: {record:?}"));
        }
        if self.effects.len() != expected.effects || self.events.len() != expected.events {
            let text = format!(
                "{} business rows and {} events, not {} and {}",
                self.effects.len(),
                self.events.len(),
                expected.effects,
                expected.events
            );
            self.find("P4", text);
        }
        for effect in self.effects.clone() {
            if fingerprint(&effect.operation, &effect.request) != record.hash {
                self.find("P4", format!("the business row is of another request: {effect:?}"));
            }
        }
        let effect = self.effects.first().map(|effect| effect.id);
        let response: Value = serde_json::from_str(&record.response).unwrap_or_default();
        if expected.effects == 1 && response["effect"].as_i64() != effect {
            self.find("P4", format!("the response is of another execution: {}", record.response));
        }
        self.check_events(effect);
    }

    /// Events are told apart by their number; all are of the execution that left the business row.
    fn check_events(&mut self, effect: Option<i64>) {
        let mut keys = BTreeSet::new();
        let mut numbers = BTreeSet::new();
        for event in self.events.clone() {
            let execution = event.event_key.split(':').next().unwrap_or_default().to_owned();
            keys.insert(execution);
            numbers.insert(event.payload["n"].as_i64());
            if effect.is_some() && event.payload["effect"].as_i64() != effect {
                self.find("P4", format!("the event is of another execution: {event:?}"));
            }
        }
        if keys.len() > 1 || numbers.len() < self.events.len() {
            self.find("P6", format!("the events are not those of one request: {:?}", self.events));
        }
    }

    /// Somebody must have caused the record: a call that was on its way then and did not say that nothing was written.
    fn check_source(&mut self, record: &Record) {
        let caused = |call: &Call| {
            fingerprint(&call.operation, &call.request) == record.hash
                && call.sent <= record.created_at + BLINK
                && match &call.outcome {
                    Outcome::Answered(answer) if answer.is_stored() => {
                        record.created_at <= call.ended + BLINK
                    }
                    Outcome::Answered(answer) => {
                        !answer.says_nothing_was_written()
                            && answer.problem().as_deref() != Some("idempotency-key-reused")
                    }
                    Outcome::HungUp | Outcome::Unanswered(_) | Outcome::Nonsense(_) => true,
                }
        };
        if !self.whole_calls().any(caused) {
            let at = record.created_at;
            self.find(
                "P7",
                format!("written at {at}, when every call that was on its way says nothing was"),
            );
        }
        if record.is_problem {
            let response: Value = serde_json::from_str(&record.response).unwrap_or_default();
            let instance = response["instance"].as_str();
            if !self.whole_calls().any(|call| Some(call.id.as_str()) == instance) {
                self.find("P4", format!("the refusal names no call of this key: {instance:?}"));
            }
        }
    }

    /// P2, P3: what was answered is what is stored, and the same for all.
    fn check_answers(&mut self) {
        let mut first_runs = Vec::new();
        for call in self.calls.clone() {
            let Some(answer) = call.answer() else { continue };
            match call.form {
                Form::Whole => {
                    self.check_answer(call, answer);
                    if answer.is_stored() && !answer.replayed {
                        first_runs.push(call.id.as_str());
                    }
                }
                Form::LookUp => self.check_look_up(call, answer),
                Form::Partial | Form::Malformed | Form::Stranger => {}
            }
        }
        if first_runs.len() > 1 {
            self.find("P2", format!("several answers are no replay: {first_runs:?}"));
        }
    }

    fn check_answer(&mut self, call: &Call, answer: &Answer) {
        let hash = fingerprint(&call.operation, &call.request);
        let problem = answer.problem();
        let same = self.record.map(|record| record.hash == hash);
        if answer.is_stored() {
            match self.record {
                None => self
                    .find("P9", format!("{} has a stored answer, and there is no record", call.id)),
                Some(record) if record.hash != hash => {
                    self.find("P3", format!("{} has the answer to another request", call.id));
                }
                Some(record) => self.check_bytes(call, answer, record),
            }
        } else if problem.as_deref() == Some("idempotency-key-reused") && same != Some(false) {
            let text =
                format!("{} is refused as reused, and no other request is recorded", call.id);
            self.find("P3", text);
        } else if problem.as_deref() == Some("operation-failed") && self.was_known_before(call) {
            self.find("P2", format!("{} was run after the key had an answer", call.id));
        }
    }

    fn check_bytes(&mut self, call: &Call, answer: &Answer, record: &Record) {
        let media = if record.is_problem { "application/problem+json" } else { "application/json" };
        let found = (answer.status, answer.body.as_str(), answer.media.as_str());
        if found != (record.http_status, record.response.as_str(), media) {
            let text = format!("{} was answered {answer:?}, the record says {record:?}", call.id);
            self.find("P2", text);
        }
    }

    fn check_look_up(&mut self, call: &Call, answer: &Answer) {
        match (answer.status, self.record) {
            (200, Some(record)) => {
                let found: Value = serde_json::from_str(&answer.body).unwrap_or_default();
                let response: Value = serde_json::from_str(&record.response).unwrap_or_default();
                let is_right = found["key"] == record.key
                    && found["operation"] == record.operation
                    && found["status"] == record.status
                    && found["http_status"] == record.http_status
                    && found["request_hash"] == record.hash
                    && found["response"] == response
                    && found["events"].as_array().map(Vec::len) == Some(self.events.len());
                if !is_right {
                    self.find("P2", format!("{} looked up {found}, not {record:?}", call.id));
                }
            }
            (200, None) => self.find("P4", format!("{} found what is not there", call.id)),
            (404, Some(_)) if self.was_known_before(call) => {
                self.find("P2", format!("{} did not find what had been answered before", call.id));
            }
            (_, _) => {}
        }
    }

    /// Whether somebody had a stored answer before the call was sent.
    fn was_known_before(&self, call: &Call) -> bool {
        self.whole_calls()
            .any(|other| other.ended < call.sent && other.answer().is_some_and(Answer::is_stored))
    }
}

/// P7, P8: every call is answered in time, by something that may be said.
fn check_call(call: &Call, history: &History, terms: Terms<'_>, findings: &mut Vec<Finding>) {
    let mut find = |text: String| {
        let key = Some((call.scope.clone(), call.key.clone()));
        findings.push(Finding { promise: "P8", key, text: format!("{}: {text}", call.id) });
    };
    match &call.outcome {
        Outcome::HungUp => {}
        Outcome::Nonsense(what) => find(format!("the answer is no HTTP: {what}")),
        Outcome::Unanswered(why) => {
            if !history.absences.iter().any(|absence| excuses(absence, call)) {
                let daemon = call.daemon;
                find(format!("not answered by daemon {daemon}, which was there: {why}"));
            }
        }
        Outcome::Answered(answer) => {
            if !may_be_said(call, answer) {
                find(format!("this may not be said: {answer:?}"));
            }
            if answer.request_id.as_deref() != Some(&call.id) {
                find(format!("this answers somebody else: {answer:?}"));
            }
            let frozen: Micros = history
                .absences
                .iter()
                .filter(|absence| absence.daemon == call.daemon)
                .map(|absence| (absence.to.min(call.ended) - absence.from.max(call.sent)).max(0))
                .sum();
            let took = call.ended - call.sent - frozen;
            if took > terms.answer_limit {
                find(format!("answered after {} ms", took / 1000));
            }
        }
    }
}

/// Whether an absence explains that a call was not answered. What was accepted before a stop is answered; what had just
/// been sent may not have been accepted.
fn excuses(absence: &Absence, call: &Call) -> bool {
    const ACCEPTED_WITHIN: Micros = 500_000;
    let meets = absence.daemon == call.daemon
        && absence.from <= call.ended + BLINK
        && call.since <= absence.to + BLINK;
    match absence.kind {
        Away::Killed => meets,
        Away::Stopped => meets && call.sent >= absence.from - ACCEPTED_WITHIN,
        Away::Frozen => false,
    }
}

/// Whether an answer is one of those that this call may get.
fn may_be_said(call: &Call, answer: &Answer) -> bool {
    let problem = answer.problem();
    let problem = problem.as_deref();
    let comes_again =
        answer.retry_after.as_deref().is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s >= 1));
    let retryable = |value: bool| {
        let problem: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        problem["retryable"] == value && problem["status"] == answer.status
    };
    match (answer.status, problem) {
        (503, Some("unavailable")) => comes_again && retryable(true),
        (409, Some("request-in-progress")) => {
            call.form == Form::Whole && comes_again && retryable(true)
        }
        // A request that came while the daemon was frozen, and whose time was over then.
        (408, Some("request-timeout")) => retryable(true),
        (409, Some("idempotency-key-reused")) => {
            call.form == Form::Whole && answer.retry_after.is_none() && retryable(false)
        }
        (500, Some("operation-failed")) => {
            call.form == Form::Whole
                && matches!(call.request["end"].as_str(), Some("broken" | "flaky"))
                && retryable(true)
        }
        (400, Some("body-invalid")) => call.form == Form::Malformed && retryable(false),
        (401, Some("unauthorized")) => call.form == Form::Stranger && retryable(false),
        (200, None) | (404, Some("not-found")) if call.form == Form::LookUp => true,
        (status, _) => {
            call.form == Form::Whole
                && answer.is_stored()
                && expected(&call.request).is_some_and(|expected| expected.status == status)
        }
    }
}

/// P1, P4: every effect has raised its counter once, and nothing else has.
fn check_counters(history: &History, findings: &mut Vec<Finding>) {
    for (name, value) in &history.counters {
        let raised =
            history.effects.iter().filter(|effect| effect.request["counter"] == **name).count();
        if i64::try_from(raised).ok() != Some(*value) {
            let text = format!("counter {name} is {value}, and {raised} effects raised it");
            findings.push(about_all("P4", text));
        }
    }
}

/// P5: every event was accepted by the sink or is dead, always as the same bytes, signed; and nothing else came.
fn check_deliveries(history: &History, terms: Terms<'_>, findings: &mut Vec<Finding>) {
    let secret = STANDARD.decode(terms.secret).unwrap_or_default();
    let mut by_id: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &history.deliveries {
        by_id.entry(delivery.id.as_str()).or_default().push(delivery);
    }
    let mut find = |event: Option<&Event>, text: String| {
        let key = event.map(|event| (event.scope.clone(), event.key.clone()));
        findings.push(Finding { promise: "P5", key, text });
    };
    for event in &history.events {
        let deliveries = by_id.remove(event.event_key.as_str()).unwrap_or_default();
        let was_accepted = deliveries.iter().any(|delivery| (200..300).contains(&delivery.status));
        let is_poison = event.payload["poison"] == true;
        match (event.is_sent, event.is_dead) {
            (false, true) if is_poison && !deliveries.is_empty() => {}
            (true, _) if !was_accepted => {
                find(Some(event), format!("counts as sent, and the sink never took it: {event:?}"));
            }
            (false, false) => find(Some(event), format!("was never settled: {event:?}")),
            (false, true) => find(Some(event), format!("is dead, within its attempts: {event:?}")),
            (true, _) => {}
        }
        if deliveries.iter().any(|delivery| delivery.body != deliveries[0].body) {
            find(Some(event), format!("came with different bytes: {deliveries:?}"));
        }
        for delivery in deliveries {
            if !is_body_of(event, &delivery.body) {
                find(Some(event), format!("{delivery:?} is not {event:?}"));
            }
            if !is_recent(delivery) {
                find(Some(event), format!("its time is not that of the attempt: {delivery:?}"));
            }
            if !is_signed(delivery, &secret) {
                find(Some(event), format!("the signature is wrong: {delivery:?}"));
            }
        }
    }
    for (id, deliveries) in by_id {
        find(None, format!("{id} came to the sink and is in no table: {deliveries:?}"));
    }
}

fn is_body_of(event: &Event, body: &str) -> bool {
    let Ok(body) = serde_json::from_str::<Value>(body) else { return false };
    body["type"] == event.event_type
        && body["event_id"] == event.id
        && body["event_key"] == event.event_key
        && body["principal"] == event.scope
        && body["idempotency_key"] == event.key
        && body["data"] == event.payload
        && body["timestamp"].is_string()
}

/// Whether the timestamp is one that a consumer would take: it allows for a clock that is off, not for an old message.
fn is_recent(delivery: &Delivery) -> bool {
    const TOLERANCE_SECONDS: i64 = 60;
    let arrived = delivery.at / 1_000_000;
    delivery.timestamp.parse::<i64>().is_ok_and(|t| (arrived - t).abs() <= TOLERANCE_SECONDS)
}

fn is_signed(delivery: &Delivery, secret: &[u8]) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(format!("{}.{}.{}", delivery.id, delivery.timestamp, delivery.body).as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    delivery.signature.split(' ').any(|given| given == signature)
}

/// Events of one order key: an event comes for the first time only after all before it were accepted.
fn check_order(history: &History, findings: &mut Vec<Finding>) {
    let mut first = BTreeMap::new();
    let mut accepted = BTreeMap::new();
    for (number, delivery) in history.deliveries.iter().enumerate() {
        first.entry(delivery.id.as_str()).or_insert(number);
        if (200..300).contains(&delivery.status) {
            accepted.entry(delivery.id.as_str()).or_insert(number);
        }
    }
    let mut queues: BTreeMap<(&str, &str), Vec<&Event>> = BTreeMap::new();
    for event in &history.events {
        if let Some(order) = &event.order_key {
            queues.entry((event.scope.as_str(), order.as_str())).or_default().push(event);
        }
    }
    for queue in queues.values_mut() {
        queue.sort_by_key(|event| event.id);
        for pair in queue.windows(2) {
            let before = accepted.get(pair[0].event_key.as_str());
            let after = first.get(pair[1].event_key.as_str());
            if let (Some(before), Some(after)) = (before, after)
                && after < before
            {
                let key = Some((pair[1].scope.clone(), pair[1].key.clone()));
                let text = format!("{:?} overtook {:?}", pair[1], pair[0]);
                findings.push(Finding { promise: "order", key, text });
            }
        }
    }
}
