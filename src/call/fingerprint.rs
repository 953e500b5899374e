//! The fingerprint: which request a key stands for.

/// The digest of an operation's name and a canonical body, by the newest recipe. Its text is `v1:` and 64 hex digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(String);

/// How a stored fingerprint compares with a call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The record was made by the same request.
    Same,
    /// The record was made by another request.
    Different,
    /// The record was made by a recipe that this program does not know.
    UnknownRecipe,
}

impl Fingerprint {
    /// The text that the record stores.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
