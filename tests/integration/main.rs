//! The tests that need the real things: PostgreSQL, sockets, processes.

mod database; // connections: settings, recovery, TLS, migrations
//! The tests that need more than the library: PostgreSQL, processes, sockets.

mod canonical; // what a body may be, asked of PostgreSQL
