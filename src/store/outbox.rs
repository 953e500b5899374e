//! The outbox as a person sees it: look at it, try dead events again, give them up, send once more what was sent,
//! count what waits, and pause the sink for everybody.

use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Row};
use serde::Serialize;

use super::events::{Param, run, to_i64, to_millis};
use super::fault::classify;
use crate::outcome::Fault;

/// Where an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for delivery, or is being delivered.
    Pending,
    /// The sink has it.
    Sent,
    /// It could not be delivered, and nobody has decided about it yet.
    Dead,
    /// A person gave it up.
    Discarded,
}

impl State {
    /// Its name in tables, JSON and options.
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Sent => "sent",
            State::Dead => "dead",
            State::Discarded => "discarded",
        }
    }

    /// The state of a name.
    pub fn of_name(name: &str) -> Option<State> {
        [State::Pending, State::Sent, State::Dead, State::Discarded]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// Which events are meant; what is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Of this type.
    pub event_type: Option<String>,
    /// Written so long ago at most.
    pub since: Option<Duration>,
    /// Of requests with this idempotency key.
    pub key: Option<String>,
    /// Of this principal.
    pub scope: Option<String>,
    /// The one with this event key.
    pub event_key: Option<String>,
}

/// An event for people. Times are UTC, RFC 3339. As JSON it is without its payload, and members are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The row's number.
    #[serde(rename = "event_id")]
    pub id: i64,
    /// Its identity.
    pub event_key: String,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Whose key it was.
    #[serde(rename = "principal")]
    pub scope: String,
    /// The key of the request that wrote it.
    pub idempotency_key: String,
    /// Where it stands.
    pub state: State,
    /// When it was written.
    pub created_at: String,
    /// When it may be claimed next; of interest where it is pending.
    pub due_at: String,
    /// When its delivery was recorded.
    pub sent_at: Option<String>,
    /// When it died.
    pub dead_at: Option<String>,
    /// When it was given up.
    pub discarded_at: Option<String>,
    /// By whom.
    pub discarded_by: Option<String>,
    /// Attempts so far.
    pub attempts: i32,
    /// Claims so far.
    pub claims: i64,
    /// What was wrong with the last attempt that failed.
    pub last_error: Option<String>,
    /// Its order key.
    pub order_key: Option<String>,
    /// The payload, as `jsonb` renders it.
    #[serde(skip)]
    pub payload: String,
}

/// The condition of a [`Filter`], on the parameters 1 to 6. With its values known the planner reduces it to what
/// matters, and takes the index that fits.
macro_rules! matches_filter {
    () => {
        "($1::text IS NULL
          OR ($1 = 'pending' AND sent_at IS NULL AND dead_at IS NULL)
          OR ($1 = 'sent' AND sent_at IS NOT NULL)
          OR ($1 = 'dead' AND dead_at IS NOT NULL AND discarded_at IS NULL)
          OR ($1 = 'discarded' AND sent_at IS NULL AND discarded_at IS NOT NULL))
         AND ($2::text IS NULL OR event_type = $2)
         AND ($3::bigint IS NULL OR created_at >= now() - $3 * interval '1 millisecond')
         AND ($4::text IS NULL OR idempotency_key = $4)
         AND ($5::text IS NULL OR scope = $5)
         AND ($6::text IS NULL OR event_key = $6)"
    };
}

macro_rules! utc {
    ($column:literal) => {
        concat!(
            "to_char(",
            $column,
            " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS ",
            $column
        )
    };
}

const LIST: &str = concat!(
    "SELECT id, event_key, event_type, scope, idempotency_key, attempts, claims, last_error, order_key, discarded_by,
        payload::text AS payload, ",
    utc!("created_at"),
    ", ",
    utc!("due_at"),
    ", ",
    utc!("sent_at"),
    ", ",
    utc!("dead_at"),
    ", ",
    utc!("discarded_at"),
    " FROM outbox_events WHERE id < $7 AND ",
    matches_filter!(),
    " ORDER BY id DESC LIMIT $8"
);

