//! `onced call`, the caller's half: every exit code, and what the next run of a job finds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use onced::threads::spawn_small;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::daemon::{Ended, ORDER, PROGRAM};
use crate::support::{Counts, Daemon, Database, Setup, fresh_key};

const ONE_ORDER: Counts = Counts { records: 1, events: 2, business: 1 };

/// A machine on which a job runs: where it calls to, and what it keeps.
struct Job {
    url: String,
    home: TempDir,
}

impl Job {
    fn at(address: SocketAddr) -> Job {
        Job { url: format!("http://{address}"), home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("call").args(arguments).args(["--url", &self.url]).env_clear();
        command.env("XDG_STATE_HOME", self.home.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn order(&self, key: &str, more: &[&str]) -> Ended {
        self.run(&[&["orders", "--key", key, "--data", ORDER], more].concat())
    }

    /// The files of open calls.
    fn kept(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.home.path().join("onced/calls")) else {
            return Vec::new();
        };
        let read = |path: &Path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        entries.map(|entry| read(&entry.unwrap().path())).collect()
    }
}

/// The one line on standard error.
fn line(ended: &Ended) -> &str {
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    ended.stderr.trim_end()
}

/// A listener whose answers a test writes: a whole request is read, then the next answer is sent; none left means that
/// the connection is cut.
fn listener(answers: &[&str]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let mut answers: Vec<String> = answers.iter().rev().map(|a| (*a).to_owned()).collect();
    spawn_small("listener".to_owned(), 256 * 1024, move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            let is_whole = |request: &[u8]| {
                let end: &[u8] =
                    if request.starts_with(b"GET") { b"\r\n\r\n" } else { ORDER.as_bytes() };
                request.ends_with(end)
            };
            while !is_whole(&request) {
                match stream.read(&mut chunk) {
                    Ok(length) if length > 0 => request.extend_from_slice(&chunk[..length]),
                    _ => break,
                }
            }
            seen.lock().unwrap().push(String::from_utf8(request).unwrap());
            if let Some(answer) = answers.pop() {
                drop(stream.write_all(answer.as_bytes()));
            }
        }
    })
    .unwrap();
    (address, requests)
}

