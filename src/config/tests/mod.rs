//! Whole files, next to the files that they name.

mod in_force;
mod manual;
mod problems;
mod rules;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

const SHIPPED: &str = include_str!("../../../config/onced.toml");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";

/// A folder with the files that the tests' configurations name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    fs::create_dir(folder.path().join("operations")).unwrap();
    write("operations/orders.sql", "SELECT 201 AS status");
    write("operations/orders.setup.sql", "SELECT 1");
    write("admin.token", "0123456789abcdef\n");
    write("database.url", "postgresql://onced:hunter2@db.example/onced\n");
    write("database-ca.pem", "-----BEGIN CERTIFICATE-----\n");
    write("sink-ca.pem", "-----BEGIN CERTIFICATE-----\n");
    write("sink.secret", SECRET);
    write("second.secret", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX\n");
    folder
}

fn parse_in(folder: &Path, text: &str, environment: &[(&str, &str)]) -> Result<Config, Problems> {
    let environment = environment.iter().copied().collect();
    Config::parse(&folder.join("onced.toml"), text, &environment)
}

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, Problems> {
    parse_in(folder().path(), text, environment)
}

/// A file with a database and what `rest` says.
fn good(rest: &str) -> Config {
    parse(&with_database(rest), &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn with_database(rest: &str) -> String {
    format!("database.url = 'postgresql://db.example/onced'\n{rest}")
}

/// The problems of a text, one a line, with the file's folder left out.
fn problems(text: &str, environment: &[(&str, &str)]) -> String {
    let folder = folder();
    let problems = parse_in(folder.path(), text, environment).unwrap_err().to_string();
    problems.replace(&format!("{}/", folder.path().display()), "")
}

#[track_caller]
fn assert_problem(rest: &str, expected: &str) {
    let problems = problems(&with_database(rest), &[]);
    assert!(problems.contains(expected), "{problems}\nlacks: {expected}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[track_caller]
fn assert_warning(rest: &str, expected: &str) {
    let warnings = good(rest).warnings;
    assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:#?}");
}

/// The shipped file with everything in it that is commented out.
fn shipped_in_full() -> String {
    let uncomment = |line: &'static str| {
        let rest = line.strip_prefix('#').unwrap_or(line);
        if rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') {
            rest
        } else {
            line
        }
    };
    let lines = SHIPPED.lines().map(uncomment).filter(|line| !line.starts_with("url_file"));
    lines.collect::<Vec<_>>().join("\n")
}