/// At most `limit` events that match, the latest first; `before` is the number of the last one of the page before.
pub fn list_events(
    client: &mut Client,
    filter: &Filter,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<Entry>, Fault> {
    let values = Values::of(filter);
    let before = before.unwrap_or(i64::MAX);
    let limit = to_i64(limit);
    let mut params = values.params();
    params.extend([(&before as _, Type::INT8), (&limit as _, Type::INT8)]);
    let rows = client.query_typed(LIST, &params).map_err(|error| classify(&error))?;
    Ok(rows.iter().map(to_entry).collect())
}

/// What is to become of the events that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Dead events are pending again, with all their attempts before them.
    Retry,
    /// Events that were not sent are given up, by somebody with this name: dead ones, and pending ones where the
    /// filter asks for that state.
    Discard(&'a str),
    /// Sent events are pending again, under the same identity.
    Replay,
}

const RETRY: &str = concat!(
    "WITH picked AS (
        SELECT id FROM outbox_events
        WHERE id > $7 AND id <= $8 AND dead_at IS NOT NULL AND discarded_at IS NULL AND ",
    matches_filter!(),
    " ORDER BY id LIMIT $9 FOR UPDATE)
    UPDATE outbox_events e
    SET dead_at = NULL, due_at = now(), forgiven = e.attempts, retried_at = now(), failing_since = NULL
    FROM picked WHERE e.id = picked.id RETURNING e.id"
);

const DISCARD: &str = concat!(
    "WITH picked AS (
        SELECT id FROM outbox_events
        WHERE id > $7 AND id <= $8 AND sent_at IS NULL AND discarded_at IS NULL AND ",
    matches_filter!(),
    " ORDER BY id LIMIT $9 FOR UPDATE)
    UPDATE outbox_events e
    SET discarded_at = now(), discarded_by = $10, dead_at = coalesce(e.dead_at, now())
    FROM picked WHERE e.id = picked.id RETURNING e.id"
);

const REPLAY: &str = concat!(
    "WITH picked AS (
        SELECT id FROM outbox_events
        WHERE id > $7 AND id <= $8 AND sent_at IS NOT NULL AND ",
    matches_filter!(),
    " ORDER BY id LIMIT $9 FOR UPDATE)
    UPDATE outbox_events e
    SET sent_at = NULL, dead_at = NULL, discarded_at = NULL, discarded_by = NULL,
        due_at = now(), forgiven = e.attempts, retried_at = now(), failing_since = NULL
    FROM picked WHERE e.id = picked.id RETURNING e.id"
);

const COUNT: &str =
    concat!("SELECT count(*) AS matching FROM outbox_events WHERE ", matches_filter!());

/// Counts the events that match. Without a key or the state `dead` it reads the whole table.
pub fn count_events(client: &mut Client, filter: &Filter) -> Result<u64, Fault> {
    let values = Values::of(filter);
    let rows = client.query_typed(COUNT, &values.params()).map_err(|error| classify(&error))?;
    Ok(rows.first().map_or(0, |row| u64::try_from(row.get::<_, i64>("matching")).unwrap_or(0)))
}

impl Change<'_> {
    /// The filter of the events that this change would meet among those that match `filter`.
    pub fn narrow(self, filter: &Filter) -> Filter {
        let state = match self {
            Change::Retry => State::Dead,
            Change::Discard(_) => filter.state.unwrap_or(State::Dead),
            Change::Replay => State::Sent,
        };
        Filter { state: Some(state), ..filter.clone() }
    }
}

const RANGE: &str =
    "SELECT coalesce(min(id), 0) AS first, coalesce(max(id), 0) AS last FROM outbox_events";

/// How many numbers one statement looks at, so that none runs long whatever the filter.
const WINDOW: i64 = 50_000;

/// Changes all events that match and are there now, `batch` in a transaction. Returns how many. Events that come or
/// change while it runs are met at most once, so a replay does not send what it has just had sent.
pub fn change_events(
    client: &mut Client,
    change: Change<'_>,
    filter: &Filter,
    batch: usize,
) -> Result<u64, Fault> {
    change_events_telling(client, change, filter, batch, |_| ())
}

