//! What a caller asked, checked: pure, no I/O, no HTTP framing, no PostgreSQL.

pub mod canonical;
pub mod fingerprint;
pub mod key;

use std::sync::Arc;

use crate::operations::Operation;
pub use canonical::{BadBody, Body};
pub use fingerprint::{Comparison, Fingerprint};
pub use key::{BadKey, IdempotencyKey, Scope};

/// One checked request for an operation.
#[derive(Clone, Debug)]
pub struct Call {
    /// Whose key it is.
    pub scope: Scope,
    /// The caller's name for one intent.
    pub key: IdempotencyKey,
    /// What is asked for.
    pub operation: Arc<Operation>,
    /// The digest of operation and canonical body.
    pub fingerprint: Fingerprint,
    /// The body as the caller wrote it: valid JSON that PostgreSQL takes as `jsonb`.
    pub body: Body,
}

/// Reads the body of a request to the operation of this name: the body as it was sent, and the request's fingerprint.
///
/// # Errors
/// [`BadBody`] where the body is not strict JSON, or is JSON that PostgreSQL's `jsonb` would not hold.
pub fn read_body(operation_name: &str, body: Vec<u8>) -> Result<(Body, Fingerprint), BadBody> {
    let (body, canonical) = canonical::read(body)?;
    let fingerprint = Fingerprint::of(operation_name, &canonical);
    Ok((body, fingerprint))
}
