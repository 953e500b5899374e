use std::path::PathBuf;
use std::thread;

use onced::outcome::{Fault, FaultKind};
use onced::store;
use onced::store::migrate::{MigrateError, SchemaProblem, check_schema, migrate};
use onced::store::prepare::{ColumnName, DescribeError, OperationProblem, Place, describe};
use onced::store::records::{Health, find_record, probe};

use crate::testbed::{TestDatabase, TestRole, admin, database_at, operation};

#[test]
fn eight_first_migrations_at_once_all_succeed_and_apply_everything_once() {
    let database = TestDatabase::create("eight");
    let mut settings = database_at(&database.dsn);
    settings.schema = "Eight at once".to_owned();
    let setup = "CREATE TABLE IF NOT EXISTS orders (id int); INSERT INTO orders VALUES (1)";
    let operations = [operation("SELECT 1 AS status", Some(setup))];
    let applied: usize = thread::scope(|scope| {
        let run = || {
            let mut client = store::connect(&settings).unwrap();
            let report = migrate(&mut client, &settings.schema, &operations).unwrap();
            assert_eq!(report.setups, [PathBuf::from("op.setup.sql")]);
            check_schema(&mut client).unwrap();
            report.migrations.len()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|run| run.join().unwrap()).sum()
    });
    let rows = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM \"Eight at once\".{table}");
        database.plain().query_one(&sql, &[]).unwrap().get(0)
    };
    assert_eq!(rows("onced_migrations"), i64::try_from(applied).unwrap());
    assert_eq!(rows("orders"), 8);
    assert_eq!(rows("outbox_events"), 0);
}

#[test]
fn a_schema_that_does_not_fit_says_what_to_do() {
    let database = TestDatabase::create("schema");
    let mut client = database.connect();
    let problem = check_schema(&mut client).unwrap_err();
    assert!(matches!(problem, SchemaProblem::NeverMigrated { .. }), "{problem}");
    assert!(problem.to_string().contains("onced migrate"));

    migrate(&mut client, "public", &[]).unwrap();
    assert_eq!(check_schema(&mut client), Ok(()));
    client.batch_execute("INSERT INTO onced_migrations VALUES (9999, 'later', '', '1')").unwrap();
    assert_eq!(check_schema(&mut client), Ok(()), "a newer schema that asks for nothing");
    assert_eq!(migrate(&mut client, "public", &[]).unwrap().migrations, [""; 0]);

    client.batch_execute("UPDATE onced_schema SET value = '7.0.0'").unwrap();
    let problem = check_schema(&mut client).unwrap_err().to_string();
    assert!(problem.contains("7.0.0") && problem.contains(env!("CARGO_PKG_VERSION")), "{problem}");
    let refused = migrate(&mut client, "public", &[]).unwrap_err();
    assert!(matches!(refused, MigrateError::Schema(SchemaProblem::NeedsNewer { .. })));

    client.batch_execute("DELETE FROM onced_migrations").unwrap();
    let problem = check_schema(&mut client).unwrap_err();
    assert!(matches!(problem, SchemaProblem::Behind { applied: 0, .. }), "{problem}");
}

#[test]
fn a_role_without_rights_is_told_which() {
    // It is dropped after the database in which it has rights.
    let role = TestRole::create("rights");
    let (database, _) = TestDatabase::migrated("rights");
    let mut settings = database_at(&role.dsn(&database));
    let mut client = store::connect(&settings).unwrap();
    let grant = |sql: &str| database.plain().batch_execute(&format!("{sql} TO \"{}\"", role.0));

    grant("GRANT SELECT ON onced_migrations, onced_schema, outbox_events").unwrap();
    let problem = check_schema(&mut client).unwrap_err().to_string();
    assert!(problem.contains("outbox_events, outbox_events_id_seq, outbox_sink"));
    grant("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public").unwrap();
    let problem = check_schema(&mut client).unwrap_err().to_string();
    assert!(problem.contains("idempotency_audit_id_seq, outbox_events_id_seq:"), "{problem}");
    grant("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public").unwrap();
    assert_eq!(check_schema(&mut client), Ok(()));
    assert!(migrate(&mut client, "public", &[]).is_ok(), "nothing to create, nothing refused");

    settings.schema = "other".to_owned();
    let mut client = store::connect(&settings).unwrap();
    let refused = migrate(&mut client, "other", &[]).unwrap_err();
    assert!(matches!(refused, MigrateError::NoSchema { .. }), "{refused}");
    database.plain().batch_execute("CREATE SCHEMA other").unwrap();
    grant("GRANT USAGE ON SCHEMA other").unwrap();
    let refused = migrate(&mut client, "other", &[]).unwrap_err();
    assert!(matches!(refused, MigrateError::NoCreate { .. }), "{refused}");
    grant("GRANT CREATE ON SCHEMA other").unwrap();
    migrate(&mut client, "other", &[]).unwrap();
    assert_eq!(check_schema(&mut client), Ok(()));
}

#[test]
fn a_setup_that_fails_half_way_leaves_nothing_and_says_where() {
    let (_database, mut client) = TestDatabase::migrated("setup");
    let mut run = |sql: &str| {
        let refused = migrate(&mut client, "public", &[operation("SELECT 1", Some(sql))]);
        refused.map(|_| ()).map_err(|error| error.to_string())
    };
    let half = "CREATE TABLE half (id int);\n  CREATE TABEL other (id int);";
    let refused = run(half).unwrap_err();
    assert!(refused.starts_with("op.setup.sql:2:10: "), "{refused}");
    let refused = run("CREATE TABLE IF NOT EXISTS whole (id int); COMMIT").unwrap_err();
    assert!(refused.contains("ends its transaction"), "{refused}");
    run("SET search_path = pg_catalog; SET ROLE pg_read_all_data").unwrap();
    run("CREATE TABLE half (id int); CREATE INDEX ON half (id);").unwrap();
    let schema = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'half'";
    assert_eq!(client.query_one(schema, &[]).unwrap().get::<_, &str>(0), "public");
}

