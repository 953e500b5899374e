//! The daemon as a process of its own: a folder with its configuration, the real binary, its log.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use toml::{Table, Value};

use super::client::Client;
use super::postgres::{Database, files_in};
use super::sink::Sink;
use super::wait::until;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_onced");

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A configuration in the making.
pub struct Setup {
    folder: TempDir,
    config: Table,
    environment: Vec<(String, String)>,
    http: SocketAddr,
    admin: SocketAddr,
}

/// A running daemon. It is killed where it still runs at the end.
pub struct Daemon {
    child: Child,
    setup: Setup,
}

/// A process that is killed where it still runs at the end.
pub struct Process(pub Child);

impl Process {
    /// The exit code, after SIGTERM.
    pub fn stop(mut self) -> Option<i32> {
        send(self.0.id(), Signal::SIGTERM);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Sends a signal to a process.
pub fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    kill(pid, signal).expect("the process runs");
}

/// A program that ran to its end.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The exit code.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }
}

/// Runs `onced migrate` with all operations of the tests.
pub fn migrate(url: &str) {
    let mut setup = Setup::at(url);
    for file in files_in(&root().join("tests/integration/operations")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if let Some(name) = name.strip_suffix(".sql").filter(|name| !name.contains('.')) {
            setup = setup.operation(name);
        }
    }
    let ended = setup.run(&["migrate"]);
    assert!(ended.status.success(), "{ended:#?}");
}

impl Setup {
    /// The configuration of a daemon on this database, with the operation `orders` and limits that suit a test.
    pub fn on(database: &Database) -> Setup {
        Setup::at(&database.url())
    }

    /// The same for any connection string.
    pub fn at(url: &str) -> Setup {
        let [http, admin] = free_addresses();
        let setup = Setup {
            folder: tempfile::tempdir().unwrap(),
            config: Table::new(),
            environment: Vec::new(),
            http,
            admin,
        };
        setup
            .set("shutdown_timeout", "15s")
            .set("http.listen", http.to_string())
            .set("admin.listen", admin.to_string())
            .set("database.url", url)
            .set("database.connect_timeout", "2s")
            .set("writers.threads", 2)
            .set("relay.threads", 2)
            .set("relay.poll", "200ms")
            .operation_in("config/operations", "orders")
    }

    /// Sets a value by its dotted path.
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Setup {
        let (sections, key) = path.rsplit_once('.').map_or(("", path), |(s, k)| (s, k));
        let mut table = &mut self.config;
        for section in sections.split('.').filter(|s| !s.is_empty()) {
            let entry = table.entry(section).or_insert_with(|| Table::new().into());
            table = entry.as_table_mut().expect("a section");
        }
        table.insert(key.to_owned(), value.into());
        self
    }

    /// Adds an operation of `tests/integration/operations`.
    pub fn operation(self, name: &str) -> Setup {
        self.operation_in("tests/integration/operations", name)
    }

    fn operation_in(mut self, folder: &str, name: &str) -> Setup {
        let source = root().join(folder);
        let sql = source.join(format!("{name}.sql"));
        let setup = source.join(format!("{name}.setup.sql"));
        if setup.exists() {
            self = self.set(&format!("operations.{name}.setup"), setup.to_str().unwrap());
        }
        self.set(&format!("operations.{name}.sql"), sql.to_str().unwrap())
    }

    /// Adds an operation whose statement the test brings along.
    pub fn inline(self, name: &str, sql: &str) -> Setup {
        self.write(&format!("{name}.sql"), sql)
            .set(&format!("operations.{name}.sql"), format!("{name}.sql"))
    }

    /// Adds a principal with a token.
    pub fn principal(self, name: &str, token: &str) -> Setup {
        self.add_principal(principal(name, token))
    }

    /// Adds a principal with a token that may call only these operations.
    pub fn principal_for(self, name: &str, token: &str, operations: &[&str]) -> Setup {
        let mut principal = principal(name, token);
        principal.insert("operations".to_owned(), operations.to_vec().into());
        self.add_principal(principal)
    }

    /// Adds a principal with several tokens.
    pub fn principal_with(self, name: &str, tokens: &[&str]) -> Setup {
        let mut principal = principal(name, "");
        let hashes: Vec<_> = tokens.iter().map(|token| hash(token)).collect();
        principal.insert("token_sha256".to_owned(), hashes.into());
        self.add_principal(principal)
    }

    /// Takes all principals away.
    pub fn without_principals(mut self) -> Setup {
        self.config.remove("principals");
        self
    }

    /// Takes the operators' token away.
    pub fn without_admin_token(mut self) -> Setup {
        self.config["admin"].as_table_mut().expect("a section").remove("token_file");
        self
    }

    fn add_principal(mut self, principal: Table) -> Setup {
        let list = self.config.entry("principals").or_insert_with(|| Value::Array(Vec::new()));
        list.as_array_mut().expect("a list").push(principal.into());
        self
    }

