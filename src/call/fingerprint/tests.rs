use serde_json::Value;

use super::{Comparison, Fingerprint, recipe_name};
use crate::call::canonical;

fn fingerprint(operation: &str, body: &str) -> Fingerprint {
    let (_, canonical) = canonical::read(body.into()).unwrap();
    Fingerprint::of(operation, &canonical)
}

#[test]
fn the_documented_fingerprints_are_made() {
    assert_eq!(
        fingerprint("orders", r#"{"quantity": 2, "item": "widget"}"#).as_str(),
        "v1:602548ab2c85786fa52ef3ff2a905ca3728a265cfae471b2d359ca1d0d375b78"
    );
    let body = r#"{"é": null, "b": [1.0, 1e2, -0, 0.50, 9007199254740993], "a": "\u00e9\n"}"#;
    assert_eq!(
        fingerprint("orders", body).as_str(),
        "v1:b6e7c43ad540ab8511654cd8ad0ad55b7eb679e2005a55bbc66fed51cea47433"
    );
}

#[test]
fn every_published_vector_holds() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../tests/vectors/fingerprint.json")).unwrap();
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 20);
    for vector in vectors {
        let text = |name: &str| vector[name].as_str().unwrap();
        let (_, canonical) = canonical::read(text("body").into()).unwrap();
        assert_eq!(canonical.to_string(), text("canonical"), "{vector}");
        let fingerprint = Fingerprint::of(text("operation"), &canonical);
        assert_eq!(fingerprint.as_str(), text("fingerprint"), "{vector}");
    }
}

#[test]
fn the_operation_is_part_of_the_request() {
    assert_ne!(fingerprint("orders", "1"), fingerprint("order", "1"));
    assert_ne!(fingerprint("a", "11"), fingerprint("a1", "1"));
}

#[test]
fn an_equal_fingerprint_is_the_same_request_and_another_is_not() {
    let ours = fingerprint("orders", "[1]");
    assert_eq!(ours.compare(fingerprint("orders", " [1.0] ").as_str()), Comparison::Same);
    assert_eq!(ours.compare(fingerprint("orders", "[2]").as_str()), Comparison::Different);
    assert_eq!(ours.compare(fingerprint("refunds", "[1]").as_str()), Comparison::Different);
}

#[test]
fn a_fingerprint_of_no_known_recipe_is_neither_equal_nor_different() {
    let ours = fingerprint("orders", "[1]");
    let hash = ours.as_str().strip_prefix("v1:").unwrap();
    for stored in [
        format!("v9:{hash}"),
        format!("v0:{hash}"),
        format!("V1:{hash}"),
        format!("v1:{}", hash.to_uppercase()),
        format!("v1:{hash}0"),
        format!("v1:{}", &hash[1..]),
        format!(" v1:{hash}"),
        hash.to_owned(),
        "v1:".to_owned(),
        String::new(),
    ] {
        assert_eq!(ours.compare(&stored), Comparison::UnknownRecipe, "{stored}");
    }
}

#[test]
fn the_recipe_that_a_record_names_is_told() {
    assert_eq!(recipe_name("v9:00ff"), "v9");
    assert_eq!(recipe_name("00ff"), "");
}
