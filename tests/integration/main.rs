//! The tests that need more than the library: PostgreSQL, processes, sockets.
//! Everything that is tested from the outside.

mod canonical; // what a body may be, asked of PostgreSQL
mod commands; // the command line: tokens, the sink, configuration, verify
mod database; // connections: settings, recovery, TLS, migrations
mod dev; // the private cluster, and everything that `onced dev` starts
mod statements; // every statement of ours fits the schema