    /// Sends events to this sink.
    pub fn sink(self, sink: &Sink) -> Setup {
        self.write("sink-secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .set("sink.url", sink.url())
            .set("sink.allow_private", true)
            .set("sink.secret_files", vec!["sink-secret"])
            .set("sink.timeout", "2s")
            .set("relay.lease", "5s")
    }

    /// Sets a variable of the daemon's environment.
    pub fn env(mut self, name: &str, value: &str) -> Setup {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file beside the configuration.
    pub fn write(self, name: &str, text: &str) -> Setup {
        fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    /// The daemon's address for callers.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The daemon's address for operators.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The path of the configuration file, written anew.
    pub fn config_file(&self) -> PathBuf {
        let path = self.folder.path().join("onced.toml");
        fs::write(&path, self.config.to_string()).unwrap();
        path
    }

    /// A command of the program with this configuration, in an environment that holds nothing else.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare_command(arguments);
        command.arg("--config").arg(self.config_file());
        command
    }

    /// A command of the program that names its configuration itself, or none.
    pub fn bare_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a command with this configuration to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments))
    }

    /// Runs a command that names its configuration itself, or none, to its end.
    pub fn run_bare(&self, arguments: &[&str]) -> Ended {
        run(self.bare_command(arguments))
    }

    /// Starts the daemon and waits until it is ready.
    pub fn start(self) -> Daemon {
        let mut daemon = self.launch();
        daemon.wait_until_ready();
        daemon
    }

    /// Starts the daemon where its database may be away: waits until it is alive.
    pub fn start_without_database(self) -> Daemon {
        let mut daemon = self.launch();
        daemon.wait_for("/healthz");
        daemon
    }

    fn launch(self) -> Daemon {
        let child = self.spawn();
        Daemon { child, setup: self }
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = self.command(&["serve"]);
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().expect("the program starts")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("daemon.log")
    }
}

impl Daemon {
    /// A daemon on this database, ready.
    pub fn start(database: &Database) -> Daemon {
        Setup::on(database).start()
    }

    /// A caller without a token.
    pub fn client(&self) -> Client {
        Client { address: self.setup.http, token: None }
    }

    /// A caller with a token.
    pub fn client_with(&self, token: &str) -> Client {
        Client { address: self.setup.http, token: Some(token.to_owned()) }
    }

    /// An operator without a token.
    pub fn operator(&self) -> Client {
        Client { address: self.setup.admin, token: None }
    }

    /// Calls an operation.
    pub fn post(&self, operation: &str, key: &str, body: impl AsRef<[u8]>) -> super::Answer {
        self.client().post(operation, key, body)
    }

    /// Calls `orders` with a body that it takes.
    pub fn order(&self, key: &str) -> super::Answer {
        self.post("orders", key, ORDER)
    }

    /// What is stored of a key, as a caller sees it.
    pub fn look_up(&self, key: &str) -> Option<Json> {
        let answer = self.client().get(&format!("/v1/requests/{key}"));
        match answer.status {
            200 => Some(answer.json()),
            404 => None,
            _ => panic!("{answer:?}"),
        }
    }

    /// The value of a metric, with its labels as they are printed; 0 where it is not shown.
    pub fn metric(&self, series: &str) -> f64 {
        let answer = self.operator().get("/metrics");
        let line =
            answer.text().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Ends the process as a crash does, at once.
    pub fn kill(&mut self) {
        self.child.kill().expect("the daemon runs");
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it ended before it was killed\n{}", self.log());
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        until("the daemon ends", || {
            self.child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        })
    }

    /// Stops it by SIGTERM; it must end well.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// Starts it again where it ended, with the same configuration, or one that `change` makes of it.
    pub fn restart(&mut self, change: impl FnOnce(Setup) -> Setup) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_some(), "the daemon still runs");
        self.change(change);
        self.child = self.setup.spawn();
        self.wait_until_ready();
    }

    /// Changes the configuration file; the daemon does not know of it yet.
    pub fn change(&mut self, change: impl FnOnce(Setup) -> Setup) {
        let spare = Setup {
            folder: tempfile::tempdir().unwrap(),
            config: Table::new(),
            environment: Vec::new(),
            http: self.setup.http,
            admin: self.setup.admin,
        };
        self.setup = change(std::mem::replace(&mut self.setup, spare));
        self.setup.config_file();
    }

    /// Waits until `/readyz` says so.
    pub fn wait_until_ready(&mut self) {
        self.wait_for("/readyz");
    }

    fn wait_for(&mut self, path: &str) {
        let operator = self.operator();
        until(&format!("{path} is well"), || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the daemon ended: {status}\n{}", self.log());
            }
            let answer = operator.try_get(path).map_err(|e| e.to_string())?;
            if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}\n{}", self.log())) }
        });
    }

    /// Whether the process runs and serves.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none() && self.operator().get("/healthz").status == 200
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.setup.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its configuration.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

fn run(mut command: Command) -> Ended {
    let output = command.output().expect("the program runs");
    Ended {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn principal(name: &str, token: &str) -> Table {
    let mut principal = Table::new();
    principal.insert("name".to_owned(), name.into());
    principal.insert("token_sha256".to_owned(), vec![hash(token)].into());
    principal
}

fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A body that `orders` takes.
pub const ORDER: &str = r#"{"item": "widget", "quantity": 2}"#;

/// Two addresses that nobody listens on, outside the range that the system gives to outgoing connections.
fn free_addresses() -> [SocketAddr; 2] {
    let free = || {
        (0..1000)
            .map(|_| SocketAddr::from(([127, 0, 0, 1], fastrand::u16(10_000..32_000))))
            .find(|address| TcpListener::bind(address).is_ok())
            .expect("a free port")
    };
    let first = free();
    loop {
        let second = free();
        if second != first {
            return [first, second];
        }
    }
}
