//! What the tests of the store share: a database of a test's own, roles, and a relay that falls silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use onced::config::{self, Secret, Tls};
use onced::operations::{Operation, Script};
use onced::store::{self, Store, migrate::migrate};
use postgres::config::Host;
use socket2::{Domain, SockAddr, Socket, Type};

/// No condition of these tests takes longer, however busy the machine.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// The test cluster, as `ONCED_TEST_POSTGRES` names it; `scripts/test` starts one and sets it.
fn server() -> postgres::Config {
    let dsn = std::env::var("ONCED_TEST_POSTGRES").expect("ONCED_TEST_POSTGRES: run scripts/test");
    dsn.parse().expect("ONCED_TEST_POSTGRES is a connection string")
}

fn server_port() -> u16 {
    server().get_ports().first().copied().unwrap_or(5432)
}

/// A connection string for the test cluster.
pub(crate) fn dsn_of(user: &str, database: &str) -> String {
    let host = match &server().get_hosts()[0] {
        Host::Tcp(name) => name.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    };
    let port = server_port();
    format!("host={host} port={port} user={user} dbname={database}")
}

/// A database of the test's own, dropped with it.
pub(crate) struct TestDatabase {
    pub(crate) name: String,
    pub(crate) dsn: String,
}

impl TestDatabase {
    pub(crate) fn create(name: &str) -> TestDatabase {
        let name = format!("database_{name}_{}", std::process::id());
        admin().batch_execute(&format!("CREATE DATABASE \"{name}\"")).unwrap();
        let dsn = dsn_of(server().get_user().unwrap_or("postgres"), &name);
        TestDatabase { name, dsn }
    }

    /// Migrated, with a connection of the program's kind.
    pub(crate) fn migrated(name: &str) -> (TestDatabase, postgres::Client) {
        let database = TestDatabase::create(name);
        let mut client = database.connect();
        migrate(&mut client, "public", &[]).unwrap();
        (database, client)
    }

    /// A connection without any of the program's settings.
    pub(crate) fn plain(&self) -> postgres::Client {
        postgres::Client::connect(&self.dsn, postgres::NoTls).unwrap()
    }

    /// A connection of the program's kind.
    pub(crate) fn connect(&self) -> postgres::Client {
        store::connect(&database_at(&self.dsn)).unwrap()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        admin().batch_execute(&drop).unwrap();
    }
}

/// The cluster's superuser.
pub(crate) fn admin() -> postgres::Client {
    server().connect(postgres::NoTls).unwrap()
}

/// A role of the test's own, dropped with it.
pub(crate) struct TestRole(pub(crate) String);

impl TestRole {
    pub(crate) fn create(name: &str) -> TestRole {
        let name = format!("database_{name}_{}", std::process::id());
        admin().batch_execute(&format!("CREATE ROLE \"{name}\" LOGIN")).unwrap();
        TestRole(name)
    }

    pub(crate) fn dsn(&self, database: &TestDatabase) -> String {
        dsn_of(&self.0, &database.name)
    }
}

impl Drop for TestRole {
    fn drop(&mut self) {
        admin().batch_execute(&format!("DROP ROLE \"{}\"", self.0)).unwrap();
    }
}

/// `[database]` with everything at its default, but for a shorter patience.
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

/// Two writers.
pub(crate) fn writers() -> config::Writers {
    config::Writers {
        threads: count(2),
        queue: count(16),
        batch: count(8),
        statement_timeout: Duration::from_millis(5500),
        lock_timeout: Duration::from_secs(2),
        max_events: 1000,
        max_response: 8 << 20,
        replay_cache: 0,
    }
}

/// Two connections.
pub(crate) fn relay() -> config::Relay {
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

/// A store whose writers have nothing installed.
pub(crate) fn open(url: &str) -> Store {
    Store::open(&database_at(url), &writers(), &relay(), Box::new(|_| Ok(None))).unwrap()
}

/// Waits until `met` gives something; fails at the limit with what was waited for.
pub(crate) fn until<T>(what: &str, mut met: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + WAIT;
    loop {
        if let Some(found) = met() {
            return found;
        }
        assert!(Instant::now() < limit, "waited in vain until {what}");
    }
}

/// An operation with this statement and setup, in files that are only names.
pub(crate) fn operation(sql: &str, setup: Option<&str>) -> Operation {
    let script = |name: &str, sql: &str| Script { path: PathBuf::from(name), sql: sql.to_owned() };
    Operation {
        name: "op".to_owned(),
        route: "/v1/op".to_owned(),
        statement: script("op.sql", sql),
        setup: setup.map(|sql| script("op.setup.sql", sql)),
        timeout: None,
    }
}

/// A relay between the program and the cluster that can stop forwarding without closing, or close at once.
pub(crate) struct Proxy {
    port: u16,
    pub(crate) is_silent: Arc<AtomicBool>,
    pub(crate) is_closed: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_silent, is_closed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (silent, closed) = (Arc::clone(&is_silent), Arc::clone(&is_closed));
        spawn(move || {
            for client in listener.incoming().map(|client| Socket::from(client.unwrap())) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let upstream = upstream();
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

    pub(crate) fn dsn(&self, database: &TestDatabase) -> String {
        let user = server().get_user().unwrap_or("postgres").to_owned();
        format!("host=127.0.0.1 port={} user={user} dbname={}", self.port, database.name)
    }
}

fn upstream() -> Socket {
    let port = server_port();
    let (domain, address) = match &server().get_hosts()[0] {
        Host::Tcp(_) => (Domain::IPV4, SocketAddr::from(([127, 0, 0, 1], port)).into()),
        Host::Unix(folder) => {
            (Domain::UNIX, SockAddr::unix(folder.join(format!(".s.PGSQL.{port}"))).unwrap())
        }
    };
    let socket = Socket::new(domain, Type::STREAM, None).unwrap();
    socket.connect(&address).unwrap();
    socket
}

fn forward(from: &mut Socket, to: &mut Socket, silent: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !silent.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // Either may be closed already.
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

#[expect(clippy::disallowed_methods, reason = "a test has no panic fence and no list of threads")]
fn spawn(body: impl FnOnce() + Send + 'static) {
    drop(thread::spawn(body));
}
