//! The documents are held to the program: what they show of it is tried here.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::daemon::{Daemon, Setup, root};
use crate::support::postgres::Database;

/// Where the documents reach a daemon.
const SHOWN_ADDRESS: &str = "127.0.0.1:8080";

/// A command that a document shows, and the lines below it: the answer.
struct Shown {
    command: String,
    status: u16,
    is_replay: bool,
    body: String,
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// The commands of a document: indented lines that begin with `$ curl`, each followed by a status line, headers, an
/// empty line and a body, up to the next command or the end of the indentation.
fn shown(document: &str) -> Vec<Shown> {
    let text = read(document);
    let mut found: Vec<Shown> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("    $ ") {
            is_inside = command.starts_with("curl ");
            if is_inside {
                let command = command.to_owned();
                found.push(Shown { command, status: 0, is_replay: false, body: String::new() });
            }
            continue;
        }
        let Some(last) = found.last_mut().filter(|_| is_inside) else { continue };
        match line.strip_prefix("    ") {
            Some(shown) if shown.starts_with("HTTP/1.1 ") => {
                last.status = shown.split(' ').nth(1).unwrap().parse().unwrap();
            }
            Some("Idempotent-Replayed: true") => last.is_replay = true,
            Some(shown) => last.body.push_str(shown),
            None if line.is_empty() => {}
            None => is_inside = false,
        }
    }
    found
}

