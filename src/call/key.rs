//! The idempotency key and whose it is.

use std::fmt;

/// The caller's name for one business intent: 1 to 255 characters of visible ASCII and inner spaces, unquoted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(String);

/// The principal that a key belongs to; empty where nobody authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(String);

impl IdempotencyKey {
    /// The key's text, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Scope {
    /// The scope of a principal.
    pub fn new(principal: impl Into<String>) -> Scope {
        Scope(principal.into())
    }

    /// The principal's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
