//! Looking at records, and at the database's health: what reads and never writes.

use postgres::Client;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fault::classify;
use crate::outcome::{Fault, FaultKind};

/// A stored outcome, as `GET /v1/requests/KEY` shows it. Times are RFC 3339, UTC, with microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The idempotency key.
    pub key: String,
    /// The operation that ran.
    pub operation: String,
    /// `succeeded` or `rejected`.
    pub status: String,
    /// The stored HTTP status.
    pub http_status: i32,
    /// The fingerprint of the request, with its recipe.
    pub request_hash: String,
    /// When it was recorded.
    pub created_at: String,
    /// The stored body, with the bytes that every caller gets.
    pub response: Option<Box<RawValue>>,
    /// Its events, by id.
    pub events: Vec<RecordedEvent>,
}

/// An event of a [`Record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEvent {
    /// The row's number.
    pub event_id: i64,
    /// The identity that consumers see.
    pub event_key: String,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When it was written.
    pub created_at: String,
    /// When the sink took it.
    pub sent_at: Option<String>,
    /// Attempts that were begun.
    pub attempts: i32,
    /// When it was put aside as dead.
    pub dead_at: Option<String>,
}

/// What the database takes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes.
    Writable,
    /// Reads only: it is a standby.
    Standby,
    /// Reads only: somebody set it so.
    ReadOnly,
}

/// One statement, so that record and events are of one snapshot. An event older than the record belongs to an earlier
/// use of the key, whose record was purged.
pub(super) const FIND_RECORD: &str = r#"
SELECT record.key, record.operation, record.status, record.http_status, record.request_hash,
       to_char(record.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at,
       record.response_json::text AS response,
       (SELECT coalesce(json_agg(json_build_object(
                   'event_id', event.id,
                   'event_key', event.event_key,
                   'type', event.event_type,
                   'created_at', to_char(event.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'sent_at', to_char(event.sent_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'attempts', event.attempts,
                   'dead_at', to_char(event.dead_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
               ) ORDER BY event.id), '[]')::text
        FROM outbox_events AS event
        WHERE event.scope = record.scope
          AND event.idempotency_key = record.key
          AND event.created_at >= record.created_at) AS events
FROM idempotency_records AS record
WHERE record.scope = $1
  AND record.key = $2"#;

/// Cheap, and asks nothing of our tables.
pub(super) const PROBE: &str = "\
SELECT pg_is_in_recovery() AS is_standby,
       current_setting('transaction_read_only') = 'on' AS is_read_only";

/// The stored outcome of a key in a scope, with its events. Locks nothing.
pub fn find_record(client: &mut Client, scope: &str, key: &str) -> Result<Option<Record>, Fault> {
    let row = client.query_opt(FIND_RECORD, &[&scope, &key]).map_err(|error| classify(&error))?;
    let Some(row) = row else { return Ok(None) };
    let response: Option<String> = row.get("response");
    let events: &str = row.get("events");
    Ok(Some(Record {
        key: row.get("key"),
        operation: row.get("operation"),
        status: row.get("status"),
        http_status: row.get("http_status"),
        request_hash: row.get("request_hash"),
        created_at: row.get("created_at"),
        response: response.map(RawValue::from_string).transpose().map_err(|e| unreadable(&e))?,
        events: serde_json::from_str(events).map_err(|error| unreadable(&error))?,
    }))
}

/// Whether the database can be worked with.
pub fn probe(client: &mut Client) -> Result<Health, Fault> {
    let row = client.query_one(PROBE, &[]).map_err(|error| classify(&error))?;
    Ok(match (row.get("is_standby"), row.get("is_read_only")) {
        (true, true | false) => Health::Standby,
        (false, true) => Health::ReadOnly,
        (false, false) => Health::Writable,
    })
}

fn unreadable(error: &serde_json::Error) -> Fault {
    Fault {
        kind: FaultKind::Broken,
        sqlstate: None,
        text: format!("the database rendered JSON that cannot be read: {error}"),
    }
}
