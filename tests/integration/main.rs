//! The tests that need the real things: PostgreSQL, sockets, processes.

mod database; // connections: settings, recovery, TLS, migrations
mod statements; // every statement of ours fits the schema
