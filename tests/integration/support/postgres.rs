//! A database of its own for each test, copied from a template that `onced migrate` made once for the whole cluster.
//!
//! The cluster is the one that `ONCED_TEST_POSTGRES` names (`scripts/test` starts it); without it, one is started and
//! lives as long as a test of this process uses it. The daemon's role is an ordinary one that owns its database and
//! nothing else.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use onced::cli::dev::cluster::{Cluster, Options};
use postgres::config::Host;
use postgres::types::{FromSqlOwned, ToSql};
use postgres::{Client, Config, NoTls};
use tempfile::TempDir;

use super::daemon;
use super::wait::until_eq;

/// The role that the daemon uses.
pub const ROLE: &str = "onced_test";
/// Any number that is the same in all processes: whoever holds it may make the role and the template.
const PREPARING: i64 = 0x6f6e_6365;

/// A database that ends with this value.
pub struct Database {
    name: String,
    server: Server,
    client: Mutex<Client>,
}

/// Rows that a request may leave. `business` counts all tables that operations write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub records: i64,
    pub events: i64,
    pub business: i64,
}

impl Counts {
    /// No row anywhere.
    pub const NONE: Counts = Counts { records: 0, events: 0, business: 0 };
}

impl std::ops::Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        Counts {
            records: self.records + other.records,
            events: self.events + other.events,
            business: self.business + other.business,
        }
    }
}

/// An advisory lock that the operation `sleepy` waits for where its request says `"gate": NUMBER`.
pub struct Gate<'a> {
    database: &'a Database,
    number: i32,
    holder: Client,
}

impl Database {
    /// A migrated database, with the tables of all operations of the tests.
    pub fn new() -> Database {
        let server = Server::find();
        let template = server.template();
        Database::make(server, &format!("TEMPLATE {template}"))
    }

    /// A database that was never migrated.
    pub fn empty() -> Database {
        let server = Server::find();
        // With the template comes the role.
        server.template();
        Database::make(server, "")
    }

    /// A migrated database in a cluster that nobody else uses, so that what the cluster as a whole does can be counted.
    pub fn alone() -> Database {
        let server = Server::in_own(start_cluster(&[("autovacuum", "off")]));
        let template = server.template();
        Database::make(server, &format!("TEMPLATE {template}"))
    }

    fn make(server: Server, clause: &str) -> Database {
        let name = format!("onced_{}", uuid::Uuid::now_v7().simple());
        server
            .connect("postgres")
            .batch_execute(&format!("CREATE DATABASE {name} {clause} OWNER {ROLE}"))
            .expect("a database is made");
        let client = Mutex::new(server.connect(&name));
        Database { name, server, client }
    }

    /// The connection string for the daemon.
    pub fn url(&self) -> String {
        let (host, port) = self.server.address();
        format!("host={host} port={port} user={ROLE} dbname={}", self.name)
    }

    /// The same by way of a TCP relay.
    pub fn url_through(&self, relay: SocketAddr) -> String {
        let (host, port) = (relay.ip(), relay.port());
        format!("host={host} port={port} user={ROLE} dbname={}", self.name)
    }

    /// Where the server listens: a host or the folder of its socket, and the port.
    pub fn address(&self) -> (String, u16) {
        self.server.address()
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A session of a superuser of its own.
    pub fn session(&self) -> Client {
        self.server.connect(&self.name)
    }

    /// Runs statements as a superuser.
    pub fn execute(&self, sql: &str) {
        self.client.lock().unwrap().batch_execute(sql).expect(sql);
    }

    /// The one value that a query gives.
    pub fn value<T: FromSqlOwned>(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> T {
        self.client.lock().unwrap().query_one(sql, params).expect(sql).get(0)
    }

    /// Rows of a table.
    pub fn rows(&self, table: &str) -> i64 {
        self.value(&format!("SELECT count(*) FROM {table}"), &[])
    }

    /// Rows of all tables, in one snapshot.
    pub fn counts(&self) -> Counts {
        let row = self
            .client
            .lock()
            .unwrap()
            .query_one(
                "SELECT (SELECT count(*) FROM idempotency_records),
                        (SELECT count(*) FROM outbox_events),
                        (SELECT count(*) FROM orders) + (SELECT count(*) FROM notes)
                        + (SELECT count(*) FROM skus) + (SELECT count(*) FROM children)
                        + (SELECT count(*) FROM parents)",
                &[],
            )
            .expect("the tables are there");
        Counts { records: row.get(0), events: row.get(1), business: row.get(2) }
    }

    /// Rows that belong to one key: records, events, and rows of `orders` and `notes`.
    pub fn counts_of(&self, key: &str) -> Counts {
        let row = self
            .client
            .lock()
            .unwrap()
            .query_one(
                "SELECT (SELECT count(*) FROM idempotency_records WHERE key = $1),
                        (SELECT count(*) FROM outbox_events WHERE idempotency_key = $1),
                        (SELECT count(*) FROM orders WHERE idempotency_key = $1)
                        + (SELECT count(*) FROM notes WHERE idempotency_key = $1)",
                &[&key],
            )
            .expect("the tables are there");
        Counts { records: row.get(0), events: row.get(1), business: row.get(2) }
    }

    /// The status (`succeeded`, `rejected`) and HTTP status of a key's record.
    pub fn record(&self, key: &str) -> Option<(String, i32)> {
        self.client
            .lock()
            .unwrap()
            .query_opt(
                "SELECT status, http_status FROM idempotency_records WHERE key = $1",
                &[&key],
            )
            .expect("a key has one record")
            .map(|row| (row.get(0), row.get(1)))
    }

    /// Sessions of the daemon's role in this database.
    pub fn sessions(&self) -> i64 {
        self.value(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND datname = $2",
            &[&ROLE, &self.name],
        )
    }

    /// Sessions of the daemon that hold a transaction open without doing anything.
    pub fn idle_in_transaction(&self) -> i64 {
        self.value(
            "SELECT count(*) FROM pg_stat_activity
             WHERE usename = $1 AND datname = $2 AND state LIKE 'idle in transaction%'",
            &[&ROLE, &self.name],
        )
    }

    /// Ends every session of the daemon.
    pub fn kill_sessions(&self) -> i64 {
        self.value(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE usename = $1 AND datname = $2",
            &[&ROLE, &self.name],
        )
    }

    /// Holds whoever comes to this gate, until it is opened.
    pub fn shut_gate(&self, number: i32) -> Gate<'_> {
        let mut holder = self.session();
        holder.execute("SELECT pg_advisory_lock(0, $1)", &[&number]).expect("the gate is shut");
        Gate { database: self, number, holder }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop_it = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = self.server.connect("postgres").batch_execute(&drop_it) {
            eprintln!("{} stays: {error}", self.name);
        }
    }
}

impl Gate<'_> {
    /// How many wait at it.
    pub fn waiting(&self) -> i64 {
        self.database.value(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
             WHERE locktype = 'advisory' AND NOT granted AND classid = 0 AND objid = $1::int::oid
               AND datname = $2",
            &[&self.number, &self.database.name],
        )
    }

