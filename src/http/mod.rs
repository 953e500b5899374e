//! The callers' side: routes, principals, keys, answers. It writes nothing to the database, and only `front` knows how
//! a request is framed.

pub mod answer;
pub mod auth;
pub mod front;
pub mod host;
pub mod problem;
mod request;
pub(crate) mod request_id;

pub use request::{Api, Needs};
pub(crate) use request::{malformed, not_allowed, percent_decoded};
