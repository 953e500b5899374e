//! The manual and the shipped file are held to the code.

use super::super::reader::{Known, Reader};
use super::super::{check, raw};
use super::*;

const MANUAL: &str = include_str!("../../../docs/configuration.md");

/// Every key that the program knows.
fn known() -> Vec<Known> {
    let folder = folder();
    let file = folder.path().join("onced.toml");
    let document = raw::Document::parse(&file, &shipped_in_full());
    let mut reader = Reader::new(document, Environment::default());
    check::read(&file, &mut reader);
    let known = reader.known.clone();
    assert_eq!(reader.finish().err(), None);
    known
}

fn title(known: &Known) -> String {
    match known.section.as_str() {
        "" => known.key.clone(),
        section => format!("{section}.{}", known.key),
    }
}

/// What the manual must say below the heading of a key.
fn facts(known: &Known) -> String {
    let default = known
        .default
        .as_ref()
        .map_or("No default".to_owned(), |value| format!("Default `{value}`"));
    let variable = known
        .variable
        .as_ref()
        .map_or("in the file only".to_owned(), |name| format!("variable `{name}`"));
    format!("{default}; allowed: {}; {variable}.", known.allowed)
}

#[test]
fn the_manual_has_every_key_with_its_default_bounds_and_variable() {
    let missing: Vec<String> = known()
        .iter()
        .map(|known| format!("### {}\n\n{}\n", title(known), facts(known)))
        .filter(|entry| !MANUAL.contains(entry.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks:\n{}", missing.join("\n"));
    let titles: BTreeSet<String> = known().iter().map(title).collect();
    let mut headings = MANUAL.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(headings.find(|heading| !titles.contains(*heading)), None, "is no key");
}
#[test]
fn the_shipped_file_is_good_and_states_the_defaults() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/onced.toml");
    let config = Config::load(&shipped, &Environment::default()).unwrap();
    assert_eq!(config.operations[0].name, "orders");
    assert_eq!(config.warnings, ["no [sink]: events stay in the outbox until there is one"]);

    let folder = folder();
    let full = shipped_in_full();
    let dump = parse_in(folder.path(), &full, &[]).unwrap().to_masked_toml();
    let mut section = String::new();
    let lines = dump.lines().map(|line| {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).replace(".orders", ".NAME");
        }
        format!("{section}.{line}")
    });
    let lines: BTreeSet<String> = lines.collect();
    for known in known() {
        let Some(default) = &known.default else { continue };
        let line = format!("{}.{} = {default}", known.section, known.key);
        let is_list_with_example = known.key == "secret_files";
        assert!(lines.contains(&line) || is_list_with_example, "config/onced.toml: {line}");
    }
    for known in known() {
        let assigned = format!("{} = ", known.key);
        assert!(SHIPPED.lines().any(|line| line.trim_start_matches('#').starts_with(&assigned)));
    }
}
