use proptest::prelude::*;

use super::{Canonical, DEPTH_MAX, Expected, Flaw, number::DIGITS_MAX, read};

fn canonical(body: &str) -> String {
    match read(body.into()) {
        Ok((kept, canonical)) => {
            assert_eq!(kept.as_str(), body);
            canonical.to_string()
        }
        Err(bad) => panic!("{body:.80}: {bad}"),
    }
}

#[track_caller]
fn assert_flaw(body: impl AsRef<[u8]>, flaw: &Flaw, byte: usize) {
    let body = body.as_ref();
    match read(body.to_vec()) {
        Ok((_, canonical)) => {
            panic!("{} was read as {canonical}", String::from_utf8_lossy(body));
        }
        Err(bad) => assert_eq!(
            (&bad.flaw, bad.byte),
            (flaw, byte),
            "{:.80}: {bad}",
            String::from_utf8_lossy(body)
        ),
    }
}

#[track_caller]
fn assert_unexpected(body: &str, expected: Expected, found: &str, byte: usize) {
    assert_flaw(body, &Flaw::Unexpected { expected, found: found.to_owned() }, byte);
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn order_space_and_escapes_do_not_matter() {
    let form = r#"{"a":1,"b":"é/"}"#;
    for body in [
        form,
        "{ \"b\" : \"\\u00e9\\/\" ,\n \"a\" : 1 }",
        "\t\r\n{\"\\u0062\":\"\\u00E9/\",\"a\":1}  ",
    ] {
        assert_eq!(canonical(body), form);
    }
    assert_eq!(canonical(r#"[{"b":{"d":1,"c":2},"a":[{"y":1,"x":2}]}]"#), {
        r#"[{"a":[{"x":2,"y":1}],"b":{"c":2,"d":1}}]"#
    });
}

#[test]
fn equal_numbers_are_one_however_they_are_spelled() {
    for (form, spellings) in [
        ("1", vec!["1", "1.0", "1e0", "10e-1", "1.000", "0.1e1", "1E-0", "100e-2"]),
        ("100", vec!["100", "1e2", "1E+2", "1.00e2", "100.0", "1e0000000000000000000000002"]),
        ("0.00005", vec!["0.00005", "0.5e-4", "5e-5", "0.000050", "0.0005e-1"]),
        ("0", vec!["0", "-0", "0.0", "-0.0", "0e5", "-0E-5", "0e999999999", "0.000e400"]),
        ("-12.34", vec!["-12.34", "-1234e-2", "-0.1234e2", "-12.3400"]),
        (
            "9007199254740993",
            vec!["9007199254740993", "9007199254740993.0", "9.007199254740993e15"],
        ),
        ("0.5", vec!["0.5", "0.50", "5e-1", "50E-2"]),
    ] {
        for spelling in spellings {
            assert_eq!(canonical(spelling), form, "{spelling}");
        }
    }
    assert_eq!(canonical("1.000000000000000000000001"), "1.000000000000000000000001");
}

#[test]
fn long_runs_of_zeros_are_written_out_in_the_form_but_take_no_room() {
    let zeros = |count: usize| "0".repeat(count);
    for count in [7, 8, 9, 255, 256, 257, 399] {
        assert_eq!(canonical(&format!("3e{count}")), format!("3{}", zeros(count)));
        assert_eq!(canonical(&format!("-3e-{count}")), format!("-0.{}3", zeros(count - 1)));
    }
    let form = format!("[5{},\"é\",0.{}5,-12{0}]", zeros(300), zeros(299));
    assert_eq!(canonical("[5e300, \"é\", 5e-300, -1.2e301]"), form);
    let body = format!("[{}1]", "1e399,".repeat(10_000));
    let (_, canonical) = read(body.clone().into()).unwrap();
    assert!(canonical.packed.len() <= body.len());
    assert_eq!(canonical.pieces().map(<[u8]>::len).sum::<usize>(), 10_000 * 401 + 3);
}

#[test]
fn a_number_has_at_most_400_digits_written_out() {
    let zeros = |count: usize| "0".repeat(count);
    for taken in [
        "9".repeat(DIGITS_MAX),
        format!("-{}", "9".repeat(DIGITS_MAX)),
        format!("0.{}", "9".repeat(DIGITS_MAX - 1)),
        format!("0.{}", zeros(DIGITS_MAX - 1)),
        format!("1{}e-1", zeros(DIGITS_MAX - 1)),
        "1e399".to_owned(),
        "1e-399".to_owned(),
        "0.5e400".to_owned(),
        "0e400".to_owned(),
        "0e-399".to_owned(),
        format!("0.{}5e1000", zeros(1000)),
    ] {
        canonical(&taken);
    }
    for refused in [
        "9".repeat(DIGITS_MAX + 1),
        format!("-{}", "9".repeat(DIGITS_MAX + 1)),
        format!("0.{}", "9".repeat(DIGITS_MAX)),
        format!("1.{}", zeros(DIGITS_MAX)),
        "1e400".to_owned(),
        "1e-400".to_owned(),
        "1000e-400".to_owned(),
        "0e-400".to_owned(),
        "0e-20000".to_owned(),
        // This is 5, a point and a thousand zeros.
        format!("5{}e-1000", zeros(1000)),
        "1e131071".to_owned(),
        "1e1000000000".to_owned(),
        "0e1000000000".to_owned(),
        "0e-1000000000".to_owned(),
        "1e9223372036854775807".to_owned(),
        "1e-9223372036854775808".to_owned(),
        "-1e99999999999999999999999999".to_owned(),
        "0e-99999999999999999999999999".to_owned(),
    ] {
        assert_flaw(&refused, &Flaw::NumberTooLong, 0);
        assert_flaw(format!("[1,{refused}]"), &Flaw::NumberTooLong, 3);
    }
}

#[test]
fn kinds_and_texts_that_differ_stay_apart() {
    for (one, other) in [
        ("1", "\"1\""),
        ("true", "\"true\""),
        ("{\"a\":null}", "{}"),
        ("[1,2]", "[2,1]"),
        ("[]", "{}"),
        ("\"é\"", "\"e\u{301}\""),
        ("\"a\"", "\"A\""),
        ("\"a\"", "\"a \""),
        ("null", "\"\""),
        ("[[1],2]", "[[1,2]]"),
        ("1", "1.000000000000000000000001"),
        ("9007199254740993", "9007199254740992"),
        ("\"\u{fffd}\"", "\"\u{fffe}\""),
    ] {
        assert_ne!(canonical(one), canonical(other));
    }
}

#[test]
fn names_are_sorted_by_their_utf8_bytes_and_not_by_their_spelling() {
    let form = "{\"\":5,\"Z\":4,\"a\":3,\"\u{ffff}\":2,\"😀\":1}";
    for body in [
        "{\"\u{ffff}\":2,\"😀\":1,\"a\":3,\"Z\":4,\"\":5}",
        "{\"\":5,\"\\ud83d\\ude00\":1,\"\\uffff\":2,\"Z\":4,\"a\":3}",
    ] {
        assert_eq!(canonical(body), form);
    }
    assert_eq!(
        canonical(r##"{"#":1,"\"":2,"!":3,"\\":4,"]":5,"[":6,"\n":7,"\u001f":8," ":9,"\b":0}"##),
        r##"{"\b":0,"\n":7,"\u001f":8," ":9,"!":3,"\"":2,"#":1,"[":6,"\\":4,"]":5}"##
    );
}

#[test]
fn names_are_sorted_by_code_points_whichever_of_them_are_escaped() {
    let spelled = |code: &u32| format!("\"\\u{code:04x}\":{code}");
    let codes: Vec<u32> = (1..0x100).collect();
    let descending: Vec<String> = codes.iter().rev().map(spelled).collect();
    let found = canonical(&format!("{{{}}}", descending.join(",")));
    let member = |code: &u32| {
        let name = char::from_u32(*code).unwrap().to_string();
        format!("{}:{code}", serde_json::to_string(&name).unwrap())
    };
    let ascending: Vec<String> = codes.iter().map(member).collect();
    assert_eq!(found, format!("{{{}}}", ascending.join(",")));
}

#[test]
fn strings_have_the_shortest_escapes() {
    for (body, form) in [
        (r#""\b\f\n\r\t\"\\""#, r#""\b\f\n\r\t\"\\""#),
        (r#""\u0008\u000C\u000a\u000d\u0009\u0022\u005c""#, r#""\b\f\n\r\t\"\\""#),
        (r#""\u0001\u000B\u001F""#, r#""\u0001\u000b\u001f""#),
        (r#""\/\u002f\u0041\u007f\u0080\u2028""#, "\"//A\u{7f}\u{80}\u{2028}\""),
        (r#""\ud83d\ude00 \uD83D\uDE00 😀""#, "\"😀 😀 😀\""),
        (r#""\\u0000""#, r#""\\u0000""#),
        (r#""\\\\""#, r#""\\\\""#),
    ] {
        assert_eq!(canonical(body), form);
    }
}

#[test]
fn a_name_twice_in_one_object_is_refused_at_any_depth_however_it_is_spelled() {
    let twice = |name: &str| Flaw::NameTwice { name: name.to_owned() };
    assert_flaw(r#"{"a":1,"a":1}"#, &twice("a"), 7);
    assert_flaw(r#"{"a":1,"b":2,"\u0061":3}"#, &twice("a"), 13);
    assert_flaw(r#"{"b":1,"a":1,"c":1,"b":2,"a":2}"#, &twice("b"), 19);
    assert_flaw(r#"[[{"x":{"a":1,"c":{},"b":2,"a":1}}]]"#, &twice("a"), 27);
    assert_flaw(r#"{"":1,"":2}"#, &twice(""), 6);
    assert_flaw(r#"{"\n":1,"z":0,"\u000a":2}"#, &twice("\\n"), 14);
    assert_flaw(
        format!("{{\"{0}\":1,\"{0}\":2}}", "é".repeat(50)),
        &twice(&format!("{}…", "é".repeat(40))),
        106,
    );
    canonical(r#"{"a":{"a":{"a":1}},"b":{"a":[{"a":1},{"a":1}]}}"#);
}

#[test]
fn the_character_nul_is_refused_in_any_string() {
    assert_flaw(r#"{"a":"x\u0000y"}"#, &Flaw::NulInString, 7);
    assert_flaw(r#"{"\u0000":1}"#, &Flaw::NulInString, 2);
    assert_flaw(r#"[[[{"a":["\\\u0000"]}]]]"#, &Flaw::NulInString, 12);
    assert_flaw("\"\0\"", &Flaw::ControlInString { code: 0 }, 1);
}

#[test]
fn half_a_surrogate_pair_is_refused() {
    for (body, byte) in [
        (r#""\ud800""#, 1),
        (r#""\udc00""#, 1),
        (r#""\ud800x""#, 1),
        (r#""\ud83c\ud83c""#, 1),
        (r#""\ude00\ud83d""#, 1),
        (r#""\ud83d\ude00\ud83d""#, 13),
        (r#""\ud83d\n""#, 1),
        (r#""\ud83d\u0041""#, 1),
        (r#""\ud83d\\ude00""#, 1),
    ] {
        assert_flaw(body, &Flaw::LoneSurrogate, byte);
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_stand() {
    for bytes in
        [&b"\xc3\x28"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xe2\x82"]
    {
        let body = [b"[\"\xc3\xa9", bytes, b"\"]"].concat();
        assert_flaw(&body, &Flaw::NotUtf8, 4);
        assert_eq!(read(body).unwrap_err().column, 4);
    }
    assert_flaw(b"\xff\xfe{\0}\0", &Flaw::NotUtf8, 0);
    assert_unexpected("{\0}\0", Expected::Name, "\"\\0\"", 1);
    assert_flaw("\u{feff}{}", &Flaw::ByteOrderMark, 0);
}

#[test]
fn an_empty_body_is_no_value() {
    for body in ["", " ", "\n\t\r "] {
        assert_flaw(body, &Flaw::Empty, 0);
    }
    for body in ["null", "{}", "\"\"", "[]", "0", "false"] {
        assert_eq!(canonical(&format!(" {body} ")), body);
    }
}

#[test]
fn what_is_almost_json_is_refused_with_its_place() {
    use Expected::{Colon, CommaOrBrace, CommaOrBracket, End, Name, Value};
    const NOTHING: &str = "the end of the body";
    for (body, expected, found, byte) in [
        ("NaN", Value, "\"NaN\"", 0),
        ("Infinity", Value, "\"Infinity\"", 0),
        ("{\"a\":1,}", Name, "\"}\"", 7),
        ("[1,]", Value, "\"]\"", 3),
        ("[,1]", Value, "\",\"", 1),
        ("[1,,2]", Value, "\",\"", 3),
        ("{'a':1}", Name, "\"'\"", 1),
        ("{a:1}", Name, "\"a\"", 1),
        ("{1:1}", Name, "\"1\"", 1),
        ("// c\n{}", Value, "\"/\"", 0),
        ("{} // c", End, "\"/\"", 3),
        ("+1", Value, "\"+\"", 0),
        (".5", Value, "\".\"", 0),
        ("{}{}", End, "\"{\"", 2),
        ("{} x", End, "\"x\"", 3),
        ("1 2", End, "\"2\"", 2),
        ("tru", Value, "\"tru\"", 0),
        ("True", Value, "\"True\"", 0),
        ("nulll", End, "\"l\"", 4),
        ("{\"a\" 1}", Colon, "\"1\"", 5),
        ("{\"a\"}", Colon, "\"}\"", 4),
        ("{\"a\":}", Value, "\"}\"", 5),
        ("{\"a\":1 \"b\":2}", CommaOrBrace, "\"\\\"\"", 7),
        ("[1 2]", CommaOrBracket, "\"2\"", 3),
        ("[1}", CommaOrBracket, "\"}\"", 2),
        ("{\"a\":1]", CommaOrBrace, "\"]\"", 6),
        ("]", Value, "\"]\"", 0),
        ("{", Name, NOTHING, 1),
        ("[", Value, NOTHING, 1),
        ("[1", CommaOrBracket, NOTHING, 2),
        ("[1,", Value, NOTHING, 3),
        ("{\"a\"", Colon, NOTHING, 4),
        ("{\"a\":", Value, NOTHING, 5),
        ("{\"a\":1", CommaOrBrace, NOTHING, 6),
        ("{\"a\":1,", Name, NOTHING, 7),
        ("0x10", End, "\"x10\"", 1),
        ("\u{a0}1", Value, "\"\\u{a0}\"", 0),
        ("\u{b}1", Value, "\"\\u{b}\"", 0),
        ("`", Value, "\"`\"", 0),
    ] {
        assert_unexpected(body, expected, found, byte);
    }
}

#[test]
fn numbers_and_strings_that_break_off_are_refused_with_their_place() {
    for (body, flaw, byte) in [
        ("01", Flaw::LeadingZero, 0),
        ("-01", Flaw::LeadingZero, 1),
        ("00", Flaw::LeadingZero, 0),
        ("-", Flaw::NoDigit, 1),
        ("-a", Flaw::NoDigit, 1),
        ("-.5", Flaw::NoDigit, 1),
        ("1.", Flaw::NoFraction, 2),
        ("1.e1", Flaw::NoFraction, 2),
        ("1e", Flaw::NoExponent, 2),
        ("1e+", Flaw::NoExponent, 3),
        ("1.5E-x", Flaw::NoExponent, 5),
        ("\"a\nb\"", Flaw::ControlInString { code: 0xa }, 2),
        ("\"0123456789\t\"", Flaw::ControlInString { code: 9 }, 11),
        ("\"\u{1f}\"", Flaw::ControlInString { code: 0x1f }, 1),
        ("\"", Flaw::UnclosedString, 1),
        ("\"abc", Flaw::UnclosedString, 4),
        ("\"abc\\", Flaw::UnclosedString, 5),
        ("\"\\x\"", Flaw::BadEscape, 1),
        ("\"\\'\"", Flaw::BadEscape, 1),
        ("\"\\u00g0\"", Flaw::BadEscape, 1),
        ("\"\\u+123\"", Flaw::BadEscape, 1),
        ("\"\\u12", Flaw::BadEscape, 1),
        ("\"\\U0041\"", Flaw::BadEscape, 1),
    ] {
        assert_flaw(body, &flaw, byte);
    }
}

#[test]
fn the_place_of_a_fault_is_told_by_line_and_column() {
    let bad = read("{\n  \"é\": 1,\n  \"b\": tru\n}".into()).unwrap_err();
    assert_eq!((bad.line, bad.column, bad.byte), (3, 8, 20));
    assert_eq!(
        bad.to_string(),
        "a JSON value is expected here, not \"tru\" (line 3, column 8, byte 20)"
    );
    let bad = read("[\"é😀\", x]".into()).unwrap_err();
    assert_eq!((bad.line, bad.column), (1, 8));
}

#[test]
fn nesting_ends_at_64() {
    assert_eq!(canonical(&nested(DEPTH_MAX)), nested(DEPTH_MAX));
    assert_flaw(nested(DEPTH_MAX + 1), &Flaw::TooDeep, DEPTH_MAX);
    let objects = |depth| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert_eq!(canonical(&objects(DEPTH_MAX)), objects(DEPTH_MAX));
    assert_flaw(objects(DEPTH_MAX + 1), &Flaw::TooDeep, 5 * DEPTH_MAX);
    assert_flaw("[".repeat(1_000_000), &Flaw::TooDeep, DEPTH_MAX);
    canonical(&format!("[{0},{0},{0}]", nested(DEPTH_MAX - 1)));
}

#[test]
fn many_members_in_any_order_are_sorted_and_checked() {
    let member = |i: usize| format!("\"k{}\":{i}", (i * 7919) % 20_011);
    let members: Vec<String> = (0..20_000).map(member).collect();
    let form = canonical(&format!("{{{}}}", members.join(",")));
    let reversed: Vec<String> = members.iter().rev().cloned().collect();
    assert_eq!(canonical(&format!("{{{}}}", reversed.join(","))), form);
    assert_eq!(form.len(), members.join(",").len() + 2);
    let body = format!("{{{},\"k7919\":0}}", members.join(","));
    let at = body.len() - "\"k7919\":0}".len();
    assert_flaw(&body, &Flaw::NameTwice { name: "k7919".to_owned() }, at);
}

/// Any value, with what the canonical form has to look after in it.
fn values() -> impl Strategy<Value = Json> {
    let text = "[a-c\"\\\\/\u{1}\u{8}\u{c}\n\r\t\u{1f} \u{7f}é\u{fffd}\u{ffff}😀]{0,9}";
    let scalar = prop_oneof![
        Just(Json::Word("null")),
        Just(Json::Word("true")),
        Just(Json::Word("false")),
        (any::<bool>(), "0|[1-9][0-9]{0,25}", "([0-9]{0,25}[1-9])?", 0..20_usize).prop_map(
            |(negative, whole, fraction, shift)| Json::Number { negative, whole, fraction, shift }
        ),
        text.prop_map(Json::Text),
    ];
    scalar.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::Array),
            prop::collection::btree_map(text, inner, 0..6)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

#[derive(Clone, Debug)]
enum Json {
    Word(&'static str),
    /// The number whose plain decimal has these digits before and after the point.
    Number {
        negative: bool,
        whole: String,
        fraction: String,
        shift: usize,
    },
    Text(String),
    Array(Vec<Json>),
    /// Sorted by the names' bytes.
    Object(Vec<(String, Json)>),
}

/// A source of choices: how to spell what has several spellings.
struct Choices<'a> {
    bytes: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl Choices<'_> {
    fn below(&mut self, limit: u8) -> u8 {
        self.bytes.next().map_or(0, |byte| byte % limit)
    }

    fn space(&mut self) -> &'static str {
        ["", "", " ", "\n", "\r\n\t", "  "][usize::from(self.below(6))]
    }
}

impl Json {
    /// The canonical form, by other means than the reader's.
    fn plain(&self) -> String {
        match self {
            Json::Word(word) => (*word).to_owned(),
            Json::Number { negative, whole, fraction, .. } => {
                let sign =
                    if *negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
                let point = if fraction.is_empty() { "" } else { "." };
                format!("{sign}{whole}{point}{fraction}")
            }
            // That library's escapes are those of the canonical form.
            Json::Text(text) => serde_json::to_string(text).unwrap(),
            Json::Array(items) => {
                let items: Vec<String> = items.iter().map(Json::plain).collect();
                format!("[{}]", items.join(","))
            }
            Json::Object(members) => {
                let member = |(name, value): &(String, Json)| {
                    format!("{}:{}", serde_json::to_string(name).unwrap(), value.plain())
                };
                let members: Vec<String> = members.iter().map(member).collect();
                format!("{{{}}}", members.join(","))
            }
        }
    }

    /// Some other way to write the same.
    fn spell(&self, choices: &mut Choices<'_>) -> String {
        let before = choices.space();
        let value = match self {
            Json::Word(word) => (*word).to_owned(),
            Json::Number { negative, whole, fraction, shift } => {
                let sign = if *negative { "-" } else { "" };
                let zeros = "0".repeat(usize::from(choices.below(3)));
                match choices.below(4) {
                    0 if fraction.is_empty() => format!("{sign}{whole}"),
                    0 | 1 => format!("{sign}{whole}.{fraction}0{zeros}E+0"),
                    // All digits after the point: d.ddd with an exponent that moves it back.
                    2 => format!("{sign}0.{zeros}{whole}{fraction}e{}", whole.len() + zeros.len()),
                    _ => {
                        let filler = "0".repeat(*shift);
                        let digits = format!("{whole}{fraction}{filler}");
                        let digits = digits.trim_start_matches('0');
                        let digits = if digits.is_empty() { "0" } else { digits };
                        format!("{sign}{digits}e-0{}", fraction.len() + shift)
                    }
                }
            }
            Json::Text(text) => spell_text(text, choices),
            Json::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| item.spell(choices)).collect();
                format!("[{}{}]", choices.space(), items.join(","))
            }
            Json::Object(members) => {
                let mut spelled: Vec<String> = members
                    .iter()
                    .map(|(name, value)| {
                        let name = spell_text(name, choices);
                        format!(
                            "{}{name}{}:{}",
                            choices.space(),
                            choices.space(),
                            value.spell(choices)
                        )
                    })
                    .collect();
                for last in (1..spelled.len()).rev() {
                    spelled.swap(last, usize::from(choices.below(255)) % (last + 1));
                }
                format!("{{{}{}}}", choices.space(), spelled.join(","))
            }
        };
        format!("{before}{value}{}", choices.space())
    }
}

fn spell_text(text: &str, choices: &mut Choices<'_>) -> String {
    let mut spelled = String::from("\"");
    for character in text.chars() {
        match choices.below(4) {
            0 => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    spelled.push_str(&format!("\\u{unit:04x}"));
                }
            }
            1 => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    spelled.push_str(&format!("\\u{unit:04X}"));
                }
            }
            2 if character == '/' => spelled.push_str("\\/"),
            _ => spelled.push_str(serde_json::to_string(&character).unwrap().trim_matches('"')),
        }
        // The escaped quote loses its own quote to the trimming.
        if spelled.ends_with('\\') && character == '"' {
            spelled.push('"');
        }
    }
    spelled.push('"');
    spelled
}

fn try_canonical(body: &[u8]) -> Option<Canonical> {
    read(body.to_vec()).ok().map(|(_, canonical)| canonical)
}

proptest! {
    #[test]
    fn no_spelling_changes_the_canonical_form(
        value in values(),
        bytes in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        let mut choices = Choices { bytes: bytes.iter().cycle() };
        let body = value.spell(&mut choices);
        let found = try_canonical(body.as_bytes()).map(|canonical| canonical.to_string());
        prop_assert_eq!(found, Some(value.plain()), "{}", body);
    }

    #[test]
    fn the_canonical_form_is_its_own(value in values()) {
        let form = value.plain();
        prop_assert_eq!(canonical(&form), form);
    }

    #[test]
    fn different_values_have_different_forms(one in values(), other in values()) {
        let same = one.plain() == other.plain();
        prop_assert_eq!(canonical(&one.plain()) == canonical(&other.plain()), same);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        try_canonical(&bytes);
    }

    #[test]
    fn what_is_near_json_is_taken_only_where_other_readers_take_it(
        value in values(),
        bytes in prop::collection::vec(any::<u8>(), 1..50),
        place in any::<prop::sample::Index>(),
        insert in "[\\[\\]{},:\"\\\\0-9eE.+\\-tfnu /\n\u{1}é]{0,3}",
        cut in 0..3_usize,
    ) {
        let mut body = value.spell(&mut Choices { bytes: bytes.iter().cycle() }).into_bytes();
        let at = place.index(body.len() + 1);
        let end = (at + cut).min(body.len());
        body.splice(at..end, insert.into_bytes());
        let theirs = serde_json::from_slice::<&serde_json::value::RawValue>(&body).is_ok();
        match read(body.clone()) {
            Ok((_, form)) => {
                prop_assert!(theirs);
                prop_assert_eq!(canonical(&form.to_string()), form.to_string());
            }
            Err(bad) => {
                let ours_alone = matches!(
                    bad.flaw,
                    Flaw::NameTwice { .. } | Flaw::NulInString | Flaw::LoneSurrogate
                        | Flaw::NumberTooLong | Flaw::TooDeep
                );
                prop_assert!(!theirs || ours_alone, "{}", bad);
                prop_assert!(bad.byte <= body.len());
            }
        }
    }

    #[test]
    fn the_end_of_plain_text_is_found_at_every_place(
        text in "[a-z é\u{7f}\u{80}\u{ff}\\\\\"!#\u{1f}]{0,40}",
        from in 0..10_usize,
    ) {
        let bytes = text.as_bytes();
        let from = from.min(bytes.len());
        let slow = bytes[from..].iter().position(|b| matches!(b, 0..0x20 | b'"' | b'\\'));
        prop_assert_eq!(super::text::end_of_plain(bytes, from), slow.map_or(bytes.len(), |n| from + n));
    }
}
