//! The body: strict JSON, read once, and its canonical form.
//!
//! The reader is our own, because a JSON library gives values: it has dropped the first of two members of one name,
//! and turned numbers into floats or kept them as they were spelled. A fingerprint needs the former refused and the
//! latter made exact, and PostgreSQL's `jsonb`, which takes the body as text, refuses things of its own (`\u0000`,
//! numbers out of range) that must not reach it.
//!
//! Canonical is: UTF-8, no white space; the members of an object sorted by the UTF-8 bytes of their names; strings
//! with the shortest escapes (`\"`, `\\`, `\b`, `\f`, `\n`, `\r`, `\t`, and `\u00xx` in lower case for the other
//! characters below U+0020; nothing else is escaped, not even U+007F); numbers as exact plain decimals. Two bodies have
//! one canonical form exactly if PostgreSQL calls them equal as `jsonb`.
//!
//! It reads in one pass, on a stack of its own (so a small thread stack is enough), in time and memory linear in the
//! body but for the sorting. Where an object's names come already sorted, nothing is sorted.

mod bad_body;
mod number;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use bad_body::Wrong;
pub use bad_body::{BadBody, Expected, Flaw};

/// How deep arrays and objects may be nested: `[[]]` is 2 deep, a scalar 0.
pub const DEPTH_MAX: usize = 64;

/// A body that was found to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(String);

/// The canonical form of a body.
///
/// Long runs of zeros of a number such as `1e399` are kept as a mark and a count, so that it never takes much more
/// room than the body itself, whose length is bounded. Two forms are compared by their text: zeros that were spelled out
/// and zeros that an exponent stood for are kept differently.
#[derive(Clone)]
pub struct Canonical {
    packed: Vec<u8>,
}

/// Reads a body. PostgreSQL takes as `jsonb` whatever is read here, if it has at most 32 MiB: a longer array of small
/// numbers can grow past what one `jsonb` may hold.
///
/// # Errors
/// [`BadBody`] says what is wrong with it, and where.
pub fn read(body: Vec<u8>) -> Result<(Body, Canonical), BadBody> {
    let text = match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            return Err(BadBody::new(error.as_bytes(), Wrong { at, flaw: Flaw::NotUtf8 }));
        }
    };
    match Reader::new(text.as_bytes()).read() {
        Ok(canonical) => Ok((Body(text), canonical)),
        Err(wrong) => Err(BadBody::new(text.as_bytes(), wrong)),
    }
}

