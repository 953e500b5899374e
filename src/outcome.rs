//! What came of a call, in words that know neither HTTP nor PostgreSQL.

use std::fmt;
use std::sync::Arc;

/// What came of a call. Only [`Outcome::Recorded`] is ever stored (P7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation ran to its end, now or at an earlier call, and this is its stored answer.
    Recorded {
        /// The stored answer: the same bytes at every call (P2).
        answer: Answer,
        /// Whether an earlier call ran it.
        replayed: bool,
    },
    /// The key stands for another request (P3). Nothing was written.
    KeyReused,
    /// The key's record was purged and its tombstone still stands (P9). Nothing was written.
    KeyExpired,
    /// The record was made by a fingerprint recipe that this program does not know.
    FingerprintUnknown,
    /// Somebody else is still working on the key.
    InProgress,
    /// A fault that is not the caller's; the key stays unused and the same call may succeed later.
    Unavailable(Reason),
    /// The operation's SQL is broken; the key stays unused.
    OperationFailed,
}

/// A stored answer, as it goes to every caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status that the operation chose: 2xx or 4xx.
    pub status: u16,
    /// The body, as PostgreSQL renders the stored `jsonb`.
    pub body: Arc<str>,
    /// What kind of body it is.
    pub media: Media,
}

/// The kind of a stored answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// An operation's own `response`: `application/json`.
    Json,
    /// A refusal that the operation raised: `application/problem+json`.
    Problem,
}

/// Why a call could not be served now, in words for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `writers.queue` calls are waiting already.
    QueueFull,
    /// The database cannot be reached, or has no room for us.
    Database,
    /// The database takes no writes at the moment.
    ReadOnly,
    /// The operation ran into its statement timeout.
    StatementTimeout,
    /// The operation waited for a lock past its limit.
    LockTimeout,
    /// The operation met a deadlock or a serialization failure, again and again.
    Conflict,
    /// The call's time was over before a writer came to it.
    Deadline,
    /// The daemon is stopping.
    Stopping,
}

/// What the database or the network did to us: never stored, and never the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What may be done about it.
    pub kind: FaultKind,
    /// The SQLSTATE, where the server gave one.
    pub sqlstate: Option<String>,
    /// The whole text, for the log only: it may hold names of tables and hosts.
    pub text: String,
}

/// The kinds of [`Fault`], by what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No connection, or it broke: whether the statement took effect is unknown.
    Unreachable,
    /// The server is there and has no room: connections, memory, disk.
    Overloaded,
    /// The server, or what stands in front of it, is not set up for us: too old, or a pooler that takes the session away
    /// or drops its settings. Only a person can help.
    Unusable,
    /// The server takes no writes (25006): a standby, or a primary that was demoted.
    ReadOnly,
    /// A deadlock or a serialization failure: running it again helps.
    Conflict,
    /// A lock was waited for past `lock_timeout` (55P03).
    LockTimeout,
    /// The statement was cancelled, in general by `statement_timeout` (57014).
    StatementTimeout,
    /// The session lost what was prepared in it, or a table changed under its plans: a fresh connection helps.
    Stale,
    /// The statement itself is wrong: a missing table, a missing right, a bug of ours.
    Broken,
}

impl Fault {
    /// What the caller is told of it.
    pub fn reason(&self) -> Option<Reason> {
        match self.kind {
            FaultKind::Unreachable
            | FaultKind::Overloaded
            | FaultKind::Unusable
            | FaultKind::Stale => Some(Reason::Database),
            FaultKind::ReadOnly => Some(Reason::ReadOnly),
            FaultKind::Conflict => Some(Reason::Conflict),
            FaultKind::LockTimeout => Some(Reason::LockTimeout),
            FaultKind::StatementTimeout => Some(Reason::StatementTimeout),
            FaultKind::Broken => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sqlstate {
            Some(sqlstate) => write!(f, "{} (SQLSTATE {sqlstate})", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for Fault {}
