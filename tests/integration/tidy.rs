//! Rules of the source that a machine can see: who may name what, and what must be written down.

use std::fs;
use std::path::{Path, PathBuf};

use onced::http::problem::KINDS;

use crate::support::daemon::root;
use crate::support::postgres::files_in;

/// A source file: its path below `src`, and its lines without comments and without the tests at its end.
struct Source {
    path: String,
    lines: Vec<String>,
}

fn sources() -> Vec<Source> {
    files_below(&root().join("src"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs"))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code_only = |line: &str| line.split("//").next().unwrap().to_owned();
            Source { path: below_src(&path), lines: code.lines().map(code_only).collect() }
        })
        .collect()
}

fn below_src(path: &Path) -> String {
    path.strip_prefix(root().join("src")).unwrap().to_str().unwrap().to_owned()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (folders, mut files): (Vec<_>, Vec<_>) =
        files_in(folder).into_iter().partition(|p| p.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_below(folder)));
    files
}

/// Fails where a file outside `allowed` names one of `words`.
fn assert_only(allowed: &[&str], words: &[&str]) {
    let mut found = Vec::new();
    for source in sources() {
        if allowed.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (number, line) in source.lines.iter().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                found.push(format!("src/{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    assert!(found.is_empty(), "only {allowed:?} may name {words:?}:\n{}", found.join("\n"));
}

#[test]
fn only_the_store_knows_postgres() {
    assert_only(&["store/"], &["postgres::", "r2d2", "tokio_postgres", "refinery"]);
}

#[test]
fn only_the_front_knows_framing() {
    assert_only(&["http/front/"], &["httparse"]);
    // A sink's `Retry-After` may be a date.
    assert_only(&["http/front/", "relay/backoff.rs"], &["httpdate"]);
}

#[test]
fn only_the_sink_and_the_command_line_know_the_http_client() {
    assert_only(&["relay/sink", "cli/"], &["ureq"]);
    assert_only(&["cli/"], &["tiny_http", "clap::", "anyhow"]);
}

#[test]
fn the_pure_modules_do_no_io() {
    let pure = ["call/", "outcome.rs", "pending.rs", "relay/backoff.rs", "relay/signature.rs"];
    let words = [
        "std::fs",
        "std::net",
        "std::io",
        "std::env",
        "crate::store",
        "crate::http",
        "tracing::",
        "SystemTime::now",
    ];
    for source in sources().iter().filter(|s| pure.iter().any(|place| s.path.starts_with(place))) {
        for line in &source.lines {
            assert!(!words.iter().any(|word| line.contains(word)), "src/{}: {line}", source.path);
        }
    }
}

#[test]
fn only_threads_spawns() {
    assert_only(
        &["threads.rs"],
        &["thread::spawn", "thread::Builder", "Builder::new().name", "clippy::disallowed_methods"],
    );
    assert_only(&[], &["unbounded("]);
}

#[test]
fn the_writer_does_not_know_http_and_callers_write_nothing() {
    for (folder, words) in [
        ("writer/", ["crate::http", "crate::relay", "crate::admin"]),
        ("http/", ["crate::store", "crate::relay", "crate::admin"]),
        ("relay/", ["crate::http", "crate::writer", "crate::call"]),
        ("store/", ["crate::http", "crate::writer", "crate::relay"]),
    ] {
        for source in sources().iter().filter(|source| source.path.starts_with(folder)) {
            for line in &source.lines {
                assert!(
                    !words.iter().any(|word| line.contains(word)),
                    "src/{}: {line}",
                    source.path
                );
            }
        }
    }
}

#[test]
fn every_problem_type_is_documented() {
    let docs = fs::read_to_string(root().join("docs/problems.md")).expect("docs/problems.md");
    for kind in KINDS {
        let status =
            if kind.name == "refused" { "4xx".to_owned() } else { kind.status.to_string() };
        let retryable = if kind.retryable { "yes" } else { "no" };
        let row = format!("| `{}` | {status} | {retryable} |", kind.name);
        assert!(docs.contains(&row), "docs/problems.md has no row {row}");
    }
}

#[test]
fn files_are_of_a_size_that_one_can_read() {
    for path in files_below(&root().join("src")) {
        if path.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        let limit = if path.ends_with("main.rs") { 40 } else { 600 };
        assert!(lines <= limit, "{}: {lines} lines; is there a second idea in it?", path.display());
    }
}

#[test]
fn links_between_documents_resolve() {
    let mut broken = Vec::new();
    let mut documents: Vec<_> = files_in(root()).into_iter().filter(|p| is_markdown(p)).collect();
    if root().join("docs").is_dir() {
        documents.extend(files_below(&root().join("docs")).into_iter().filter(|p| is_markdown(p)));
    }
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            let outside = target.contains("://") || target.starts_with("mailto:");
            if !file.is_empty() && !outside && !document.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}