impl Body {
    /// The JSON text as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Stands before the two bytes of a count of zeros. UTF-8 never has it.
const ZEROS_MARK: u8 = 0xff;

impl Canonical {
    /// The canonical text, in pieces of any length.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        const ZEROS: [u8; number::DIGITS_MAX] = [b'0'; number::DIGITS_MAX];
        let mut rest = self.packed.as_slice();
        std::iter::from_fn(move || {
            if let [ZEROS_MARK, high, low, after @ ..] = rest {
                rest = after;
                return Some(&ZEROS[..usize::from(u16::from_be_bytes([*high, *low]))]);
            }
            let end = rest.iter().position(|byte| *byte == ZEROS_MARK).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            rest = after;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Marks stand inside numbers only, so no piece ends within a character.
        self.pieces().try_for_each(|piece| f.write_str(&String::from_utf8_lossy(piece)))
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Canonical({self})")
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    /// The canonical form so far.
    packed: Vec<u8>,
    /// What is open around `at`, outermost first: at most [`DEPTH_MAX`].
    open: Vec<Open>,
    /// The members of all open objects, each object's together.
    members: Vec<Member>,
    /// Room for putting members in order, and for a number's digits.
    scratch: Vec<u8>,
}

enum Open {
    Array,
    Object {
        /// Its first member in `Reader::members`.
        first_member: usize,
        /// Whether each name so far is greater than the one before, so that none is there twice.
        ascending: bool,
    },
}

struct Member {
    /// Where the name begins in the text.
    at: usize,
    /// Where the name without its quotes stands in `Reader::packed`.
    name: Range<usize>,
    /// Whether the name has an escape there.
    escaped: bool,
    /// Where the value ends in `Reader::packed`; known when the value was read.
    end: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Reader<'a> {
        Reader {
            text,
            at: 0,
            packed: Vec::with_capacity(text.len()),
            open: Vec::new(),
            members: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn read(mut self) -> Result<Canonical, Wrong> {
        if self.text.starts_with("\u{feff}".as_bytes()) {
            return Err(self.wrong(Flaw::ByteOrderMark));
        }
        if self.next_token().is_none() {
            return Err(Wrong { at: 0, flaw: Flaw::Empty });
        }
        while !(self.begin_value()? && self.after_value()?) {}
        match self.next_token() {
            None => Ok(Canonical { packed: self.packed }),
            Some(_) => Err(self.unexpected(Expected::End)),
        }
    }

    /// Reads a scalar or an empty container whole and says true, or opens a container up to its first value.
    fn begin_value(&mut self) -> Result<bool, Wrong> {
        match self.next_token() {
            Some(b'"') => self.read_string().map(|_| true),
            Some(b'-' | b'0'..=b'9') => self.read_number().map(|()| true),
            Some(b'{') => {
                self.open(Open::Object { first_member: self.members.len(), ascending: true })?;
                if self.next_token() == Some(b'}') {
                    self.close(b'}');
                    return Ok(true);
                }
                self.read_name().map(|()| false)
            }
            Some(b'[') => {
                self.open(Open::Array)?;
                if self.next_token() == Some(b']') {
                    self.close(b']');
                    return Ok(true);
                }
                Ok(false)
            }
            Some(b't') => self.read_word(b"true"),
            Some(b'f') => self.read_word(b"false"),
            Some(b'n') => self.read_word(b"null"),
            _ => Err(self.unexpected(Expected::Value)),
        }
    }

    /// Goes on after a whole value: closes what ends here. True: the outermost value is whole; false: another begins.
    fn after_value(&mut self) -> Result<bool, Wrong> {
        loop {
            let in_array = match self.open.last() {
                None => return Ok(true),
                Some(Open::Array) => true,
                Some(Open::Object { .. }) => false,
            };
            if !in_array && let Some(member) = self.members.last_mut() {
                member.end = self.packed.len();
            }
            match self.next_token() {
                Some(b',') => {
                    self.at += 1;
                    self.packed.push(b',');
                    if !in_array {
                        self.next_token();
                        self.read_name()?;
                    }
                    return Ok(false);
                }
                Some(b']') if in_array => self.close(b']'),
                Some(b'}') if !in_array => {
                    self.settle_members()?;
                    self.close(b'}');
                }
                _ if in_array => return Err(self.unexpected(Expected::CommaOrBracket)),
                _ => return Err(self.unexpected(Expected::CommaOrBrace)),
            }
        }
    }

    fn open(&mut self, what: Open) -> Result<(), Wrong> {
        if self.open.len() == DEPTH_MAX {
            return Err(self.wrong(Flaw::TooDeep));
        }
        self.open.push(what);
        self.packed.push(self.text[self.at]);
        self.at += 1;
        Ok(())
    }

    fn close(&mut self, bracket: u8) {
        self.open.pop();
        self.packed.push(bracket);
        self.at += 1;
    }

    /// Reads a member's name and its colon.
    fn read_name(&mut self) -> Result<(), Wrong> {
        let at = self.at;
        if self.text.get(at) != Some(&b'"') {
            return Err(self.unexpected(Expected::Name));
        }
        let begin = self.packed.len() + 1;
        let escaped = self.read_string()?;
        let name = begin..self.packed.len() - 1;
        let member = Member { at, name, escaped, end: 0 };
        if let Some(Open::Object { first_member, ascending }) = self.open.last_mut() {
            let before = self.members[*first_member..].last();
            *ascending &= before.is_none_or(|before| {
                compare_names(&self.packed, before, &member) == Ordering::Less
            });
        }
        self.members.push(member);
        if self.next_token() != Some(b':') {
            return Err(self.unexpected(Expected::Colon));
        }
        self.at += 1;
        self.packed.push(b':');
        Ok(())
    }

    /// Puts the members of the innermost object, all read, in order, and refuses a name that is there twice.
    ///
    /// Comparing and sorting, and no hash table, so that no choice of names makes it slow.
    fn settle_members(&mut self) -> Result<(), Wrong> {
        let Some(Open::Object { first_member, ascending }) = self.open.last() else {
            return Ok(());
        };
        let (first_member, ascending) = (*first_member, *ascending);
        if !ascending {
            let begin = self.members[first_member].name.start - 1;
            let members = &mut self.members[first_member..];
            members.sort_unstable_by(|a, b| compare_names(&self.packed, a, b));
            let twice = members
                .windows(2)
                .filter(|pair| compare_names(&self.packed, &pair[0], &pair[1]) == Ordering::Equal)
                .map(|pair| if pair[0].at > pair[1].at { &pair[0] } else { &pair[1] })
                .min_by_key(|member| member.at);
            if let Some(Member { at, name, .. }) = twice {
                let name = String::from_utf8_lossy(&self.packed[name.clone()]);
                let flaw = Flaw::NameTwice { name: bad_body::shorten(&name) };
                return Err(Wrong { at: *at, flaw });
            }
            self.scratch.clear();
            for member in members {
                self.scratch.extend_from_slice(&self.packed[member.name.start - 1..member.end]);
                self.scratch.push(b',');
            }
            self.scratch.pop();
            self.packed.truncate(begin);
            self.packed.extend_from_slice(&self.scratch);
        }
        self.members.truncate(first_member);
        Ok(())
    }

    /// Reads the string that begins at `at`, and says whether its canonical form has an escape.
    fn read_string(&mut self) -> Result<bool, Wrong> {
        let mut escaped = false;
        let mut copied = self.at;
        let mut at = self.at + 1;
        loop {
            at = text::end_of_plain(self.text, at);
            match self.text.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    self.packed.extend_from_slice(&self.text[copied..self.at]);
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    self.packed.extend_from_slice(&self.text[copied..at]);
                    self.at = at;
                    escaped |= self.read_escape()?;
                    at = self.at;
                    copied = at;
                }
                Some(control) => {
                    return Err(Wrong { at, flaw: Flaw::ControlInString { code: *control } });
                }
                None => return Err(Wrong { at: self.text.len(), flaw: Flaw::UnclosedString }),
            }
        }
    }

    /// Reads the escape that begins at `at`, and says whether its canonical form is an escape too.
    fn read_escape(&mut self) -> Result<bool, Wrong> {
        let (character, length) = match self.text.get(self.at + 1) {
            Some(b'u') => self.escaped_code()?,
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(same @ (b'"' | b'\\' | b'/')) => (char::from(*same), 2),
            Some(_) => return Err(self.wrong(Flaw::BadEscape)),
            None => return Err(Wrong { at: self.text.len(), flaw: Flaw::UnclosedString }),
        };
        self.at += length;
        Ok(text::push_character(&mut self.packed, character))
    }

    /// The character that `\uXXXX`, or two of them, at `at` stand for, and their length.
    fn escaped_code(&self) -> Result<(char, usize), Wrong> {
        let unit_at = |at: usize| match self.text.get(at..at + 6) {
            Some([b'\\', b'u', digits @ ..]) => digits.iter().try_fold(0, |unit, digit| {
                char::from(*digit).to_digit(16).map(|value| unit * 16 + value)
            }),
            _ => None,
        };
        let unit = unit_at(self.at).ok_or_else(|| self.wrong(Flaw::BadEscape))?;
        let (code, length) = match (unit, unit_at(self.at + 6)) {
            (0, _) => return Err(self.wrong(Flaw::NulInString)),
            (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
                (0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00), 12)
            }
            _ => (unit, 6),
        };
        match char::from_u32(code) {
            Some(character) => Ok((character, length)),
            None => Err(self.wrong(Flaw::LoneSurrogate)),
        }
    }