    /// Returns when as many wait at it.
    pub fn wait_for(&self, waiting: i64) {
        until_eq("operations wait at the gate", &waiting, || self.waiting());
    }

    /// Lets all of them go on.
    pub fn open(mut self) {
        self.holder
            .execute("SELECT pg_advisory_unlock(0, $1)", &[&self.number])
            .expect("the gate is opened");
    }
}

/// The cluster, as its superuser sees it.
struct Server {
    base: Config,
    _own: Option<Arc<OwnCluster>>,
}

/// A cluster that this process started; it goes with the last test that uses it.
struct OwnCluster {
    // In this order: the server stops before its folder goes.
    cluster: Cluster,
    _folder: TempDir,
}

static OWN: Mutex<Weak<OwnCluster>> = Mutex::new(Weak::new());

impl Server {
    fn find() -> Server {
        match std::env::var("ONCED_TEST_POSTGRES") {
            Ok(text) => Server {
                base: text.parse().expect("ONCED_TEST_POSTGRES is a connection string"),
                _own: None,
            },
            Err(_) => Server::in_own(own_cluster()),
        }
    }

    fn in_own(own: Arc<OwnCluster>) -> Server {
        let base = own.cluster.dsn().parse().expect("a cluster has a connection string");
        Server { base, _own: Some(own) }
    }

    fn connect(&self, database: &str) -> Client {
        let mut config = self.base.clone();
        config.dbname(database).connect_timeout(Duration::from_secs(10));
        config.connect(NoTls).expect("the server of the tests takes a connection")
    }

    fn address(&self) -> (String, u16) {
        let host = match self.base.get_hosts() {
            [Host::Tcp(name)] => name.clone(),
            [Host::Unix(folder)] => folder.display().to_string(),
            hosts => panic!("one host is needed, not {hosts:?}"),
        };
        (host, self.base.get_ports().first().copied().unwrap_or(5432))
    }

    /// The migrated template, made by whichever test comes first.
    fn template(&self) -> String {
        let name = format!("onced_template_{:016x}", what_makes_the_template());
        let mut session = self.connect("postgres");
        session.execute("SELECT pg_advisory_lock($1)", &[&PREPARING]).expect("it is our turn");
        let exists = "SELECT count(*) FROM pg_database WHERE datname = $1";
        let count: i64 = session.query_one(exists, &[&name]).expect(exists).get(0);
        if count == 0 {
            self.make_template(&mut session, &name);
        }
        name
    }

    fn make_template(&self, session: &mut Client, name: &str) {
        let raw = format!("{name}_raw");
        let role = format!(
            "DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        );
        let made = format!("CREATE DATABASE {raw} OWNER {ROLE}");
        for statement in [&role, &format!("DROP DATABASE IF EXISTS {raw}"), &made] {
            session.batch_execute(statement).expect(statement);
        }
        let (host, port) = self.address();
        daemon::migrate(&format!("host={host} port={port} user={ROLE} dbname={raw}"));
        // Under its final name only when it is whole, should this test be killed on the way.
        let rename = format!("ALTER DATABASE {raw} RENAME TO {name}");
        session.batch_execute(&rename).expect(&rename);
    }
}

fn own_cluster() -> Arc<OwnCluster> {
    let mut own = OWN.lock().unwrap();
    if let Some(running) = own.upgrade() {
        return running;
    }
    let running = start_cluster(&[]);
    *own = Arc::downgrade(&running);
    running
}

fn start_cluster(more: &[(&str, &str)]) -> Arc<OwnCluster> {
    let folder = tempfile::Builder::new().prefix("onced-pg-").tempdir_in("/tmp").unwrap();
    let settings = [("fsync", "off"), ("full_page_writes", "off"), ("max_connections", "300")];
    let settings =
        settings.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let options = Options { settings: settings.collect(), ..Options::default() };
    let cluster = Cluster::start(folder.path(), &options).expect("a PostgreSQL starts");
    Arc::new(OwnCluster { cluster, _folder: folder })
}

/// A number that changes with every file that the template is made from, and with the program that makes it.
fn what_makes_the_template() -> u64 {
    let mut hasher = DefaultHasher::new();
    for folder in ["migrations", "config/operations", "tests/integration/operations"] {
        for file in files_in(&daemon::root().join(folder)) {
            file.hash(&mut hasher);
            fs::read(&file).expect("a file that was listed is there").hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The files of a folder, sorted.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
