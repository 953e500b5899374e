use bolero::check;
use onced::call::IdempotencyKey;
use onced::call::key::{BadKey, KEY_CHARACTERS_MAX};

use crate::spell::{assert_is_fit_to_print, spell};

const WORDS: &[&str] = &[
    "\"",
    "\"a\"",
    "a",
    "demo-001",
    "\\",
    "\\\"",
    "\\\\",
    ";",
    "; a=1",
    ";a",
    ";a=\"b\"",
    ";a=?1",
    ";a=:aGk=:",
    ";a=1.5",
    ";*a",
    ";A",
    ",",
    " ",
    "\t",
    "%2F",
    "é",
    "\u{7f}",
    "\u{0}",
    "\n",
    "0123456789012345678901234567890123456789012345678901234567890123",
    "=",
    "?",
    "~",
    "!",
];

/// Each line of the input is the value of one header.
#[test]
fn keys() {
    check!().with_iterations(3000).for_each(|input: &[u8]| {
        let spelled = spell(input, WORDS);
        let text = String::from_utf8_lossy(&spelled);
        match IdempotencyKey::parse_header(text.split('\n')) {
            Ok(key) => {
                let plain = key.as_str();
                assert!((1..=KEY_CHARACTERS_MAX).contains(&plain.len()), "{plain:?}");
                assert!(plain.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{plain:?}");
                assert_eq!(plain.trim(), plain);
                assert!(!text.contains('\n'), "one key of two headers");
                // However it is written, it is this key.
                let quoted = key.to_header();
                assert_eq!(
                    IdempotencyKey::parse_header([quoted.as_str()].into_iter()).as_ref(),
                    Ok(&key)
                );
                assert_eq!(IdempotencyKey::from_text(plain).as_ref(), Ok(&key));
                // A bare value is its own key: nothing is cut off or added.
                let value = text.trim_matches([' ', '\t']);
                assert!(value.starts_with('"') || value == plain, "{value:?} is {plain:?}");
            }
            Err(BadKey::Missing) => panic!("there is a header"),
            Err(bad) => assert_is_fit_to_print(&bad.to_string(), 300),
        }
    });
}
