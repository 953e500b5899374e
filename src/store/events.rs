//! The outbox as the relays see it: claim what is due, and settle what came of it.
//!
//! Every statement here is a transaction of its own, and short: no row is held locked while a sink is spoken to. All
//! times are the database's; the program sends and gets durations only.

use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Row};

use super::fault::classify;
use crate::outcome::Fault;

/// A row of the outbox, with all that its body on the wire is made of, as PostgreSQL renders it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The row's number. Numbers do not become visible in order, and some are never used.
    pub id: i64,
    /// Whose key it was.
    pub scope: String,
    /// The key of the request that wrote it.
    pub idempotency_key: String,
    /// The identity that consumers see.
    pub event_key: String,
    /// The type, `[A-Za-z0-9_.]`.
    pub event_type: String,
    /// When it was written: UTC, RFC 3339, six digits after the second.
    pub created_at: String,
    /// The payload, as `jsonb` renders it.
    pub payload: String,
    /// The number of the body's format.
    pub format: i16,
}

/// A leased event. The lease ends by the database's clock; whoever holds the claim has to end it before.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What was claimed.
    pub event: Event,
    /// The fence: what a failed attempt is settled by. It only ever rises.
    pub number: i64,
    /// The attempts that were recorded when it was claimed.
    pub attempts: i32,
    /// Those of them that count towards its death.
    pub failures: u32,
    /// Whether it has an order key, so that a successor may wait for it.
    pub ordered: bool,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub struct Claiming {
    /// Events at most.
    pub limit: usize,
    /// How long they are the claimer's.
    pub lease: Duration,
}

/// A time of the database, in microseconds since 1970. Only the database compares it with its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueTime(i64);

