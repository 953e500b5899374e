//! The tests against the real thing: the daemon's binary, sockets, a PostgreSQL, a sink.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and says why"
)]
#![expect(unreachable_pub, reason = "nobody can use a test from outside")]

mod outbox; // what the tests of the relays share
mod support;
mod testbed; // what the tests of the store share

mod abuse; // harm that is meant: memory, threads and service stay as they were
mod acceptance; // the acceptance of the contract, A1 to A7
mod admin; // the operator's page and its API
mod batches; // requests that share a transaction do not notice each other
mod call; // the caller's half of the command line
mod canonical; // what a body may be, asked of PostgreSQL
#[path = "../torture/checker.rs"]
mod checker;
mod clock; // clocks that are set, a daemon that is frozen
mod commands; // the command line: tokens, the sink, configuration, verify
mod counts; // what a write costs, in counts that no machine changes
mod crash; // kill -9, a database that goes away, sessions that are ended
mod database; // connections: settings, bounds, recovery
mod delivery; // every event arrives, and what fails is not lost from sight
mod dev; // the private cluster, and everything that `onced dev` starts
mod disk; // a disk that is full
mod failover; // a server that is restarted, demoted or succeeded by another
#[cfg(feature = "fail-points")]
mod faults; // the process dies at a named place on an event's way
mod foreign_verifier; // signatures, checked by code that is not ours
mod framing; // HTTP that could be read two ways, or never ends
#[path = "../torture/history.rs"]
mod history;
mod https; // a sink behind TLS
mod json; // which bodies are the same request, and which are none
mod keys; // which keys are the same key, and which are none
mod leases; // no event is with two relays at a time
mod limits; // sizes, counts, and readers that do not read
mod lookup; // what is stored of a key
mod manual; // what the documents show is what happens
mod one_answer; // P2: the same bytes at every call
mod one_effect; // P1: whoever else is working on the key
mod outbox_commands; // what an operator does about events and records
mod poolers; // PgBouncer between the daemon and PostgreSQL
mod principals; // tokens, scopes, who may call what
mod proxies; // behind nginx and HAProxy
mod refusals; // what is stored as a refusal, and what leaves the key unused
mod replays; // the cache of replays
mod retention; // what is old goes, and nothing else
mod rights; // what the daemon may do in the database
mod schema; // migrations, setup, operations that fit or not, records
mod security; // who may call, and what is told to whom
mod starting; // good starts, and starts that must be refused
mod statements; // every statement of ours fits the schema
mod stopping; // signals: every accepted request is answered
mod tidy; // rules of the source that a machine can see
mod tls; // the connection to PostgreSQL, encrypted
mod torture_checker; // the checker of the torture run objects to every kind of wrong history
