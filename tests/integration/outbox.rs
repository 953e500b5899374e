//! What the tests of delivery, leases and retention stand on: an outbox of their own, relays in this process, and a
//! sink that is a plain socket, so that it can also misbehave below HTTP.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use onced::config::{self, OnDead, Secret};
use onced::relay::{Relays, Wiring};
use onced::store::Store;
use onced::threads::{self, Died};
use postgres::types::{FromSqlOwned, ToSql};
use postgres::{Client, NoTls};

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The key that signs in these tests.
pub const SECRET: &[u8] = b"a secret of four and twenty bytes";

/// Waits until `look` gives true.
pub fn until(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !look() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        pause(Duration::from_millis(5));
    }
}

/// Lets time pass: between two looks, or where time itself is what is tested.
pub fn pause(duration: Duration) {
    #[expect(clippy::disallowed_methods, reason = "nothing stops a test before its time")]
    std::thread::sleep(duration);
}

/// A database with our tables, that ends with this value.
pub struct Outbox {
    name: String,
    dsn: String,
    client: Mutex<Client>,
}

/// A row to insert.
#[derive(Clone, Copy)]
pub struct New<'a> {
    pub scope: &'a str,
    pub key: &'a str,
    pub event_type: &'a str,
    pub order_key: Option<&'a str>,
}

/// A plain event.
pub const PLAIN: New<'static> =
    New { scope: "", key: "demo-001", event_type: "order.created", order_key: None };

const INSERT: &str = "
INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, order_key)
SELECT $1, $2, gen_random_uuid() || ':' || n, $3, jsonb_build_object('n', n), $4
FROM generate_series(1, $5::int) n RETURNING id";

impl Outbox {
    pub fn new() -> Outbox {
        let base = std::env::var("ONCED_TEST_POSTGRES")
            .expect("ONCED_TEST_POSTGRES names a server for the tests; scripts/test starts one");
        let name = format!("onced_outbox_{}", uuid::Uuid::now_v7().simple());
        let mut config: postgres::Config = base.parse().expect("a connection string");
        let mut admin = config.connect(NoTls).expect("the server of the tests");
        admin.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        let mut client = config.dbname(&name).connect(NoTls).unwrap();
        for migration in migrations() {
            client.batch_execute(&std::fs::read_to_string(migration).unwrap()).unwrap();
        }
        Outbox { dsn: base, name, client: Mutex::new(client) }
    }

    /// A session of its own.
    pub fn session(&self) -> Client {
        let mut config: postgres::Config = self.dsn.parse().unwrap();
        config.dbname(&self.name).connect(NoTls).unwrap()
    }

