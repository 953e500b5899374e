use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use onced::config::{self, Secret, Tls};
use onced::operations::{Operation, Script};
use onced::outcome::{Fault, FaultKind};
use onced::store::migrate::{MigrateError, SchemaProblem, check_schema, migrate};
use onced::store::prepare::{ColumnName, DescribeError, OperationProblem, Place, describe};
use onced::store::records::{Health, find_record, probe};
use onced::store::{self, Store};

const WAIT: Duration = Duration::from_secs(10);

/// The test cluster's connection string; `scripts/test` starts one and sets it.
fn base_dsn() -> String {
    std::env::var("ONCED_TEST_POSTGRES").expect("ONCED_TEST_POSTGRES: run scripts/test")
}

/// A database of the test's own, dropped with it.
pub(crate) struct TestDatabase {
    name: String,
    pub(crate) url: String,
}

impl TestDatabase {
    pub(crate) fn create(name: &str) -> TestDatabase {
        let name = format!("database_{name}_{}", std::process::id());
        admin().batch_execute(&format!("CREATE DATABASE \"{name}\"")).unwrap();
        let base = base_dsn();
        let (server, _) = base.rsplit_once('/').unwrap();
        let url = format!("{server}/{name}");
        TestDatabase { name, url }
    }

    /// Without any of the program's settings.
    fn plain(&self) -> postgres::Client {
        postgres::Client::connect(&self.url, postgres::NoTls).unwrap()
    }

    fn connect(&self) -> postgres::Client {
        store::connect(&database_at(&self.url)).unwrap()
    }

    fn migrated(name: &str) -> (TestDatabase, postgres::Client) {
        let database = TestDatabase::create(name);
        let mut client = database.connect();
        migrate(&mut client, "public", &[]).unwrap();
        (database, client)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        admin().batch_execute(&drop).unwrap();
    }
}

fn admin() -> postgres::Client {
    postgres::Client::connect(&base_dsn(), postgres::NoTls).unwrap()
}

/// A role of the test's own, dropped with it.
struct TestRole(String);

impl TestRole {
    fn create(name: &str, with: &str) -> TestRole {
        let name = format!("database_{name}_{}", std::process::id());
        admin().batch_execute(&format!("CREATE ROLE \"{name}\" LOGIN {with}")).unwrap();
        TestRole(name)
    }

    fn url(&self, database: &TestDatabase) -> String {
        database.url.replacen("postgres@", &format!("{}@", self.0), 1)
    }
}

impl Drop for TestRole {
    fn drop(&mut self) {
        drop(admin().batch_execute(&format!("DROP OWNED BY \"{0}\"; DROP ROLE \"{0}\"", self.0)));
    }
}

pub(crate) fn database_at(url: &str) -> config::Database {
    config::Database {
        url: Secret::new(url.to_owned()),
        schema: "public".to_owned(),
        ca_file: None,
        tls: Tls::Auto,
        connect_timeout: Duration::from_secs(2),
    }
}

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn writers() -> config::Writers {
    config::Writers {
        threads: count(2),
        queue: count(16),
        batch: count(8),
        statement_timeout: Duration::from_millis(5500),
        lock_timeout: Duration::from_secs(2),
        max_events: 1000,
        max_response: 8 << 20,
    }
}

fn relay() -> config::Relay {
    config::Relay {
        threads: count(2),
        batch: count(10),
        lease: Duration::from_secs(30),
        poll: Duration::from_secs(1),
        connections: count(2),
        on_dead: config::OnDead::Continue,
        max_attempts: 3,
        give_up_after: Duration::from_secs(60),
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(2),
    }
}

fn open(url: &str) -> Store {
    Store::open(&database_at(url), &writers(), &relay(), Box::new(|_| Ok(()))).unwrap()
}

fn show(client: &mut postgres::Client, setting: &str) -> String {
    client.query_one("SELECT current_setting($1)", &[&setting]).unwrap().get(0)
}

fn backend(client: &mut postgres::Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0)
}

/// Waits until `met` gives something; fails at the limit with what was waited for.
fn until<T>(what: &str, mut met: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + WAIT;
    loop {
        if let Some(found) = met() {
            return found;
        }
        assert!(Instant::now() < limit, "waited in vain until {what}");
        thread::yield_now();
    }
}

fn operation(sql: &str, setup: Option<&str>) -> Operation {
    let script = |name: &str, sql: &str| Script { path: PathBuf::from(name), sql: sql.to_owned() };
    Operation {
        name: "op".to_owned(),
        route: "/v1/op".to_owned(),
        statement: script("op.sql", sql),
        setup: setup.map(|sql| script("op.setup.sql", sql)),
        timeout: None,
    }
}

