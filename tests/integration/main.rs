//! The tests that need more than the library: PostgreSQL, processes, sockets.

mod testbed; // what the tests of the store share

mod canonical; // what a body may be, asked of PostgreSQL
mod database; // connections: settings, bounds, recovery
mod commands; // the command line: tokens, the sink, configuration, verify
mod database; // connections: settings, recovery, TLS, migrations
mod dev; // the private cluster, and everything that `onced dev` starts
mod schema; // migrations, setup, operations that fit or not, records
mod statements; // every statement of ours fits the schema
mod tls; // the connection to PostgreSQL, encrypted
