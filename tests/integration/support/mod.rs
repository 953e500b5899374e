//! What the tests stand on: a database, the daemon's process, a client, a sink, a relay in between, and waiting.

pub mod client;
pub mod daemon;
pub mod load;
pub mod postgres;
pub mod proxy;
pub mod server;
pub mod sink;
pub mod trips;
pub mod vitals;
pub mod wait;

pub use client::{Answer, Client, Connection, fresh_key};
pub use daemon::{Daemon, Setup};
pub use postgres::{Counts, Database};
pub use vitals::Vitals;
