//! What the API answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json as value};

use super::route::{Order, Question};
use super::{Admin, json};
use crate::config::Config;
use crate::http::front::Response;
use crate::http::problem;
use crate::observe::{self, METRICS};
use crate::operations::Operation;
use crate::outcome::Fault;
use crate::prober::Readiness;
use crate::store::Client;
use crate::store::outbox::{self, Change, Entry, Filter};
use crate::store::records::{Record, find_record};

/// Events that one order may name.
const IDS_MAX: usize = 100;

/// No further event of an order is begun after this.
const ORDER_WITHIN: Duration = Duration::from_secs(4);

/// The longest name of a person, and the longest reason, in characters.
const WORDS_MAX: usize = 200;

/// Events of a key that are shown.
const EVENTS_OF_KEY: usize = 200;

/// What is told of the daemon, and where.
pub struct Facts {
    /// What is known of its ability to work.
    pub(super) readiness: Readiness,
    /// Values of `Host` that are taken besides loopback.
    pub(super) hosts: Vec<String>,
    operations: Vec<Arc<Operation>>,
    writers: usize,
    queue: usize,
    has_sink: bool,
}

impl Facts {
    /// The facts of a configuration.
    pub fn of(config: &Config, operations: &[Arc<Operation>], readiness: Readiness) -> Facts {
        Facts {
            readiness,
            hosts: config.admin.hosts.clone(),
            operations: operations.to_vec(),
            writers: config.writers.threads.get(),
            queue: config.writers.queue.get(),
            has_sink: config.sink.is_some(),
        }
    }
}

#[derive(Serialize)]
struct KeyStory {
    record: Option<Record>,
    events: Vec<Entry>,
}

/// The body of `retry` and `discard`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    ids: Vec<i64>,
    who: String,
}

/// The body of `pause` and `resume`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hold {
    who: String,
    #[serde(default)]
    reason: String,
}

impl Admin {
    pub(super) fn read(&self, question: Question, id: String) -> Response {
        match question {
            Question::Status => json(200, &self.status(), id),
            Question::Recent => json(200, &value!({ "requests": observe::recent_requests() }), id),
            Question::History => json(200, &value!({ "minutes": observe::request_history() }), id),
            Question::Outbox { filter, before, limit } => {
                self.answer(id, move |client| page(client, &filter, before, limit))
            }
            Question::Key { scope, key } => {
                let asked = self.needs.clerk.ask(move |client| {
                    let record = find_record(client, &scope, key.as_str())?;
                    let filter = Filter {
                        key: Some(key.as_str().to_owned()),
                        scope: Some(scope),
                        ..Filter::default()
                    };
                    let events = outbox::list_events(client, &filter, None, EVENTS_OF_KEY)?;
                    Ok(KeyStory { record, events })
                });
                match asked {
                    Ok(story) if story.record.is_none() && story.events.is_empty() => {
                        let detail = "Nothing is stored of this key in this scope: it was never used, is in \
                                      progress, ended in an error that is not stored, or was purged.";
                        problem::response(problem::NOT_FOUND, detail, &id)
                    }
                    Ok(story) => json(200, &story, id),
                    Err(fault) => failed(&fault, &id),
                }
            }
        }
    }

    pub(super) fn act(&self, order: Order, body: &[u8], id: String) -> Response {
        let (request_id, again) = (id.clone(), id.clone());
        let begun = match order {
            Order::Retry | Order::Discard => read_decision(body).map(|decision| {
                self.answer(id, move |client| decide(client, order, &decision, &request_id))
            }),
            Order::Pause | Order::Resume => read_hold(body).map(|hold| {
                self.answer(id, move |client| hold_or_go_on(client, order, &hold, &request_id))
            }),
        };
        begun.unwrap_or_else(|detail| problem::response(problem::BODY_INVALID, &detail, &again))
    }

    fn answer(
        &self,
        id: String,
        work: impl FnOnce(&mut Client) -> Result<Value, Fault> + Send + 'static,
    ) -> Response {
        match self.needs.clerk.ask(work) {
            Ok(answer) => json(200, &answer, id),
            Err(fault) => failed(&fault, &id),
        }
    }

