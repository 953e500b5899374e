//! What can be wrong with a body, in words for the caller.

use std::fmt;

use super::DEPTH_MAX;
use super::number::DIGITS_MAX;

/// How many characters of the caller's own text an error repeats.
const SHOWN_MAX: usize = 40;

/// What is wrong with a body, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flaw} (line {line}, column {column}, byte {byte})")]
pub struct BadBody {
    /// What is wrong.
    pub flaw: Flaw,
    /// How many bytes stand before it.
    pub byte: usize,
    /// Its line, counted from 1.
    pub line: usize,
    /// Its column, counted from 1 in characters.
    pub column: usize,
}

/// The kinds of faults of a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Nothing, or white space alone.
    #[error("the body is empty; send a JSON value")]
    Empty,
    /// Bytes that are no UTF-8, among them UTF-16.
    #[error("the body is not valid UTF-8")]
    NotUtf8,
    /// U+FEFF at the beginning.
    #[error("the body begins with a byte order mark; send UTF-8 without one")]
    ByteOrderMark,
    /// Something else than the grammar has here.
    #[error("{expected} is expected here, not {found}")]
    Unexpected {
        /// What would be right.
        expected: Expected,
        /// What is there, in words.
        found: String,
    },
    /// More than [`DEPTH_MAX`] arrays and objects in each other.
    #[error("arrays and objects are nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// A member's name that was there before in the same object.
    #[error("the member name \"{name}\" is there twice in one object")]
    NameTwice {
        /// The name as JSON has it, cut short where it is long.
        name: String,
    },
    /// A string that does not end.
    #[error("the body ends within a string")]
    UnclosedString,
    /// A control character as it stands in a string.
    #[error("the control character U+{code:04X} in a string must be written as an escape")]
    ControlInString {
        /// The character.
        code: u8,
    },
    /// A backslash before what is no escape of JSON.
    #[error("a backslash is followed by no valid escape; write \\\\ for a backslash itself")]
    BadEscape,
    /// The character U+0000, which PostgreSQL keeps in no text.
    #[error("\\u0000 cannot be stored by the database; leave it out")]
    NulInString,
    /// Half of a surrogate pair.
    #[error("a \\u escape is one half of a surrogate pair without the other")]
    LoneSurrogate,
    /// A zero before other digits.
    #[error("a number has no zeros before its first digit")]
    LeadingZero,
    /// A minus sign alone.
    #[error("a digit is expected after the minus sign")]
    NoDigit,
    /// A point alone.
    #[error("a digit is expected after the decimal point")]
    NoFraction,
    /// An `e` alone.
    #[error("a digit is expected in the exponent")]
    NoExponent,
    /// More than 400 digits, written out.
    #[error("a number written out as a plain decimal has more than {DIGITS_MAX} digits")]
    NumberTooLong,
}

/// What the grammar of JSON has at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any value.
    Value,
    /// The name of a member, after `{` or a comma.
    Name,
    /// What follows a name.
    Colon,
    /// What follows a value in an array.
    CommaOrBracket,
    /// What follows a member in an object.
    CommaOrBrace,
    /// The end of the body, after its one value.
    End,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Expected::Value => "a JSON value",
            Expected::Name => "a member name in double quotes",
            Expected::Colon => "a colon after the member name",
            Expected::CommaOrBracket => "a comma or ]",
            Expected::CommaOrBrace => "a comma or }",
            Expected::End => "the end of the body",
        })
    }
}

/// A flaw, and how many bytes stand before it: what the reader says, until the line is counted for the caller.
pub(super) struct Wrong {
    pub(super) at: usize,
    pub(super) flaw: Flaw,
}

impl BadBody {
    /// Finds the line and the column of what is wrong with `body`, which is UTF-8 up to there.
    pub(super) fn new(body: &[u8], Wrong { at, flaw }: Wrong) -> BadBody {
        let before = &body[..at];
        let line_begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |lf| lf + 1);
        BadBody {
            flaw,
            byte: at,
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + String::from_utf8_lossy(&before[line_begin..]).chars().count(),
        }
    }
}

/// The flaw that something else than `expected` stands at the beginning of `rest`.
pub(super) fn unexpected(rest: &[u8], expected: Expected) -> Flaw {
    let word = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let found = match rest.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
        None => "the end of the body".to_owned(),
        Some(_) if word > 1 => format!("{:?}", shorten(&String::from_utf8_lossy(&rest[..word]))),
        Some(character) => format!("{:?}", character.to_string()),
    };
    Flaw::Unexpected { expected, found }
}

/// Text of the caller's, cut short where it is long.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
