//! `onced` makes retried writes safe: it stands in front of PostgreSQL, and a write sent with an `Idempotency-Key`
//! takes effect once, however often it is sent and whatever crashes in between.
//!
//! Three constraints carry it all:
//!
//! 1. The caller makes one stable key per business intent and keeps it on every retry.
//! 2. The key is unique in the database: the idempotency record, the business rows and the outbox events commit in
//!    one transaction or not at all.
//! 3. Notification is asynchronous: events are rows first, and relay threads publish them after the commit.
//!
//! The modules stand in the order in which a request, and then its events, meet them.

pub mod call; // what a caller asked: key, scope, canonical body, fingerprint; pure
pub mod operations; // what a write does: the configured SQL behind a route
pub mod outcome; // what came of a call; pure
pub mod pending; // the two ends of one answer

pub mod http; // the callers' side: framing, routes, principals, answers
pub mod reader; // look-ups of stored outcomes
pub mod writer; // jobs in, outcomes out: batches, parked duplicates

pub mod store; // every statement, and all that knows PostgreSQL

pub mod pruner; // retention
pub mod relay; // the outbox, from row to webhook

pub mod admin; // the operator's listener: health, metrics, API
pub mod config; // the file: raw to checked
pub mod observe; // every fact worth telling: log lines and metrics
pub mod prober; // whether the database answers
pub mod signals; // signals and the service manager
pub mod threads; // named threads, the panic fence, the loop of a poller

pub mod daemon; // builds every actor, connects them, stops them in order

pub mod cli; // the command line
