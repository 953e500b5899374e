//! What a write costs, in counts: they are the same on every machine, so a slower write is seen where no clock would
//! tell. How fast it is in the end, `scripts/bench` measures.

use crate::batches::{behind_a_held_writer, one_writer};
use crate::support::daemon::ORDER;
use crate::support::proxy::Proxy;
use crate::support::trips::Trip;
use crate::support::wait::until_eq;
use crate::support::{Daemon, Database, Setup, fresh_key};

/// What tells the write from all other statements.
const WRITE: &str = "pg_temp.onced_write(";
/// Writes that are counted.
const WRITES: usize = 20;

/// A daemon with one writer behind a relay, after its first write: what a new connection costs is over.
fn one_writer_behind(relay: &Proxy, database: &Database) -> Daemon {
    let url = database.url_through(relay.address());
    let daemon = Setup::at(&url).set("writers.threads", 1).start();
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    daemon
}

/// The trips of the writer's connection during `act`.
fn trips_of_the_writer(relay: &Proxy, act: impl FnOnce()) -> Vec<Trip> {
    let before = relay.trips().len();
    act();
    let trips = relay.trips();
    let writes = |trip: &Trip| trip.statements.iter().any(|text| text.contains(WRITE));
    let writer = trips.iter().find(|trip| writes(trip)).expect("there was a write").connection;
    trips[before..].iter().filter(|trip| trip.connection == writer).cloned().collect()
}

/// Each trip has to execute the write, and nothing else.
fn assert_writes(trips: &[Trip], count: usize) {
    assert_eq!(trips.len(), count, "{trips:#?}");
    for trip in trips {
        assert_eq!(trip.statements.len(), 1, "{trip:#?}");
        assert!(trip.statements[0].contains(WRITE), "{trip:#?}");
    }
}

#[test]
fn a_lone_write_is_one_statement_in_one_round_trip() {
    let database = Database::new();
    let relay = Proxy::to(&database);
    let daemon = one_writer_behind(&relay, &database);

    let trips = trips_of_the_writer(&relay, || {
        for _ in 0..WRITES {
            assert_eq!(daemon.order(&fresh_key()).status, 201);
        }
    });

    assert_writes(&trips, WRITES);
}

#[test]
fn a_replay_is_one_statement_in_one_round_trip_and_writes_nothing() {
    let database = Database::new();
    let relay = Proxy::to(&database);
    let daemon = one_writer_behind(&relay, &database);
    let key = fresh_key();
    assert_eq!(daemon.order(&key).status, 201);
    let next_id = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
    let before: String = database.value(next_id, &[]);

    let trips = trips_of_the_writer(&relay, || {
        for _ in 0..WRITES {
            assert!(daemon.order(&key).is_replay());
        }
    });

    assert_writes(&trips, WRITES);
    let rows_since: i64 = database.value(
        "SELECT count(*) FROM idempotency_records WHERE xmin::text::bigint >= $1::text::bigint",
        &[&before],
    );
    assert_eq!(rows_since, 0);
}

#[test]
fn a_batch_is_one_round_trip_and_one_transaction() {
    let database = Database::new();
    let relay = Proxy::to(&database);
    let setup = one_writer(&database).set("database.url", database.url_through(relay.address()));
    let daemon = setup.start();
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    let keys: Vec<_> = (0..WRITES).map(|_| fresh_key()).collect();
    let calls: Vec<_> = keys.iter().map(|key| ("orders", key.as_str(), ORDER)).collect();

    let trips = trips_of_the_writer(&relay, || {
        for call in &mut behind_a_held_writer(&database, &daemon, &calls) {
            assert_eq!(call.answer().status, 201);
        }
    });

    // The one that held the writer, and then all of the others.
    assert_writes(&trips, 2);
    for (table, column) in [("idempotency_records", "key"), ("outbox_events", "idempotency_key")] {
        let transactions: i64 = database.value(
            &format!("SELECT count(DISTINCT xmin::text) FROM {table} WHERE {column} = ANY ($1)"),
            &[&keys],
        );
        assert_eq!(transactions, 1, "{table}");
    }
}

#[test]
fn a_write_makes_one_row_version_for_each_effect_and_completes_its_record_in_place() {
    let database = Database::new();
    let mut daemon = Daemon::start(&database);
    let count = i64::try_from(WRITES).unwrap();
    for _ in 0..WRITES {
        assert_eq!(daemon.order(&fresh_key()).status, 201);
    }
    // The server counts what a session did when it ends, at the latest.
    daemon.stop();

    let counted = |counter: &str, table: &str| -> i64 {
        let sql = format!("SELECT {counter} FROM pg_stat_user_tables WHERE relname = $1");
        database.value(&sql, &[&table])
    };
    for (table, inserted, updated) in [
        ("idempotency_records", count, count),
        ("orders", count, 0),
        ("outbox_events", 2 * count, 0),
    ] {
        let counters = ["n_tup_ins", "n_tup_upd", "n_tup_del"];
        until_eq(table, &[inserted, updated, 0], || counters.map(|name| counted(name, table)));
    }
    // Only at the end of a page there may be no room for the new version beside the old one.
    assert!(counted("n_tup_hot_upd", "idempotency_records") >= count * 9 / 10);
}

#[test]
fn a_lone_write_costs_hardly_more_wal_than_one_function_that_does_the_same() {
    let database = Database::alone();
    let daemon = Daemon::start(&database);
    database.execute(include_str!("../../benches/ceiling.sql"));
    let wal_of = |write: &mut dyn FnMut(&str)| -> i64 {
        database.execute("TRUNCATE idempotency_records, outbox_events, orders");
        // The first ones make the pages.
        (0..WRITES).for_each(|_| write(&uuid::Uuid::now_v7().to_string()));
        let at = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
        let before: i64 = database.value(at, &[]);
        (0..10 * WRITES).for_each(|_| write(&uuid::Uuid::now_v7().to_string()));
        database.value::<i64>(at, &[]) - before
    };

    let ours = wal_of(&mut |key| assert_eq!(daemon.order(key).status, 201));
    let theirs = wal_of(&mut |key| {
        let hash = format!("v1:{}", "0".repeat(64));
        let call = "SELECT status FROM ceiling_order($1, $2, $3::text::jsonb)";
        assert_eq!(database.value::<i32>(call, &[&key, &hash, &ORDER]), 201);
    });

    assert!(ours * 10 <= theirs * 11, "{ours} bytes, and {theirs} of the function");
}
