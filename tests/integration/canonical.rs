//! What the reader of bodies takes, PostgreSQL takes as `jsonb`, and both call the same bodies equal.

use std::cell::RefCell;

use onced::call::canonical::read;
use postgres::{Client, NoTls};
use proptest::prelude::*;

/// A session of the PostgreSQL for tests, where these tests ask and write nothing.
fn client() -> Client {
    let dsn = std::env::var("ONCED_TEST_POSTGRES")
        .expect("ONCED_TEST_POSTGRES names a PostgreSQL; scripts/test starts one and sets it");
    Client::connect(&dsn, NoTls).expect("the PostgreSQL of ONCED_TEST_POSTGRES answers")
}

fn canonical(body: &str) -> Option<String> {
    read(body.into()).ok().map(|(_, canonical)| canonical.to_string())
}

/// Whether PostgreSQL takes the text as `jsonb`; otherwise its SQLSTATE.
fn cast(client: &mut Client, body: &str) -> Result<String, String> {
    match client.query_one("SELECT $1::text::jsonb::text", &[&body]) {
        Ok(row) => Ok(row.get(0)),
        Err(error) => Err(error.code().expect("the server refuses").code().to_owned()),
    }
}

fn are_equal(client: &mut Client, one: &str, other: &str) -> bool {
    client
        .query_one("SELECT $1::text::jsonb = $2::text::jsonb", &[&one, &other])
        .expect("both are jsonb")
        .get(0)
}

/// Numbers of all spellings, many of them equal, many at the limits.
fn numbers() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-2]0{0,3})(\\.0{0,2}[01]0?)?([eE][-+]?0?[0-3])?",
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?([eE][-+]?[0-9]{1,2})?",
        "-?(0|[1-9][0-9]?)(\\.[0-9]{1,3})?[eE][-+]?(39[0-9]|40[0-9]|[0-9]{5}|[0-9]{9,11})",
        "[0-9]{399,401}".prop_map(|digits| digits.replacen('0', "1", 1)),
    ]
}

/// Texts that are short and much alike, with escapes.
fn texts() -> impl Strategy<Value = String> {
    "\"([ab/é\u{7f}\u{ffff}😀\u{fdd0}]|\\\\[bfnrt/\"\\\\]|\\\\u00[0-7][0-9a-fA-F]|\\\\u(006[1-2]|00[eE]9|ffff|FFFE)|\\\\ud83[cd]|\\\\ude00){0,3}\""
}

fn bodies() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        3 => numbers(),
        3 => texts(),
        1 => prop_oneof![Just("null"), Just("true"), Just("false")].prop_map(str::to_owned),
    ];
    scalar.prop_recursive(4, 16, 3, |inner| {
        let member = (texts(), inner.clone()).prop_map(|(name, value)| format!("{name} : {value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(member, 0..3).prop_map(|list| format!("{{{}}}", list.join(","))),
        ]
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn every_body_that_is_taken_is_jsonb_to_postgresql() {
    let client = RefCell::new(client());
    proptest!(config(), |(body in bodies())| {
        if let Some(form) = canonical(&body) {
            let mut client = client.borrow_mut();
            prop_assert!(cast(&mut client, &body).is_ok(), "{}", body);
            prop_assert!(are_equal(&mut client, &body, &form), "{} and {}", body, form);
        }
    });
}

#[test]
fn bodies_are_equal_here_exactly_if_they_are_equal_to_postgresql() {
    let client = RefCell::new(client());
    let alike = prop_oneof![
        (numbers(), numbers()),
        (texts(), texts()),
        (bodies(), bodies()),
        ("\\{\"(a|b|\\\\u0061)\":[0-1](\\.0)?\\}", "\\{\"(a|b|\\\\u0061)\":[0-1](e0)?\\}"),
        ("\\[-?[0-1](\\.0)?,?1?\\]", "\\[-?[0-1],?1?\\]"),
    ];
    proptest!(config(), |((one, other) in alike)| {
        if let (Some(one_form), Some(other_form)) = (canonical(&one), canonical(&other)) {
            let equal = are_equal(&mut client.borrow_mut(), &one, &other);
            prop_assert_eq!(one_form == other_form, equal, "{} and {}", one, other);
        }
    });
}

#[test]
fn a_number_is_as_long_as_postgresql_shows_it() {
    let client = RefCell::new(client());
    // Up to some thousand digits PostgreSQL takes what is refused here, so that it can be asked for their number.
    let number = "-?(0|[1-9][0-9]{0,2})(\\.[0-9]{1,3})?[eE][-+]?(39[0-9]|40[0-9]|[0-9]{1,4})";
    proptest!(config(), |(body in number)| {
        if let Ok(shown) = cast(&mut client.borrow_mut(), &body) {
            let digits = shown.bytes().filter(u8::is_ascii_digit).count();
            prop_assert_eq!(canonical(&body).is_some(), digits <= 400, "{}", body);
        }
    });
}

#[test]
fn what_postgresql_refuses_is_refused_before_it() {
    let mut client = client();
    for (body, state) in [
        ("\"\\u0000\"", "22P05"),
        ("{\"\\u0000\":1}", "22P05"),
        ("\"\\ud800\"", "22P02"),
        ("1e131072", "22003"),
        ("0e-20000", "22003"),
        ("0e-99999999999999999999", "22003"),
        ("[1,]", "22P02"),
    ] {
        assert_eq!(cast(&mut client, body), Err(state.to_owned()), "{body}");
        assert_eq!(canonical(body), None, "{body}");
    }
    // PostgreSQL 18 takes it for a zero, older ones do not.
    assert_eq!(canonical("0e1073741823"), None);
    let deepest = format!("{}{}", "[".repeat(64), "]".repeat(64));
    assert_eq!(cast(&mut client, &deepest), Ok(canonical(&deepest).unwrap()));
}
