//! What is known of a run from outside: what was sent and answered, what stands in the tables, what came to the sink,
//! and when a daemon was away.

use serde_json::Value;

/// Microseconds since 1970, by the clock that this machine's PostgreSQL has too.
pub type Micros = i64;

/// Everything that the checker knows.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub calls: Vec<Call>,
    pub records: Vec<Record>,
    pub effects: Vec<Effect>,
    pub events: Vec<Event>,
    /// The counters that effects raise, by name.
    pub counters: Vec<(String, i64)>,
    pub deliveries: Vec<Delivery>,
    pub absences: Vec<Absence>,
    /// What is stuck after all is quiet, in words: open transactions, jobs that wait.
    pub stuck: Vec<String>,
}

/// One request to a daemon, and what came of it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Sent as `X-Request-Id`.
    pub id: String,
    pub daemon: usize,
    pub scope: String,
    pub key: String,
    pub operation: String,
    pub request: Value,
    pub form: Form,
    /// Since when the connection was not heard of; earlier than `sent` where it was used before.
    pub since: Micros,
    pub sent: Micros,
    pub ended: Micros,
    pub outcome: Outcome,
}

/// How a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it should be.
    Whole,
    /// Its end was never sent.
    Partial,
    /// The body is no JSON.
    Malformed,
    /// With a token that nobody has.
    Stranger,
    /// `GET /v1/requests/KEY`
    LookUp,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    Answered(Answer),
    /// The client did not wait.
    HungUp,
    /// The connection was refused or ended, or nothing came in time.
    Unanswered(String),
    /// What came was no HTTP.
    Nonsense(String),
}

/// An answer, with what matters of its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub replayed: bool,
    pub media: String,
    pub retry_after: Option<String>,
    pub request_id: Option<String>,
    pub body: String,
}

/// A row of `idempotency_records`.
#[derive(Clone, Debug)]
pub struct Record {
    pub scope: String,
    pub key: String,
    pub operation: String,
    pub hash: String,
    pub status: String,
    pub http_status: u16,
    pub response: String,
    pub is_problem: bool,
    pub created_at: Micros,
}

/// A business row.
#[derive(Clone, Debug)]
pub struct Effect {
    pub id: i64,
    pub operation: String,
    pub scope: String,
    pub key: String,
    pub request: Value,
}

/// A row of `outbox_events`.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: i64,
    pub scope: String,
    pub key: String,
    pub event_key: String,
    pub event_type: String,
    pub payload: Value,
    pub order_key: Option<String>,
    pub is_sent: bool,
    pub is_dead: bool,
}

/// One POST that the sink was sent, in order of arrival, and the status that it was given.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub at: Micros,
    pub id: String,
    pub timestamp: String,
    pub signature: String,
    pub body: String,
    pub status: u16,
}

/// A time in which a daemon was not there to answer.
#[derive(Clone, Debug)]
pub struct Absence {
    pub daemon: usize,
    pub from: Micros,
    pub to: Micros,
    pub kind: Away,
}

/// Why a daemon was not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// It was killed, and started again.
    Killed,
    /// It stopped in order, and was started again.
    Stopped,
    /// It was halted for a while, and went on.
    Frozen,
}

impl Call {
    /// The answer, where there is one.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.outcome {
            Outcome::Answered(answer) => Some(answer),
            Outcome::HungUp | Outcome::Unanswered(_) | Outcome::Nonsense(_) => None,
        }
    }
}

impl Answer {
    /// The NAME of the problem's type, where it is a problem.
    pub fn problem(&self) -> Option<String> {
        if self.media != "application/problem+json" {
            return None;
        }
        let problem: Value = serde_json::from_str(&self.body).ok()?;
        Some(problem["type"].as_str()?.strip_prefix("urn:onced:problem:")?.to_owned())
    }

    /// Whether it is what is stored: a success, or the operation's own refusal.
    pub fn is_stored(&self) -> bool {
        match self.status {
            200..300 => true,
            400..500 => {
                self.media == "application/json" || self.problem().as_deref() == Some("refused")
            }
            _ => false,
        }
    }

    /// Whether it promises that the call left nothing behind.
    pub fn says_nothing_was_written(&self) -> bool {
        !self.is_stored() && self.body.contains("Nothing was written")
    }
}
