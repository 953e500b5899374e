//! The idempotent write: a batch of calls in, what came of each out, in one round trip.
//!
//! `once.sql` is the function that does it. [`install`] makes it on a new connection, in `pg_temp`, with a function
//! beside it for each operation, whose body is the operation's statement as it stands in its file: planned once for
//! each connection, never stale, no right needed but TEMP.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use postgres::types::private::BytesMut;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use postgres::{Row, Statement};
use uuid::Uuid;

use super::prepare::{self, Column, ColumnName, Columns, DescribeError};
use super::{Client, fault};
use crate::call::Call;
use crate::observe;
use crate::operations::Operation;
use crate::outcome::{Answer, Fault, FaultKind, Media};

const FUNCTION: &str = include_str!("once.sql");

/// Where `once.sql` has its operations.
const OPERATIONS: &str = "/* operations */";

/// The call of the function, prepared once for each connection.
pub(super) const WRITE: &str = "\
SELECT call, result, code, note, answer_status, answer, answer_is_problem, stored_hash, age_ms, micros
FROM pg_temp.onced_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

pub(super) const SET_TIMEOUT: &str = "SELECT set_config('statement_timeout', $1, false)";
pub(super) const RESET_TIMEOUT: &str = "RESET statement_timeout";

/// An event is not of the form that events have, or a status, a response or the number of events is out of bounds.
const ILL_FORMED: &str = "ONC02";

/// The constraint that two events with the same `key` of one request break.
const EVENT_KEYS: &str = "outbox_events_event_key_key";

/// An operation left something behind that only the end of the session takes away.
const SPOILED: &str = "spoiled";

/// The lock of an order key was not to be had.
const ORDER_KEY_HELD: &str = "ONC04";

/// The operation could not be prepared when the connection was made.
const UNPREPARED: &str = "ONC05";

/// What holds for every write.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Events that one call may write.
    pub max_events: usize,
    /// The longest response of an operation, in bytes.
    pub max_response: usize,
    /// Whether a purged key is refused while its tombstone stands.
    pub tombstones: bool,
    /// The problem that a raised refusal is answered with, as a JSON object without the members `status`, `code` and
    /// `instance`; its `detail` stands where the operation wrote no message of its own.
    pub refusal: String,
}

/// One call, and the id of the request that brought it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The call.
    pub call: &'a Call,
    /// The `instance` of a raised refusal.
    pub request_id: &'a str,
}

/// What came of one call of a batch.
#[derive(Clone, Debug)]
pub enum Written {
    /// The operation ran now, and the answer is stored and committed.
    Ran(Answer),
    /// The operation raised a refusal now, and it is stored and committed.
    Refused {
        /// What every caller gets.
        answer: Answer,
        /// What the database said, for the log: it may hold names of tables and values of rows.
        reason: Fault,
    },
    /// An earlier call was answered with this.
    Exists {
        /// The stored answer.
        answer: Answer,
        /// The stored fingerprint, with the name of its recipe.
        stored_hash: String,
    },
    /// Nothing of it was written.
    Failed(Fault),
    /// Nothing was written: the key was purged and its tombstone stands.
    Expired,
    /// Nothing was written: the record that was in the way has been purged since. Run it again.
    Gone,
}

/// What came of one call, and how long its operation took.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What came of it.
    pub written: Written,
    /// How old the record is.
    pub age: Duration,
    /// The time it took in the database, without the commit.
    pub took: Duration,
}

/// Why a batch came to nothing as a whole.
#[derive(Clone, Debug)]
pub enum Whole {
    /// A rival in another session holds one of the keys and did not let go in time.
    Held,
    /// A fault. Where it is [`FaultKind::Unreachable`] nobody knows whether it was committed: the same calls again, on
    /// another connection, find it out, since they replay if it was.
    Fault(Fault),
}

/// Makes the function of the write, and those of the operations, on a new connection. An operation that does not fit
/// the database any more is told of in the log and fails when it is called; the others are not touched by it.
pub fn install(
    client: &mut postgres::Client,
    operations: &[Arc<Operation>],
) -> Result<Option<Statement>, Fault> {
    // What ends with the session need not be durable; nor must a synchronous standby that is away keep each attempt to
    // connect waiting in the server, which would soon have no connection left.
    let mut functions = "SET LOCAL synchronous_commit = off;\n".to_owned();
    let mut branches = String::new();
    for (number, operation) in operations.iter().enumerate() {
        let columns = match prepare::describe(client, operation) {
            Ok(columns) => Some(columns),
            Err(DescribeError::Fault(fault)) => return Err(fault),
            Err(DescribeError::Problem(problem)) => {
                observe::operation_does_not_fit(&operation.name, &problem);
                None
            }
        };
        functions.push_str(
            &columns
                .as_ref()
                .map_or_else(String::new, |columns| operation_function(number, operation, columns)),
        );
        branches.push_str(&branch(number, operation, columns.as_ref()));
    }
    functions.push_str(&FUNCTION.replacen(OPERATIONS, branches.trim(), 1));
    client.batch_execute(&functions).map_err(|error| fault::classify(&error))?;
    client.prepare(WRITE).map(Some).map_err(|error| fault::classify(&error))
}

