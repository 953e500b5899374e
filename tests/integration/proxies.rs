//! Behind nginx and HAProxy, which put requests of many clients on few connections: every answer goes to the request
//! that it belongs to. The proxies run with the configurations of `docs/examples`, but for addresses and paths.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::daemon::{Process, root};
use crate::support::wait::until;
use crate::support::{Answer, Client, Connection, Database, Setup, fresh_key};

const TOKEN: &str = "good-token";
const JSON: &str = "Content-Type: application/json";

/// A proxy that runs, and where.
struct Proxy {
    process: Option<Process>,
    folder: TempDir,
    plain: SocketAddr,
    tls: SocketAddr,
}

/// The example's text with each of `changes` made, each of which must be there to make.
fn example(name: &str, changes: &[(&str, &str)]) -> String {
    let path = root().join("docs/examples").join(name);
    let mut text = fs::read_to_string(&path).expect("the example is there");
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no {from:?}");
        text = text.replace(from, to);
    }
    text
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Whether the program is there; where it is not, that is said and the test has nothing to do.
fn is_installed(program: &str) -> bool {
    let found =
        Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: {program} is not installed");
    }
    found.is_ok()
}

/// A folder with a certificate for `localhost`, `cert.pem`, and its key, `key.pem`; both together in `both.pem`.
fn folder_with_certificate() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    fs::write(folder.path().join("cert.pem"), &cert).unwrap();
    fs::write(folder.path().join("key.pem"), &key).unwrap();
    fs::write(folder.path().join("both.pem"), format!("{cert}{key}")).unwrap();
    folder
}

fn run(mut command: Command, folder: TempDir, [plain, tls]: [SocketAddr; 2]) -> Proxy {
    let log = fs::File::create(folder.path().join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let process = Process(command.spawn().expect("the proxy starts"));
    until("the proxy listens", || match Connection::try_open(plain) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("{e}\n{}", log_of(folder.path()))),
    });
    Proxy { process: Some(process), folder, plain, tls }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Not killed: nginx's workers would stay.
        self.process.take().map(Process::stop);
    }
}

fn log_of(folder: &Path) -> String {
    ["log", "error.log"]
        .iter()
        .filter_map(|name| fs::read_to_string(folder.join(name)).ok())
        .collect::<Vec<_>>()
        .join("\n")
}

fn nginx(behind: SocketAddr) -> Proxy {
    let folder = folder_with_certificate();
    let (dir, plain, tls) = (folder.path().display(), free_address(), free_address());
    let server = example(
        "nginx.conf",
        &[
            ("server 127.0.0.1:8080;", &format!("server {behind};")),
            ("listen 443 ssl;", &format!("listen {plain}; listen {tls} ssl;")),
            ("/etc/nginx/tls/onced.example.pem", &format!("{dir}/cert.pem")),
            ("/etc/nginx/tls/onced.example.key", &format!("{dir}/key.pem")),
        ],
    );
    // Two workers with few connections each make sure that connections are shared.
    let server = server.replace("keepalive 64;", "keepalive 4;");
    let user = if nix::unistd::Uid::effective().is_root() { "user root;" } else { "" };
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("{what}_temp_path {dir}/{what};\n"))
        .collect();
    let text = format!(
        "{user}\ndaemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/error.log info;\n\
         events {{ worker_connections 512; }}\n\
         http {{\naccess_log off;\n{paths}\n{server}\n}}\n"
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
    run(command, folder, [plain, tls])
}

fn haproxy(daemons: [(SocketAddr, SocketAddr); 2]) -> Proxy {
    let folder = folder_with_certificate();
    let (dir, plain, tls) = (folder.path().display(), free_address(), free_address());
    let server = |number: usize| {
        let (http, admin) = daemons[number];
        format!("server onced{} {http} port {}", number + 1, admin.port())
    };
    let text = example(
        "haproxy.cfg",
        &[
            (
                "bind :443 ssl crt /etc/haproxy/tls/onced.example.pem",
                &format!("bind {plain}\n    bind {tls} ssl crt {dir}/both.pem"),
            ),
            ("server onced1 127.0.0.1:8080 port 8081", &server(0)),
            ("server onced2 127.0.0.2:8080 port 8081", &server(1)),
        ],
    );
    let file = folder.path().join("haproxy.cfg");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f"]).arg(&file);
    run(command, folder, [plain, tls])
}

/// What of a request's answer can be known before.
enum Expected {
    /// This status and exactly this body.
    Body(u16, String),
    /// This status, and this in the body.
    Holds(u16, String),
    /// This status.
    Status(u16),
}

