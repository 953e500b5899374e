//! The callers' side: routes, principals, keys, answers. It writes nothing to the database.

pub mod front;
