//! As much of structured fields (RFC 9651) as one key needs: a string, and the form of parameters after it.

/// What is wrong with a string.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadString {
    /// It does not end.
    Unclosed,
    /// A backslash before something that is neither a quote nor a backslash.
    Escape {
        /// The backslash's offset in bytes.
        offset: usize,
    },
}

/// Reads a string (§4.2.5) from text that begins with `"` and is visible ASCII and spaces: its value, and what follows.
pub(super) fn string(text: &str) -> Result<(String, &str), BadString> {
    let mut value = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((offset, character)) = characters.next() {
        match character {
            '"' => return Ok((value, &text[offset + 1..])),
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                Some(_) => return Err(BadString::Escape { offset }),
                None => return Err(BadString::Unclosed),
            },
            _ => value.push(character),
        }
    }
    Err(BadString::Unclosed)
}

/// Whether the whole of `text` is a possibly empty list of parameters (§4.2.3.2).
pub(super) fn are_parameters(mut text: &str) -> bool {
    while let Some(parameter) = text.strip_prefix(';') {
        let name = parameter.trim_start_matches(' ');
        let Some(rest) = without_name(name) else { return false };
        text = match rest.strip_prefix('=') {
            Some(value) => match without_bare_item(value) {
                Some(rest) => rest,
                None => return false,
            },
            None => rest,
        };
    }
    text.is_empty()
}

/// What follows a parameter's name (§4.2.3.3).
fn without_name(text: &str) -> Option<&str> {
    text.starts_with(|c: char| c.is_ascii_lowercase() || c == '*').then(|| {
        text.trim_start_matches(|c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c)
        })
    })
}

/// What follows a bare item (§4.2.3.1) of any kind.
fn without_bare_item(text: &str) -> Option<&str> {
    match text.bytes().next()? {
        b'"' => string(text).ok().map(|(_, rest)| rest),
        b':' => without_bytes(&text[1..]),
        b'?' => text[1..].strip_prefix(['0', '1']),
        b'@' => without_number(&text[1..], &[]),
        b'%' => without_display_string(text[1..].strip_prefix('"')?),
        b'-' | b'0'..=b'9' => without_number(text, &[1, 2, 3]),
        b'*' | b'A'..=b'Z' | b'a'..=b'z' => Some(text.trim_start_matches(|c: char| {
            c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c)
        })),
        _ => None,
    }
}

/// What follows an integer of at most 15 digits, or a decimal of at most 12 before the point and as many after it as
/// `fraction_digits` allows (§4.2.4).
fn without_number<'a>(text: &'a str, fraction_digits: &[usize]) -> Option<&'a str> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (whole_digits, rest) = without_digits(text);
    match rest.strip_prefix('.') {
        Some(fraction) => {
            let (digits, rest) = without_digits(fraction);
            ((1..=12).contains(&whole_digits) && fraction_digits.contains(&digits)).then_some(rest)
        }
        None => (1..=15).contains(&whole_digits).then_some(rest),
    }
}

fn without_digits(text: &str) -> (usize, &str) {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (text.len() - rest.len(), rest)
}

/// What follows a byte sequence (§4.2.7), after its first colon.
fn without_bytes(text: &str) -> Option<&str> {
    text.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "+/=".contains(c))
        .strip_prefix(':')
}

/// What follows a display string (§4.2.10), after `%"`. What its escapes mean does not matter here.
fn without_display_string(text: &str) -> Option<&str> {
    let (content, rest) = text.split_once('"')?;
    let well_escaped = content.split('%').skip(1).all(|after| {
        after.len() >= 2 && after.bytes().take(2).all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    well_escaped.then_some(rest)
}
