use bolero::check;
use onced::call::canonical::{DEPTH_MAX, read};
use serde::de::IgnoredAny;

use crate::spell::{assert_is_fit_to_print, spell};

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "{}",
    "[]",
    "\"\"",
    "\"a\"",
    "\"b\"",
    "\"\\u0061\"",
    "\"a\":",
    "\"b\":",
    "\"\\u00e9\":",
    "1",
    "0",
    "-0",
    "-",
    "1.0",
    "1e0",
    "0.50",
    "1e399",
    "1e400",
    "1e-399",
    "1e-400",
    "0e-20000",
    "1e99999999999999999999",
    "123456789012345678901234567890",
    "9007199254740993",
    ".",
    "e",
    "+",
    "00",
    "true",
    "false",
    "null",
    " ",
    "\n",
    "\t",
    "\r",
    "\\",
    "\\n",
    "\\/",
    "\\u0000",
    "\\u001f",
    "\\ud800",
    "\\ud83d\\ude00",
    "\\udc00",
    "\u{feff}",
    "é",
    "😀",
    "\u{7f}",
    "\u{1}",
    "[[[[[[[[[[[[[[[[",
    "]]]]]]]]]]]]]]]]",
    "{\"a\":{\"a\":{\"a\":",
    "}}}",
    "00000000000000000000000000000000000000000000000000",
];

/// The most that a number is, written out: a sign, a point and the digits.
const NUMBER_MAX: usize = 403;

#[test]
fn bodies() {
    check!().with_iterations(3000).for_each(|input: &[u8]| {
        let body = spell(input, WORDS);
        match read(body.clone()) {
            Ok((kept, canonical)) => {
                assert_eq!(kept.as_str().as_bytes(), body);
                serde_json::from_slice::<IgnoredAny>(&body).expect("what is taken is JSON");
                let text = canonical.to_string();
                // The form says all, and is its own.
                let (_, again) =
                    read(text.clone().into_bytes()).expect("the canonical form is a body");
                assert_eq!(again.to_string(), text);
                // What it takes is bounded by what there is to read: at most one run of zeros for each two bytes, and
                // nothing is longer than a number written out.
                assert!(canonical.pieces().count() <= body.len() + 1, "{text}");
                assert!(text.len() <= body.len().div_ceil(2) * NUMBER_MAX, "{text}");
                assert!(depth(&text) <= DEPTH_MAX);
            }
            Err(bad) => {
                assert!(bad.byte <= body.len(), "{bad}");
                assert_is_fit_to_print(&bad.to_string(), 300);
            }
        }
    });
}

fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
