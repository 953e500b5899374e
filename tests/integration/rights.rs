//! What the daemon may do in the database: no more than it needs.

use std::fs;
use std::thread;

use postgres::{Client, NoTls};

use crate::support::daemon::{ORDER, root};
use crate::support::postgres::ROLE;
use crate::support::sink::Sink;
use crate::support::wait::until_eq;
use crate::support::{Database, Setup, fresh_key};

/// The roles of `config/roles.sql`.
const OWNER: &str = "onced_owner";
const SERVE: &str = "onced_serve";

/// The daemon's connection string with another role.
fn url_of(database: &Database, role: &str) -> String {
    let (host, port) = database.address();
    format!("host={host} port={port} user={role} dbname={}", database.name())
}

fn session_of(database: &Database, role: &str) -> Client {
    Client::connect(&url_of(database, role), NoTls).unwrap()
}

/// A database where nobody has any right but by `config/roles.sql`, migrated by the role that is for that.
fn with_roles() -> Database {
    let database = Database::empty();
    let roles = fs::read_to_string(root().join("config/roles.sql")).unwrap();
    let name = database.name();
    database.execute(&format!(
        "REVOKE ALL ON DATABASE {name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC"
    ));
    database.execute(&roles);
    let migrated = Setup::at(&url_of(&database, OWNER)).run(&["migrate"]);
    assert_eq!(migrated.code(), 0, "{migrated:?}");
    database.execute(&roles);
    database
}

#[test]
fn with_the_rights_of_its_role_the_daemon_writes_delivers_and_prunes() {
    let database = with_roles();
    let sink = Sink::start();
    let daemon = Setup::at(&url_of(&database, SERVE))
        .set("retention.records", "1s")
        .set("retention.events", "1s")
        .set("retention.every", "100ms")
        .set("retention.tombstones", "1s")
        .sink(&sink)
        .start();
    let key = fresh_key();
    let answers: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..20).map(|_| scope.spawn(|| daemon.order(&key))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    assert_eq!(database.rows("orders"), 1);
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let reused = daemon.post("orders", &key, r#"{"item": "x", "quantity": 1}"#);
    assert_eq!(reused.refusal(), (409, "idempotency-key-reused".to_owned()));
    assert_eq!(database.rows("orders"), 2);
    sink.wait_for(4);
    for table in ["outbox_events", "idempotency_records", "idempotency_tombstones"] {
        until_eq(&format!("{table} is pruned"), &0, || database.rows(table));
    }
    assert!(!daemon.log().contains("permission denied"), "{}", daemon.log());
}

#[test]
fn with_the_rights_of_its_role_the_commands_of_operators_work() {
    let database = with_roles();
    let setup = Setup::at(&url_of(&database, SERVE));
    let daemon = setup.start();
    let (kept, forgotten) = (fresh_key(), fresh_key());
    for key in [&kept, &forgotten] {
        assert_eq!(daemon.order(key).status, 201);
    }
    database.execute(&format!(
        "UPDATE outbox_events SET sent_at = now() WHERE idempotency_key = '{forgotten}'"
    ));
    for arguments in [
        &["check-config"][..],
        &["show", &kept],
        &["outbox", "list"],
        &["relay", "pause", "--reason", "a test"],
        &["relay", "resume"],
        &["forget", &forgotten, "--yes"],
        &["prune"],
    ] {
        let ended = daemon.setup().run(arguments);
        assert_eq!(ended.code(), 0, "{arguments:?}: {ended:?}");
    }
    assert_eq!(database.record(&forgotten), None);
    assert_eq!(daemon.order(&kept).body, daemon.post("orders", &kept, ORDER).body);
}

#[test]
fn the_daemons_role_can_change_no_table() {
    let database = with_roles();
    let mut session = session_of(&database, SERVE);
    for statement in [
        "ALTER TABLE orders ADD COLUMN more integer",
        "ALTER TABLE idempotency_records DROP COLUMN request_hash",
        "DROP TABLE outbox_events",
        "TRUNCATE idempotency_records",
        "CREATE TABLE more (id integer)",
        "CREATE INDEX more ON orders (item)",
        "CREATE FUNCTION more() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE TRIGGER more BEFORE INSERT ON orders EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "UPDATE onced_schema SET value = '0.0.0'",
        "DELETE FROM onced_migrations",
        "CREATE SCHEMA more",
        "SET ROLE onced_owner",
    ] {
        let error = session.batch_execute(statement).expect_err(statement);
        let state = error.code().map(|state| state.code().to_owned());
        assert_eq!(state.as_deref(), Some("42501"), "{statement}: {error}");
    }
}

#[test]
fn a_right_that_is_missing_is_named_at_the_start() {
    let database = with_roles();
    for (revoke, word) in [
        (format!("REVOKE DELETE ON idempotency_records FROM {SERVE}"), "idempotency_records"),
        (
            format!(
                "GRANT DELETE ON idempotency_records TO {SERVE}; REVOKE USAGE ON SEQUENCE outbox_events_id_seq FROM {SERVE}"
            ),
            "outbox_events_id_seq",
        ),
    ] {
        database.execute(&revoke);
        let ended = Setup::at(&url_of(&database, SERVE)).run(&["serve"]);
        assert_eq!(ended.code(), 78, "{ended:?}");
        assert!(ended.stderr.contains(word) && ended.stderr.contains("GRANT"), "{ended:?}");
    }
}

#[test]
fn without_the_right_to_temporary_functions_the_start_says_what_to_grant() {
    let database = with_roles();
    database.execute(&format!("REVOKE TEMPORARY ON DATABASE {} FROM {SERVE}", database.name()));
    let ended = Setup::at(&url_of(&database, SERVE)).run(&["serve"]);
    assert_eq!(ended.code(), 78, "{ended:?}");
    assert!(ended.stderr.contains("GRANT TEMPORARY ON DATABASE"), "{ended:?}");
}

#[test]
fn where_synchronous_commit_is_off_what_is_answered_is_durable_all_the_same_and_it_is_told() {
    let database = Database::alone();
    let name = database.name();
    for whose in [format!("ROLE {ROLE} IN DATABASE {name}"), format!("DATABASE {name}")] {
        database.execute(&format!("ALTER {whose} SET synchronous_commit = off"));
        let daemon = Setup::on(&database)
            .inline("shown", "SELECT to_jsonb(current_setting('synchronous_commit')) AS response")
            .inline(
                "off",
                "SELECT to_jsonb(set_config('synchronous_commit', 'off', $2 < '')) AS response",
            )
            .start();
        let mut flushed = 0;
        for _ in 0..10 {
            assert_eq!(daemon.post("shown", &fresh_key(), "1").text(), "\"on\"");
            // An operation that turns it off has its own commit durable too.
            assert_eq!(daemon.post("off", &fresh_key(), "1").text(), "\"off\"");
            let all = "SELECT pg_current_wal_flush_lsn() = pg_current_wal_insert_lsn()";
            flushed += usize::from(database.value::<bool>(all, &[]));
        }
        // The server itself writes something now and then.
        assert!(flushed >= 8, "{flushed} of 10");
        assert!(daemon.log().contains("synchronous_commit is lower than on"), "{}", daemon.log());
        database.execute(&format!("ALTER {whose} RESET synchronous_commit"));
    }
}