/// As [`change_events`]; `tell` is told after each transaction how many were changed so far.
pub fn change_events_telling(
    client: &mut Client,
    change: Change<'_>,
    filter: &Filter,
    batch: usize,
    mut tell: impl FnMut(u64),
) -> Result<u64, Fault> {
    let range = client.query_typed(RANGE, &[]).map_err(|error| classify(&error))?;
    let (first, last): (i64, i64) =
        range.first().map_or((0, 0), |row| (row.get("first"), row.get("last")));
    let filter = change.narrow(filter);
    let is_dead = filter.state == Some(State::Dead);
    let has_index = filter.key.is_some() || filter.event_key.is_some() || is_dead;
    let window = if has_index { i64::MAX } else { WINDOW };
    let mut changed = 0;
    let mut after = first - 1;
    while after < last {
        let until = after.saturating_add(window).min(last);
        let ids = change_some(client, change, &filter, (after, until, batch))?;
        changed += u64::try_from(ids.len()).unwrap_or(u64::MAX);
        tell(changed);
        // A full batch may have left some of the window.
        after = if ids.len() == batch { ids.into_iter().max().unwrap_or(until) } else { until };
    }
    Ok(changed)
}

/// Changes one event, where it is in the state that the change is for. False where it is not, or is not there.
pub fn change_event(client: &mut Client, change: Change<'_>, id: i64) -> Result<bool, Fault> {
    let filter = change.narrow(&Filter::default());
    let changed = change_some(client, change, &filter, (id.saturating_sub(1), id, 1))?;
    Ok(!changed.is_empty())
}

fn change_some(
    client: &mut Client,
    change: Change<'_>,
    filter: &Filter,
    (after, until, batch): (i64, i64, usize),
) -> Result<Vec<i64>, Fault> {
    let values = Values::of(filter);
    let batch = to_i64(batch);
    let mut params = values.params();
    params.extend([
        (&after as _, Type::INT8),
        (&until as _, Type::INT8),
        (&batch as _, Type::INT8),
    ]);
    let who;
    let sql = match change {
        Change::Retry => RETRY,
        Change::Replay => REPLAY,
        Change::Discard(by) => {
            who = by;
            params.push((&who, Type::TEXT));
            DISCARD
        }
    };
    let rows = client.query_typed(sql, &params).map_err(|error| classify(&error))?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// What waits in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Events that wait for delivery: exact up to 10,000, above that the planner's estimate and no less.
    pub pending: i64,
    /// The age of the oldest of them, or of its last retry; where there are more than 10,000, of the oldest among those
    /// that are due first.
    pub oldest_seconds: i64,
    /// Dead events that nobody has decided about; counted as `pending` is.
    pub dead: i64,
}

/// Rows that a count looks at.
const COUNTED: i64 = 10_000;

const BACKLOG: &str = "
WITH waiting AS (
    (SELECT coalesce(retried_at, created_at) AS since FROM outbox_events
     WHERE sent_at IS NULL AND dead_at IS NULL AND order_key IS NULL ORDER BY due_at LIMIT $1)
    UNION ALL
    (SELECT coalesce(retried_at, created_at) FROM outbox_events
     WHERE sent_at IS NULL AND discarded_at IS NULL AND order_key IS NOT NULL AND dead_at IS NULL LIMIT $1)
), dead AS (
    SELECT FROM outbox_events WHERE dead_at IS NOT NULL AND discarded_at IS NULL LIMIT $1
), guess AS (
    SELECT sum(reltuples) FILTER (WHERE relname <> 'outbox_events_dead') AS pending,
        sum(reltuples) FILTER (WHERE relname = 'outbox_events_dead') AS dead
    FROM pg_class WHERE oid IN
        ('outbox_events_due'::regclass, 'outbox_events_ordered'::regclass, 'outbox_events_dead'::regclass)
), counted AS (
    SELECT (SELECT count(*) FROM waiting) AS pending, (SELECT count(*) FROM dead) AS dead,
        (SELECT min(since) FROM waiting) AS oldest
)
SELECT CASE WHEN counted.pending < $1 THEN counted.pending
            ELSE greatest(counted.pending, guess.pending::bigint) END AS pending,
    CASE WHEN counted.dead < $1 THEN counted.dead ELSE greatest(counted.dead, guess.dead::bigint) END AS dead,
    coalesce(greatest(extract(epoch FROM now() - oldest), 0), 0)::bigint AS oldest_seconds
