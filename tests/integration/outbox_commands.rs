//! What an operator does about events and records: look, retry, discard, replay, pause, prune, forget.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use crate::support::daemon::{Ended, PROGRAM};
use crate::support::sink::{Reply, Sink};
use crate::support::wait::{pause, until_eq};
use crate::support::{Daemon, Database, Setup};

/// A sink whose answer can be changed.
fn moody_sink() -> (Sink, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(500));
    let shared = Arc::clone(&status);
    (Sink::answering(move |_, _| Reply::status(shared.load(Ordering::SeqCst))), status)
}

/// A daemon that gives an event up after one attempt, and two dead events of the key `demo-001`.
fn with_two_dead(database: &Database) -> (Daemon, Sink, Arc<AtomicU16>) {
    let (sink, status) = moody_sink();
    let daemon = Setup::on(database).sink(&sink).set("relay.max_attempts", 1).start();
    daemon.order("demo-001");
    until_eq("both are dead", &2, || count(database, "dead_at IS NOT NULL"));
    (daemon, sink, status)
}

fn count(database: &Database, condition: &str) -> i64 {
    database.value(&format!("SELECT count(*) FROM outbox_events WHERE {condition}"), &[])
}

/// Rows as a daemon would have left them; `state` is one of those of the command line.
fn insert(database: &Database, count: i32, key: &str, scope: &str, state: &str) {
    database.execute(&format!(
        "INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, sent_at, dead_at, last_error)
         SELECT '{scope}', '{key}', gen_random_uuid() || ':' || n, 'type.' || n % 2, '{{\"n\": 1}}',
                CASE WHEN '{state}' = 'sent' THEN now() END,
                CASE WHEN '{state}' = 'dead' THEN now() END,
                CASE WHEN '{state}' = 'dead' THEN 'status 500' END
         FROM generate_series(1, {count}) n"
    ));
}

fn record(database: &Database, key: &str, age: &str) {
    database.execute(&format!(
        "INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status, created_at)
         VALUES ('', '{key}', 'orders', 'v1:00', 'succeeded', 201, now() - interval '{age}')"
    ));
}

fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))
}

fn run_json(setup: &Setup, arguments: &[&str]) -> Value {
    json_of(&setup.run(&[arguments, &["--json"]].concat()))
}

fn ids(setup: &Setup, arguments: &[&str]) -> Vec<i64> {
    let listed = run_json(setup, &[&["outbox", "list"], arguments].concat());
    let events = listed["events"].as_array().unwrap();
    events.iter().map(|event| event["event_id"].as_i64().unwrap()).collect()
}

#[test]
fn dead_letters_are_listed_shown_and_tried_again() {
    let database = Database::new();
    let (daemon, sink, status) = with_two_dead(&database);
    let run = |arguments: &[&str]| daemon.setup().run(arguments);

    let listed = run(&["outbox", "list", "--state", "dead", "--key", "demo-001"]);
    assert_eq!((listed.code(), listed.stdout.lines().count()), (0, 3), "{listed:#?}");
    assert!(
        listed.stdout.contains("order.created") && listed.stdout.contains("500"),
        "{listed:#?}"
    );
    let events = run_json(daemon.setup(), &["outbox", "list", "--type", "order.created"]);
    assert_eq!(events["more"], json!(false));
    let event = &events["events"][0];
    let (id, event_key) = (event["event_id"].to_string(), event["event_key"].as_str().unwrap());
    for name in [id.as_str(), event_key] {
        let shown = run_json(daemon.setup(), &["outbox", "show", name]);
        assert_eq!((&shown["state"], &shown["attempts"]), (&json!("dead"), &json!(1)), "{shown}");
        assert_eq!(shown["payload"]["item"], json!("widget"));
        let shown = run(&["outbox", "show", name]);
        assert!(
            shown.stdout.contains("dead since") && shown.stdout.contains(event_key),
            "{shown:#?}"
        );
    }
    assert_eq!(run(&["outbox", "show", "4711"]).code(), 1);

    status.store(204, Ordering::SeqCst);
    let retried = run(&["outbox", "retry", &id]);
    assert_eq!(retried.code(), 0, "{retried:#?}");
    until_eq("it is sent", &1, || count(&database, "sent_at IS NOT NULL AND dead_at IS NULL"));
    let both: Vec<_> = sink.deliveries().into_iter().filter(|d| d.id == event_key).collect();
    assert_eq!((both.len(), &both[0].body), (2, &both[1].body));
    let again = run(&["outbox", "retry", event_key]);
    assert_eq!(again.code(), 1, "{again:#?}");
    assert!(again.stderr.contains("is sent: only dead events"), "{again:#?}");
}