/// The blocks of SQL in a document.
fn sql_blocks(document: &str) -> Vec<String> {
    let text = read(document);
    let blocks = text.split("```sql\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The operations that a document shows, by the comment on their first line: file name and text.
fn shown_operations(document: &str) -> BTreeMap<String, String> {
    let named = sql_blocks(document).into_iter().filter_map(|sql| {
        let name = sql.lines().next()?.strip_prefix("-- operations/")?.to_owned();
        Some((name, sql))
    });
    named.collect()
}

/// Runs a shown command as a person would type it, against this daemon.
fn run(shown: &Shown, daemon: &Daemon) -> (u16, bool, String) {
    // Older versions of curl do not have --json.
    let command = shown
        .command
        .replace(SHOWN_ADDRESS, &daemon.setup().http().to_string())
        .replace("--json", "-H 'Content-Type: application/json' -d");
    let output = Command::new("sh").args(["-c", &format!("{command} -sS")]).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_replay = head.lines().any(|line| line == "Idempotent-Replayed: true");
    (status, is_replay, body.to_owned())
}

/// Whether an answer is what the document shows, but for times. `…` stands for whatever follows.
fn is_as_shown(shown: &str, body: &str) -> bool {
    if let Some((begin, _)) = shown.split_once('…') {
        return body.starts_with(begin.trim_end());
    }
    let without_time = |text: &str| {
        let mut value: Value = serde_json::from_str(text).expect("a body is JSON");
        if let Some(members) = value.as_object_mut() {
            members.remove("created_at");
        }
        value
    };
    without_time(shown) == without_time(body)
}

fn assert_as_shown(document: &str, daemon: &Daemon) {
    let all = shown(document);
    assert!(all.len() >= 4, "{document} shows {} commands", all.len());
    for shown in all {
        let (status, is_replay, body) = run(&shown, daemon);
        let command = &shown.command;
        assert_eq!((status, is_replay), (shown.status, shown.is_replay), "{command}\n{body}");
        assert!(
            is_as_shown(&shown.body, &body),
            "{command}\nshown:  {}\nis now: {body}",
            shown.body
        );
    }
}

#[test]
fn the_readme_shows_what_the_daemon_answers() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    assert_as_shown("README.md", &daemon);
}

#[test]
fn the_operation_of_the_readme_can_be_called() {
    let sql = sql_blocks("README.md").pop().expect("README.md shows an operation");
    let database = Database::new();
    let daemon = Setup::on(&database).inline("shown", &sql).start();
    let answer = daemon.post("shown", "k", r#"{"item": "widget", "quantity": 2}"#);
    assert_eq!(answer.status, 201, "{answer:?}");
    let events = daemon.look_up("k").unwrap()["events"].clone();
    assert_eq!(events.as_array().unwrap().len(), 1);
}

#[test]
fn the_examples_of_operations_are_installed_and_answer_as_shown() {
    const DOCUMENT: &str = "docs/operations.md";
    let operations = shown_operations(DOCUMENT);
    assert!(operations.len() >= 6, "{:?}", operations.keys());
    let database = Database::new();
    let mut setup = Setup::on(&database);
    for (file, sql) in &operations {
        let (name, key) = match file.strip_suffix(".setup.sql") {
            Some(name) => (name, "setup"),
            None => (file.strip_suffix(".sql").expect("a file of SQL"), "sql"),
        };
        setup = setup.write(file, sql).set(&format!("operations.{name}.{key}"), file.as_str());
    }
    for _ in 0..2 {
        let migrated = setup.run(&["migrate"]);
        assert_eq!(migrated.code(), 0, "{migrated:?}");
    }
    let daemon = setup.start();
    assert_as_shown(DOCUMENT, &daemon);

    let told = |key: &str| {
        let record = daemon.look_up(key).unwrap();
        let events = record["events"].as_array().unwrap();
        events.iter().map(|event| event["type"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(told("pay-1"), ["transfer.made", "transfer.made"]);
    assert_eq!(told("pay-2"), [""; 0], "a raised refusal has no events");
    assert_eq!(told("take-2"), ["stock.missed"], "a refusal by a row has");
    assert_eq!(told("join-1"), ["mail.requested", "user.signed_up"]);
    for (key, request, status, code) in [
        ("pay-3", json!({"from": "alice", "to": "nobody", "amount": 1}), 409, "23503"),
        ("pay-4", json!({"from": "alice", "to": "bob", "amount": "x"}), 422, "22P02"),
        ("pay-5", json!({"from": "alice", "to": "bob", "amount": 0}), 422, "23514"),
    ] {
        let answer = daemon.post("transfers", key, request.to_string());
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{key}");
    }
}

#[test]
fn the_smallest_operation_that_is_shown_can_be_called() {
    let text = read("docs/operations.md");
    let sql = text
        .lines()
        .find_map(|line| line.strip_prefix("    INSERT INTO memos").map(|_| line))
        .unwrap();
    let database = Database::new();
    let setup = Setup::on(&database)
        .write("memos.setup.sql", "CREATE TABLE memos (id bigserial PRIMARY KEY, text text)")
        .set("operations.memos.setup", "memos.setup.sql")
        .inline("memos", sql);
    let migrated = setup.run(&["migrate"]);
    assert_eq!(migrated.code(), 0, "{migrated:?}");
    let daemon = setup.start();
    let answer = daemon.post("memos", "k", r#"{"text": "hello"}"#);
    assert_eq!((answer.status, answer.text()), (200, r#"{"id": 1}"#));
}

#[test]
fn a_consumer_as_it_is_shown_has_one_effect_for_two_deliveries() {
    let blocks = sql_blocks("docs/consumers.md");
    let [tables, handle] = blocks.as_slice() else { panic!("{blocks:#?}") };
    let database = Database::new();
    database.execute(tables);
    let data = json!({"id": 7, "item": "widget"}).to_string();
    for effects in [1, 0] {
        let changed = database
            .session()
            .execute(handle, &[&"0193a:1", &serde_json::from_str::<Value>(&data).unwrap()])
            .unwrap();
        assert_eq!(changed, effects);
    }
    assert_eq!(database.rows("shipments"), 1);
}

#[test]
fn every_metric_is_documented() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let text = daemon.operator().get("/metrics").text().to_owned();
    let docs = read("docs/running.md");
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        let is_told =
            docs.contains(&format!("| `{name}`")) || docs.contains(&format!("| `{name}{{"));
        assert!(is_told, "docs/running.md does not tell of {name}");
    }
}
