use proptest::prelude::*;

use super::{BadKey, IdempotencyKey, KEY_CHARACTERS_MAX};

fn parse(value: &str) -> Result<IdempotencyKey, BadKey> {
    IdempotencyKey::parse_header([value].into_iter())
}

#[track_caller]
fn assert_key(value: &str, key: &str) {
    assert_eq!(parse(value).as_ref().map(IdempotencyKey::as_str), Ok(key), "{value}");
}

#[test]
fn no_header_is_told_apart_from_an_invalid_one() {
    assert_eq!(IdempotencyKey::parse_header(std::iter::empty()), Err(BadKey::Missing));
}

#[test]
fn two_headers_are_refused_even_if_equal() {
    assert_eq!(IdempotencyKey::parse_header(["K", "K"].into_iter()), Err(BadKey::Repeated));
    assert_eq!(IdempotencyKey::parse_header(["", "K"].into_iter()), Err(BadKey::Repeated));
}

#[test]
fn a_key_of_nothing_or_of_spaces_is_empty() {
    for value in ["", "   ", "\t", r#""""#, r#""   ""#, r#""";p=1"#] {
        assert_eq!(parse(value), Err(BadKey::Empty), "{value:?}");
    }
}

#[test]
fn bare_and_quoted_are_one_key() {
    assert_key("demo-001", "demo-001");
    assert_key(r#""demo-001""#, "demo-001");
    assert_key(" \t\"demo-001\" \t", "demo-001");
    assert_key("  demo-001  ", "demo-001");
}

#[test]
fn letter_case_makes_another_key() {
    assert_ne!(parse("Abc-K"), parse("abc-K"));
}

#[test]
fn the_two_escapes_of_a_quoted_key_are_undone() {
    assert_key(r#""a\"b""#, r#"a"b"#);
    assert_key(r#""a\\b""#, r"a\b");
    assert_key(r#""\\\\\"""#, r#"\\""#);
}

#[test]
fn a_quoted_key_that_is_no_structured_string_is_refused() {
    assert_eq!(parse(r#""abc"#), Err(BadKey::Unclosed));
    assert_eq!(parse(r#"""#), Err(BadKey::Unclosed));
    assert_eq!(parse(r#""abc\""#), Err(BadKey::Unclosed));
    assert_eq!(parse(r#""abc\"#), Err(BadKey::Unclosed));
    assert_eq!(parse(r#""a\x""#), Err(BadKey::BadEscape { place: 3 }));
    assert_eq!(parse(r#""a"b""#), Err(BadKey::AfterQuote { place: 4 }));
    assert_eq!(parse(r#""a", "b""#), Err(BadKey::AfterQuote { place: 4 }));
}

#[test]
fn parameters_are_never_part_of_a_quoted_key() {
    for parameters in [
        ";p=1",
        ";p",
        ";  p;q=tok/en:*",
        ";*a_-.*=-12.345",
        r#";p="a\"b";q=?0"#,
        ";p=:YWJj:",
        ";p=@1700000000",
        r#";p=%"f%c3%bc""#,
    ] {
        assert_key(&format!("\"abc\"{parameters}"), "abc");
    }
}

#[test]
fn what_follows_a_quoted_key_must_be_well_formed() {
    for after in [
        ";",
        "; ",
        " ;p",
        ";P=1",
        ";1=1",
        ";p=",
        ";p= 1",
        ";p =1",
        ";p=1 ;q",
        ";p=?2",
        ";p=:a",
        ";p=:?:",
        ";p=@1.5",
        ";p=1.2345",
        ";p=1.",
        ";p=-",
        ";p=1234567890123456",
        ";p=%a",
        r#";p=""#,
        r#";p=%"%C3""#,
        r#";p=%"%c""#,
        r#";p=%""#,
        ",x",
        "x",
        " x",
        ";p=1,",
        "=1",
        ";p=1234567890123.1",
    ] {
        let refusal = parse(&format!("\"abc\"{after}"));
        assert_eq!(refusal, Err(BadKey::AfterQuote { place: 6 }), "{after}");
    }
}

#[test]
fn a_bare_key_holds_nothing_that_needs_quotes() {
    for (value, character, place) in [
        (r#"abc""#, '"', 4),
        (r"a\b", '\\', 2),
        ("K, K", ',', 2),
        ("K,K", ',', 2),
        ("abc;p=1", ';', 4),
        ("a b", ' ', 2),
    ] {
        assert_eq!(parse(value), Err(BadKey::NeedsQuotes { character, place }), "{value}");
    }
}

#[test]
fn other_kinds_of_structured_fields_are_plain_bare_keys() {
    for value in [":YWJj:", "?1", "@1", "12", "a/b?c#d", "%00", "..", "$1", "{a:1}", "'x'"] {
        assert_key(value, value);
    }
}

#[test]
fn keys_that_look_like_code_are_plain_keys_when_quoted() {
    for key in ["'; drop table outbox_events;--", r#"{"a":1}"#, r"C:\x", "a, b;c", "a  b"] {
        let key = IdempotencyKey::from_text(key).unwrap();
        assert_eq!(parse(&key.to_header()).as_ref(), Ok(&key));
    }
}

#[test]
fn a_space_at_an_end_is_refused_and_one_within_is_not() {
    assert_eq!(parse(r#"" a""#), Err(BadKey::OuterSpace));
    assert_eq!(parse(r#""a ""#), Err(BadKey::OuterSpace));
    assert_eq!(IdempotencyKey::from_text(" a"), Err(BadKey::OuterSpace));
    assert_key(r#""a b""#, "a b");
}

#[test]
fn the_longest_key_has_255_characters_without_quotes_and_escapes() {
    let longest = "k".repeat(KEY_CHARACTERS_MAX);
    assert_key(&longest, &longest);
    assert_key(&format!("\"{longest}\""), &longest);
    let escaped = "\\\"".repeat(KEY_CHARACTERS_MAX);
    assert_key(&format!("\"{escaped}\""), &"\"".repeat(KEY_CHARACTERS_MAX));
    for (length, key) in [(256, format!("{longest}k")), (10_000, "k".repeat(10_000))] {
        let too_long = Err(BadKey::TooLong { characters: length });
        assert_eq!(parse(&key), too_long);
        assert_eq!(parse(&format!("\"{key}\"")), too_long);
        assert_eq!(IdempotencyKey::from_text(&key), too_long);
    }
}

#[test]
fn control_characters_and_text_beyond_ascii_are_refused() {
    for (value, character, place) in [
        ("a\u{0}b", '\u{0}', 2),
        ("\"a\tb\"", '\t', 3),
        ("a\tb", '\t', 2),
        ("a\u{7f}", '\u{7f}', 2),
        ("é", 'é', 1),
        ("\"é\"", 'é', 2),
        ("\u{a0}K", '\u{a0}', 1),
        ("\"a\";p=\"é\"", 'é', 8),
    ] {
        assert_eq!(parse(value), Err(BadKey::NotAscii { character, place }), "{value:?}");
    }
    assert_eq!(
        IdempotencyKey::from_text("K\n"),
        Err(BadKey::NotAscii { character: '\n', place: 2 })
    );
}

#[test]
fn every_refusal_says_what_is_wrong() {
    let texts: Vec<String> = [
        parse("\"a"),
        parse(""),
        parse(r#""a\x""#),
        parse(r#""a"b"#),
        parse("a b"),
        parse("é"),
        parse(&"k".repeat(300)),
        parse(r#"" a""#),
        IdempotencyKey::parse_header(["a", "b"].into_iter()),
        IdempotencyKey::parse_header(std::iter::empty()),
    ]
    .into_iter()
    .map(|refusal| refusal.unwrap_err().to_string())
    .collect();
    for (index, text) in texts.iter().enumerate() {
        assert!(text.contains("key") || text.contains("Key"), "{text}");
        assert!(!texts[..index].contains(text), "{text}");
    }
    assert_eq!(
        parse("\u{e9}").unwrap_err().to_string(),
        "the idempotency key holds the character U+00E9 at place 1; \
         only visible ASCII and spaces between are allowed"
    );
}

proptest! {
    #[test]
    fn a_key_is_found_again_in_its_header(text in "[!-~]([ -~]{0,253}[!-~])?") {
        let key = IdempotencyKey::from_text(&text).unwrap();
        prop_assert_eq!(key.as_str(), text);
        prop_assert_eq!(parse(&key.to_header()), Ok(key));
    }

    #[test]
    fn a_bare_key_is_the_quoted_one(text in "[!#-+\\--:<-\\[\\]-~]{1,255}") {
        let quoted = parse(&format!("\"{text}\"")).unwrap();
        prop_assert_eq!(quoted.as_str(), text.as_str());
        prop_assert_eq!(parse(&text), Ok(quoted));
    }

    #[test]
    fn any_header_gives_a_valid_key_or_a_refusal(value in "[ \t\"\\\\,;=a-c:?%@é\u{7f}-]{0,12}|.{0,300}") {
        if let Ok(key) = parse(&value) {
            prop_assert_eq!(IdempotencyKey::from_text(key.as_str()), Ok(key.clone()));
            prop_assert!(value.contains('"') || value.trim_matches([' ', '\t']) == key.as_str());
        }
    }
}
