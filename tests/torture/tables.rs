//! Reads the tables into the history.

use postgres::Client;
use serde_json::Value;

use crate::history::{Effect, Event, History, Record};

/// Rows of all tables, in one snapshot.
pub fn read(client: &mut Client, history: &mut History) -> anyhow::Result<()> {
    let mut snapshot = client
        .build_transaction()
        .isolation_level(postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()?;
    let records = snapshot.query(
        "SELECT scope, key, operation, request_hash, status, http_status, response_json::text, is_problem,
                (extract(epoch FROM created_at) * 1000000)::bigint
         FROM idempotency_records",
        &[],
    )?;
    for row in records {
        history.records.push(Record {
            scope: row.get(0),
            key: row.get(1),
            operation: row.get(2),
            hash: row.get(3),
            status: row.get(4),
            http_status: u16::try_from(row.get::<_, i32>(5))?,
            response: row.get::<_, Option<String>>(6).unwrap_or_else(|| "null".to_owned()),
            is_problem: row.get(7),
            created_at: row.get(8),
        });
    }
    for row in snapshot.query("SELECT id, operation, scope, key, request FROM effects", &[])? {
        history.effects.push(Effect {
            id: row.get(0),
            operation: row.get(1),
            scope: row.get(2),
            key: row.get(3),
            request: row.get::<_, Value>(4),
        });
    }
    let events = snapshot.query(
        "SELECT id, scope, idempotency_key, event_key, event_type, payload, order_key, sent_at IS NOT NULL,
                dead_at IS NOT NULL
         FROM outbox_events",
        &[],
    )?;
    for row in events {
        history.events.push(Event {
            id: row.get(0),
            scope: row.get(1),
            key: row.get(2),
            event_key: row.get(3),
            event_type: row.get(4),
            payload: row.get::<_, Value>(5),
            order_key: row.get(6),
            is_sent: row.get(7),
            is_dead: row.get(8),
        });
    }
    for row in snapshot.query("SELECT name, value FROM counters ORDER BY name", &[])? {
        history.counters.push((row.get(0), row.get(1)));
    }
    Ok(())
}
