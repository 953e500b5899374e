//! What retention takes away: small deletes, each a short transaction of its own, judged by the database's clock.
//!
//! Rows that somebody else holds are passed over (`SKIP LOCKED`), so any number of pruners work side by side, and none
//! waits for a writer.

use std::time::Duration;

use postgres::Client;
use postgres::types::Type;

use super::events::{Param, to_i64, to_millis};
use super::fault::classify;
use crate::outcome::Fault;

/// How old a row has to be; `None` keeps it for ever.
#[derive(Clone, Copy, Debug)]
pub struct EventAges {
    /// Events that were sent, from that time on.
    pub sent: Option<Duration>,
    /// Events that are dead, decided or not, from the last decision on.
    pub dead: Option<Duration>,
}

/// One step of a walk through the events, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventStep {
    /// Rows that were deleted.
    pub deleted: u64,
    /// Where the next step begins.
    pub last_id: i64,
    /// The lowest number of an event that was left in its place.
    pub first_kept: Option<i64>,
    /// What follows is too young, or nothing.
    pub is_last: bool,
}

/// Numbers follow time closely, so the primary key leads to the oldest, and no further index is needed for it. The
/// conditions stand on the locked row: one that was replayed in the meantime is not sent any more.
const PURGE_EVENTS: &str = "
WITH seen AS (
    SELECT id, created_at FROM outbox_events WHERE id > $1 ORDER BY id LIMIT $2
), old AS (
    SELECT e.id, e.ctid AS place FROM outbox_events e
    WHERE e.id > $1 AND e.id <= (SELECT max(id) FROM seen)
      AND (e.sent_at <= now() - $3 * interval '1 millisecond'
           OR (e.sent_at IS NULL AND greatest(e.dead_at, e.discarded_at) <= now() - $4 * interval '1 millisecond'))
    FOR UPDATE OF e SKIP LOCKED
), gone AS (
    DELETE FROM outbox_events WHERE ctid = ANY (ARRAY(SELECT place FROM old)) RETURNING id
)
SELECT (SELECT count(*) FROM gone) AS deleted,
    coalesce(max(seen.id), $1) AS last_id,
    min(seen.id) FILTER (WHERE old.id IS NULL) AS first_kept,
    count(*) < $2 OR bool_or(seen.created_at > now() - least($3, $4) * interval '1 millisecond') AS is_last
FROM seen LEFT JOIN old ON old.id = seen.id";

