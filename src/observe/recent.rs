//! The last requests and the last hour, for the operator's page: in memory, of this process, bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::metrics::OUTCOMES;
use crate::call::{IdempotencyKey, Scope};
use crate::operations::Operation;

/// How many requests are kept.
const LAST: usize = 200;

/// How many minutes are kept.
const MINUTES: usize = 60;

const MINUTE: u64 = 60;

/// A request to an operation, and what came of it.
#[derive(Clone)]
pub struct Answered {
    /// What was asked for.
    pub operation: Arc<Operation>,
    /// Whose key it is.
    pub scope: Scope,
    /// The key; `None` where the request had no valid one.
    pub key: Option<IdempotencyKey>,
    /// The id of the request.
    pub request_id: Arc<str>,
    /// One of the outcomes of `onced_requests_total`.
    pub outcome: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// How long it took.
    pub elapsed: Duration,
}

static MEMORY: Mutex<Memory> =
    Mutex::new(Memory { last: VecDeque::new(), minutes: VecDeque::new() });

struct Memory {
    last: VecDeque<(SystemTime, Answered)>,
    /// The number of each minute since 1970, and its requests by outcome. Minutes without any are left out.
    minutes: VecDeque<(u64, [u64; OUTCOMES.len()])>,
}

impl Memory {
    /// Returns what had to go, so that it is freed where nobody waits for it.
    fn note(&mut self, now: SystemTime, answered: Answered) -> Option<(SystemTime, Answered)> {
        let minute = minute(now);
        // A clock that was set back goes on counting in the latest minute.
        if self.minutes.back().is_none_or(|(latest, _)| *latest < minute) {
            self.minutes.push_back((minute, [0; OUTCOMES.len()]));
        }
        if self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
        let place = OUTCOMES.iter().position(|outcome| *outcome == answered.outcome);
        if let (Some(place), Some((_, counts))) = (place, self.minutes.back_mut()) {
            counts[place] += 1;
        }
        let oldest = (self.last.len() == LAST).then(|| self.last.pop_front()).flatten();
        self.last.push_back((now, answered));
        oldest
    }

    fn history(&self, now: SystemTime) -> Value {
        let end = minute(now) + 1;
        let rows = (end.saturating_sub(MINUTES as u64)..end).map(|minute| {
            let counts = self.minutes.iter().find(|(number, _)| *number == minute);
            let counts = counts.map_or([0; OUTCOMES.len()], |(_, counts)| *counts);
            let mut row = Map::new();
            row.insert("at".to_owned(), time(minute_begins(minute)));
            row.extend(
                OUTCOMES.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), count.into())),
            );
            Value::Object(row)
        });
        rows.collect()
    }

    fn recent(&self) -> Vec<(SystemTime, Answered)> {
        self.last.iter().rev().cloned().collect()
    }
}

pub(super) fn note(answered: Answered) {
    let oldest =
        MEMORY.lock().unwrap_or_else(PoisonError::into_inner).note(SystemTime::now(), answered);
    drop(oldest);
}

/// The last 200 requests to operations, the latest first, as JSON.
pub fn recent_requests() -> Value {
    let last = MEMORY.lock().unwrap_or_else(PoisonError::into_inner).recent();
    last.into_iter()
        .map(|(at, request)| {
            json!({
                "at": time(at),
                "operation": request.operation.name,
                "principal": request.scope.as_str(),
                "key": request.key.as_ref().map(IdempotencyKey::as_str),
                "request_id": &*request.request_id,
                "outcome": request.outcome,
                "status": request.status,
                "ms": u64::try_from(request.elapsed.as_millis()).unwrap_or(u64::MAX),
            })
        })
        .collect()
}

/// The requests of each of the last 60 minutes by outcome, the oldest first, as JSON.
pub fn request_history() -> Value {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner).history(SystemTime::now())
}

fn minute(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / MINUTE)
}

fn minute_begins(minute: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(minute * MINUTE)
}

/// RFC 3339, UTC, with milliseconds.
fn time(at: SystemTime) -> Value {
    humantime::format_rfc3339_millis(at).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Script;

    fn answered(outcome: &'static str, request_id: &str) -> Answered {
        let statement = Script { path: "orders.sql".into(), sql: String::new() };
        let operation = Operation {
            name: "orders".to_owned(),
            route: "/v1/orders".to_owned(),
            statement,
            setup: None,
            timeout: None,
        };
        Answered {
            operation: Arc::new(operation),
            scope: Scope::default(),
            key: None,
            request_id: request_id.into(),
            outcome,
            status: 201,
            elapsed: Duration::from_millis(3),
        }
    }

    #[test]
    fn the_last_requests_are_kept_and_no_more() {
        let mut memory = Memory { last: VecDeque::new(), minutes: VecDeque::new() };
        for number in 0..=LAST {
            memory.note(minute_begins(1), answered("executed", &number.to_string()));
        }
        let recent = memory.recent();
        assert_eq!(recent.len(), LAST);
        assert_eq!(&*recent[0].1.request_id, "200");
        assert_eq!(&*recent[LAST - 1].1.request_id, "1");
    }

    #[test]
    fn each_minute_of_the_last_hour_has_its_counts() {
        let mut memory = Memory { last: VecDeque::new(), minutes: VecDeque::new() };
        for minute in 1_000..1_070 {
            memory.note(minute_begins(minute), answered("replayed", "r"));
        }
        memory.note(minute_begins(1_069), answered("refused", "r"));
        assert_eq!(memory.minutes.len(), MINUTES);
        let history = memory.history(minute_begins(1_071));
        let rows = history.as_array().unwrap();
        assert_eq!(rows.len(), MINUTES);
        assert_eq!(rows[57]["at"], "1970-01-01T17:49:00.000Z");
        assert_eq!((&rows[57]["replayed"], &rows[57]["refused"]), (&json!(1), &json!(1)));
        assert_eq!((&rows[59]["replayed"], &rows[59]["executed"]), (&json!(0), &json!(0)));
    }
}