FROM counted, guess";

/// Counts what waits, at a cost that does not grow with it: at most 10,000 rows of each kind are looked at. Entries of
/// sent events that vacuum could not remove yet are stepped over, so it is a matter for every few seconds.
pub fn backlog(client: &mut Client) -> Result<Backlog, Fault> {
    let rows =
        client.query_typed(BACKLOG, &[(&COUNTED, Type::INT8)]).map_err(|error| classify(&error))?;
    Ok(rows.first().map_or_else(Backlog::default, |row| Backlog {
        pending: row.get("pending"),
        oldest_seconds: row.get("oldest_seconds"),
        dead: row.get("dead"),
    }))
}

/// Who paused the sink, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

const PAUSE: &str =
    "INSERT INTO outbox_sink (paused_by, reason) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Pauses the sink for all daemons until [`resume`]. False where it was paused already; the first reason stays.
pub fn pause(client: &mut Client, who: &str, reason: &str) -> Result<bool, Fault> {
    let params: [&(dyn ToSql + Sync); 2] = [&who, &reason];
    client.execute(PAUSE, &params).map(|rows| rows > 0).map_err(|error| classify(&error))
}

const RESUME: &str = "DELETE FROM outbox_sink";

/// Ends the pause. False where there was none.
pub fn resume(client: &mut Client) -> Result<bool, Fault> {
    client.execute(RESUME, &[]).map(|rows| rows > 0).map_err(|error| classify(&error))
}

const FIND_PAUSE: &str = "
SELECT to_char(paused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS at, paused_by, reason
FROM outbox_sink";

/// The pause, where the sink is paused.
pub fn find_pause(client: &mut Client) -> Result<Option<Pause>, Fault> {
    let rows = run(client, FIND_PAUSE, &[])?;
    Ok(rows.first().map(|row| Pause {
        at: row.get("at"),
        by: row.get("paused_by"),
        reason: row.get("reason"),
    }))
}

/// The statements of this file, for the test that prepares each.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("outbox::LIST", LIST),
    ("outbox::COUNT", COUNT),
    ("outbox::RETRY", RETRY),
    ("outbox::DISCARD", DISCARD),
    ("outbox::REPLAY", REPLAY),
    ("outbox::RANGE", RANGE),
    ("outbox::BACKLOG", BACKLOG),
    ("outbox::PAUSE", PAUSE),
    ("outbox::RESUME", RESUME),
    ("outbox::FIND_PAUSE", FIND_PAUSE),
];

/// A filter as parameters.
struct Values<'a> {
    state: Option<&'static str>,
    since: Option<i64>,
    filter: &'a Filter,
}

impl Values<'_> {
    fn of(filter: &Filter) -> Values<'_> {
        Values { state: filter.state.map(State::name), since: filter.since.map(to_millis), filter }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.state, Type::TEXT),
            (&self.filter.event_type, Type::TEXT),
            (&self.since, Type::INT8),
            (&self.filter.key, Type::TEXT),
            (&self.filter.scope, Type::TEXT),
            (&self.filter.event_key, Type::TEXT),
        ]
    }
}

fn to_entry(row: &Row) -> Entry {
    let sent_at: Option<String> = row.get("sent_at");
    let dead_at: Option<String> = row.get("dead_at");
    let discarded_at: Option<String> = row.get("discarded_at");
    let state = match (&sent_at, &discarded_at, &dead_at) {
        (Some(_), _, _) => State::Sent,
        (None, Some(_), _) => State::Discarded,
        (None, None, Some(_)) => State::Dead,
        (None, None, None) => State::Pending,
    };
    Entry {
        id: row.get("id"),
        event_key: row.get("event_key"),
        event_type: row.get("event_type"),
        scope: row.get("scope"),
        idempotency_key: row.get("idempotency_key"),
        state,
        created_at: row.get("created_at"),
        due_at: row.get("due_at"),
        sent_at,
        dead_at,
        discarded_at,
        discarded_by: row.get("discarded_by"),
        attempts: row.get("attempts"),
        claims: row.get("claims"),
        last_error: row.get("last_error"),
        order_key: row.get("order_key"),
        payload: row.get("payload"),
    }
}