/// The function of one operation: its statement as it stands, `$1` to `$3` being the function's own parameters.
fn operation_function(number: usize, operation: &Operation, columns: &Columns) -> String {
    let body = prepare::statement_body(&operation.statement.sql);
    let quote = delimiter_not_in(body);
    format!(
        "CREATE FUNCTION pg_temp.onced_operation_{number}(jsonb, text, text) RETURNS TABLE ({}) LANGUAGE plpgsql AS \
         {quote}\n#variable_conflict use_column\nBEGIN\nRETURN QUERY\n{body}\n;\nEND\n{quote};\n",
        declaration(columns),
    )
}

/// The branch of the write that runs one operation: exactly one row, its columns by name.
fn branch(number: usize, operation: &Operation, columns: Option<&Columns>) -> String {
    // Names of operations are of [a-z0-9_-], so they need no quoting beyond the quotes.
    let name = &operation.name;
    match columns {
        Some(columns) => format!(
            "                WHEN '{name}' THEN\n                    SELECT {} INTO STRICT o_status, o_response, o_events\n                    \
             FROM pg_temp.onced_operation_{number}(bodies[call], keys[call], scopes[call]) AS o;\n",
            selection(columns),
        ),
        None => format!(
            "                WHEN '{name}' THEN\n                    RAISE SQLSTATE '{UNPREPARED}' USING MESSAGE = 'the \
             operation could not be prepared';\n",
        ),
    }
}

/// The columns of an operation's function.
fn declaration(columns: &Columns) -> String {
    let column = |column: Column| format!("{} {}", column.name.as_str(), column.sql_type);
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// The three values that the write takes from an operation's row `o`.
fn selection(columns: &Columns) -> String {
    let value = |name: ColumnName, sql_type: &str| match columns.has(name) {
        true => format!("o.{}::{sql_type}", name.as_str()),
        false => format!("NULL::{sql_type}"),
    };
    [
        value(ColumnName::Status, "numeric"),
        value(ColumnName::Response, "jsonb"),
        value(ColumnName::Events, "jsonb"),
    ]
    .join(", ")
}

/// A dollar quote that the text does not hold.
fn delimiter_not_in(text: &str) -> String {
    (0..)
        .map(|number| format!("$operation{number}$"))
        .find(|quote| !text.contains(quote.as_str()))
        .expect("a text of finite length does not hold all of them")
}

/// Writes a batch: each call in a savepoint of its own, all in one transaction. No (scope, key) may stand in it twice.
///
/// What comes back is committed. `claim_wait` is how long to wait for a rival in another session that holds one of
/// the keys; it must be shorter than the statement's timeout, which would tell less.
pub fn write(
    client: &mut Client,
    terms: &Terms,
    claim_wait: Duration,
    requests: &[Request<'_>],
) -> Result<Vec<Reply>, Whole> {
    let scopes = requests.iter().map(|r| r.call.scope.as_str()).collect::<Vec<_>>();
    let keys = requests.iter().map(|r| r.call.key.as_str()).collect::<Vec<_>>();
    let operations = requests.iter().map(|r| r.call.operation.name.as_str()).collect::<Vec<_>>();
    let hashes = requests.iter().map(|r| r.call.fingerprint.as_str()).collect::<Vec<_>>();
    let instances = requests.iter().map(|r| r.request_id).collect::<Vec<_>>();
    let bodies = requests.iter().map(|r| Jsonb(r.call.body.as_str())).collect::<Vec<_>>();
    // Ordered by time, so that the index of the events' keys grows at its end.
    let ids = requests.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>();
    // Zero would be for ever.
    let claim_wait = format!("{}ms", claim_wait.as_millis().max(1));
    let refusal = Jsonb(&terms.refusal);
    let max_events = i32::try_from(terms.max_events).unwrap_or(i32::MAX);
    let max_response = i32::try_from(terms.max_response).unwrap_or(i32::MAX);
    let parameters: [&(dyn ToSql + Sync); 12] = [
        &scopes,
        &keys,
        &operations,
        &hashes,
        &ids,
        &instances,
        &bodies,
        &claim_wait,
        &refusal,
        &terms.tombstones,
        &max_events,
        &max_response,
    ];
    let statement = client.prepared().ok_or_else(|| Whole::Fault(not_installed()))?;
    let rows =
        client.query(&statement, &parameters).map_err(|error| whole(fault::classify(&error)))?;
    let (spoiled, rows): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row.get::<_, &str>("result") == SPOILED);
    if !spoiled.is_empty() {
        client.spoil();
    }
    replies(&rows, requests.len()).map_err(Whole::Fault)
}

/// Sets the session's `statement_timeout`, until [`reset_timeout`] or the end of a write's first operation.
pub fn set_timeout(client: &mut Client, timeout: Duration) -> Result<(), Fault> {
    let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).to_string();
    client
        .query_typed(SET_TIMEOUT, &[(&millis, Type::TEXT)])
        .map(drop)
        .map_err(|error| fault::classify(&error))
}