impl DueTime {
    /// The time that lies `slack` before this one.
    pub fn minus(self, slack: Duration) -> DueTime {
        DueTime(self.0.saturating_sub(i64::try_from(slack.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Events that were claimed, first due first, and the latest time at which one of them was due.
pub type Claimed = (Vec<Claim>, Option<DueTime>);

/// Leases what is due. `SKIP LOCKED` keeps claimers from waiting for each other; a row that another one claimed in the
/// meantime is checked again under its lock and is not due any more. The pause of the sink is part of the statement, so
/// that it holds for every daemon at once.
const CLAIM: &str = "
WITH due AS (
    SELECT id, due_at FROM outbox_events
    WHERE sent_at IS NULL AND dead_at IS NULL AND order_key IS NULL
      AND due_at <= now()
      AND due_at >= coalesce('epoch'::timestamptz + $3 * interval '1 microsecond', '-infinity')
      AND NOT EXISTS (SELECT FROM outbox_sink)
    ORDER BY due_at
    LIMIT $1
    FOR UPDATE OF outbox_events SKIP LOCKED
)
UPDATE outbox_events e
SET due_at = now() + $2 * interval '1 millisecond', claims = e.claims + 1
FROM due
WHERE e.id = due.id
RETURNING e.id, e.scope, e.idempotency_key, e.event_key, e.event_type, e.payload::text AS payload, e.format,
    to_char(e.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS created_at,
    e.claims, e.attempts, e.forgiven, false AS ordered,
    (extract(epoch FROM greatest(due.due_at, 'epoch')) * 1000000)::bigint AS was_due";

/// Leases events without an order key that are due, first due first.
///
/// `from` spares the index what lies before it: entries of events that were claimed and sent, which vacuum cannot
/// remove while an old snapshot lives. It is a hint and no high-water mark. A transaction that commits late brings
/// events that were due before it, so a claim without `from` has to come by again and again.
pub fn claim(
    client: &mut Client,
    claiming: Claiming,
    from: Option<DueTime>,
) -> Result<Claimed, Fault> {
    let limit = to_i64(claiming.limit);
    let lease = to_millis(claiming.lease);
    let from = from.map(|time| time.0);
    let rows = client
        .query_typed(CLAIM, &[(&limit, Type::INT8), (&lease, Type::INT8), (&from, Type::INT8)])
        .map_err(|error| classify(&error))?;
    let mut due = Vec::with_capacity(rows.len());
    for row in &rows {
        due.push((row.get::<_, i64>("was_due"), to_claim(row)));
    }
    due.sort_by_key(|(was_due, claim)| (*was_due, claim.event.id));
    let latest = due.last().map(|(was_due, _)| DueTime(*was_due));
    Ok((due.into_iter().map(|(_, claim)| claim).collect(), latest))
}

/// Where the next look at the order keys begins: after this one, in the order of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyCursor {
    scope: String,
    order_key: String,
    id: i64,
}

/// What a look at the order keys gave.
#[derive(Debug, Default)]
pub struct ClaimedInOrder {
    /// At most one event of each order key.
    pub claims: Vec<Claim>,
    /// Whether the look came to the last key.
    pub is_complete: bool,
    /// How long until the first of the seen events is due that was not yet.
    pub next_due: Option<Duration>,
}

/// What a look at the order keys may cost: that many keys are looked at, and the next look goes on behind them.
const KEYS_PER_LOOK: i64 = 400;

/// Leases the first undelivered event of each order key, where that one is due. The recursion jumps from key to key in
/// the index, so a key with many events costs as much as one with a single one. An event that is with a relay is still
/// the first of its key, and not due: its successors wait.
const CLAIM_IN_ORDER: &str = "
WITH RECURSIVE head AS (
    (SELECT scope, order_key, id, due_at, dead_at, 1 AS visited FROM outbox_events
     WHERE order_key IS NOT NULL AND sent_at IS NULL AND discarded_at IS NULL AND (dead_at IS NULL OR $3)
       AND (scope, order_key, id) > ($4, $5, $6)
     ORDER BY scope, order_key, id LIMIT 1)
    UNION ALL
    SELECT next.scope, next.order_key, next.id, next.due_at, next.dead_at, head.visited + 1
    FROM head CROSS JOIN LATERAL (
        SELECT scope, order_key, id, due_at, dead_at FROM outbox_events
        WHERE order_key IS NOT NULL AND sent_at IS NULL AND discarded_at IS NULL AND (dead_at IS NULL OR $3)
          AND (scope, order_key, id) > (head.scope, head.order_key, 9223372036854775807)
        ORDER BY scope, order_key, id LIMIT 1
    ) next
    WHERE head.visited < $7
), due AS (
    SELECT e.id FROM head JOIN outbox_events e ON e.id = head.id
    WHERE e.sent_at IS NULL AND e.dead_at IS NULL AND e.due_at <= now()
      AND NOT EXISTS (SELECT FROM outbox_sink)
    ORDER BY head.scope, head.order_key
    LIMIT $1
    FOR UPDATE OF e SKIP LOCKED
), claimed AS (
    UPDATE outbox_events e
    SET due_at = now() + $2 * interval '1 millisecond', claims = e.claims + 1
    FROM due
    WHERE e.id = due.id
    RETURNING e.id, e.scope, e.idempotency_key, e.event_key, e.event_type, e.payload::text AS payload, e.format,
        to_char(e.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS created_at,
        e.claims, e.attempts, e.forgiven, true AS ordered, e.order_key
), seen AS (
    SELECT count(*) AS visited,
        (array_agg(scope ORDER BY visited DESC))[1] AS last_scope,
        (array_agg(order_key ORDER BY visited DESC))[1] AS last_order_key,
        (extract(epoch FROM min(least(due_at, now() + interval '1 day')) FILTER (WHERE due_at > now() AND dead_at IS NULL)
            - now()) * 1000)::bigint AS next_due_ms
    FROM head
)
SELECT claimed.*, seen.* FROM seen LEFT JOIN claimed ON true ORDER BY claimed.scope, claimed.order_key";

/// Leases due events that have an order key, one of each key, those keys first that come after `cursor`. With `hold` a
/// dead event that nobody has decided about keeps its successors waiting.
pub fn claim_in_order(
    client: &mut Client,
    claiming: Claiming,
    hold: bool,
    cursor: &mut KeyCursor,
) -> Result<ClaimedInOrder, Fault> {
    let limit = to_i64(claiming.limit);
    let lease = to_millis(claiming.lease);
    let rows = client
        .query_typed(
            CLAIM_IN_ORDER,
            &[
                (&limit, Type::INT8),
                (&lease, Type::INT8),
                (&hold, Type::BOOL),
                (&cursor.scope, Type::TEXT),
                (&cursor.order_key, Type::TEXT),
                (&cursor.id, Type::INT8),
                (&KEYS_PER_LOOK, Type::INT8),
            ],
        )
        .map_err(|error| classify(&error))?;
    let taken: Vec<&Row> =
        rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some()).collect();
    let is_cut = taken.len() >= claiming.limit;
    let visited = rows.first().map_or(0, |row| row.get::<_, i64>("visited"));
    let is_complete = !is_cut && visited < KEYS_PER_LOOK;
    *cursor = match (taken.last(), rows.first()) {
        // What was due and did not fit comes first the next time, so that no key is passed over for ever.
        (Some(row), _) if is_cut => KeyCursor::after(row.get("scope"), row.get("order_key")),
        (_, Some(row)) if !is_complete => {
            KeyCursor::after(row.get("last_scope"), row.get("last_order_key"))
        }
        (_, _) => KeyCursor::default(),
    };
    let next_due = rows.first().and_then(|row| row.get::<_, Option<i64>>("next_due_ms"));
    Ok(ClaimedInOrder {
        claims: taken.into_iter().map(to_claim).collect(),
        is_complete,
        next_due: next_due.map(from_millis),
    })
}

impl KeyCursor {
    fn after(scope: String, order_key: String) -> KeyCursor {
        KeyCursor { scope, order_key, id: i64::MAX }
    }
}

/// What there is to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// The sink is paused until a person resumes it.
    pub is_paused: bool,
    /// There are events with an order key that wait for delivery.
    pub has_ordered: bool,
    /// How long until the next event without an order key is due.
    pub next_due: Option<Duration>,
}

const OUTLOOK: &str = "
SELECT EXISTS (SELECT FROM outbox_sink) AS is_paused,
    EXISTS (SELECT FROM outbox_events
            WHERE order_key IS NOT NULL AND sent_at IS NULL AND discarded_at IS NULL AND dead_at IS NULL) AS has_ordered,
    (SELECT (extract(epoch FROM least(due_at, now() + interval '1 day') - now()) * 1000)::bigint
     FROM outbox_events
     WHERE sent_at IS NULL AND dead_at IS NULL AND order_key IS NULL AND due_at > now()
     ORDER BY due_at LIMIT 1) AS next_due_ms";

/// Whether the sink is paused, and when the next event is due that is not due yet. Locks nothing.
pub fn look_ahead(client: &mut Client) -> Result<Outlook, Fault> {
    let row = client.query_typed(OUTLOOK, &[]).map_err(|error| classify(&error))?;
    let row = row.first();
    Ok(Outlook {
        is_paused: row.is_some_and(|row| row.get("is_paused")),
        has_ordered: row.is_some_and(|row| row.get("has_ordered")),
        next_due: row.and_then(|row| row.get::<_, Option<i64>>("next_due_ms")).map(from_millis),
    })
}

/// A success may be recorded whoever holds the claim by now: the sink has the event. It counts one attempt, once, so
/// that the statement may be sent again where its end is unknown.
const SETTLE_SENT: &str = "
UPDATE outbox_events e SET sent_at = now(), attempts = e.attempts + 1, dead_at = NULL
FROM unnest($1::bigint[]) AS sent (id)
WHERE e.id = sent.id AND e.sent_at IS NULL";

/// Records deliveries by the events' ids. Safe to repeat.
pub fn settle_sent(client: &mut Client, ids: &[i64]) -> Result<(), Fault> {
    run(client, SETTLE_SENT, &[(&ids, Type::INT8_ARRAY)]).map(drop)
}

/// What follows from a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is tried again, unless it is too old.
    Retry,
    /// It is dead.
    Dead,
    /// It is tried again however old it is.
    Spared,
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The event.
    pub id: i64,
    /// The fence.
    pub number: i64,
    /// [`Claim::attempts`]: it makes the settling safe to repeat.
    pub attempts: i32,
    /// When to try again.
    pub delay: Duration,
    /// What was wrong: bounded, without control characters.
    pub error: String,
    /// What follows.
    pub fate: Fate,
}

/// The fence: only where the claim is still the one that made the attempt, and the attempt is not recorded yet.
const SETTLE_FAILED: &str = "
UPDATE outbox_events e
SET attempts = e.attempts + 1, due_at = now() + failed.delay_ms * interval '1 millisecond',
    last_error = failed.error, failing_since = coalesce(e.failing_since, now()),
    dead_at = CASE
        WHEN failed.dies THEN now()
        WHEN failed.ages AND e.attempts - e.forgiven >= 4
         AND e.failing_since <= now() - $7 * interval '1 millisecond' THEN now()
    END
FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[], $5::text[], $6::boolean[], $8::boolean[])
    AS failed (id, number, attempts, delay_ms, error, dies, ages)
WHERE e.id = failed.id AND e.claims = failed.number AND e.attempts = failed.attempts
  AND e.sent_at IS NULL AND e.dead_at IS NULL
RETURNING e.id, e.event_key, e.event_type, e.last_error, e.attempts, e.dead_at IS NOT NULL AS is_dead";

/// A failed attempt as it was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The event.
    pub id: i64,
    /// Its identity.
    pub event_key: String,
    /// Its type.
    pub event_type: String,
    /// What was wrong.
    pub error: String,
    /// Attempts so far.
    pub attempts: i32,
    /// Whether it is dead now.
    pub is_dead: bool,
}

/// Records failed attempts; an event that has been failing for `give_up_after`, five times at least, is dead by it. How
/// old it is does not matter: after an outage or a pause the first hiccup must not kill all that waited. Returns those that were still the
/// claimer's to settle. Safe to repeat.
pub fn settle_failed(
    client: &mut Client,
    failures: &[Failure],
    give_up_after: Duration,
) -> Result<Vec<Recorded>, Fault> {
    let ids: Vec<i64> = failures.iter().map(|failure| failure.id).collect();
    let numbers: Vec<i64> = failures.iter().map(|failure| failure.number).collect();
    let attempts: Vec<i32> = failures.iter().map(|failure| failure.attempts).collect();
    let delays: Vec<i64> = failures.iter().map(|failure| to_millis(failure.delay)).collect();
    let errors: Vec<&str> = failures.iter().map(|failure| failure.error.as_str()).collect();
    let dies: Vec<bool> = failures.iter().map(|failure| failure.fate == Fate::Dead).collect();
    let ages: Vec<bool> = failures.iter().map(|failure| failure.fate == Fate::Retry).collect();
    let give_up_after = to_millis(give_up_after);
    let rows = run(
        client,
        SETTLE_FAILED,
        &[
            (&ids, Type::INT8_ARRAY),
            (&numbers, Type::INT8_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&delays, Type::INT8_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&dies, Type::BOOL_ARRAY),
            (&give_up_after, Type::INT8),
            (&ages, Type::BOOL_ARRAY),
        ],
    )?;
    Ok(rows
        .iter()
        .map(|row| Recorded {
            id: row.get("id"),
            event_key: row.get("event_key"),
            event_type: row.get("event_type"),
            error: row.get("last_error"),
            attempts: row.get("attempts"),
            is_dead: row.get("is_dead"),
        })
        .collect())
}

/// A claim that is given back: no attempt was begun.
#[derive(Clone, Copy, Debug)]
pub struct GivenBack {
    /// The event.
    pub id: i64,
    /// The fence.
    pub number: i64,
    /// When it may be claimed again.
    pub delay: Duration,
}

const GIVE_BACK: &str = "
UPDATE outbox_events e SET due_at = now() + back.delay_ms * interval '1 millisecond'
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS back (id, number, delay_ms)
WHERE e.id = back.id AND e.claims = back.number AND e.sent_at IS NULL AND e.dead_at IS NULL";

/// Ends claims whose attempt was not begun: it costs the events none. Safe to repeat.
pub fn give_back(client: &mut Client, claims: &[GivenBack]) -> Result<(), Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let numbers: Vec<i64> = claims.iter().map(|claim| claim.number).collect();
    let delays: Vec<i64> = claims.iter().map(|claim| to_millis(claim.delay)).collect();
    let params: [Param<'_>; 3] =
        [(&ids, Type::INT8_ARRAY), (&numbers, Type::INT8_ARRAY), (&delays, Type::INT8_ARRAY)];
    run(client, GIVE_BACK, &params).map(drop)
}

/// The statements of this file, for the test that prepares each.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("events::CLAIM", CLAIM),
    ("events::CLAIM_IN_ORDER", CLAIM_IN_ORDER),
    ("events::OUTLOOK", OUTLOOK),
    ("events::SETTLE_SENT", SETTLE_SENT),
    ("events::SETTLE_FAILED", SETTLE_FAILED),
    ("events::GIVE_BACK", GIVE_BACK),
];

/// A value and its type: statements are sent with both, so that none has to be prepared first.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) fn run(client: &mut Client, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
    client.query_typed(sql, params).map_err(|error| classify(&error))
}

fn to_claim(row: &Row) -> Claim {
    let attempts: i32 = row.get("attempts");
    let forgiven: i32 = row.get("forgiven");
    Claim {
        event: Event {
            id: row.get("id"),
            scope: row.get("scope"),
            idempotency_key: row.get("idempotency_key"),
            event_key: row.get("event_key"),
            event_type: row.get("event_type"),
            created_at: row.get("created_at"),
            payload: row.get("payload"),
            format: row.get("format"),
        },
        number: row.get("claims"),
        attempts,
        failures: u32::try_from(attempts.saturating_sub(forgiven)).unwrap_or(0),
        ordered: row.get("ordered"),
    }
}

/// Milliseconds for an interval, rounded up: a wait is never shorter than it was meant.
pub(super) fn to_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn from_millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(super) fn to_i64(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
