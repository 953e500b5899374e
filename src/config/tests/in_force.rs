//! What is in force: the dump, and what a reload takes over.

use super::*;

#[test]
fn the_dump_shows_what_is_in_force_and_no_secret() {
    let text = include_str!("given.toml");
    let environment = [("ONCED_LOG_FORMAT", "json"), ("ONCED_RETENTION_RECORDS", "never")];
    let dump = parse(text, &environment).unwrap().to_masked_toml();
    let expected = include_str!("in_force.toml");
    assert_eq!(dump, expected);
    let again = dump.replace(
        "token_sha256 = [\"***\"]",
        "token_sha256 = ['e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855']",
    );
    let again = parse(&again, &[("ONCED_DATABASE_URL", "host=a")]).unwrap();
    assert_eq!(again.to_masked_toml(), dump, "a dump is a configuration");
}

#[test]
fn nothing_that_can_be_printed_holds_a_secret() {
    let folder = folder();
    let text = shipped_in_full().replace("onced@127.0.0.1", "onced:hunter2@127.0.0.1");
    let config = parse_in(folder.path(), &text, &[]).unwrap();
    let printed = format!("{config:?}\n{}\n{:?}", config.to_masked_toml(), config.warnings);
    for secret in ["hunter2", "0123456789abcdef", "MfKQ9r8G"] {
        assert!(!printed.contains(secret), "{secret}");
    }
}

#[test]
fn a_reload_takes_secrets_and_principals_and_names_the_rest() {
    let folder = folder();
    let read = |text: &str| parse_in(folder.path(), text, &[]).unwrap();
    let text = shipped_in_full();
    let old = read(&text);
    assert!(old.needs_restart(&old).is_empty());

    let principal = text.replace("name = \"billing\"", "name = \"payments\"");
    assert!(old.needs_restart(&read(&principal)).is_empty());
    fs::write(folder.path().join("admin.token"), "fedcba9876543210").unwrap();
    let secrets = text.replace("[\"sink.secret\"]", "[\"second.secret\"]");
    assert!(old.needs_restart(&read(&secrets)).is_empty());

    let spelling = text.replace("keep_alive = \"75s\"", "keep_alive = \"1m 15s\"");
    assert!(old.needs_restart(&read(&spelling)).is_empty());

    fs::write(folder.path().join("operations/orders.sql"), "SELECT 202 AS status").unwrap();
    let rest = text
        .replace("keep_alive = \"75s\"", "keep_alive = \"80s\"")
        .replace("onced@127.0.0.1", "onced:hunter2@127.0.0.1")
        .replace("sink.example/events", "sink.example/events?x")
        .replace("proxy = ", "#proxy = ");
    assert_eq!(
        old.needs_restart(&read(&rest)),
        ["database.url", "http.keep_alive", "operations.orders.sql", "sink.proxy", "sink.url"]
    );
}
