//! The tests that need more than the library: PostgreSQL, processes, sockets.

mod canonical; // what a body may be, asked of PostgreSQL