    fn read_number(&mut self) -> Result<(), Wrong> {
        let literal = number::scan(self.text, self.at)?;
        literal.write(self.text, &mut self.scratch, &mut self.packed)?;
        self.at = literal.end();
        Ok(())
    }

    /// Reads one of the words of JSON, of which the first letter is there.
    fn read_word(&mut self, word: &[u8]) -> Result<bool, Wrong> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.unexpected(Expected::Value));
        }
        self.packed.extend_from_slice(word);
        self.at += word.len();
        Ok(true)
    }

    /// Skips white space. What stands at `at` then, or nothing at the end.
    fn next_token(&mut self) -> Option<u8> {
        loop {
            match self.text.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    fn wrong(&self, flaw: Flaw) -> Wrong {
        Wrong { at: self.at, flaw }
    }

    fn unexpected(&self, expected: Expected) -> Wrong {
        self.wrong(bad_body::unexpected(&self.text[self.at..], expected))
    }
}

/// Compares by the UTF-8 bytes of the names themselves, not of their canonical spelling.
fn compare_names(packed: &[u8], a: &Member, b: &Member) -> Ordering {
    let (a_name, b_name) = (&packed[a.name.clone()], &packed[b.name.clone()]);
    if a.escaped || b.escaped {
        text::unescaped(a_name).cmp(text::unescaped(b_name))
    } else {
        a_name.cmp(b_name)
    }
}
