//! An event as programs see it.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::store::outbox::Entry;

/// An event as JSON. Members are only ever added.
#[derive(Debug, Serialize)]
pub(super) struct View<'a> {
    event_id: i64,
    event_key: &'a str,
    r#type: &'a str,
    state: &'static str,
    principal: &'a str,
    idempotency_key: &'a str,
    order_key: Option<&'a str>,
    created_at: &'a str,
    due_at: &'a str,
    sent_at: Option<&'a str>,
    dead_at: Option<&'a str>,
    discarded_at: Option<&'a str>,
    discarded_by: Option<&'a str>,
    attempts: i32,
    claims: i64,
    last_error: Option<&'a str>,
    /// Only where one event is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
}

impl View<'_> {
    /// An event of a list.
    pub(super) fn of(entry: &Entry) -> View<'_> {
        View {
            event_id: entry.id,
            event_key: &entry.event_key,
            r#type: &entry.event_type,
            state: entry.state.name(),
            principal: &entry.scope,
            idempotency_key: &entry.idempotency_key,
            order_key: entry.order_key.as_deref(),
            created_at: &entry.created_at,
            due_at: &entry.due_at,
            sent_at: entry.sent_at.as_deref(),
            dead_at: entry.dead_at.as_deref(),
            discarded_at: entry.discarded_at.as_deref(),
            discarded_by: entry.discarded_by.as_deref(),
            attempts: entry.attempts,
            claims: entry.claims,
            last_error: entry.last_error.as_deref(),
            payload: None,
        }
    }

    /// One event, with its payload as the database renders it.
    pub(super) fn with_payload(entry: &Entry) -> View<'_> {
        View { payload: serde_json::from_str(&entry.payload).ok(), ..View::of(entry) }
    }
}
