//! The body: strict JSON, read once, and its canonical form.

/// A body that was found to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(String);

impl Body {
    /// The JSON text as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
