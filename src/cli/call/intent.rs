//! The key of a call: as it was given, or made of what identifies the intent.

use sha2::{Digest, Sha256};

use crate::call::IdempotencyKey;
use crate::call::key::KEY_CHARACTERS_MAX;

/// How many characters of the digest end a key that would be too long.
const TAIL: usize = 64;

/// What identifies an intent, and its idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    /// The whole text, however long.
    pub(super) text: String,
    pub(super) key: IdempotencyKey,
}

impl Intent {
    /// A key that the caller made.
    pub(super) fn of_key(key: &str) -> Result<Intent, String> {
        let key = IdempotencyKey::from_text(key).map_err(|bad| format!("--key: {bad}"))?;
        Ok(Intent { text: key.as_str().to_owned(), key })
    }

    /// A key made of `name=value` parts, each argument holding one or, divided by commas, several. Equal parts give an
    /// equal key, in whatever order they come: they are sorted by name, and everything but letters, digits and
    /// `-._~:/@` is percent-encoded. What is longer than a key may be ends in `#` and the SHA-256 of the whole, so
    /// that two intents never share a key. `#` stands in no other key of this kind.
    pub(super) fn of_parts(arguments: &[String]) -> Result<Intent, String> {
        let mut parts = Vec::new();
        for part in arguments.iter().flat_map(|argument| argument.split(',')) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                format!("--key-from: {part:?} is not NAME=VALUE; a comma in a value is written %2C")
            })?;
            if name.is_empty() {
                return Err(format!("--key-from: {part:?} has no name before the ="));
            }
            if value.is_empty() {
                let why = "an unset variable must not make two intents one";
                return Err(format!("--key-from: {name} has no value: {why}"));
            }
            parts.push((encode(name), encode(value)));
        }
        parts.sort();
        if let Some(pair) = parts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("--key-from: {} is there twice", pair[0].0));
        }
        let parts: Vec<String> =
            parts.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = parts.join("&");
        let key = IdempotencyKey::from_text(&shortened(&text));
        let key = key.map_err(|bad| format!("--key-from: {bad}"))?;
        Ok(Intent { text, key })
    }
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn shortened(text: &str) -> String {
    if text.len() <= KEY_CHARACTERS_MAX {
        return text.to_owned();
    }
    let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}#{digest}", &text[..KEY_CHARACTERS_MAX - TAIL - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        Intent::of_parts(&parts).unwrap().key.as_str().to_owned()
    }

    fn refused(part: &str) -> String {
        Intent::of_parts(&[part.to_owned()]).unwrap_err()
    }

    #[test]
    fn the_order_of_the_parts_does_not_matter() {
        let expected = "date=2026-12-01&job=billing";
        assert_eq!(key(&["job=billing,date=2026-12-01"]), expected);
        assert_eq!(key(&["date=2026-12-01", "job=billing"]), expected);
    }

    #[test]
    fn what_a_bare_key_may_not_hold_is_encoded_and_no_two_intents_meet() {
        assert_eq!(key(&["a=x y&b;\"é"]), "a=x%20y%26b%3B%22%C3%A9");
        assert_eq!(key(&["a=b=c"]), "a=b%3Dc");
        assert_ne!(key(&["a=1%2C2"]), key(&["a=1", "2=x"]));
        assert_ne!(key(&["a=b&c=d"]), key(&["a=b,c=d"]));
    }

    #[test]
    fn a_long_intent_has_a_key_of_the_longest_length_that_tells_the_whole() {
        let long = |end: char| key(&[&format!("a={}{end}", "x".repeat(400))]);
        assert_eq!(long('1').len(), KEY_CHARACTERS_MAX);
        assert_ne!(long('1'), long('2'));
        assert_eq!(key(&[&format!("a={}", "x".repeat(253))]).len(), KEY_CHARACTERS_MAX);
        assert!(!key(&[&format!("a={}", "x".repeat(253))]).contains('#'));
        assert!(long('1').starts_with("a=xxx") && long('1').contains('#'));
    }

    #[test]
    fn parts_that_identify_nothing_are_refused() {
        assert!(refused("date=").contains("no value"));
        assert!(refused("=x").contains("no name"));
        assert!(refused("x").contains("NAME=VALUE"));
        assert!(refused("a=1,a=2").contains("twice"));
        assert!(refused("").contains("NAME=VALUE"));
    }
}
