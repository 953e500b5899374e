//! The idempotency key and whose it is.
//!
//! The header follows the IETF draft "The Idempotency-Key HTTP Header Field": a structured-field string (RFC 9651),
//! or, as most callers send it, the bare text. Both ways of writing give one key.

mod structured;
#[cfg(test)]
mod tests;

use std::fmt;

/// How many characters a key may have, without its quotes.
pub const KEY_CHARACTERS_MAX: usize = 255;

/// The caller's name for one business intent: 1 to 255 characters of visible ASCII and inner spaces, unquoted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(String);

/// The principal that a key belongs to; empty where nobody authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(String);

/// Why there is no key. [`BadKey::Missing`] stands apart, the others are kinds of an invalid key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// There is no header.
    #[error(
        "the header Idempotency-Key is missing; \
         send one key per business intent, and the same one on every retry"
    )]
    Missing,
    /// There is more than one header.
    #[error("the header Idempotency-Key is there more than once; send exactly one")]
    Repeated,
    /// Nothing is left after unquoting, or spaces alone.
    #[error("the idempotency key is empty; it has 1 to {KEY_CHARACTERS_MAX} characters")]
    Empty,
    /// The key is longer than [`KEY_CHARACTERS_MAX`]. It is never cut short: two keys must not become one.
    #[error(
        "the idempotency key has {characters} characters; \
         at most {KEY_CHARACTERS_MAX} are allowed, without the quotes"
    )]
    TooLong {
        /// How many it has.
        characters: usize,
    },
    /// A space stands at an end of the key.
    #[error("the idempotency key begins or ends with a space; send it without")]
    OuterSpace,
    /// A control character, or one that is not ASCII.
    #[error(
        "the idempotency key holds the character U+{:04X} at place {place}; \
         only visible ASCII and spaces between are allowed",
        u32::from(*character)
    )]
    NotAscii {
        /// The first such character.
        character: char,
        /// Its place in the header's value or the given text, counted from 1.
        place: usize,
    },
    /// A bare key with a character that only a quoted one may hold.
    #[error(
        "the bare idempotency key holds {character:?} at place {place}; \
         put the key in double quotes, with a backslash before each \" and \\ in it"
    )]
    NeedsQuotes {
        /// The first such character.
        character: char,
        /// Its place in the header's value, counted from 1.
        place: usize,
    },
    /// A quoted key without its closing quote.
    #[error("the quoted idempotency key has no closing quote; end it with \"")]
    Unclosed,
    /// A backslash in a quoted key before something that is neither a quote nor a backslash.
    #[error(
        "the quoted idempotency key has a backslash at place {place} that escapes nothing; \
         only \\\" and \\\\ are allowed"
    )]
    BadEscape {
        /// The backslash's place in the header's value, counted from 1.
        place: usize,
    },
    /// Text after the closing quote that is no well-formed list of parameters.
    #[error(
        "something follows the closing quote of the idempotency key at place {place} \
         that is no structured-field parameter; end the header after the quote"
    )]
    AfterQuote {
        /// The place in the header's value where the text begins, counted from 1.
        place: usize,
    },
}

impl IdempotencyKey {
    /// Reads the key from the values of all `Idempotency-Key` headers of a request.
    ///
    /// A value that begins with `"` is a structured-field string (RFC 9651 §4.2.5): visible ASCII and spaces, with
    /// `\"` and `\\` as its only escapes. Parameters after it must be well formed and are ignored. Any other value is
    /// a bare key: visible ASCII without `"`, `\`, `,` and `;`, so that what a proxy makes of two headers (`K, K`)
    /// is not taken for another key. Spaces and tabs around the value belong to the header, not to the key.
    pub fn parse_header<'a>(
        mut values: impl Iterator<Item = &'a str>,
    ) -> Result<IdempotencyKey, BadKey> {
        let value = values.next().ok_or(BadKey::Missing)?;
        if values.next().is_some() {
            return Err(BadKey::Repeated);
        }
        let trimmed = value.trim_matches([' ', '\t']);
        refuse_beyond_ascii(trimmed)?;
        if trimmed.starts_with('"') {
            return IdempotencyKey::from_text(&unquote(trimmed)?);
        }
        if let Some((character, place)) =
            first(trimmed, |character| matches!(character, ' ' | '"' | '\\' | ',' | ';'))
        {
            return Err(BadKey::NeedsQuotes { character, place });
        }
        IdempotencyKey::from_text(trimmed)
    }

    /// Takes a key as it is, without quotes and escapes: from a path that was percent-decoded, or the command line.
    pub fn from_text(text: &str) -> Result<IdempotencyKey, BadKey> {
        refuse_beyond_ascii(text)?;
        if text.trim_matches(' ').is_empty() {
            return Err(BadKey::Empty);
        }
        if text.starts_with(' ') || text.ends_with(' ') {
            return Err(BadKey::OuterSpace);
        }
        if text.len() > KEY_CHARACTERS_MAX {
            return Err(BadKey::TooLong { characters: text.len() });
        }
        Ok(IdempotencyKey(text.to_owned()))
    }

    /// The key's text, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of an `Idempotency-Key` header for this key: always quoted, which is right for every key.
    pub fn to_header(&self) -> String {
        let mut value = String::with_capacity(self.0.len() + 2);
        value.push('"');
        for character in self.0.chars() {
            if matches!(character, '"' | '\\') {
                value.push('\\');
            }
            value.push(character);
        }
        value.push('"');
        value
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for IdempotencyKey {
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

/// The key in a quoted value that begins with `"` and is ASCII.
fn unquote(value: &str) -> Result<String, BadKey> {
    let (key, rest) = structured::string(value).map_err(|bad| match bad {
        structured::BadString::Unclosed => BadKey::Unclosed,
        structured::BadString::Escape { offset } => BadKey::BadEscape { place: offset + 1 },
    })?;
    if !structured::are_parameters(rest) {
        return Err(BadKey::AfterQuote { place: value.len() - rest.len() + 1 });
    }
    Ok(key)
}

fn refuse_beyond_ascii(text: &str) -> Result<(), BadKey> {
    match first(text, |character| !matches!(character, ' '..='~')) {
        Some((character, place)) => Err(BadKey::NotAscii { character, place }),
        None => Ok(()),
    }
}

/// The first character that `is_meant`, and its place counted from 1.
fn first(text: &str, is_meant: impl Fn(char) -> bool) -> Option<(char, usize)> {
    text.chars().zip(1..).find(|(character, _)| is_meant(*character))
}