/// Takes the session back to the `statement_timeout` that it was made with.
pub fn reset_timeout(client: &mut Client) -> Result<(), Fault> {
    client.batch_execute(RESET_TIMEOUT).map_err(|error| fault::classify(&error))
}

/// The connection is not one of a writer's pool.
fn not_installed() -> Fault {
    Fault { kind: FaultKind::Stale, sqlstate: None, text: "the write is not installed".to_owned() }
}

fn whole(fault: Fault) -> Whole {
    match (fault.kind, fault.sqlstate.as_deref()) {
        (FaultKind::LockTimeout, _) => Whole::Held,
        (_, Some("23505")) if fault.text.contains(EVENT_KEYS) => Whole::Fault(Fault {
            kind: FaultKind::Broken,
            sqlstate: Some(ILL_FORMED.to_owned()),
            text: "two events of one request have the same key".to_owned(),
        }),
        (_, Some(ORDER_KEY_HELD)) => Whole::Fault(Fault { kind: FaultKind::LockTimeout, ..fault }),
        _ => Whole::Fault(fault),
    }
}

/// The replies in the order of the requests: the function gives them in its own.
fn replies(rows: &[&Row], count: usize) -> Result<Vec<Reply>, Fault> {
    let mut replies = vec![None; count];
    for row in rows {
        let read = || -> Result<(usize, Reply), postgres::Error> {
            let call: i32 = row.try_get("call")?;
            Ok((usize::try_from(call - 1).unwrap_or(usize::MAX), reply(row)?))
        };
        let (place, reply) = read().map_err(|error| fault::classify(&error))?;
        if let Some(slot) = replies.get_mut(place) {
            *slot = Some(reply);
        }
    }
    replies.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| Fault {
        kind: FaultKind::Broken,
        sqlstate: None,
        text: format!("the write answered {} of {count} calls", rows.len()),
    })
}

fn reply(row: &Row) -> Result<Reply, postgres::Error> {
    let result: &str = row.try_get("result")?;
    let written = match result {
        "ran" => Written::Ran(answer(row)?),
        "refused" => Written::Refused {
            answer: answer(row)?,
            reason: operation_fault(row.try_get("code")?, row.try_get("note")?),
        },
        "exists" => {
            Written::Exists { answer: answer(row)?, stored_hash: row.try_get("stored_hash")? }
        }
        "expired" => Written::Expired,
        "gone" => Written::Gone,
        _ => Written::Failed(operation_fault(row.try_get("code")?, row.try_get("note")?)),
    };
    let micros: i64 = row.try_get("micros")?;
    let age_ms: Option<i64> = row.try_get("age_ms")?;
    Ok(Reply {
        written,
        age: Duration::from_millis(u64::try_from(age_ms.unwrap_or(0)).unwrap_or(0)),
        took: Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
    })
}

fn answer(row: &Row) -> Result<Answer, postgres::Error> {
    let status: i32 = row.try_get("answer_status")?;
    let body: &str = row.try_get("answer")?;
    let is_problem: bool = row.try_get("answer_is_problem")?;
    Ok(Answer {
        status: u16::try_from(status).unwrap_or(500),
        body: body.into(),
        media: if is_problem { Media::Problem } else { Media::Json },
    })
}

/// What an error means that was raised in a savepoint and is no refusal.
fn operation_fault(sqlstate: &str, text: &str) -> Fault {
    let kind = match sqlstate {
        ILL_FORMED => FaultKind::Broken,
        // A table has changed under the columns that the operation had when the connection was made, or it could not
        // be prepared then: a new connection looks again.
        UNPREPARED | "42804" => FaultKind::Stale,
        _ => fault::kind_of(sqlstate, text, ""),
    };
    Fault { kind, sqlstate: Some(sqlstate.to_owned()), text: text.to_owned() }
}

/// JSON text on its way to a `jsonb` parameter, as it stands: it was checked when it came in.
#[derive(Debug)]
struct Jsonb<'a>(&'a str);

impl ToSql for Jsonb<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        // The binary form of jsonb is a version number, 1, and the text.
        out.extend_from_slice(&[1]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }

    to_sql_checked!();
}