#[test]
fn a_session_has_our_settings_whatever_the_role_and_the_user_say_and_reset_all_keeps_them() {
    let database = TestDatabase::create("settings");
    let role = TestRole::create("settings", "");
    let set = [
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "intervalstyle = 'iso_8601'",
        "extra_float_digits = -5",
        "search_path = pg_catalog",
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "standard_conforming_strings = off",
    ];
    for set in set {
        admin().batch_execute(&format!("ALTER ROLE \"{}\" SET {set}", role.0)).unwrap();
    }
    let url = format!("{}?options=-c%20work_mem=8MB%20-c%20jit=on", role.url(&database));
    let mut settings = database_at(&url);
    settings.schema = "My \\ \"schema\"".to_owned();
    let store = Store::open(&settings, &writers(), &relay(), Box::new(|_| Ok(()))).unwrap();
    let mut client = store.writer(WAIT).unwrap();
    for _ in 0..2 {
        for (name, value) in [
            ("search_path", "\"My \\ \"\"schema\"\"\", pg_temp"),
            ("statement_timeout", "5500ms"),
            ("lock_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
            ("application_name", "onced"),
            ("synchronous_commit", "on"),
            ("default_transaction_isolation", "read committed"),
            ("DateStyle", "ISO, DMY"),
            ("TimeZone", "UTC"),
            ("IntervalStyle", "postgres"),
            ("extra_float_digits", "1"),
            ("standard_conforming_strings", "on"),
            ("client_encoding", "UTF8"),
            ("work_mem", "8MB"),
            ("jit", "off"),
        ] {
            assert_eq!(show(&mut client, name), value, "{name}");
        }
        client.batch_execute("SET lock_timeout = 1; RESET ALL").unwrap();
    }
}

#[test]
fn a_higher_synchronous_commit_and_a_name_of_the_users_own_are_kept() {
    let database = TestDatabase::create("kept");
    let role = TestRole::create("kept", "");
    let set = format!("ALTER ROLE \"{}\" SET synchronous_commit = remote_apply", role.0);
    admin().batch_execute(&set).unwrap();
    let url = format!("{}?application_name=billing", role.url(&database));
    let mut client = open(&url).client(WAIT).unwrap();
    assert_eq!(show(&mut client, "synchronous_commit"), "remote_apply");
    assert_eq!(show(&mut client, "application_name"), "billing");
    assert_eq!(show(&mut client, "statement_timeout"), "30s");
}

#[test]
fn a_database_that_is_down_is_a_fault_with_the_reason() {
    let store = open("postgresql://postgres@127.0.0.1:1/postgres");
    let fault = store.client(Duration::from_millis(300)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.text.contains("onnection refused"), "{fault}");
}

#[test]
fn a_database_or_password_that_is_wrong_is_a_fault_with_the_servers_words() {
    let store = open(&format!("{}_nope", base_dsn()));
    let fault = store.client(Duration::from_millis(500)).unwrap_err();
    assert_eq!((fault.kind, fault.sqlstate.as_deref()), (FaultKind::Unreachable, Some("3D000")));
}

#[test]
fn what_install_says_is_the_reason_and_only_writers_have_it() {
    let database = TestDatabase::create("install");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let install: store::Install = Box::new(move |client| {
        counted.fetch_add(1, Ordering::SeqCst);
        client.batch_execute("SELECT nothing").map_err(|error| store::fault::classify(&error))
    });
    let store = Store::open(&database_at(&database.url), &writers(), &relay(), install).unwrap();
    store.client(WAIT).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let fault = store.writer(Duration::from_millis(500)).unwrap_err();
    assert_eq!((fault.kind, fault.sqlstate.as_deref()), (FaultKind::Broken, Some("42703")));
    assert!(calls.load(Ordering::SeqCst) > 0);
}

#[test]
fn no_more_connections_are_made_than_allowed() {
    let database = TestDatabase::create("bounded");
    let store = open(&database.url);
    let held: Vec<_> = (0..2).map(|_| store.writer(WAIT).unwrap()).collect();
    let fault = store.writer(Duration::from_millis(200)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Overloaded);
    let others: Vec<_> = (0..5).map(|_| store.client(WAIT).unwrap()).collect();
    assert!(store.client(Duration::from_millis(200)).is_err());
    drop((held, others));
    store.writer(WAIT).unwrap();
}

#[test]
fn a_discarded_connection_is_made_anew_and_a_returned_one_is_used_again() {
    let database = TestDatabase::create("discard");
    let store = open(&database.url);
    let mut client = store.writer(WAIT).unwrap();
    let first = backend(&mut client);
    drop(client);
    let mut client = store.writer(WAIT).unwrap();
    assert_eq!(backend(&mut client), first);
    client.discard();
    assert_ne!(backend(&mut store.writer(WAIT).unwrap()), first);
}

#[test]
fn after_all_sessions_were_killed_one_call_fails_and_the_next_ones_do_not() {
    let database = TestDatabase::create("killed");
    let store = open(&database.url);
    let idle: Vec<_> = (0..5).map(|_| store.client(WAIT).unwrap()).collect();
    drop(idle);
    let kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1";
    admin().query(kill, &[&database.name]).unwrap();
    let mut client = store.client(WAIT).unwrap();
    let error = client.query_one("SELECT 1", &[]).unwrap_err();
    assert_eq!(store::fault::classify(&error).kind, FaultKind::Unreachable);
    drop(client);
    for _ in 0..10 {
        store.client(WAIT).unwrap().query_one("SELECT 1", &[]).unwrap();
    }
}

/// A relay between the program and PostgreSQL that can stop forwarding without closing.
struct Proxy {
    port: u16,
    is_silent: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
}

impl Proxy {
    fn start() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_silent, is_closed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (silent, closed) = (Arc::clone(&is_silent), Arc::clone(&is_closed));
        let parsed: postgres::Config = base_dsn().parse().unwrap();
        let server = parsed.get_ports()[0];
        spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let upstream = TcpStream::connect(("127.0.0.1", server)).unwrap();
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap()),
                    (upstream, client),
                ] {
                    let silent = Arc::clone(&silent);
                    spawn(move || forward(&mut from, &mut to, &silent));
                }
            }
        });
        Proxy { port, is_silent, is_closed }
    }

    fn url(&self, database: &TestDatabase) -> String {
        let parsed: postgres::Config = base_dsn().parse().unwrap();
        let server = parsed.get_ports()[0];
        database.url.replacen(&format!(":{server}/"), &format!(":{}/", self.port), 1)
    }
}

