//! The tests that need the real things: PostgreSQL, sockets, processes.

mod commands; // the command line: tokens, the sink, configuration, verify
mod database; // connections: settings, recovery, TLS, migrations
mod dev; // the private cluster, and everything that `onced dev` starts
