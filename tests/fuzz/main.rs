//! What holds for every input, however it was made: the readers of bodies, keys and configurations, and the front.
//!
//! A run of the tests replays the corpora in `__fuzz__` and a bounded number of inputs made at random; `scripts/fuzz`
//! goes on for as long as it is told to. An input that fails is shown with a seed that makes it again; as a file in the
//! corpus it stays a test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails, and says why")]

mod body; // JSON, and its canonical form
mod config; // the configuration file
mod front; // bytes on a connection
mod key; // the Idempotency-Key header
mod spell; // inputs out of words, so that chance gets somewhere