    fn status(&self) -> Value {
        let facts = &self.needs.facts;
        let reason = facts.readiness.reason();
        let names = facts.operations.iter().map(|operation| operation.name.as_str());
        let requests = METRICS.requests_by_outcome(&names);
        let batches = METRICS.batch_size.get_sample_count();
        let deliveries = |result| METRICS.delivery_attempts.with_label_values(&[result]).get();
        let connections = |listener| METRICS.connections.with_label_values(&[listener]).get();
        // Without the database nobody waits for what only it knows.
        let pause = reason.is_none().then(|| self.needs.clerk.ask(|c| outbox::find_pause(c)).ok());
        let pause = pause.flatten();
        value!({
            "ready": reason.is_none(),
            "reason": reason,
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "requests": Map::from_iter(requests.map(|(outcome, count)| (outcome.to_owned(), count.into()))),
            "writers": {
                "threads": facts.writers,
                "queue": facts.queue,
                "jobs_waiting": METRICS.jobs_waiting.get(),
                "parked_waiting": METRICS.parked.get(),
                "batches": batches,
                "mean_batch_size": mean(METRICS.batch_size.get_sample_sum(), batches),
                "mean_write_ms": mean(METRICS.write_seconds.get_sample_sum() * 1_000.0, batches),
            },
            "connections": { "http": connections("http"), "admin": connections("admin") },
            "outbox": {
                "pending": METRICS.outbox_pending.get(),
                "oldest_seconds": METRICS.outbox_oldest_seconds.get(),
                "dead": METRICS.outbox_dead.get(),
                "sink_configured": facts.has_sink,
                "paused": pause.as_ref().map(Option::is_some),
                "pause": pause.flatten(),
            },
            "deliveries": {
                "accepted": deliveries("accepted"),
                "failed": deliveries("failed"),
                "sink_fault": deliveries("sink_fault"),
            },
        })
    }
}

/// Null where nothing was measured.
#[expect(clippy::cast_precision_loss, reason = "a mean for people needs no 53 bits")]
fn mean(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

fn page(
    client: &mut Client,
    filter: &Filter,
    before: Option<i64>,
    limit: usize,
) -> Result<Value, Fault> {
    let mut events = outbox::list_events(client, filter, before, limit + 1)?;
    let more = events.len() > limit;
    events.truncate(limit);
    let before = events.last().filter(|_| more).map(|last| last.id);
    Ok(value!({ "events": events, "more": more, "before": before }))
}

/// Changes one event after the other, and writes down what was done.
fn decide(
    client: &mut Client,
    order: Order,
    decision: &Decision,
    request_id: &str,
) -> Result<Value, Fault> {
    let (action, change) = match order {
        Order::Discard => ("discard", Change::Discard(&decision.who)),
        Order::Retry | Order::Pause | Order::Resume => ("retry", Change::Retry),
    };
    let end = Instant::now() + ORDER_WITHIN;
    let (mut changed, mut unchanged, mut fault) = (Vec::new(), Vec::new(), None);
    for &id in &decision.ids {
        if fault.is_some() || Instant::now() > end {
            unchanged.push(id);
            continue;
        }
        match outbox::change_event(client, change, id) {
            Ok(true) => changed.push(id),
            Ok(false) => unchanged.push(id),
            Err(error) => fault = Some(error),
        }
    }
    if !changed.is_empty() {
        let ids = changed.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        observe::operator_acted(action, &decision.who, &ids, request_id);
    }
    match fault {
        Some(fault) => Err(fault),
        None => Ok(value!({ "changed": changed, "unchanged": unchanged })),
    }
}

fn hold_or_go_on(
    client: &mut Client,
    order: Order,
    hold: &Hold,
    request_id: &str,
) -> Result<Value, Fault> {
    let (action, changed) = match order {
        Order::Pause => ("pause", outbox::pause(client, &hold.who, &hold.reason)?),
        Order::Resume | Order::Retry | Order::Discard => ("resume", outbox::resume(client)?),
    };
    if changed {
        observe::operator_acted(action, &hold.who, &hold.reason, request_id);
    }
    let pause = outbox::find_pause(client)?;
    Ok(value!({ "changed": changed, "paused": pause.is_some(), "pause": pause }))
}

fn read_decision(body: &[u8]) -> Result<Decision, String> {
    let decision: Decision = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    check_words("who", &decision.who)?;
    if decision.ids.is_empty() || decision.ids.len() > IDS_MAX {
        return Err(format!("ids has to name 1 to {IDS_MAX} events"));
    }
    Ok(decision)
}

fn read_hold(body: &[u8]) -> Result<Hold, String> {
    let mut hold: Hold = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    check_words("who", &hold.who)?;
    if hold.reason.trim().is_empty() {
        "no reason given".clone_into(&mut hold.reason);
    }
    check_words("reason", &hold.reason)?;
    Ok(hold)
}

fn check_words(name: &str, words: &str) -> Result<(), String> {
    let fits = !words.trim().is_empty()
        && words.chars().count() <= WORDS_MAX
        && !words.chars().any(char::is_control);
    fits.then_some(()).ok_or_else(|| {
        format!("{name} has to be 1 to {WORDS_MAX} characters without control characters")
    })
}

/// The whole text of the fault is in the log only.
fn failed(fault: &Fault, id: &str) -> Response {
    observe::operator_question_failed(id, fault);
    let detail = "The database did not do what was asked, or its answer was lost; the log has it under this request's \
                  id. Look at how things stand, then try again.";
    problem::response(problem::UNAVAILABLE, detail, id)
}
