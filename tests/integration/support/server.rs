//! A PostgreSQL of a test's own, on a port, that can be stopped, started again, copied and promoted.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use onced::cli::dev::installation::Installation;
use postgres::{Client, NoTls};
use tempfile::TempDir;

use super::daemon::{Setup, send};
use super::postgres::ROLE;
use super::wait::until;

/// The server. It is stopped at once where it still runs at the end.
pub struct Server {
    process: Option<Child>,
    installation: Installation,
    folder: PathBuf,
    port: u16,
    // Last: the server is gone when its folder goes.
    _own: Option<TempDir>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Sessions are ended, what is in memory is written.
    Fast,
    /// As a crash.
    Immediate,
}

impl Server {
    /// A server with these settings, and an empty database `app` that belongs to the daemon's role.
    pub fn start(settings: &[(&str, &str)]) -> Server {
        let own = tempfile::Builder::new().prefix("onced-pg-").tempdir_in("/tmp").unwrap();
        let mut server = Server::start_in(own.path(), settings);
        server._own = Some(own);
        server
    }

    /// The same with its data in this folder, which is taken as it is.
    pub fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Server {
        let mut server = Server::at(folder);
        let data = server.data();
        let mut initdb = as_server(&server.installation.program("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]);
        let made = initdb.args(["--locale=C", "--no-instructions"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.configure(&[("fsync", "off"), ("max_wal_size", "64MB"), ("min_wal_size", "32MB")]);
        server.configure(settings);
        server.run();
        let role = format!("CREATE ROLE {ROLE} LOGIN");
        let mut session = server.session("postgres");
        session.batch_execute(&role).unwrap();
        session.batch_execute(&format!("CREATE DATABASE app OWNER {ROLE}")).unwrap();
        server
    }

    /// A standby of this one, which is stopped for as long as its data is copied.
    pub fn standby(&mut self, name: &str) -> Server {
        self.stop(Stop::Fast);
        let own = tempfile::Builder::new().prefix("onced-pg-").tempdir_in("/tmp").unwrap();
        let mut standby = Server::at(own.path());
        standby._own = Some(own);
        let mut copy = as_server(Path::new("cp"));
        assert!(copy.arg("-a").arg(self.data()).arg(standby.data()).status().unwrap().success());
        let mut touch = as_server(Path::new("touch"));
        let signal = standby.data().join("standby.signal");
        assert!(touch.arg(signal).status().unwrap().success());
        let primary =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port);
        standby.configure(&[("primary_conninfo", &primary)]);
        self.run();
        standby.run();
        let seen =
            format!("SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}'");
        let mut session = self.session("postgres");
        until("the standby follows", || {
            let count: i64 = session.query_one(&seen, &[]).unwrap().get(0);
            if count == 1 { Ok(()) } else { Err(standby.log()) }
        });
        standby
    }

    fn at(folder: &Path) -> Server {
        if let Some(user) = server_user() {
            chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let installation = Installation::find(None).expect("PostgreSQL is installed");
        Server { process: None, installation, folder: folder.to_owned(), port, _own: None }
    }

    /// Adds settings; they hold from the next start on, or the next reload.
    pub fn configure(&self, settings: &[(&str, &str)]) {
        let path = self.data().join("postgresql.conf");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        for (name, value) in settings {
            writeln!(file, "{name} = '{value}'").unwrap();
        }
    }

    /// Reads the settings anew.
    pub fn reload(&self) {
        self.session("postgres").batch_execute("SELECT pg_reload_conf()").unwrap();
    }

    /// Starts it and waits until it takes connections.
    pub fn run(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        let mut server = as_server(&self.installation.program("postgres"));
        server.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        server.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        server.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(server.spawn().expect("PostgreSQL starts"));
        until("PostgreSQL takes connections", || {
            self.connect("postgres").map(drop).map_err(|e| format!("{e}: {}", self.log()))
        });
    }

    /// Stops it and waits for its end.
    pub fn stop(&mut self, how: Stop) {
        let signal = match how {
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
        };
        if let Some(mut process) = self.process.take() {
            send(process.id(), signal);
            until("PostgreSQL ends", || {
                process.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
            });
        }
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        let promoted = "SELECT pg_promote(true, 30)";
        let done: bool = self.session("postgres").query_one(promoted, &[]).unwrap().get(0);
        assert!(done, "{}", self.log());
    }

    /// A session of the superuser.
    pub fn session(&self, database: &str) -> Client {
        self.connect(database).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    fn connect(&self, database: &str) -> Result<Client, postgres::Error> {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.port).user("postgres").dbname(database);
        config.connect_timeout(Duration::from_secs(5)).connect(NoTls)
    }

    /// Where it listens, on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The connection string of the daemon.
    pub fn url(&self) -> String {
        format!("host=127.0.0.1 port={} user={ROLE} dbname=app", self.port)
    }

    /// Makes the tables of the daemon and of `orders`.
    pub fn migrate(&self) {
        let ended = Setup::at(&self.url()).run(&["migrate"]);
        assert!(ended.status.success(), "{ended:#?}");
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            send(process.id(), Signal::SIGQUIT);
            drop(process.wait());
        }
    }
}

/// PostgreSQL refuses to run as root.
fn server_user() -> Option<User> {
    geteuid().is_root().then(|| User::from_name("postgres").unwrap().expect("a user postgres"))
}

/// A command that runs as the server's user.
pub fn as_server(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").current_dir("/");
    if let Some(user) = server_user() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}