/// Deletes what is old enough among the `batch` events after number `after`.
pub fn purge_events(
    client: &mut Client,
    ages: EventAges,
    after: i64,
    batch: usize,
) -> Result<EventStep, Fault> {
    let (sent, dead) = (ages.sent.map(to_millis), ages.dead.map(to_millis));
    let batch = to_i64(batch);
    let params: [Param<'_>; 4] =
        [(&after, Type::INT8), (&batch, Type::INT8), (&sent, Type::INT8), (&dead, Type::INT8)];
    let rows = client.query_typed(PURGE_EVENTS, &params).map_err(|error| classify(&error))?;
    Ok(rows.first().map_or_else(EventStep::default, |row| EventStep {
        deleted: to_u64(row.get("deleted")),
        last_id: row.get("last_id"),
        first_kept: row.get("first_kept"),
        is_last: row.get::<_, Option<bool>>("is_last").unwrap_or(true),
    }))
}

/// How many blocks of the table of records one step may look at.
pub const RECORD_BLOCKS: i64 = 64;

const COUNT_RECORD_BLOCKS: &str = "
SELECT pg_relation_size('idempotency_records') / current_setting('block_size')::bigint AS blocks";

/// The size of the table of records, in blocks.
pub fn count_record_blocks(client: &mut Client) -> Result<i64, Fault> {
    let rows = client.query_typed(COUNT_RECORD_BLOCKS, &[]).map_err(|error| classify(&error))?;
    Ok(rows.first().map_or(0, |row| row.get("blocks")))
}

/// The walk goes along the table itself. An index by age would cost every write about a tenth more of WAL, for a look
/// that happens a hundred times in the life of a record; and keys are random, so their index leads nowhere.
///
/// A record whose events are neither sent nor decided about stays (P9), however old. Its tombstone is written by the
/// statement that deletes it, so that no moment lies between the two.
const PURGE_RECORDS: &str = "
WITH old AS (
    SELECT r.ctid AS place FROM idempotency_records r
    WHERE r.ctid >= ('(' || $1 || ',0)')::tid AND r.ctid < ('(' || $2 || ',0)')::tid
      AND r.created_at <= now() - $3 * interval '1 millisecond'
      AND NOT EXISTS (
        SELECT FROM outbox_events e
        WHERE e.idempotency_key = r.key AND e.scope = r.scope AND e.sent_at IS NULL AND e.discarded_at IS NULL)
    LIMIT $4
    FOR UPDATE OF r SKIP LOCKED
), gone AS (
    DELETE FROM idempotency_records WHERE ctid = ANY (ARRAY(SELECT place FROM old)) RETURNING scope, key
), kept_keys AS (
    INSERT INTO idempotency_tombstones (scope, key) SELECT scope, key FROM gone WHERE $5
    ON CONFLICT (scope, key) DO UPDATE SET seen_at = excluded.seen_at
)
SELECT count(*) AS deleted FROM gone";

/// What is done with records.
#[derive(Clone, Copy, Debug)]
pub struct RecordAges {
    /// How old a record has to be.
    pub record: Duration,
    /// Whether its bare key is kept.
    pub keep_key: bool,
}

/// Deletes at most `batch` records that are old enough from the [`RECORD_BLOCKS`] blocks that begin with `block`.
/// Returns how many: as many as `batch` means that there may be more in the same blocks.
pub fn purge_records(
    client: &mut Client,
    ages: RecordAges,
    block: i64,
    batch: usize,
) -> Result<usize, Fault> {
    let (from, to) = (block.to_string(), (block + RECORD_BLOCKS).to_string());
    let (age, batch) = (to_millis(ages.record), to_i64(batch));
    let params: [Param<'_>; 5] = [
        (&from, Type::TEXT),
        (&to, Type::TEXT),
        (&age, Type::INT8),
        (&batch, Type::INT8),
        (&ages.keep_key, Type::BOOL),
    ];
    let rows = client.query_typed(PURGE_RECORDS, &params).map_err(|error| classify(&error))?;
    let deleted: i64 = rows.first().map_or(0, |row| row.get("deleted"));
    Ok(usize::try_from(deleted).unwrap_or(0))
}

const PURGE_TOMBSTONES: &str = "
WITH old AS (
    SELECT scope, key FROM idempotency_tombstones
    WHERE seen_at <= now() - $1 * interval '1 millisecond'
    ORDER BY seen_at LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_tombstones t USING old WHERE t.scope = old.scope AND t.key = old.key
RETURNING 1";

/// Deletes at most `batch` tombstones that are older than `age`.
pub fn purge_tombstones(client: &mut Client, age: Duration, batch: usize) -> Result<u64, Fault> {
    let (age, batch) = (to_millis(age), to_i64(batch));
    let params: [Param<'_>; 2] = [(&age, Type::INT8), (&batch, Type::INT8)];
    let rows = client.query_typed(PURGE_TOMBSTONES, &params).map_err(|error| classify(&error))?;
    Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
}

/// Rows that are old enough now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Old {
    /// Records that nothing keeps.
    pub records: u64,
    /// Events, sent or dead.
    pub events: u64,
    /// Tombstones.
    pub tombstones: u64,
}

const COUNT_OLD: &str = "
SELECT
    (SELECT count(*) FROM idempotency_records r
     WHERE r.created_at <= now() - $1 * interval '1 millisecond'
       AND NOT EXISTS (
         SELECT FROM outbox_events e
         WHERE e.idempotency_key = r.key AND e.scope = r.scope AND e.sent_at IS NULL AND e.discarded_at IS NULL
           AND (greatest(e.dead_at, e.discarded_at) <= now() - $3 * interval '1 millisecond') IS NOT TRUE)
    ) AS records,
    (SELECT count(*) FROM outbox_events e
     WHERE e.sent_at <= now() - $2 * interval '1 millisecond'
        OR (e.sent_at IS NULL AND greatest(e.dead_at, e.discarded_at) <= now() - $3 * interval '1 millisecond')
    ) AS events,
    (SELECT count(*) FROM idempotency_tombstones
     WHERE seen_at <= now() - $4 * interval '1 millisecond') AS tombstones";

/// Counts what a pruner would take away, and changes nothing. It reads the whole tables.
pub fn count_old(
    client: &mut Client,
    records: Option<Duration>,
    events: EventAges,
    tombstones: Option<Duration>,
) -> Result<Old, Fault> {
    let records = records.map(to_millis);
    let (sent, dead) = (events.sent.map(to_millis), events.dead.map(to_millis));
    let tombstones = tombstones.map(to_millis);
    let params: [Param<'_>; 4] = [
        (&records, Type::INT8),
        (&sent, Type::INT8),
        (&dead, Type::INT8),
        (&tombstones, Type::INT8),
    ];
    let rows = client.query_typed(COUNT_OLD, &params).map_err(|error| classify(&error))?;
    Ok(rows.first().map_or_else(Old::default, |row| Old {
        records: to_u64(row.get("records")),
        events: to_u64(row.get("events")),
        tombstones: to_u64(row.get("tombstones")),
    }))
}

/// What came of [`forget_record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The record, or the tombstone that was left of it, is gone; the key counts as new.
    Done,
    /// There was neither.
    NotFound,
    /// So many of its events are neither sent nor discarded: they have to be decided first.
    Undelivered(i64),
}

const LOCK_RECORD: &str = "
SELECT jsonb_build_object('operation', operation, 'request_hash', request_hash, 'status', status,
    'http_status', http_status, 'created_at', created_at) AS details
FROM idempotency_records WHERE scope = $1 AND key = $2 FOR UPDATE";

const COUNT_UNDELIVERED: &str = "
SELECT count(*) FROM outbox_events
WHERE scope = $1 AND idempotency_key = $2 AND sent_at IS NULL AND discarded_at IS NULL";

const FORGET_RECORD: &str = "
WITH record AS (DELETE FROM idempotency_records WHERE scope = $1 AND key = $2 RETURNING 1),
    tombstone AS (DELETE FROM idempotency_tombstones WHERE scope = $1 AND key = $2 RETURNING 1),
    gone AS (SELECT 1 FROM record UNION ALL SELECT 1 FROM tombstone),
    line AS (
        INSERT INTO idempotency_audit (who, action, scope, key, details)
        SELECT $3, 'forget', $1, $2, coalesce($4::jsonb, '{}') WHERE EXISTS (SELECT FROM gone))
SELECT count(*) FROM gone";

/// Takes one record away before its time, with a line in `idempotency_audit`. The record is locked first, so that a
/// pruner and a second call wait or find nothing.
pub fn forget_record(
    client: &mut Client,
    scope: &str,
    key: &str,
    who: &str,
) -> Result<Forgotten, Fault> {
    forget(client, scope, key, who).map_err(|error| classify(&error))
}

fn forget(
    client: &mut Client,
    scope: &str,
    key: &str,
    who: &str,
) -> Result<Forgotten, postgres::Error> {
    let mut transaction = client.transaction()?;
    let record = transaction.query_opt(LOCK_RECORD, &[&scope, &key])?;
    let details: Option<serde_json::Value> = record.map(|row| row.get("details"));
    let undelivered: i64 = transaction.query_one(COUNT_UNDELIVERED, &[&scope, &key])?.get(0);
    if undelivered > 0 {
        return Ok(Forgotten::Undelivered(undelivered));
    }
    let gone: i64 = transaction.query_one(FORGET_RECORD, &[&scope, &key, &who, &details])?.get(0);
    transaction.commit()?;
    Ok(if gone > 0 { Forgotten::Done } else { Forgotten::NotFound })
}

/// The statements of this file, for the test that prepares each.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("retention::PURGE_EVENTS", PURGE_EVENTS),
    ("retention::COUNT_RECORD_BLOCKS", COUNT_RECORD_BLOCKS),
    ("retention::PURGE_RECORDS", PURGE_RECORDS),
    ("retention::PURGE_TOMBSTONES", PURGE_TOMBSTONES),
    ("retention::COUNT_OLD", COUNT_OLD),
    ("retention::LOCK_RECORD", LOCK_RECORD),
    ("retention::COUNT_UNDELIVERED", COUNT_UNDELIVERED),
    ("retention::FORGET_RECORD", FORGET_RECORD),
];

fn to_u64(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
