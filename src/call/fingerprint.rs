//! The fingerprint: which request a key stands for. `docs/fingerprint.md` has the recipe for other programs.

#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};

use super::canonical::Canonical;

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

/// A way to make a fingerprint. One that was ever released stays, because records outlive programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    /// `v1:` and the SHA-256 of the operation's name, a zero byte and the canonical body.
    V1,
}

impl Fingerprint {
    /// The fingerprint of a request to the operation of this name, which has no zero byte.
    pub fn of(operation: &str, canonical: &Canonical) -> Fingerprint {
        let mut digest = Sha256::new();
        digest.update(operation);
        digest.update([0]);
        canonical.pieces().for_each(|piece| digest.update(piece));
        let mut text = String::with_capacity(3 + 64);
        text.push_str("v1:");
        for byte in digest.finalize() {
            text.push(hex_digit(byte >> 4));
            text.push(hex_digit(byte & 0xf));
        }
        Fingerprint(text)
    }

    /// The text that the record stores.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares with what a record has stored. Text that is not exactly of a known recipe's form is
    /// [`Comparison::UnknownRecipe`]: it can neither be confirmed nor called another request.
    pub fn compare(&self, stored: &str) -> Comparison {
        match Recipe::of(stored) {
            Some(Recipe::V1) if self.0 == stored => Comparison::Same,
            Some(Recipe::V1) => Comparison::Different,
            None => Comparison::UnknownRecipe,
        }
    }
}

/// The name of the recipe that a stored fingerprint says it was made by, for the log: the text before its colon.
pub fn recipe_name(stored: &str) -> &str {
    stored.split_once(':').map_or("", |(name, _)| name)
}

impl Recipe {
    fn of(stored: &str) -> Option<Recipe> {
        let (name, hash) = stored.split_once(':')?;
        let is_hash =
            hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (name == "v1" && is_hash).then_some(Recipe::V1)
    }
}

fn hex_digit(value: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(value)])
}
