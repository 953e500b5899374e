//! The configuration, checked and typed: what the rest of the program sees. Nobody else sees a raw value of the file.

pub mod address;
pub mod secret;

mod check;
mod effective;
mod files;
mod kind;
mod locate;
mod parse;
mod problem;
mod raw;
mod reader;
mod rules;
mod section;
mod strangers;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::operations::Operation;
pub use locate::locate;
pub use problem::{Place, Problem, Problems};
pub use raw::Environment;
pub use secret::Secret;

/// The whole configuration, made only by [`Config::load`] and [`Config::parse`]. `Daemon::start` hands each actor its own section.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it was read from.
    pub file: PathBuf,
    /// How long a stop may take before what is left is given up.
    pub shutdown_timeout: Duration,
    /// The callers' listener.
    pub http: Http,
    /// The operator's listener.
    pub admin: Admin,
    /// Where PostgreSQL is.
    pub database: Database,
    /// The writer threads.
    pub writers: Writers,
    /// The relay threads.
    pub relay: Relay,
    /// Where events go; without one they stay in the outbox.
    pub sink: Option<Sink>,
    /// How long what is kept is kept.
    pub retention: Retention,
    /// The log.
    pub log: Log,
    /// Who may call; empty where nobody authenticates.
    pub principals: Vec<Principal>,
    /// What may be called, in the order of the file.
    pub operations: Vec<Operation>,
    /// What is allowed and yet worth a word at start: one line each.
    pub warnings: Vec<String>,
    /// Every key with the value in force, for the dump and for a reload.
    settings: Vec<effective::Setting>,
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket: `unix:/path`.
    Unix(PathBuf),
    /// The socket that the service manager hands over under this name (`FileDescriptorName=`): `systemd:NAME`.
    Systemd(String),
}

/// `[http]`
#[derive(Clone, Debug)]
pub struct Http {
    /// Where callers connect.
    pub listen: Listen,
    /// Clients served at once.
    pub threads: NonZeroUsize,
    /// The longest body, in bytes.
    pub max_body: usize,
    /// A head and body must be whole this long after their first byte.
    pub read_timeout: Duration,
    /// An answer must be taken within this.
    pub write_timeout: Duration,
    /// How long an idle connection stays open.
    pub keep_alive: Duration,
    /// How long a caller waits for its outcome.
    pub wait: Duration,
    /// Duplicates that may wait beside one key in work.
    pub waiters_per_key: usize,
    /// The status for a key that was used for another request: 409 or 422.
    pub mismatch_status: u16,
    /// Values of `Host` that are taken besides loopback where nobody authenticates.
    pub hosts: Vec<String>,
    /// Serve without principals on any address.
    pub allow_anonymous: bool,
}

/// `[admin]`
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where operators connect.
    pub listen: Listen,
    /// Clients served at once.
    pub threads: NonZeroUsize,
    /// The bearer token for `/api`, where one is set.
    pub token: Option<Secret<String>>,
    /// Values of `Host` that are taken besides loopback.
    pub hosts: Vec<String>,
}

/// `[database]`
#[derive(Clone, Debug)]
pub struct Database {
    /// A connection string, `postgresql://…` or `key=value …`.
    pub url: Secret<String>,
    /// The schema that holds our tables.
    pub schema: String,
    /// Certificates that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// How TLS is used.
    pub tls: Tls,
    /// How long one attempt to connect may take, for each address.
    pub connect_timeout: Duration,
}

/// How the connection to the database is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Off for loopback and sockets, else as `VerifyFull`; `sslmode` in the connection string says otherwise.
    Auto,
    /// In clear text.
    Off,
    /// Encrypted, the server unknown.
    Require,
    /// Encrypted, the server's certificate and name checked.
    VerifyFull,
}

/// `[writers]`
#[derive(Clone, Debug)]
pub struct Writers {
    /// Writer threads, each with a connection while it has work.
    pub threads: NonZeroUsize,
    /// Jobs that may wait for a writer.
    pub queue: NonZeroUsize,
    /// Jobs that one transaction takes at most.
    pub batch: NonZeroUsize,
    /// How long a write may run.
    pub statement_timeout: Duration,
    /// How long a write may wait for a lock.
    pub lock_timeout: Duration,
    /// Events that one request may write.
    pub max_events: usize,
    /// The longest response of an operation, in bytes.
    pub max_response: usize,
    /// Committed answers that are kept in memory for replays; 0 for none.
    pub replay_cache: usize,
}

/// `[relay]`
#[derive(Clone, Debug)]
pub struct Relay {
    /// Relay threads.
    pub threads: NonZeroUsize,
    /// Events that one claim takes at most.
    pub batch: NonZeroUsize,
    /// How long a claimed event is the claimer's.
    pub lease: Duration,
    /// How often to look where no writer rings.
    pub poll: Duration,
    /// Database connections that the relay threads share.
    pub connections: NonZeroUsize,
    /// What a dead event does to its successors of the same order key.
    pub on_dead: OnDead,
    /// Attempts before an event is dead.
    pub max_attempts: u32,
    /// How long an event's attempts may fail before it is dead.
    pub give_up_after: Duration,
    /// The shortest wait after a failed attempt.
    pub backoff_min: Duration,
    /// The longest wait after a failed attempt.
    pub backoff_max: Duration,
}

/// What a dead event does to its successors of the same order key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// They go on.
    Continue,
    /// They wait until a person has decided about the dead one.
    Hold,
}

/// `[sink]`
#[derive(Clone, Debug)]
pub struct Sink {
    /// Where events are posted: `https://…` or `http://…`, no user, no password, no fragment.
    pub url: url::Url,
    /// The keys that sign, decoded: every one signs every attempt.
    pub secrets: Vec<Secret<Vec<u8>>>,
    /// Certificates that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// How long one attempt may take, from the connection to the end of the reply.
    pub timeout: Duration,
    /// Allow addresses that are not public.
    pub allow_private: bool,
    /// A proxy for all attempts: `http://HOST:PORT`.
    pub proxy: Option<url::Url>,
}

/// `[retention]`; `None` means never.
#[derive(Clone, Debug)]
pub struct Retention {
    /// How long a record is kept at least.
    pub records: Option<Duration>,
    /// How long a sent event is kept at least.
    pub events: Option<Duration>,
    /// How long a dead or discarded event is kept at least.
    pub dead: Option<Duration>,
    /// How long the bare key outlives its record; off where `None`.
    pub tombstones: Option<Duration>,
    /// How often the pruner comes by.
    pub every: Duration,
    /// Rows that one delete takes at most.
    pub batch: NonZeroUsize,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A level (`error` to `trace`), or a filter as `tracing` knows it.
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[[principals]]`: somebody who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name, which is also the scope of its keys.
    pub name: String,
    /// SHA-256 hashes of its bearer tokens.
    pub token_sha256: Vec<[u8; 32]>,
    /// The operations it may call; `None` for all.
    pub operations: Option<Vec<String>>,
}