#[test]
fn what_is_discarded_stays_with_who_did_it_and_is_sent_no_more() {
    let database = Database::new();
    let (daemon, sink, status) = with_two_dead(&database);
    let setup = daemon.setup();
    let dead = ids(setup, &["--state", "dead"]);
    let (first, second) = (dead[0].to_string(), dead[1].to_string());

    assert_eq!(setup.run(&["outbox", "discard", &first, "--as", "alice"]).code(), 0);
    let mut by_user = setup.command(&["outbox", "discard", &second]);
    assert!(by_user.env("USER", "root").env("SUDO_USER", "bob").status().unwrap().success());

    status.store(204, Ordering::SeqCst);
    let shown = |id: &str| run_json(setup, &["outbox", "show", id]);
    assert_eq!(shown(&first)["discarded_by"], json!("alice"));
    assert_eq!(shown(&second)["discarded_by"], json!("bob"));
    assert!(shown(&first)["discarded_at"].is_string());
    let text = setup.run(&["outbox", "list", "--state", "discarded"]);
    assert!(text.stdout.contains("by alice"), "{text:#?}");
    let retried = setup.run(&["outbox", "retry", "--all", "--yes", "--json"]);
    assert_eq!(json_of(&retried)["changed"], json!(0));
    assert_eq!(setup.run(&["outbox", "discard", &first]).code(), 1);
    assert_eq!(setup.run(&["outbox", "discard", &first, "--as", " "]).code(), 2);
    assert_eq!(sink.deliveries().len(), 2);
}

#[test]
fn a_replay_sends_the_same_event_key_and_the_same_bytes() {
    let database = Database::new();
    let sink = Sink::start();
    let daemon = Setup::on(&database).sink(&sink).start();
    daemon.order("demo-001");
    daemon.order("demo-002");
    sink.wait_for(4);
    until_eq("all are recorded", &4, || count(&database, "sent_at IS NOT NULL"));

    let replayed =
        daemon.setup().run(&["outbox", "replay", "--key", "demo-001", "--yes", "--json"]);

    assert_eq!(json_of(&replayed)["changed"], json!(2), "{replayed:#?}");
    let deliveries = sink.wait_for(6);
    until_eq("all are recorded again", &4, || count(&database, "sent_at IS NOT NULL"));
    for again in &deliveries[4..] {
        let first = deliveries[..4].iter().find(|first| first.id == again.id).expect("it is known");
        assert_eq!(first.body, again.body);
        assert!(again.body.contains("demo-001"));
    }
    assert_ne!(deliveries[4].id, deliveries[5].id);
    assert_eq!(sink.deliveries().len(), 6);
}

#[test]
fn more_than_one_event_is_changed_only_where_a_person_says_so() {
    let database = Database::new();
    let setup = Setup::on(&database);
    insert(&database, 6, "k", "", "dead");
    let dead = || count(&database, "dead_at IS NOT NULL AND discarded_at IS NULL");
    let named =
        ids(&setup, &["--state", "dead"])[..2].iter().map(i64::to_string).collect::<Vec<_>>();
    for arguments in [
        &["outbox", "retry"][..],
        &["outbox", "retry", "--all"],
        &["outbox", "discard", "--key", "k"],
        &["outbox", "replay", "--all"],
        &["outbox", "retry", &named[0], &named[1]],
        &["outbox", "retry", &named[0], "--key", "k"],
        &["outbox", "retry", "--yes"],
        &["outbox", "list", "--state", "lost"],
        &["outbox", "list", "--limit", "0"],
    ] {
        let ended = setup.run(arguments);
        assert_eq!(ended.code(), 2, "{arguments:?}: {ended:#?}");
    }
    let looked = run_json(&setup, &["outbox", "retry", "--all", "--dry-run"]);
    assert_eq!((&looked["matched"], &looked["changed"]), (&json!(6), &json!(0)));
    let looked = run_json(&setup, &["outbox", "retry", &named[0], "--dry-run"]);
    assert_eq!(
        (&looked["events"][0]["result"], &looked["changed"]),
        (&json!("changed"), &json!(0))
    );
    assert_eq!(dead(), 6);

    let two = setup.run(&["outbox", "retry", &named[0], &named[1], "4711", "--yes"]);
    assert_eq!((two.code(), dead()), (1, 4), "what is there is changed: {two:#?}");
    assert!(two.stderr.contains("4711  there is no such event"), "{two:#?}");
}

