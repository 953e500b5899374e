//! The private cluster, and everything that `onced dev` starts.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use onced::cli::dev::cluster::{Cluster, ClusterError, Options};
use postgres::{Client, NoTls};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// Tells [`hold_a_cluster`] where.
const HOLD_IN: &str = "ONCED_TEST_HOLD_IN";

fn quick() -> Options {
    let settings = vec![("fsync".to_owned(), "off".to_owned())];
    Options { settings, ..Options::default() }
}

/// A directory that the user who runs the server may enter.
fn directory() -> TempDir {
    tempfile::Builder::new().prefix("onced-test-").tempdir_in("/tmp").unwrap()
}

fn connect(cluster: &Cluster) -> Client {
    Client::connect(&cluster.dsn(), NoTls).unwrap()
}

fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn kill(signal: &str, pid: u32) {
    let pid = pid.to_string();
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
}

fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap());
    children.flat_map(|c| c.split(' ').filter_map(|p| p.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Processes whose command line has `text` in it.
fn processes_about(text: &Path) -> Vec<String> {
    let text = text.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(text))
        .collect()
}

#[test]
fn a_cluster_keeps_its_data_over_a_stop_and_leaves_no_process() {
    let directory = directory();
    let cluster = Cluster::start(directory.path(), &quick()).unwrap();
    let pid = cluster.pid();
    connect(&cluster).batch_execute("create table kept as select 42 as answer").unwrap();
    cluster.stop();
    assert!(!is_alive(pid));
    assert_eq!(processes_about(directory.path()), Vec::<String>::new());

    let cluster = Cluster::start(directory.path(), &quick()).unwrap();
    let answer: i32 = connect(&cluster).query_one("select answer from kept", &[]).unwrap().get(0);
    assert_eq!(answer, 42);
    let encoding: String = connect(&cluster).query_one("show server_encoding", &[]).unwrap().get(0);
    assert_eq!(encoding, "UTF8");
}

#[test]
fn settings_reach_the_server_and_the_default_is_durable() {
    let directory = directory();
    let shown = |options: &Options, name: &str| -> String {
        let cluster = Cluster::start(directory.path(), options).unwrap();
        connect(&cluster).query_one(&format!("show {name}"), &[]).unwrap().get(0)
    };
    assert_eq!(shown(&quick(), "fsync"), "off");
    assert_eq!(shown(&Options::default(), "fsync"), "on");
    assert_eq!(shown(&Options::default(), "listen_addresses"), "");
}

#[test]
fn a_second_cluster_in_the_same_directory_is_refused_while_the_first_runs() {
    let directory = directory();
    let first = Cluster::start(directory.path(), &quick()).unwrap();
    let second = Cluster::start(directory.path(), &quick());
    assert!(matches!(second, Err(ClusterError::InUse(_))));
    connect(&first).batch_execute("select 1").unwrap();
    drop(first);
    Cluster::start(directory.path(), &quick()).unwrap();
}

/// Not a test: the process that others start and kill. It holds a cluster until it dies.
#[test]
#[ignore = "other tests run it as a process of its own"]
fn hold_a_cluster() {
    let Ok(directory) = std::env::var(HOLD_IN) else { return };
    let cluster = Cluster::start(Path::new(&directory), &quick()).unwrap();
    println!("\nserver={}", cluster.pid());
    loop {
        std::thread::park();
    }
}

/// Starts [`hold_a_cluster`] as a process; returns it and the process of its server.
fn holder(directory: &Path) -> (Child, u32) {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dev::hold_a_cluster", "--ignored", "--nocapture"])
        .env(HOLD_IN, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let server = lines.find_map(|l| l.unwrap().strip_prefix("server=").map(|p| p.parse().unwrap()));
    (holder, server.unwrap())
}

#[test]
fn a_server_whose_owner_is_killed_ends_by_itself() {
    let directory = directory();
    let (mut holder, server) = holder(directory.path());
    assert!(is_alive(server));
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until("the guard stops the server", || !is_alive(server));
    wait_until("nobody is left", || processes_about(directory.path()).is_empty());
}

#[test]
fn a_server_that_a_killed_run_left_behind_is_taken_over_with_its_data() {
    let directory = directory();
    let (mut holder, left) = holder(directory.path());
    let guard = children_of(holder.id()).into_iter().find(|pid| *pid != left).unwrap();
    kill("KILL", guard);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(is_alive(left), "this test needs a server that nobody stopped");

    let second = Cluster::start(directory.path(), &quick()).unwrap();
    assert!(!is_alive(left));
    connect(&second).batch_execute("select 1").unwrap();
}

#[test]
fn a_server_killed_without_mercy_is_started_again_and_recovers() {
    let directory = directory();
    let mut first = Cluster::start(directory.path(), &quick()).unwrap();
    connect(&first).batch_execute("create table kept as select 42 as answer").unwrap();
    kill("KILL", first.pid());
    wait_until("the end is seen", || first.ended().unwrap().is_some());
    drop(first);

    let second = Cluster::start(directory.path(), &quick()).unwrap();
    let answer: i32 = connect(&second).query_one("select answer from kept", &[]).unwrap().get(0);
    assert_eq!(answer, 42);
}

#[test]
fn a_pid_file_that_names_a_stranger_does_not_keep_the_server_from_starting() {
    let directory = directory();
    Cluster::start(directory.path(), &quick()).unwrap().stop();
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let pid_file = directory.path().join("data/postmaster.pid");
    let data = directory.path().join("data");
    let text = format!("{}\n{}\n1\n5432\n/tmp\n\n\nready\n", stranger.id(), data.display());
    std::fs::write(pid_file, text).unwrap();

    Cluster::start(directory.path(), &quick()).unwrap();
    assert!(is_alive(stranger.id()), "a process of somebody else was ended");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_path_too_long_for_a_socket_works_all_the_same() {
    let directory = directory();
    let long = directory.path().join("a-directory-with-a-rather-long-name/".repeat(4));
    let cluster = Cluster::start(&long, &quick()).unwrap();
    connect(&cluster).batch_execute("select 1").unwrap();
}

#[test]
fn a_server_that_cannot_start_is_told_with_the_end_of_its_log() {
    let directory = directory();
    let settings = vec![("shared_buffers".to_owned(), "a great many".to_owned())];
    let options = Options { settings, ..quick() };
    let error = Cluster::start(directory.path(), &options).err().unwrap().to_string();
    assert!(error.contains("shared_buffers"), "{error}");
    assert_eq!(processes_about(directory.path()), Vec::<String>::new());
}

#[test]
fn the_data_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    let _cluster = Cluster::start(directory.path(), &quick()).unwrap();
    for private in ["data", "run"] {
        let mode = directory.path().join(private).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{private} has mode {mode:o}");
    }
}

/// `onced dev` as a process, on ports of its own.
struct Dev {
    process: Child,
    state: PathBuf,
    http: SocketAddr,
    sink: SocketAddr,
    /// What it says on standard output.
    lines: Lines<BufReader<ChildStdout>>,
}

fn dev(addresses: [SocketAddr; 3]) -> Command {
    let [http, admin, sink] = addresses.map(|address| address.to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onced"));
    command
        .args(["dev", "--http", &http, "--admin", &admin, "--sink", &sink])
        // They would override what `onced dev` configures, and must not.
        .env("ONCED_HTTP_LISTEN", "127.0.0.1:1")
        .env("ONCED_DATABASE_URL", "postgresql://nowhere.invalid/x");
    command
}

fn free_addresses() -> [SocketAddr; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

impl Dev {
    fn start(state: &Path) -> Dev {
        let addresses = free_addresses();
        let mut process = dev(addresses)
            .arg("--state")
            .arg(state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let [http, _, sink] = addresses;
        let mut dev = Dev { process, state: state.to_owned(), http, sink, lines };
        assert!(dev.says("onced is running"), "it ended before it was running");
        dev
    }

    /// Whether it says something sooner or later.
    fn says(&mut self, text: &str) -> bool {
        self.lines.any(|line| line.unwrap().contains(text))
    }

    /// Sends an order; returns the status and whether the answer is a replay.
    fn order(&self, key: &str) -> (u16, bool) {
        let body = r#"{"item": "widget", "quantity": 1}"#;
        let request = format!(
            "POST /v1/orders HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nIdempotency-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.http,
            body.len()
        );
        let answer = exchange(self.http, &request);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.to_lowercase().contains("idempotent-replayed: true"))
    }

    fn postmaster(&self) -> u32 {
        let file = std::fs::read_to_string(self.state.join("postgres/data/postmaster.pid"));
        file.unwrap().lines().next().unwrap().parse().unwrap()
    }

    /// What is left running of it.
    fn processes(&self) -> Vec<String> {
        processes_about(&self.state)
    }

    fn end(&mut self) -> ExitStatus {
        let mut end = None;
        wait_until("onced dev ends", || {
            end = self.process.try_wait().unwrap();
            end.is_some()
        });
        end.unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // The parts end with their parent, also where the test has failed.
        drop(self.process.kill());
        drop(self.process.wait());
        let deadline = Instant::now() + LIMIT;
        while !self.processes().is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn dev_serves_the_example_and_on_a_signal_leaves_no_process() {
    let directory = directory();
    let mut dev = Dev::start(directory.path());
    assert_eq!(dev.order("k-1"), (201, false));
    assert_eq!(dev.order("k-1"), (201, true));
    let request = "GET /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    wait_until("both events arrive", || {
        let events = exchange(dev.sink, request);
        events.contains("order.created") && events.contains("audit.order_created")
    });
    kill("TERM", dev.process.id());
    assert_eq!(dev.end().code(), Some(0));
    assert_eq!(dev.processes(), Vec::<String>::new());

    let mut again = Dev::start(directory.path());
    assert_eq!(again.order("k-1"), (201, true), "what was written is there the next time");
    kill("INT", again.process.id());
    assert_eq!(again.end().code(), Some(0));
    assert_eq!(again.processes(), Vec::<String>::new());
}

#[test]
fn every_promise_that_verify_can_try_holds_for_dev() {
    let directory = directory();
    let dev = Dev::start(directory.path());
    let verify = Command::new(env!("CARGO_BIN_EXE_onced"))
        .args(["verify", "--json", "--config"])
        .arg(dev.state.join("onced.toml"))
        .env_remove("ONCED_DATABASE_URL")
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&verify.stdout).unwrap();
    let results: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["result"].as_str().unwrap())
        .collect();
    let expected = ["passed", "passed", "passed", "passed", "passed", "skipped", "skipped"];
    assert_eq!(results, expected, "{report:#}");
    assert!(report.to_string().contains("1 record, 1 order, 2 events"), "{report:#}");
    assert_eq!(verify.status.code(), Some(0));
}

#[test]
fn a_second_dev_says_what_is_already_running_and_disturbs_nothing() {
    let directory = directory();
    let first = Dev::start(directory.path());
    let second = dev(free_addresses()).arg("--state").arg(directory.path()).output().unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(told.contains(&format!("process {}", first.process.id())), "{told}");
    assert!(told.contains(&format!("http://{}", first.http)), "{told}");
    assert_eq!(first.order("k-1"), (201, false));
}

#[test]
fn a_killed_dev_leaves_no_process_and_the_next_one_goes_on_with_its_data() {
    let directory = directory();
    let mut dev = Dev::start(directory.path());
    assert_eq!(dev.order("k-1"), (201, false));
    kill("KILL", dev.process.id());
    dev.end();
    wait_until("nothing of it runs", || dev.processes().is_empty());
    assert_eq!(Dev::start(directory.path()).order("k-1"), (201, true));
}

#[test]
fn a_second_signal_ends_dev_at_once_and_what_it_left_ends_by_itself() {
    let directory = directory();
    let mut dev = Dev::start(directory.path());
    let postmaster = dev.postmaster();
    // So that stopping takes longer than anybody wants to wait.
    kill("STOP", postmaster);
    kill("TERM", dev.process.id());
    assert!(dev.says("Stopping"));
    kill("TERM", dev.process.id());
    assert_eq!(dev.end().code(), Some(70));
    kill("CONT", postmaster);
    wait_until("nothing of it runs", || dev.processes().is_empty());
}

#[test]
fn a_part_that_dies_stops_dev_with_a_word_on_it() {
    let directory = directory();
    let mut dev = Dev::start(directory.path());
    kill("KILL", dev.postmaster());
    assert_eq!(dev.end().code(), Some(1));
    wait_until("nothing of it runs", || dev.processes().is_empty());
}

#[test]
fn a_port_that_somebody_else_holds_is_told_with_the_flag_that_chooses_another() {
    let directory = directory();
    let addresses = free_addresses();
    let _holder = TcpListener::bind(addresses[1]).unwrap();
    let output = dev(addresses).arg("--state").arg(directory.path()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("--admin") && told.contains(&addresses[1].to_string()), "{told}");
    assert_eq!(processes_about(directory.path()), Vec::<String>::new());
}

#[test]
fn an_ephemeral_dev_leaves_no_data() {
    let mut process =
        dev(free_addresses()).arg("--ephemeral").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let place = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, place) = line.split_once("in /tmp/onced-dev-")?;
        Some(PathBuf::from(format!("/tmp/onced-dev-{place}")))
    });
    let place = place.unwrap().parent().unwrap().to_owned();
    assert!(place.is_dir());
    assert!(lines.any(|line| line.unwrap().contains("onced is running")));
    kill("TERM", process.id());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert!(!place.exists());
    assert_eq!(processes_about(&place), Vec::<String>::new());
}
