//! What a caller asked, checked: pure, no I/O, no HTTP framing, no PostgreSQL.

pub mod canonical;
pub mod fingerprint;
pub mod key;

use std::sync::Arc;

use crate::operations::Operation;
pub use canonical::Body;
pub use fingerprint::Fingerprint;
pub use key::{IdempotencyKey, Scope};

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
