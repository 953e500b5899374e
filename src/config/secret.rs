//! A value that must never reach a log, an error or a metric.

use std::fmt;

/// Holds a secret: it has no `Display`, and its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a secret.
    pub fn new(value: T) -> Secret<T> {
        Secret(value)
    }

    /// The secret itself. Every use of this name is a place to look at.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_tell() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2"))), "Some(Secret(…))");
    }
}