fn answer(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn created() -> String {
    let head = "201 Created\r\nContent-Type: application/json\r\nX-Request-Id: r-1";
    answer(head, r#"{"id": 1}"#)
}

fn problem(status: &str, name: &str, retryable: bool, more: &str) -> String {
    let body = format!(
        r#"{{"type": "urn:onced:problem:{name}", "retryable": {retryable}, "detail": "d"}}"#
    );
    let media = "Content-Type: application/problem+json";
    answer(&format!("{status}\r\n{media}\r\nX-Request-Id: r-2{more}"), &body)
}

#[test]
fn a_stored_success_is_0_with_the_answer_on_stdout_and_nothing_is_kept() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let job = Job::at(daemon.client().address);

    let first = job.order("demo-001", &[]);
    let again = job.order("demo-001", &[]);

    assert_eq!((first.code(), first.stderr.as_str()), (0, ""), "{first:#?}");
    let stored = daemon.order("demo-001");
    assert_eq!(first.stdout, format!("{}\n", stored.text()));
    assert_eq!((again.code(), &again.stdout), (0, &first.stdout));
    assert_eq!(job.kept(), Vec::<Value>::new());
    assert_eq!(database.counts_of("demo-001"), ONE_ORDER);
}

#[test]
fn the_body_comes_from_a_file_or_from_standard_input() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let job = Job::at(daemon.client().address);
    let file = job.home.path().join("order.json");
    std::fs::write(&file, ORDER).unwrap();

    let data = format!("@{}", file.display());
    let by_file = job.run(&["orders", "--key", "k", "--data", &data, "--json"]);
    assert_eq!(by_file.code(), 0, "{by_file:#?}");
    let mut command = job.command(&["orders", "--key", "k", "--data", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(ORDER.as_bytes()).unwrap();
    let by_input = child.wait_with_output().unwrap();

    let report = |text: &[u8]| -> Value { serde_json::from_slice(text).unwrap() };
    let (first, second) = (report(by_file.stdout.as_bytes()), report(&by_input.stdout));
    assert_eq!((&first["outcome"], &first["replayed"]), (&"succeeded".into(), &false.into()));
    assert_eq!((&second["outcome"], &second["replayed"]), (&"succeeded".into(), &true.into()));
    assert_eq!((&second["http_status"], &second["attempts"]), (&201.into(), &1.into()));
    assert_eq!(first["body"], second["body"]);
    let missing = job.run(&["orders", "--key", "k", "--data", "@nowhere"]);
    assert_eq!(missing.code(), 1, "{missing:#?}");
}

#[test]
fn one_intent_has_one_key_in_whatever_order_its_parts_are_given() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let job = Job::at(daemon.client().address);

    for parts in [&["job=billing,date=2026-12-01"][..], &["date=2026-12-01", "job=billing"]] {
        let parts = parts.iter().flat_map(|part| ["--key-from", part]).collect::<Vec<_>>();
        let ended = job.run(&[&["orders", "--data", ORDER], &parts[..]].concat());
        assert_eq!(ended.code(), 0, "{ended:#?}");
    }

    assert_eq!(database.counts(), ONE_ORDER);
    assert_eq!(database.counts_of("date=2026-12-01&job=billing"), ONE_ORDER);
}

#[test]
fn a_refusal_of_the_operation_is_3_both_when_it_is_raised_and_when_it_is_returned() {
    let database = Database::new();
    let returns = "SELECT 429 AS status, '{\"why\": \"enough\"}'::jsonb AS response";
    let daemon = Setup::on(&database).inline("full", returns).start();
    let job = Job::at(daemon.client().address);

    let raised = job.run(&["orders", "--key", "a", "--data", r#"{"item": "x", "quantity": 0}"#]);
    let returned = job.run(&["full", "--key", "b", "--data", "{}", "--json"]);

    assert_eq!((raised.code(), raised.stdout.as_str()), (3, ""), "{raised:#?}");
    assert!(line(&raised).contains("422 refused:"), "{raised:#?}");
    let report: Value = serde_json::from_str(&returned.stdout).unwrap();
    assert_eq!((returned.code(), &report["outcome"]), (3, &"refused".into()), "{returned:#?}");
    assert_eq!((&report["attempts"], &report["body"]["why"]), (&1.into(), &"enough".into()));
    assert_eq!(job.kept(), Vec::<Value>::new());
}

#[test]
fn a_key_of_another_request_is_4_and_nothing_is_written() {
    let database = Database::new();
    for status in [409, 422] {
        let daemon = Setup::on(&database).set("http.mismatch_status", status).start();
        let job = Job::at(daemon.client().address);
        let key = fresh_key();
        daemon.order(&key);

        let ended =
            job.run(&["orders", "--key", &key, "--data", r#"{"item": "x", "quantity": 9}"#]);

        assert_eq!((ended.code(), ended.stdout.as_str()), (4, ""), "{ended:#?}");
        assert!(line(&ended).contains(&format!("{status} idempotency-key-reused")), "{ended:#?}");
        assert_eq!(database.counts_of(&key), ONE_ORDER);
        assert_eq!(job.kept(), Vec::<Value>::new());
    }
}

#[test]
fn what_calling_again_does_not_help_is_1_at_once_and_nothing_is_kept() {
    let database = Database::new();
    let daemon = Setup::on(&database).principal("billing", "a-token").start();
    let job = Job::at(daemon.client().address);
    let token = job.home.path().join("token");
    std::fs::write(&token, "a-token\n").unwrap();
    let token = token.to_str().unwrap();

    let anonymous = job.order("k", &[]);
    let unknown = job.run(&["nothing", "--key", "k", "--data", "1", "--token-file", token]);
    let broken = job.run(&["orders", "--key", "k", "--data", "{", "--token-file", token]);
    let right = job.order("k", &["--token-file", token]);

    assert_eq!(anonymous.code(), 1);
    assert!(line(&anonymous).contains("401 unauthorized"), "{anonymous:#?}");
    assert_eq!(unknown.code(), 1);
    assert!(line(&unknown).contains("404 not-found"), "{unknown:#?}");
    assert_eq!(broken.code(), 1);
    assert!(line(&broken).contains("nothing was sent"), "{broken:#?}");
    assert_eq!(right.code(), 0, "{right:#?}");
    assert_eq!(job.kept(), Vec::<Value>::new());
}

#[test]
fn wrong_usage_is_2() {
    let job = Job::at("127.0.0.1:1".parse().unwrap());
    for arguments in [
        &["orders", "--data", "{}"][..],
        &["orders", "--key", "k"],
        &["orders", "--key", "k", "--key-from", "a=b", "--data", "{}"],
        &["orders", "--key-from", "date=", "--data", "{}"],
        &["orders", "--key", "", "--data", "{}"],
        &["or ders", "--key", "k", "--data", "{}"],
        &["orders", "--key", "k", "--data", "{}", "--deadline", "soon"],
        &["orders", "--key", "k", "--data", "{}", "--deadline", "0s"],
        &["orders", "--key", "k", "--data", "{}", "--config", "onced.toml"],
    ] {
        let ended = job.run(arguments);
        assert_eq!(ended.code(), 2, "{arguments:?}: {ended:#?}");
    }
    assert_eq!(job.kept(), Vec::<Value>::new());
}

#[test]
fn lost_connections_and_answers_that_say_so_are_retried_with_one_key_and_one_body() {
    let retried = [
        problem("503 Service Unavailable", "unavailable", true, ""),
        problem("409 Conflict", "request-in-progress", true, ""),
        problem("500 Internal Server Error", "operation-failed", true, ""),
        answer("502 Bad Gateway\r\nContent-Type: text/html", "<p>no upstream</p>"),
        "HTTP/1.1 201 Created\r\nX-Request-Id: r\r\nContent-Length: 50\r\n\r\n{\"id\"".to_owned(),
        created(),
    ];
    let (address, requests) = listener(&retried.each_ref().map(String::as_str));
    let job = Job::at(address);

    let ended = job.order("demo-001", &["--verbose"]);

    assert_eq!((ended.code(), ended.stdout.as_str()), (0, "{\"id\": 1}\n"), "{ended:#?}");
    assert_eq!(ended.stderr.matches("attempt ").count(), 5, "{ended:#?}");
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 6);
    for request in requests.iter() {
        assert!(request.to_lowercase().contains("idempotency-key: \"demo-001\"\r\n"), "{request}");
        assert!(request.ends_with(&format!("\r\n\r\n{ORDER}")), "{request}");
    }
}

#[test]
fn a_gateways_answer_is_not_taken_for_a_refusal_of_the_operation() {
    let gateway = "429 Too Many Requests\r\nContent-Type: application/json\r\nX-Request-Id: g-1";
    let answers = [
        answer(gateway, r#"{"message": "too many requests"}"#),
        problem("404 Not Found", "not-found", false, ""),
        created(),
    ];
    let (address, requests) = listener(&answers.each_ref().map(String::as_str));

    let ended = Job::at(address).order("a/b c", &[]);

    assert_eq!((ended.code(), ended.stdout.as_str()), (0, "{\"id\": 1}\n"), "{ended:#?}");
    let requests = requests.lock().unwrap();
    assert!(requests[1].starts_with("GET /v1/requests/a%2Fb%20c HTTP/1.1\r\n"), "{requests:#?}");
}

#[test]
fn what_the_daemon_does_not_call_retryable_is_not_retried() {
    for once in [
        problem("500 Internal Server Error", "fingerprint-unknown", false, ""),
        problem("409 Conflict", "idempotency-key-expired", false, "\r\nRetry-After: 1"),
        answer("500 Internal Server Error\r\nContent-Type: text/plain", "oops"),
        answer("200 OK\r\nContent-Type: text/html", "<p>sign in</p>"),
        answer("302 Found\r\nLocation: /elsewhere", ""),
    ] {
        let (address, requests) = listener(&[&once, &created()]);
        let job = Job::at(address);
        let ended = job.order("k", &[]);
        assert_eq!((ended.code(), ended.stdout.as_str()), (1, ""), "{once}: {ended:#?}");
        assert_eq!(requests.lock().unwrap().len(), 1, "{once}");
    }
}

#[test]
fn retry_after_is_kept_to_and_one_past_the_deadline_ends_the_waiting_at_once() {
    let wait = |seconds: u32| {
        let more = format!("\r\nRetry-After: {seconds}");
        problem("503 Service Unavailable", "unavailable", true, &more)
    };
    let (address, requests) = listener(&[&wait(3600)]);
    let ended = Job::at(address).order("k", &["--deadline", "1m"]);
    assert_eq!((ended.code(), requests.lock().unwrap().len()), (5, 1), "{ended:#?}");

    let (address, _requests) = listener(&[&wait(1), &created()]);
    let began = std::time::Instant::now();
    let ended = Job::at(address).order("k", &[]);
    assert_eq!(ended.code(), 0, "{ended:#?}");
    assert!(began.elapsed() >= std::time::Duration::from_secs(1));
}

#[test]
fn not_known_within_the_deadline_is_5_and_the_next_run_settles_it() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("sleepy").set("http.wait", "15s").start();
    let job = Job::at(daemon.client().address);
    let gate = database.shut_gate(1);
    let call = ["sleepy", "--key-from", "job=a", "--data", r#"{"gate": 1}"#];

    let cut_off = job.run(&[&call[..], &["--deadline", "1s"]].concat());

    assert_eq!((cut_off.code(), cut_off.stdout.as_str()), (5, ""), "{cut_off:#?}");
    assert!(line(&cut_off).contains("not known within 1s"), "{cut_off:#?}");
    let kept = job.kept();
    assert_eq!((kept.len(), &kept[0]["key"]), (1, &"job=a".into()), "{kept:?}");
    gate.open();
    let settled = job.run(&call);
    assert_eq!(settled.code(), 0, "{settled:#?}");
    assert_eq!(job.kept(), Vec::<Value>::new());
    assert_eq!(database.counts(), Counts { records: 1, events: 1, business: 1 });
}

#[test]
fn nobody_there_is_5_and_another_body_for_the_same_intent_is_then_4() {
    let database = Database::new();
    let daemon = Setup::on(&database);
    let job = Job::at(daemon.http());
    let call = |body: &str| {
        let fixed = ["orders", "--key-from", "job=a", "--deadline", "500ms", "--json", "--data"];
        job.run(&[&fixed[..], &[body]].concat())
    };
    let nobody = call(r#"{"item": "widget", "quantity": 2}"#);
    assert_eq!(nobody.code(), 5, "{nobody:#?}");

    let other = call(r#"{"item": "widget", "quantity": 3}"#);
    assert_eq!(other.code(), 4, "{other:#?}");
    let report: Value = serde_json::from_str(&other.stdout).unwrap();
    assert_eq!((&report["outcome"], &report["attempts"]), (&"key_reused".into(), &0.into()));
    let file = report["state_file"].as_str().unwrap();
    assert!(Path::new(file).is_file(), "{file}");

    // The same request, written otherwise: it is sent as it was the first time.
    let daemon = daemon.start();
    let same = call(r#"{"quantity": 2.0, "item": "widget"}"#);
    assert_eq!(same.code(), 0, "{same:#?}");
    assert_eq!(daemon.post("orders", "job=a", ORDER).status, 201);
    assert_eq!(database.counts(), ONE_ORDER);
    let next = call(r#"{"item": "widget", "quantity": 3}"#);
    assert_eq!(next.code(), 4, "now the daemon says so: {next:#?}");
    assert_eq!(job.kept(), Vec::<Value>::new());
}

#[test]
fn a_key_that_cannot_be_kept_is_not_sent() {
    let (address, requests) = listener(&[&created()]);
    let job = Job::at(address);
    std::fs::write(job.home.path().join("onced"), "a file in the way").unwrap();
    let ended = job.order("k", &[]);
    assert_eq!(ended.code(), 1);
    assert!(line(&ended).contains("nothing was sent"), "{ended:#?}");
    assert_eq!(requests.lock().unwrap().len(), 0);
}

#[test]
fn an_answer_that_cannot_be_written_is_1_and_the_next_run_gets_it() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let job = Job::at(daemon.client().address);
    let mut command = job.command(&["orders", "--key", "k", "--data", ORDER]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(command.stdout(full).status().unwrap().code(), Some(1));
    assert_eq!(job.kept().len(), 1);
    let again = job.order("k", &[]);
    assert_eq!((again.code(), again.stdout.is_empty()), (0, false), "{again:#?}");
    assert_eq!(job.kept(), Vec::<Value>::new());
    assert_eq!(database.counts(), ONE_ORDER);
}

#[cfg(feature = "fail-points")]
mod at_a_fault_point {
    use std::process::Child;
    use std::time::Duration;

    use super::*;
    use crate::support::daemon::Process;
    use crate::support::wait::{pause, until, until_eq};

    fn start(job: &Job, arguments: &[&str]) -> Process {
        let mut command = job.command(arguments);
        Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    #[test]
    fn killed_after_the_commit_and_before_the_answer_the_next_run_of_the_job_gets_the_replay() {
        let database = Database::new();
        let mut daemon =
            Setup::on(&database).env("FAILPOINTS", "writer::after_write=pause").start();
        let job = Job::at(daemon.client().address);
        let call = ["orders", "--key-from", "job=a", "--data", ORDER, "--json"];
        let first = start(&job, &call);
        until_eq("the order is committed", &1, || database.rows("orders"));
        // The machine of the job goes down, too.
        drop(first);
        daemon.kill();
        assert_eq!(job.kept().len(), 1);
        daemon.restart(|setup| setup.env("FAILPOINTS", ""));

        let next = job.run(&call);

        let report: Value = serde_json::from_str(&next.stdout).unwrap();
        assert_eq!((next.code(), &report["replayed"]), (0, &true.into()), "{next:#?}");
        assert_eq!(database.counts(), ONE_ORDER);
        assert_eq!(job.kept(), Vec::<Value>::new());
    }

    #[test]
    fn killed_under_a_call_that_waits_the_call_itself_gets_the_replay() {
        let database = Database::new();
        let mut daemon =
            Setup::on(&database).env("FAILPOINTS", "writer::after_write=pause").start();
        let job = Job::at(daemon.client().address);
        let mut call = start(&job, &["orders", "--key", "k", "--data", ORDER, "--json"]);
        until_eq("the order is committed", &1, || database.rows("orders"));
        daemon.kill();
        pause(Duration::from_millis(300));
        daemon.restart(|setup| setup.env("FAILPOINTS", ""));

        let report = report_of(&mut call.0);

        assert_eq!((&report["outcome"], &report["replayed"]), (&"succeeded".into(), &true.into()));
        assert!(report["attempts"].as_u64().unwrap() > 1, "{report}");
        assert_eq!(database.counts(), ONE_ORDER);
    }

    /// What a call with `--json` prints when it ends.
    fn report_of(call: &mut Child) -> Value {
        until("the call ends", || call.try_wait().unwrap().ok_or_else(|| "it runs".to_owned()));
        let mut text = String::new();
        call.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}