#[test]
fn on_a_terminal_the_person_is_asked() {
    let database = Database::new();
    let setup = Setup::on(&database);
    insert(&database, 3, "k", "", "dead");
    let dead = || count(&database, "dead_at IS NOT NULL");
    let answer = |text: &str| {
        let config = setup.config_file();
        let line = format!("{PROGRAM} --config {} outbox retry --all", config.display());
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = terminal.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(input);
        String::from_utf8(output.stdout).unwrap()
    };
    let no = answer("n\n");
    assert!(
        no.contains("Retry 3 dead events? [y/N]") && no.contains("Nothing was changed"),
        "{no}"
    );
    assert_eq!(dead(), 3);
    let yes = answer("y\n");
    assert!(yes.contains("3 dead events will be tried again"), "{yes}");
    assert_eq!(dead(), 0);
}

#[test]
fn filters_meet_exactly_what_they_say_and_all_of_it_in_batches() {
    let database = Database::new();
    let setup = Setup::on(&database);
    insert(&database, 1201, "many", "billing", "dead");
    insert(&database, 4, "few", "", "dead");
    insert(&database, 3, "few", "", "sent");
    insert(&database, 2, "few", "", "pending");
    database
        .execute("UPDATE outbox_events SET created_at = now() - interval '2 days' WHERE id = 1");
    let matched = |arguments: &[&str]| {
        let dry = [&["outbox", "retry", "--dry-run"], arguments].concat();
        run_json(&setup, &dry)["matched"].as_u64().unwrap()
    };
    assert_eq!(matched(&["--all"]), 1205);
    assert_eq!(matched(&["--scope", ""]), 4);
    assert_eq!(matched(&["--scope", "billing", "--type", "type.0"]), 600);
    assert_eq!(matched(&["--key", "few"]), 4);
    assert_eq!(matched(&["--since", "1d"]), 1204);
    assert_eq!(matched(&["--scope", "billing", "--key", "few"]), 0);
    assert_eq!(ids(&setup, &["--key", "few"]).len(), 9);
    assert_eq!(ids(&setup, &["--key", "few", "--state", "pending"]).len(), 2);
    let page = setup.run(&["outbox", "list", "--limit", "5"]);
    assert_eq!(page.stdout.lines().count(), 6, "{page:#?}");
    assert!(page.stderr.contains("there are more"), "{page:#?}");

    let retried = run_json(&setup, &["outbox", "retry", "--scope", "billing", "--yes"]);
    assert_eq!(retried["changed"], json!(1201));
    assert_eq!(count(&database, "dead_at IS NOT NULL"), 4);
    let discard = |state: &str| {
        run_json(&setup, &["outbox", "discard", "--key", "few", "--state", state, "--yes"])["changed"]
            .clone()
    };
    assert_eq!((discard("pending"), discard("dead")), (json!(2), json!(4)));
    assert_eq!(count(&database, "discarded_at IS NOT NULL AND sent_at IS NULL"), 6);
    assert_eq!(count(&database, "idempotency_key = 'few' AND sent_at IS NOT NULL"), 3);
}

#[test]
fn a_pending_event_that_is_named_is_discarded() {
    let database = Database::new();
    let setup = Setup::on(&database);
    insert(&database, 1, "k", "", "pending");
    let id = ids(&setup, &[])[0].to_string();
    assert_eq!(setup.run(&["outbox", "discard", &id, "--as", "eve"]).code(), 0);
    assert_eq!(count(&database, "discarded_by = 'eve' AND dead_at IS NOT NULL"), 1);
}

#[test]
fn a_pause_holds_deliveries_back_until_it_ends() {
    let database = Database::new();
    let sink = Sink::start();
    let daemon = Setup::on(&database).sink(&sink).start();
    let setup = daemon.setup();
    assert_eq!(run_json(setup, &["relay", "status"])["paused"], json!(false));

    let paused = setup.run(&["relay", "pause", "--reason", "moving house", "--as", "alice"]);
    assert_eq!(paused.code(), 0, "{paused:#?}");
    daemon.order("demo-001");
    // Longer than the relays' poll.
    pause(std::time::Duration::from_millis(600));
    assert_eq!(sink.deliveries().len(), 0);
    let status = run_json(setup, &["relay", "status"]);
    assert_eq!(
        (&status["paused"], &status["paused_by"], &status["reason"], &status["pending"]),
        (&json!(true), &json!("alice"), &json!("moving house"), &json!(2)),
        "{status}"
    );
    let text = setup.run(&["relay", "status"]);
    assert!(text.stdout.contains("by alice: moving house"), "{text:#?}");
    let again = setup.run(&["relay", "pause", "--reason", "other", "--as", "bob"]);
    assert!(again.stdout.contains("already since") && again.stdout.contains("alice"), "{again:#?}");

    assert!(setup.run(&["relay", "resume"]).stdout.contains("Deliveries go on"));
    sink.wait_for(2);
    assert!(setup.run(&["relay", "resume"]).stdout.contains("were not paused"));
}

