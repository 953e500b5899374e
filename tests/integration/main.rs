//! Everything that is tested from the outside.

mod canonical; // what a body may be, asked of PostgreSQL