/// A request of the mixture: its bytes, and what its answer must be.
struct Exchange {
    id: String,
    bytes: Vec<u8>,
    expected: Expected,
    /// The client goes away in the middle of it.
    hangs_up: bool,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

fn exchange(client: &Client, stored: &str) -> Exchange {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let id = format!("mine-{number}");
    let header = format!("X-Request-Id: {id}");
    let make = |client: &Client, operation: &str, key: &str, headers: &[&str], body: &str| {
        let (key, length) = (format!("Idempotency-Key: {key}"), body.len());
        let length = format!("Content-Length: {length}");
        let line = format!("POST /v1/{operation} HTTP/1.1");
        let mut bytes = client.head(&line, &[headers, &[&key, &header, &length]].concat());
        bytes.extend_from_slice(body.as_bytes());
        bytes
    };
    let stranger = Client { token: None, ..client.clone() };
    let wrong = format!("wrong-{number}");
    let body = format!(r#"{{"mine": {number}, "text": "{}"}}"#, "x".repeat(number * 37 % 9000));
    let refusal = format!(r#"{{"code": "P0001", "message": "no to {number}."}}"#);
    let evil = format!(
        "{}{}",
        String::from_utf8(make(client, "echo", "evil", &[JSON], r#"{"mine": "evil"}"#)).unwrap(),
        "x".repeat(number * 91 % 40_000)
    );
    let key = fresh_key();
    let (bytes, expected) = match number % 12 {
        0..=3 => (make(client, "echo", &key, &[JSON], &body), Expected::Body(200, body)),
        4 => (
            make(client, "refuse", &key, &[JSON], &refusal),
            Expected::Holds(422, format!("no to {number}.")),
        ),
        5 => (make(client, "echo", stored, &[JSON], &body), Expected::Status(409)),
        // Early refusals: onced answers before it has read the body, whose bytes spell a request.
        6 => (make(&stranger, "echo", &key, &[JSON], &evil), Expected::Status(401)),
        7 => (make(client, &wrong, &key, &[JSON], &evil), Expected::Status(404)),
        8 => (make(client, "echo", &key, &["Content-Type: text/x"], &evil), Expected::Status(415)),
        9 => {
            let bytes = make(client, "echo", "no key, but two", &[JSON], &evil);
            (bytes, Expected::Status(400))
        }
        10 => (
            make(client, "sleepy", &key, &[JSON], &format!(r#"{{"s": 0.05, "mine": {number}}}"#)),
            Expected::Holds(201, format!(r#""mine": {number}}}"#)),
        ),
        _ => (
            client.head(&format!("GET /v1/requests/{stored} HTTP/1.1"), &[&header]),
            Expected::Holds(200, stored.to_owned()),
        ),
    };
    Exchange { id, bytes, expected, hangs_up: number.is_multiple_of(29) }
}

/// The answer is the request's own, or one of the proxy's, which says nothing of any request. Returns whether it is the
/// request's own.
fn check(exchange: &Exchange, answer: &Answer) -> bool {
    let Some(id) = answer.header("x-request-id") else {
        assert!([400, 408, 413, 502, 503, 504].contains(&answer.status), "{answer:?}");
        return false;
    };
    // What the front itself refuses, it refuses before it knows of an id.
    assert!(id == exchange.id || !id.starts_with("mine-"), "{id}, not {}", exchange.id);
    if answer.status == 503 {
        return false;
    }
    let shown = &answer.text()[..answer.body.len().min(200)];
    match &exchange.expected {
        Expected::Body(status, body) => {
            assert_eq!((answer.status, shown), (*status, &body[..body.len().min(200)]));
            assert_eq!(answer.text(), body);
        }
        Expected::Holds(status, part) => {
            assert_eq!(answer.status, *status, "{shown}");
            assert!(answer.text().contains(part.as_str()), "{shown} has no {part}");
        }
        Expected::Status(status) => assert_eq!(answer.status, *status, "{shown}"),
    }
    true
}

/// What came of a run.
#[derive(Debug, Default)]
struct Tally {
    own: AtomicUsize,
    others: AtomicUsize,
    lost: AtomicUsize,
}

/// Many clients at once, each with a connection that it keeps as long as it can.
fn load(client: &Client, stored: &str, rounds: usize) -> Tally {
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut connection = None;
                for _ in 0..rounds {
                    one_round(client, stored, &mut connection, &tally);
                }
            });
        }
    });
    tally
}

fn one_round(client: &Client, stored: &str, kept: &mut Option<Connection>, tally: &Tally) {
    let exchange = exchange(client, stored);
    let is_reused = kept.is_some();
    let mut connection = kept.take().unwrap_or_else(|| Connection::open(client.address));
    if exchange.hangs_up {
        drop(connection.send_what_goes(&exchange.bytes[..exchange.bytes.len() * 2 / 3]));
        return;
    }
    // A refusal may come, and the connection end, before the body was taken.
    drop(connection.send_what_goes(&exchange.bytes));
    match connection.try_answer() {
        Ok(Some(answer)) => {
            let tally = if check(&exchange, &answer) { &tally.own } else { &tally.others };
            tally.fetch_add(1, Ordering::Relaxed);
            if answer.header("connection") != Some("close") {
                *kept = Some(connection);
            }
        }
        // The proxy may close a kept connection at any time, and reset one whose body it did not read.
        Ok(None) => drop(tally.lost.fetch_add(1, Ordering::Relaxed)),
        Err(error) => {
            let is_reset = error.kind() == io::ErrorKind::ConnectionReset;
            assert!(is_reset || is_reused, "{error}: {}", exchange.id);
            tally.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn setup(database: &Database) -> Setup {
    Setup::on(database)
        .operation("echo")
        .operation("refuse")
        .operation("sleepy")
        .principal("shop", TOKEN)
        .set("http.threads", 64)
}

/// The whole of it for one proxy: all is well under load, nobody gets what is another's, nothing is smuggled in.
fn no_answer_goes_astray(proxy: &Proxy, database: &Database) -> Tally {
    let client = Client { address: proxy.plain, token: Some(TOKEN.to_owned()) };
    let stored = fresh_key();
    until("a call goes through", || match client.try_post("echo", &stored, r#"{"first": 1}"#) {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}\n{}", log_of(proxy.folder.path()))),
    });
    let tally = load(&client, &stored, 60);
    eprintln!("{tally:?}");
    assert_eq!(database.counts_of("evil").records, 0, "a body was taken for a request");
    tally
}

fn over_tls(proxy: &Proxy) {
    let key = fresh_key();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--cacert"])
        .arg(proxy.folder.path().join("cert.pem"))
        .args(["--connect-to", &format!("localhost:443:{}", proxy.tls), "--http1.1"])
        .args(["-H", &format!("Authorization: Bearer {TOKEN}"), "-H", JSON])
        .args(["-H", &format!("Idempotency-Key: {key}"), "-d", r#"{"over": "tls"}"#])
        .arg("https://localhost/v1/echo")
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, r#"{"over": "tls"}"#, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn behind_nginx_every_answer_goes_to_its_own_request() {
    if !is_installed("nginx") {
        return;
    }
    let database = Database::new();
    let daemon = setup(&database).start();
    let proxy = nginx(daemon.setup().http());
    let tally = no_answer_goes_astray(&proxy, &database);
    assert!(tally.own.into_inner() > 500, "{}", log_of(proxy.folder.path()));
    over_tls(&proxy);
}

#[test]
fn behind_nginx_connections_that_close_at_a_bad_moment_cost_no_answer_of_others() {
    if !is_installed("nginx") {
        return;
    }
    let database = Database::new();
    // Shorter than nginx keeps them, and few places: connections are closed under its hands all the time.
    let daemon = setup(&database).set("http.keep_alive", "100ms").set("http.threads", 8).start();
    let proxy = nginx(daemon.setup().http());
    let tally = no_answer_goes_astray(&proxy, &database);
    assert!(tally.own.into_inner() > 100, "{}", log_of(proxy.folder.path()));
    let key = fresh_key();
    let client = Client { address: proxy.plain, token: Some(TOKEN.to_owned()) };
    for _ in 0..10 {
        // Each finds only connections that onced has closed, or is just closing; nginx sends it again.
        crate::support::wait::pause(Duration::from_millis(101));
        assert_eq!(client.post("echo", &key, "{}").status, 200);
    }
}

#[test]
fn behind_haproxy_every_answer_goes_to_its_own_request() {
    if !is_installed("haproxy") {
        return;
    }
    let database = Database::new();
    let one = setup(&database).start();
    let other = setup(&database).start();
    let address = |daemon: &crate::support::Daemon| (daemon.setup().http(), daemon.setup().admin());
    let proxy = haproxy([address(&one), address(&other)]);
    let tally = no_answer_goes_astray(&proxy, &database);
    assert!(tally.own.into_inner() > 500, "{}", log_of(proxy.folder.path()));
    over_tls(&proxy);
}

#[test]
fn behind_haproxy_a_daemon_that_dies_costs_no_answer_of_others() {
    if !is_installed("haproxy") {
        return;
    }
    let database = Database::new();
    let one = setup(&database).set("http.keep_alive", "100ms").start();
    let mut other = setup(&database).start();
    let address = |daemon: &crate::support::Daemon| (daemon.setup().http(), daemon.setup().admin());
    let proxy = haproxy([address(&one), address(&other)]);
    let tally = std::thread::scope(|scope| {
        let run = scope.spawn(|| no_answer_goes_astray(&proxy, &database));
        until("some calls were made", || match database.rows("idempotency_records") {
            0..50 => Err("not yet".to_owned()),
            _ => Ok(()),
        });
        other.kill();
        run.join().unwrap()
    });
    assert!(tally.own.into_inner() > 300, "{}", log_of(proxy.folder.path()));
    let client = Client { address: proxy.plain, token: Some(TOKEN.to_owned()) };
    for _ in 0..20 {
        assert_eq!(client.post("echo", &fresh_key(), "{}").status, 200);
    }
}