#[test]
fn prune_counts_first_and_then_takes_away_what_it_counted() {
    let database = Database::new();
    let setup = Setup::on(&database);
    record(&database, "old", "31 days");
    record(&database, "kept", "31 days");
    record(&database, "young", "1 day");
    insert(&database, 1, "kept", "", "dead");
    insert(&database, 2, "old", "", "sent");
    database.execute(
        "UPDATE outbox_events SET created_at = now() - interval '31 days',
             sent_at = sent_at - interval '31 days', dead_at = dead_at - interval '31 days'",
    );
    let before = database.counts();

    let dry = run_json(&setup, &["prune", "--dry-run"]);
    assert_eq!(
        (&dry["idempotency_records"], &dry["outbox_events"]),
        (&json!(1), &json!(2)),
        "{dry}"
    );
    assert_eq!(database.counts(), before);
    let table = setup.run(&["prune", "--dry-run"]);
    assert!(
        table.stdout.contains("WOULD GO") && table.stdout.contains("dead for ever"),
        "{table:#?}"
    );

    let pruned = run_json(&setup, &["prune"]);
    assert_eq!(
        (&pruned["idempotency_records"], &pruned["outbox_events"], &pruned["dry_run"]),
        (&json!(1), &json!(2), &json!(false))
    );
    assert_eq!((database.rows("idempotency_records"), database.rows("outbox_events")), (2, 1));
}

#[test]
fn a_key_is_forgotten_only_when_its_events_are_decided_and_a_line_tells_of_it() {
    let database = Database::new();
    let (daemon, _sink, _status) = with_two_dead(&database);
    let setup = daemon.setup();
    let forget =
        |more: &[&str]| setup.run(&[&["forget", "demo-001", "--as", "alice"], more].concat());

    assert_eq!(forget(&[]).code(), 2, "without a terminal it needs --yes");
    let refused = forget(&["--yes"]);
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr.contains("2 events of it neither delivered nor discarded"),
        "{refused:#?}"
    );
    let report = json_of(&forget(&["--yes", "--json"]));
    assert_eq!(report["result"], json!("undelivered_events"));
    assert_eq!(database.rows("idempotency_audit"), 0);

    // As the refusal says.
    let advice = refused.stderr.lines().find(|line| line.contains("# dead ones")).unwrap();
    let words = advice.split_whitespace().take_while(|word| *word != "#").skip(1);
    let words: Vec<&str> = words.map(|word| word.trim_matches('\'')).chain(["--yes"]).collect();
    assert_eq!(setup.run(&words).code(), 0, "{words:?}");
    assert_eq!(forget(&["--yes"]).code(), 0);
    let (who, action, key): (String, String, String) = {
        let text = |column| database.value(&format!("SELECT {column} FROM idempotency_audit"), &[]);
        (text("who"), text("action"), text("key"))
    };
    assert_eq!((who.as_str(), action.as_str(), key.as_str()), ("alice", "forget", "demo-001"));
    assert_eq!(database.record("demo-001"), None);
    let again = daemon.order("demo-001");
    assert_eq!((again.status, again.is_replay()), (201, false), "the key counts as new");
    assert_eq!(setup.run(&["forget", "demo-001", "--scope", "nobody", "--yes"]).code(), 1);
}

#[test]
fn a_database_without_the_tables_is_told_what_to_do() {
    let database = Database::empty();
    let setup = Setup::on(&database);
    for arguments in
        [&["outbox", "list"][..], &["relay", "status"], &["prune"], &["forget", "k", "--yes"]]
    {
        let ended = setup.run(arguments);
        assert_eq!(ended.code(), 1, "{ended:#?}");
        assert!(ended.stderr.contains("onced migrate"), "{ended:#?}");
    }
}
