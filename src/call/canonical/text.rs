//! Strings: their plain stretches, and the canonical escapes.

/// Where the bytes from `from` on stop being those of a string that are copied as they stand: at a quote, a backslash,
/// a control character, or the end. Eight bytes at a time, by the usual arithmetic on a word.
pub(super) fn end_of_plain(text: &[u8], from: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut at = from;
    while let Some(chunk) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let quotes = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslashes = below(word ^ (ONES * u64::from(b'\\')), 1);
        // A borrow can mark a byte wrongly only above one that is rightly marked, so the lowest mark is right.
        let special = below(word, 0x20) | quotes | backslashes;
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = text.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')).unwrap_or(rest.len())
}

/// Writes a character of a string in canonical form, and says whether that is an escape.
pub(super) fn push_character(packed: &mut Vec<u8>, character: char) -> bool {
    let short = match character {
        '"' | '\\' => character,
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\0'..' ' => {
            let code = u32::from(character);
            packed.extend_from_slice(if code < 0x10 { b"\\u000" } else { b"\\u001" });
            packed.extend(char::from_digit(code % 0x10, 16).map(|digit| digit as u8));
            return true;
        }
        _ => {
            packed.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return false;
        }
    };
    packed.push(b'\\');
    packed.extend(short.encode_utf8(&mut [0; 4]).bytes());
    true
}

/// The bytes that a canonical spelling stands for.
pub(super) fn unescaped(spelling: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = spelling;
    std::iter::from_fn(move || {
        let (byte, after) = match rest {
            [b'\\', b'u', _, _, high, low, after @ ..] => {
                let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default();
                (u8::try_from(value(*high) * 16 + value(*low)).unwrap_or_default(), after)
            }
            [b'\\', b'b', after @ ..] => (8, after),
            [b'\\', b'f', after @ ..] => (0xc, after),
            [b'\\', b'n', after @ ..] => (b'\n', after),
            [b'\\', b'r', after @ ..] => (b'\r', after),
            [b'\\', b't', after @ ..] => (b'\t', after),
            [b'\\', same, after @ ..] => (*same, after),
            [same, after @ ..] => (*same, after),
            [] => return None,
        };
        rest = after;
        Some(byte)
    })
}