    /// A pool as a daemon has it.
    pub fn store(&self) -> Store {
        let config: postgres::Config = self.dsn.parse().unwrap();
        let user = config.get_user().unwrap_or("postgres").to_owned();
        let host = match config.get_hosts().first() {
            Some(postgres::config::Host::Unix(path)) => path.display().to_string(),
            Some(postgres::config::Host::Tcp(host)) => host.clone(),
            None => "127.0.0.1".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let url = format!("host={host} port={port} user={user} dbname={}", self.name);
        let database = config::Database {
            url: Secret::new(url),
            schema: "public".to_owned(),
            ca_file: None,
            tls: config::Tls::Off,
            connect_timeout: Duration::from_secs(5),
        };
        let writers = config::Writers {
            threads: one(),
            queue: one(),
            batch: one(),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            max_events: 1000,
            max_response: 1 << 20,
            replay_cache: 0,
        };
        onced_store(&database, &writers, &relay())
    }

    /// Ends all sessions but the fixture's, and lets nobody in.
    pub fn shut(&self) {
        self.admin(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", self.name));
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
    }

    /// Lets them in again.
    pub fn open(&self) {
        self.admin(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name));
    }

    fn admin(&self, sql: &str) {
        let config: postgres::Config = self.dsn.parse().unwrap();
        config.connect(NoTls).unwrap().batch_execute(sql).unwrap();
    }

    /// Inserts `count` events and returns their ids.
    pub fn insert(&self, count: i32, new: New<'_>) -> Vec<i64> {
        insert(&mut *self.client.lock().unwrap(), count, new)
    }

    /// The one value that a query gives.
    pub fn value<T: FromSqlOwned>(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> T {
        self.client.lock().unwrap().query_one(sql, params).expect(sql).get(0)
    }

    /// Runs statements.
    pub fn execute(&self, sql: &str) {
        self.client.lock().unwrap().batch_execute(sql).expect(sql);
    }

    /// Uses the client of the fixture.
    pub fn with<T>(&self, act: impl FnOnce(&mut Client) -> T) -> T {
        act(&mut self.client.lock().unwrap())
    }

    /// The plan of one of these statements with these values.
    pub fn plan(&self, statements: &[(&str, &str)], name: &str, values: &[&str]) -> String {
        let (_, sql) = statements.iter().find(|(known, _)| *known == name).unwrap();
        let mut sql = format!("EXPLAIN {sql}");
        for (number, value) in values.iter().enumerate().rev() {
            sql = sql.replace(&format!("${}", number + 1), value);
        }
        self.with(|client| {
            let rows = client.query(&sql, &[]).unwrap();
            rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
        })
    }

    /// Events that are recorded as sent.
    pub fn sent(&self) -> i64 {
        self.value("SELECT count(*) FROM outbox_events WHERE sent_at IS NOT NULL", &[])
    }

    /// Waits until that many are.
    pub fn until_sent(&self, count: i64) {
        until(&format!("{count} events are sent"), || self.sent() == count);
    }
}

/// Inserts in any session, so also in one with a transaction open.
pub fn insert(client: &mut impl postgres::GenericClient, count: i32, new: New<'_>) -> Vec<i64> {
    let rows = client
        .query(INSERT, &[&new.scope, &new.key, &new.event_type, &new.order_key, &count])
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn onced_store(
    database: &config::Database,
    writers: &config::Writers,
    relay: &config::Relay,
) -> Store {
    Store::open(database, writers, relay, Box::new(|_| Ok(None))).unwrap()
}

fn migrations() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    files
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let config: postgres::Config = self.dsn.parse().unwrap();
        let gone = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        if let Err(error) = config.connect(NoTls).and_then(|mut admin| admin.batch_execute(&gone)) {
            eprintln!("{} stays: {error}", self.name);
        }
    }
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn number(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

/// `[relay]` for a test: quick.
pub fn relay() -> config::Relay {
    config::Relay {
        threads: number(4),
        batch: number(50),
        lease: Duration::from_secs(30),
        poll: Duration::from_millis(200),
        connections: number(2),
        on_dead: OnDead::Continue,
        max_attempts: 100,
        give_up_after: Duration::from_secs(3600),
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(3600),
    }
}

/// `[sink]` for a test.
pub fn sink_at(url: &str) -> config::Sink {
    config::Sink {
        url: url.parse().unwrap(),
        secrets: vec![Secret::new(SECRET.to_vec())],
        ca_file: None,
        timeout: Duration::from_secs(2),
        allow_private: true,
        proxy: None,
    }
}

/// Relays that run; `stop` ends them as a daemon would.
pub struct Running {
    pub relays: Relays,
    pub ring: Sender<()>,
    stop: Sender<Infallible>,
    died: Receiver<Died>,
}

impl Running {
    pub fn start(store: Store, relay: &config::Relay, sink: &config::Sink) -> Running {
        let (ring, bell) = bounded(1);
        let (stop, stopped) = bounded(0);
        let (deaths, died) = bounded(64);
        let wiring = Wiring { store, bell, ring: ring.clone(), stop: stopped, deaths };
        let relays = Relays::start(relay, Some(sink), &wiring).unwrap();
        Running { relays, ring, stop, died }
    }

    /// Stops in order; everything has to end in time and nothing by a panic.
    pub fn stop(self) {
        drop(self.stop);
        assert_eq!(self.relays.join(Instant::now() + LIMIT), Vec::<String>::new());
        assert!(self.died.try_recv().is_err(), "no thread died");
    }
}

/// One POST that a sink was sent.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: String,
    pub timestamp: String,
    pub signature: String,
    pub body: String,
    pub event_type: String,
    pub at: Instant,
}

/// What a sink answers: after a pause, these bytes, and whether the connection stays.
#[derive(Clone, Debug)]
pub struct Reply {
    pub after: Duration,
    pub bytes: Vec<u8>,
    pub stays: bool,
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply::text(&format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n"))
    }

    pub fn text(text: &str) -> Reply {
        Reply { after: Duration::ZERO, bytes: text.as_bytes().to_vec(), stays: true }
    }

    pub fn after(self, after: Duration) -> Reply {
        Reply { after, ..self }
    }
}

type Script = dyn Fn(&Delivery, usize) -> Reply + Send + Sync;

/// A sink in this process.
pub struct Sink {
    address: SocketAddr,
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Seen {
    deliveries: Mutex<Vec<Delivery>>,
    open: Mutex<HashMap<String, usize>>,
    overlaps: AtomicUsize,
    connections: AtomicUsize,
}

impl Sink {
    pub fn start(script: impl Fn(&Delivery, usize) -> Reply + Send + Sync + 'static) -> Sink {
        Sink::start_at("127.0.0.1:0".parse().unwrap(), script)
    }

    pub fn start_at(
        address: SocketAddr,
        script: impl Fn(&Delivery, usize) -> Reply + Send + Sync + 'static,
    ) -> Sink {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::<Seen>::default(), Arc::<AtomicBool>::default());
        let script: Arc<Script> = Arc::new(script);
        let (seen_by, stopping) = (Arc::clone(&seen), Arc::clone(&stop));
        threads::spawn_small("sink".to_owned(), 1 << 20, move || {
            for stream in listener.incoming().flatten() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                seen_by.connections.fetch_add(1, Ordering::SeqCst);
                let (seen, script) = (Arc::clone(&seen_by), Arc::clone(&script));
                threads::spawn_small("sink-c".to_owned(), 1 << 20, move || {
                    // A peer that goes away is no news to a sink.
                    serve(&stream, &seen, script.as_ref()).unwrap_or_default();
                })
                .unwrap();
            }
        })
        .unwrap();
        Sink { address, seen, stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn deliveries(&self) -> Vec<Delivery> {
        self.seen.deliveries.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.seen.deliveries.lock().unwrap().len()
    }

    /// How often a POST came while another with the same id was open.
    pub fn overlaps(&self) -> usize {
        self.seen.overlaps.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub fn wait_for(&self, count: usize) -> Vec<Delivery> {
        until(&format!("the sink has {count} deliveries"), || self.count() >= count);
        self.deliveries()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(stream: &TcpStream, seen: &Seen, script: &Script) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let Some(delivery) = read_one(&mut reader)? else { return Ok(()) };
        let before = {
            let mut deliveries = seen.deliveries.lock().unwrap();
            deliveries.push(delivery.clone());
            deliveries.len() - 1
        };
        let open = {
            let mut open = seen.open.lock().unwrap();
            let open = open.entry(delivery.id.clone()).or_default();
            *open += 1;
            *open
        };
        if open > 1 {
            seen.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let reply = script(&delivery, before);
        pause(reply.after);
        *seen.open.lock().unwrap().get_mut(&delivery.id).unwrap() -= 1;
        (&*stream).write_all(&reply.bytes)?;
        if !reply.stays {
            return Ok(());
        }
    }
}

fn read_one(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Option<Delivery>> {
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }
    let mut take = |name: &str| headers.remove(name).unwrap_or_default();
    let mut body = vec![0; take("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let body = String::from_utf8(body).unwrap();
    let json: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    Ok(Some(Delivery {
        id: take("webhook-id"),
        timestamp: take("webhook-timestamp"),
        signature: take("webhook-signature"),
        event_type: json["type"].as_str().unwrap_or_default().to_owned(),
        body,
        at: Instant::now(),
    }))
}