fn forward(from: &mut TcpStream, to: &mut TcpStream, silent: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !silent.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    drop((from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both)));
}

#[expect(clippy::disallowed_methods, reason = "a test has no panic fence and no list of threads")]
fn spawn(body: impl FnOnce() + Send + 'static) {
    drop(thread::spawn(body));
}

#[test]
fn a_server_that_falls_silent_holds_a_statement_only_as_long_as_was_said() {
    let database = TestDatabase::create("silent");
    let proxy = Proxy::start();
    let store = open(&proxy.url(&database));
    let mut client = store.writer(WAIT).unwrap();
    client.answers_within(Duration::from_millis(300));
    proxy.is_silent.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let error = client.query_one("SELECT 1", &[]).unwrap_err();
    let fault = store::fault::classify(&error);
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.text.contains("silent"), "{fault}");
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(300) && took < Duration::from_secs(4), "{took:?}");
    assert!(client.is_closed());
}

#[test]
fn a_statement_that_takes_its_time_is_waited_for_and_so_is_one_after_a_long_pause() {
    let database = TestDatabase::create("slow");
    let store = open(&database.url);
    let mut client = store.writer(WAIT).unwrap();
    client.answers_within(Duration::from_millis(600));
    client.batch_execute("SELECT pg_sleep(0.3)").unwrap();
    // The pause is longer than the server may be silent, and nothing is asked of it meanwhile.
    let mut other = database.plain();
    other.batch_execute("SELECT pg_sleep(2)").unwrap();
    client.batch_execute("SELECT pg_sleep(0.3)").unwrap();
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_does_not_hold_up_recovery() {
    let database = TestDatabase::create("mute");
    let proxy = Proxy::start();
    proxy.is_silent.store(true, Ordering::SeqCst);
    let store = open(&proxy.url(&database));
    let fault = until("the silence is the reason", || {
        let fault = store.writer(Duration::from_millis(500)).unwrap_err();
        fault.text.contains("silent").then_some(fault)
    });
    assert_eq!(fault.kind, FaultKind::Unreachable);
    proxy.is_silent.store(false, Ordering::SeqCst);
    let mut client = store.writer(Duration::from_secs(5)).unwrap();
    client.query_one("SELECT 1", &[]).unwrap();
}

#[test]
fn a_database_that_is_back_is_found_within_a_second_however_long_it_was_away() {
    let database = TestDatabase::create("back");
    let proxy = Proxy::start();
    proxy.is_closed.store(true, Ordering::SeqCst);
    let store = open(&proxy.url(&database));
    store.writer(Duration::from_secs(4)).unwrap_err();
    proxy.is_closed.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    store.writer(WAIT).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
}

#[test]
fn eight_first_migrations_at_once_all_succeed_and_apply_everything_once() {
    let database = TestDatabase::create("eight");
    let mut settings = database_at(&database.url);
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
    let (database, _) = TestDatabase::migrated("rights");
    let role = TestRole::create("rights", "");
    let mut settings = database_at(&role.url(&database));
    let mut client = store::connect(&settings).unwrap();
    let grant = |sql: &str| database.plain().batch_execute(&format!("{sql} TO \"{}\"", role.0));

    grant("GRANT SELECT ON onced_migrations, onced_schema, outbox_events").unwrap();
    let problem = check_schema(&mut client).unwrap_err().to_string();
    assert!(problem.contains("idempotency_records, idempotency_tombstones, outbox_events"));
    grant("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public").unwrap();
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
        ("SELECT 1 AS status FORM x", place(1, 25), "syntax error"),
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
