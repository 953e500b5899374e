//! The command line, as a person or a program meets it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use onced::cli::dev::cluster::{Cluster, Options};
use postgres::{Client, NoTls};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);
const KEY: [u8; 24] = [7; 24];

fn onced(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onced"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCED_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    onced(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// One HTTP exchange: status and body.
fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A server that cuts the connection off after its answer is right to do so.
    drop(stream.read_to_end(&mut answer));
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> Value {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    serde_json::from_str(&exchange(address, request.as_bytes()).1).unwrap()
}

/// A running `onced sink`; it ends with the test.
struct Sink {
    process: Child,
    address: SocketAddr,
}

impl Sink {
    fn start(folder: &Path, more: &[&str]) -> Sink {
        let secret = folder.join("secret");
        std::fs::write(&secret, format!("whsec_{}\n", STANDARD.encode(KEY))).unwrap();
        let address = free_address();
        let mut process = onced(&["sink", "--listen", &address.to_string()])
            .args(["--secret-file", text(&secret)])
            .args(["--state", text(&folder.join("seen.jsonl"))])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the sink listens", || {
            assert_eq!(process.try_wait().unwrap(), None, "the sink ended");
            TcpStream::connect(address).is_ok()
        });
        Sink { process, address }
    }

    /// Sends an event; returns the status.
    fn send(&self, id: &str, key: &[u8], body: &str) -> u16 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(format!("{id}.{now}.{body}").as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             webhook-id: {id}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: v1,{signature}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        exchange(self.address, request.as_bytes()).0
    }

    /// The deliveries and the number of events, as it counts them.
    fn counts(&self) -> (Value, Value) {
        let counts = get(self.address, "/");
        (counts["deliveries"].clone(), counts["events"].clone())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn end_of(process: &mut Child) -> ExitStatus {
    let mut end = None;
    wait_until("the process ends", || {
        end = process.try_wait().unwrap();
        end.is_some()
    });
    end.unwrap()
}

#[test]
fn a_token_is_new_each_time_and_its_hash_is_that_of_the_token() {
    let token =
        || -> Value { serde_json::from_str(&stdout(&run(&["token", "new", "--json"]))).unwrap() };
    let (one, other) = (token(), token());
    assert_ne!(one["token"], other["token"]);
    let hash = Sha256::digest(one["token"].as_str().unwrap());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(one["token_sha256"], json!(hash));
    let told = stdout(&run(&["token", "new", "--name", "billing"]));
    assert!(told.contains("name = \"billing\""), "{told}");
}

#[test]
fn usage_errors_exit_with_2_and_help_and_version_with_0() {
    for arguments in [&["nonsense"][..], &[], &["show"], &["dev", "--config", "x.toml"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["help", "verify"]] {
        assert_eq!(run(arguments).status.code(), Some(0), "{arguments:?}");
    }
    assert_eq!(stdout(&run(&["--version"])).trim(), format!("onced {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_event_has_one_effect_also_over_a_restart_of_the_sink() {
    let folder = TempDir::new().unwrap();
    let body = r#"{"type": "order.created", "data": {}}"#;
    let sink = Sink::start(folder.path(), &[]);
    assert_eq!(sink.send("e:1", &KEY, body), 204);
    assert_eq!(sink.send("e:1", &KEY, body), 204);
    assert_eq!(sink.send("e:2", &KEY, body), 204);
    assert_eq!(sink.counts(), (json!(3), json!(2)));
    drop(sink);

    let sink = Sink::start(folder.path(), &[]);
    assert_eq!(sink.send("e:1", &KEY, body), 204);
    assert_eq!(sink.counts(), (json!(4), json!(2)));
    let event = get(sink.address, "/events/e:1");
    assert_eq!(event["deliveries"], json!(3));
    assert_eq!(event["type"], json!("order.created"));
    assert_eq!(event["body_changed"], json!(false));
    let listed = get(sink.address, "/events");
    assert_eq!(listed["events"].as_array().unwrap().len(), 2);
}

#[test]
fn an_event_that_is_not_signed_with_the_secret_is_refused_and_not_counted() {
    let folder = TempDir::new().unwrap();
    let sink = Sink::start(folder.path(), &[]);
    assert_eq!(sink.send("e:1", &[8; 24], r#"{"type": "a"}"#), 401);
    assert_eq!(sink.send("e:1", &KEY, "no JSON"), 400);
    assert_eq!(sink.counts(), (json!(0), json!(0)));
    assert_eq!(get(sink.address, "/")["refused"], json!(2));
}

#[test]
fn a_declared_body_of_a_hundred_terabytes_does_not_end_the_sink() {
    let folder = TempDir::new().unwrap();
    let sink = Sink::start(folder.path(), &[]);
    let request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000000\r\n\r\n";
    let mut stream = TcpStream::connect(sink.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request).unwrap();
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status).unwrap();
    assert!(status.contains(" 413 "), "{status}");
    assert_eq!(sink.send("e:1", &KEY, r#"{"type": "a"}"#), 204);
}

#[test]
fn a_sink_tells_what_came_of_each_event_on_a_line_of_its_own() {
    let folder = TempDir::new().unwrap();
    let mut sink = Sink::start(folder.path(), &["--json"]);
    sink.send("e:1", &KEY, r#"{"type": "a\nb"}"#);
    sink.send("e:1", &KEY, r#"{"type": "a\nb"}"#);
    sink.send("e:2", &[8; 24], "{}");
    let lines = BufReader::new(sink.process.stdout.take().unwrap()).lines().take(3);
    let events: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let words: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(words, ["new", "repeat", "refused"]);
    assert_eq!(events[1]["deliveries"], json!(2));
}

#[test]
fn two_sinks_do_not_share_a_state_file() {
    let folder = TempDir::new().unwrap();
    let _sink = Sink::start(folder.path(), &[]);
    let state = folder.path().join("seen.jsonl");
    let address = free_address().to_string();
    let second = run(&["sink", "--listen", &address, "--state", text(&state)]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("in use by another onced sink"), "{}", stderr(&second));
}

#[test]
fn a_sink_is_for_this_machine_only() {
    let output = run(&["sink", "--listen", "0.0.0.0:8090"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("loopback"), "{}", stderr(&output));
}

#[test]
fn a_process_that_is_told_to_ends_with_its_parent() {
    let folder = TempDir::new().unwrap();
    let mut sink = Sink::start(folder.path(), &["--exit-with-parent"]);
    assert_eq!(sink.process.try_wait().unwrap(), None);
    drop(sink.process.stdin.take());
    assert!(!end_of(&mut sink.process).success());
}

/// A database of its own, with a configuration that names it.
struct Project {
    _cluster: Cluster,
    dsn: String,
    folder: TempDir,
}

impl Project {
    fn new() -> Project {
        let folder = tempfile::Builder::new().prefix("onced-test-").tempdir_in("/tmp").unwrap();
        let settings = vec![("fsync".to_owned(), "off".to_owned())];
        let options = Options { settings, ..Options::default() };
        let cluster = Cluster::start(&folder.path().join("postgres"), &options).unwrap();
        let project = Project { dsn: cluster.dsn(), _cluster: cluster, folder };
        for file in ["orders.sql", "orders.setup.sql"] {
            let shipped =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("config/operations").join(file);
            std::fs::copy(shipped, project.folder.path().join(file)).unwrap();
        }
        project.configure("");
        project
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "[database]\nurl = \"{}\"\n[operations.orders]\nsql = \"orders.sql\"\n\
             setup = \"orders.setup.sql\"\n{more}",
            self.dsn
        );
        std::fs::write(self.folder.path().join("onced.toml"), text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let file = self.folder.path().join("onced.toml");
        onced(&["--config", text(&file)]).args(arguments).output().unwrap()
    }

    fn database(&self) -> Client {
        Client::connect(&self.dsn, NoTls).unwrap()
    }
}

#[test]
fn check_config_tells_all_problems_of_the_file_at_once_and_exits_with_78() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("onced.toml");
    let broken = "shutdown_timeout = 5\n[writers]\nthreads = 0\n[htpp]\n[database]\nurl = \"x\"\n";
    std::fs::write(&file, broken).unwrap();
    let output = run(&["check-config", "--config", text(&file)]);
    assert_eq!(output.status.code(), Some(78));
    let told = stderr(&output);
    for word in ["shutdown_timeout", "writers.threads", "htpp"] {
        assert!(told.contains(word), "{word} is missing in:\n{told}");
    }
    let output = run(&["check-config", "--json", "--config", text(&file)]);
    assert_eq!(output.status.code(), Some(78));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["ok"], json!(false));
    assert!(report["problems"].as_array().unwrap().len() >= 3);
}

#[test]
fn check_config_looks_at_the_operations_in_the_database_and_hides_secrets() {
    let project = Project::new();
    let before = project.run(&["check-config"]);
    assert_eq!(before.status.code(), Some(0), "{}", stderr(&before));
    assert!(stderr(&before).contains("onced migrate"), "{}", stderr(&before));
    assert!(project.run(&["migrate"]).status.success());

    let right = project.run(&["check-config"]);
    assert_eq!(right.status.code(), Some(0), "{}", stderr(&right));
    assert!(stdout(&right).contains("[operations.orders]"));
    assert!(!stdout(&right).contains(&project.dsn));

    std::fs::write(project.folder.path().join("bad.sql"), "SELECT 201 AS status\nFORM nowhere")
        .unwrap();
    project.configure("[operations.bad]\nsql = \"bad.sql\"\n");
    let wrong = project.run(&["check-config"]);
    assert_eq!(wrong.status.code(), Some(78));
    assert!(stderr(&wrong).contains("bad.sql:2:"), "{}", stderr(&wrong));
}

#[test]
fn a_database_that_is_away_leaves_the_file_right_and_says_what_was_not_checked() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("onced.toml");
    let text_of = format!("[database]\nurl = \"postgresql://nobody@{}/x\"\n", free_address());
    std::fs::write(&file, text_of).unwrap();
    let output = run(&["check-config", "--config", text(&file)]);
    let told = stderr(&output);
    assert!(told.contains("not checked against the database"), "{told}");
    assert_eq!(run(&["migrate", "--config", text(&file)]).status.code(), Some(1));
}

#[test]
fn migrate_tells_what_it_did_and_may_run_again() {
    let project = Project::new();
    let first = project.run(&["migrate"]);
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(stdout(&first).contains("records_and_outbox"), "{}", stdout(&first));
    assert!(stdout(&first).contains("orders.setup.sql"), "{}", stdout(&first));
    let second = project.run(&["migrate", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&second)).unwrap();
    assert_eq!(report["migrations"], json!([]));
    project.database().batch_execute("SELECT id FROM orders").unwrap();
}

#[test]
fn show_tells_of_a_key_of_one_principal_and_fails_where_there_is_no_record() {
    let project = Project::new();
    assert!(project.run(&["migrate"]).status.success());
    project
        .database()
        .batch_execute(
            "INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status, response_json)
             VALUES ('billing', 'k-1', 'orders', 'v1:00', 'succeeded', 201, '{\"id\": 1}');
             INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
             VALUES ('billing', 'k-1', 'u:1', 'order.created', '{}')",
        )
        .unwrap();
    let shown = project.run(&["show", "k-1", "--scope", "billing"]);
    assert!(shown.status.success(), "{}", stderr(&shown));
    for word in ["succeeded (201)", "{\"id\": 1}", "order.created", "waiting", "u:1"] {
        assert!(stdout(&shown).contains(word), "{word} is missing in:\n{}", stdout(&shown));
    }
    let shown = project.run(&["show", "k-1", "--scope", "billing", "--json"]);
    let record: Value = serde_json::from_str(&stdout(&shown)).unwrap();
    assert_eq!(record["http_status"], json!(201));
    assert_eq!(record["events"][0]["event_key"], json!("u:1"));
    let missing = project.run(&["show", "k-1"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stdout(&missing).contains("no record"), "{}", stdout(&missing));
}

#[test]
fn verify_fails_with_a_line_for_each_check_where_nobody_listens() {
    let url = format!("http://{}", free_address());
    let output = run(&["verify", "--json", "--url", &url]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["passed"], json!(false));
    let results: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["result"].as_str().unwrap())
        .collect();
    assert_eq!(results[..4], ["failed"; 4]);
    assert_eq!(results[4..], ["skipped"; 3]);
}
