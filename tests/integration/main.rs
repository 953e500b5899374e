//! The tests against the real thing: sockets, a PostgreSQL, a sink.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on fails, and says why"
)]
#![expect(unreachable_pub, reason = "nobody can use a test from outside")]

mod outbox;

mod delivery; // every event arrives, and what fails is not lost from sight
mod leases; // no event is with two relays at a time
mod retention; // what is old goes, and nothing else