fn refused(client: &mut postgres::Client, sql: &str) -> OperationProblem {
    match describe(client, &operation(sql, None)) {
        Err(DescribeError::Problem(problem)) => problem,
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn an_operation_is_described_by_its_columns_in_their_order() {
    let (_database, mut client) = TestDatabase::migrated("describe");
    client.batch_execute("CREATE TABLE t (a int)").unwrap();
    let mut columns = |sql: &str| -> Vec<(ColumnName, &str)> {
        let columns = describe(&mut client, &operation(sql, None)).unwrap();
        columns.iter().map(|column| (column.name, column.sql_type)).collect()
    };
    let shipped = include_str!("../../config/operations/orders.setup.sql");
    drop(columns("SELECT 200 AS status"));
    let all = "SELECT '[]'::jsonb AS events, $1 AS response, 201::bigint AS status; -- $9;";
    assert_eq!(
        columns(all),
        [
            (ColumnName::Events, "jsonb"),
            (ColumnName::Response, "jsonb"),
            (ColumnName::Status, "bigint")
        ]
    );
    let insert = "INSERT INTO t VALUES (1) RETURNING 201.0 AS status";
    assert_eq!(columns(insert), [(ColumnName::Status, "numeric")]);
    client.batch_execute(shipped).unwrap();
    let orders = include_str!("../../config/operations/orders.sql");
    assert_eq!(describe(&mut client, &operation(orders, None)).unwrap().iter().count(), 3);
    let rows = client.query_one("SELECT count(*) FROM t", &[]).unwrap();
    assert_eq!(rows.get::<_, i64>(0), 0, "describing runs nothing");
}

#[test]
fn an_operation_that_does_not_fit_is_refused_with_its_place() {
    let (_database, mut client) = TestDatabase::migrated("unfit");
    let place = |line, column| Some(Place { line, column });
    let table = [
        ("-- é\nSELECT 1 AS status\nFROM nowhere;", place(3, 6), "nowhere"),
        ("SELECT 1 AS status FORM x", place(1, 20), "syntax error"),
        ("SELECT nope($2) AS response", place(1, 8), "nope"),
        ("SELECT 1 AS status; SELECT 2", place(1, 21), "second statement"),
        ("SELECT $4 AS response", place(1, 8), "$4"),
        ("COMMIT", place(1, 1), "COMMIT"),
        ("DO $$ BEGIN END $$", place(1, 1), "DO"),
        ("SELECT 'x' AS response", None, "to_jsonb"),
        ("SELECT 1 AS status INTO TEMP x", None, "no columns"),
        ("DELETE FROM outbox_events", None, "RETURNING"),
        ("SELECT 1", None, "?column?"),
    ];
    for (sql, at, words) in table {
        let problem = refused(&mut client, sql);
        assert_eq!(problem.at, at, "{problem}");
        assert!(problem.message.contains(words), "{problem}");
    }
    let shown = refused(&mut client, "COMMIT").to_string();
    assert!(shown.starts_with("op.sql:1:1: "), "{shown}");
}

#[test]
fn a_record_is_found_in_its_scope_with_its_events_and_exact_bytes() {
    let (_database, mut client) = TestDatabase::migrated("record");
    client
        .batch_execute(
            "INSERT INTO idempotency_records VALUES
                 ('a', 'k', 'orders', 'v1:00', 'succeeded', 201, '{\"n\": 1.0, \"a\": \"é\"}', false,
                  '2026-12-01 09:30:00.5+00');
             INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, created_at)
             VALUES ('a', 'k', 'e:old', 'x', '1', '2026-11-01'),
                    ('a', 'k', 'e:1', 'order.created', '1', '2026-12-01 09:30:00.5+00'),
                    ('b', 'k', 'e:2', 'x', '1', '2026-12-02');",
        )
        .unwrap();
    assert!(find_record(&mut client, "b", "k").unwrap().is_none());
    let record = find_record(&mut client, "a", "k").unwrap().unwrap();
    assert_eq!(
        serde_json::to_string(&record).unwrap(),
        "{\"key\":\"k\",\"operation\":\"orders\",\"status\":\"succeeded\",\"http_status\":201,\
         \"request_hash\":\"v1:00\",\"created_at\":\"2026-12-01T09:30:00.500000Z\",\
         \"response\":{\"a\": \"é\", \"n\": 1.0},\"events\":[{\"event_id\":2,\"event_key\":\"e:1\",\
         \"type\":\"order.created\",\"created_at\":\"2026-12-01T09:30:00.500000Z\",\"sent_at\":null,\
         \"attempts\":0,\"dead_at\":null}]}"
    );
}

#[test]
fn a_database_that_takes_no_writes_is_seen() {
    let (database, mut client) = TestDatabase::migrated("health");
    assert_eq!(probe(&mut client), Ok(Health::Writable));
    let alter =
        format!("ALTER DATABASE \"{}\" SET default_transaction_read_only = on", database.name);
    admin().batch_execute(&alter).unwrap();
    assert_eq!(probe(&mut database.connect()), Ok(Health::ReadOnly));
    let error = database.connect().batch_execute("CREATE TABLE t ()").unwrap_err();
    let Fault { kind, .. } = store::fault::classify(&error);
    assert_eq!(kind, FaultKind::ReadOnly);
}
