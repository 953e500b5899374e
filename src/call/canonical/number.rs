//! Numbers: from their spelling to the exact plain decimal.
//!
//! The limit of [`DIGITS_MAX`] is on the number *written out*, as PostgreSQL shows it when it is stored as `jsonb`: the
//! exponent is applied; before the point stand no needless zeros, but at least one digit; after the point stand all
//! digits that the spelling implies, also zeros at the end. So `1e399` has 400 digits and is taken, and refused are
//! `1e400`, `1e-400` (`0.` and 400 digits), `0e-20000` (`0.` and 20,000 zeros, which PostgreSQL does not take) and
//! `1000e-400`. Zero times a power of ten is `0`, so `0e400` is taken. An exponent beyond ±[`EXPONENT_MAX`] is refused
//! whatever it is applied to, as PostgreSQL does not take it even for a zero.

use std::ops::Range;

use super::ZEROS_MARK;
use super::bad_body::{Flaw, Wrong};

/// How many digits a number may have when it is written out.
pub(super) const DIGITS_MAX: usize = 400;

/// The greatest exponent that is applied.
const EXPONENT_MAX: i64 = 999_999_999;

/// Fewer zeros than these are written out; a mark and a count take three bytes.
const MARKED_ZEROS_MIN: usize = 8;

/// The parts of a number's spelling.
pub(super) struct Literal {
    negative: bool,
    whole: Range<usize>,
    fraction: Range<usize>,
    exponent: i64,
    end: usize,
}

/// Reads the number that begins at `at` (RFC 8259 §6).
pub(super) fn scan(text: &[u8], at: usize) -> Result<Literal, Wrong> {
    let negative = text[at] == b'-';
    let whole = digits(text, at + usize::from(negative), Flaw::NoDigit)?;
    if whole.len() > 1 && text[whole.start] == b'0' {
        return Err(Wrong { at: whole.start, flaw: Flaw::LeadingZero });
    }
    let fraction = match text.get(whole.end) {
        Some(b'.') => digits(text, whole.end + 1, Flaw::NoFraction)?,
        _ => whole.end..whole.end,
    };
    let mut literal = Literal { negative, whole, end: fraction.end, fraction, exponent: 0 };
    if let Some(b'e' | b'E') = text.get(literal.end) {
        let sign = text.get(literal.end + 1).copied();
        let begin = literal.end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        let exponent = digits(text, begin, Flaw::NoExponent)?;
        let size = text[exponent.clone()].iter().fold(0_i64, |size, digit| {
            size.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
        });
        if size > EXPONENT_MAX {
            return Err(Wrong { at, flaw: Flaw::NumberTooLong });
        }
        literal.exponent = if sign == Some(b'-') { -size } else { size };
        literal.end = exponent.end;
    }
    Ok(literal)
}

/// The digits from `begin` on, of which there is at least one.
fn digits(text: &[u8], begin: usize, none: Flaw) -> Result<Range<usize>, Wrong> {
    let rest = text.get(begin..).unwrap_or_default();
    match rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len()) {
        0 => Err(Wrong { at: begin, flaw: none }),
        count => Ok(begin..begin + count),
    }
}

impl Literal {
    /// Where its spelling ends.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Writes the number as a plain decimal. `scratch` is room for its digits.
    pub(super) fn write(
        &self,
        text: &[u8],
        scratch: &mut Vec<u8>,
        packed: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        if self.end == self.whole.end {
            return self.write_integer(&text[self.whole.clone()], packed);
        }
        scratch.clear();
        scratch.extend_from_slice(&text[self.whole.clone()]);
        scratch.extend_from_slice(&text[self.fraction.clone()]);
        let zeros = scratch.iter().take_while(|digit| **digit == b'0').count();
        let significant =
            scratch.iter().rposition(|digit| *digit != b'0').map_or(zeros, |last| last + 1);
        let digits = &scratch[zeros..significant];
        // The point stands before the digit of this index: beyond the digits where zeros follow them, below 0 where
        // zeros go before.
        let point = signed(self.whole.len()) + self.exponent - signed(zeros);
        let places = (signed(self.fraction.len()) - self.exponent).max(0);
        let before_point = if digits.is_empty() { 1 } else { point.max(1) };
        if before_point + places > signed(DIGITS_MAX) {
            return Err(self.too_long());
        }
        if digits.is_empty() {
            packed.push(b'0');
            return Ok(());
        }
        if self.negative {
            packed.push(b'-');
        }
        match usize::try_from(point) {
            Ok(point) if point >= digits.len() => {
                packed.extend_from_slice(digits);
                push_zeros(packed, point - digits.len());
            }
            Ok(point) if point > 0 => {
                packed.extend_from_slice(&digits[..point]);
                packed.push(b'.');
                packed.extend_from_slice(&digits[point..]);
            }
            Ok(_) | Err(_) => {
                packed.extend_from_slice(b"0.");
                push_zeros(packed, usize::try_from(-point).unwrap_or_default());
                packed.extend_from_slice(digits);
            }
        }
        Ok(())
    }

    fn write_integer(&self, digits: &[u8], packed: &mut Vec<u8>) -> Result<(), Wrong> {
        if digits.len() > DIGITS_MAX {
            return Err(self.too_long());
        }
        if self.negative && digits != b"0" {
            packed.push(b'-');
        }
        packed.extend_from_slice(digits);
        Ok(())
    }

    fn too_long(&self) -> Wrong {
        Wrong { at: self.whole.start - usize::from(self.negative), flaw: Flaw::NumberTooLong }
    }
}

fn push_zeros(packed: &mut Vec<u8>, count: usize) {
    match u16::try_from(count) {
        Ok(marked) if count >= MARKED_ZEROS_MIN => {
            packed.push(ZEROS_MARK);
            packed.extend_from_slice(&marked.to_be_bytes());
        }
        Ok(_) | Err(_) => packed.resize(packed.len() + count, b'0'),
    }
}

/// A length of a slice, which is never more than `isize::MAX`.
fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
