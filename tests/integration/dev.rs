//! The private cluster, and everything that `onced dev` starts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
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
