//! A private PostgreSQL, made from the installed binaries: for `onced dev`, and for tests.
//!
//! It listens on a Unix socket only, in a directory that nobody but the server's user (and root) may enter, so it
//! needs no password and no port. PostgreSQL refuses to run as root; where we are root it runs as another user.
//!
//! The server is a child in a process group of its own, so a Ctrl-C in the terminal does not end it before those who
//! use it have stopped. A guard process holds the other end of a pipe: where this program dies without stopping the
//! server (SIGKILL), the guard does it. Should the guard die as well, the next start in the same directory finds the
//! server by its pid file and stops it first.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::installation::{Installation, NoInstallation};
use super::pause;
use super::place::{PORT, Place, file_error};

/// The superuser of the cluster, and the database that it has from the start.
const SUPERUSER: &str = "postgres";
/// How long an immediate shutdown may take before the process is killed.
const IMMEDIATE_LIMIT: Duration = Duration::from_secs(5);
/// As much of the log's end as a message shows, in bytes.
const TAIL: u64 = 4096;
/// Ends the server when the pipe on standard input closes, if `$1` is still the process in its pid file, `$2`.
const GUARD: &str = r#"read -r _; [ "$(head -n 1 "$2" 2>/dev/null)" = "$1" ] && kill -INT "$1""#;
/// What the server says while backends of one that was killed are still ending.
const STILL_ENDING: &str = "pre-existing shared memory block";

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings besides PostgreSQL's own defaults, as `("fsync", "off")`. With fsync off a new cluster is not synced
    /// to the disk either.
    pub settings: Vec<(String, String)>,
    /// How long the server may take until it accepts connections, recovery after a crash included.
    pub start_limit: Duration,
    /// How long a fast shutdown may take before it becomes an immediate one.
    pub stop_limit: Duration,
}

impl Default for Options {
    /// A durable cluster, 60 s to start and 30 s to stop.
    fn default() -> Options {
        Options {
            settings: Vec::new(),
            start_limit: Duration::from_secs(60),
            stop_limit: Duration::from_secs(30),
        }
    }
}

/// A running PostgreSQL. Dropping it stops it.
pub struct Cluster {
    // Before `place`, whose lock must outlive the server.
    running: Running,
    place: Place,
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No usable PostgreSQL is installed.
    #[error(transparent)]
    Installation(#[from] NoInstallation),
    /// Another process holds a cluster in this directory.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// We are root, and there is nobody else to run the server.
    #[error(
        "PostgreSQL refuses to run as root, and none of the users postgres, nobody and daemon is there to run it \
         instead; create a user `postgres`, or run this as an ordinary user"
    )]
    NobodyToRun,
    /// The server's user cannot get to the directory.
    #[error(
        "PostgreSQL refuses to run as root, so it runs as the user `{user}`, who may not enter {}; choose a place \
         that this user can reach", .directory.display()
    )]
    OutOfReach {
        /// Who would run the server.
        user: String,
        /// The first directory on the way that it may not enter.
        directory: PathBuf,
    },
    /// The data is somebody else's.
    #[error("{} belongs to another user; run this as that user, or choose another place", .0.display())]
    NotOurs(PathBuf),
    /// Something failed on a file.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A program could not be run.
    #[error("cannot run {}", .program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("initdb could not make a cluster in {} ({status}):\n{output}", .data.display())]
    Init {
        /// Where.
        data: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        output: String,
    },
    /// The server ended, or did not accept connections in time.
    #[error("PostgreSQL {what}; the end of its log, {}:\n{tail}", .log.display())]
    Start {
        /// What happened.
        what: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A server that an earlier run left behind does not end.
    #[error("the PostgreSQL that an earlier run left in {} (process {pid}) does not stop", .data.display())]
    LeftBehind {
        /// Its data.
        data: PathBuf,
        /// Its process.
        pid: i32,
    },
}

impl Cluster {
    /// Starts a PostgreSQL whose data, log and socket are in `dir`, and makes its data where there is none. `dir` is
    /// created where it is missing; data and socket are closed to everybody else.
    ///
    /// A server that a killed run left behind in `dir` is stopped first. Existing data decides which of the installed
    /// versions is used.
    pub fn start(dir: &Path, options: &Options) -> Result<Cluster, ClusterError> {
        let place = Place::prepare(dir)?;
        stop_left_behind(&place, options.stop_limit)?;
        let version = place.data_version();
        let installation = Installation::find(version)?;
        if version.is_none() {
            make_data(&place, &installation, options)?;
        }
        let deadline = Instant::now() + options.start_limit;
        loop {
            let running = Running::launch(&place, &installation, options)?;
            match running.ready(&place, deadline) {
                Ok(running) => return Ok(Cluster { running, place }),
                Err(error) if is_passing(&error) && Instant::now() < deadline => pause(),
                Err(error) => return Err(error),
            }
        }
    }

    /// A connection string for the superuser and the database that is there from the start.
    pub fn dsn(&self) -> String {
        self.dsn_of(SUPERUSER)
    }

    /// A connection string for the superuser and a database that somebody has made.
    pub fn dsn_of(&self, database: &str) -> String {
        self.place.dsn(SUPERUSER, database)
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.running.server.id()
    }

    /// The server's log.
    pub fn log(&self) -> &Path {
        &self.place.log
    }

    /// How the server ended, where it did by itself.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ClusterError> {
        self.running
            .server
            .try_wait()
            .map_err(file_error("wait for the server in", &self.place.data))
    }

    /// Stops the server: sessions are ended, what was committed is kept. Waits until it is gone, and kills it where
    /// it does not go.
    pub fn stop(self) {
        drop(self);
    }
}

/// The processes of a cluster; dropping it ends them.
struct Running {
    server: Child,
    guard: Child,
    stop_limit: Duration,
}

impl Running {
    fn launch(
        place: &Place,
        installation: &Installation,
        options: &Options,
    ) -> Result<Running, ClusterError> {
        let mut server = spawn_server(place, installation, options)?;
        match spawn_guard(place, server.id()) {
            Ok(guard) => Ok(Running { server, guard, stop_limit: options.stop_limit }),
            Err(error) => {
                end(&mut server, options.stop_limit);
                Err(error)
            }
        }
    }

    /// Waits until the server accepts connections.
    fn ready(mut self, place: &Place, deadline: Instant) -> Result<Running, ClusterError> {
        loop {
            if let Some(status) =
                self.server.try_wait().map_err(file_error("wait for the server in", &place.data))?
            {
                return Err(not_started(place, format!("ended while it started ({status})")));
            }
            if place.is_ready() {
                return Ok(self);
            }
            if Instant::now() >= deadline {
                let what = "did not accept connections in time".to_owned();
                return Err(not_started(place, what));
            }
            pause();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.server, self.stop_limit);
        // The guard's pipe closes with it; it finds no pid file any more. Killing it only makes that quicker, and a
        // process that is gone already is no fault.
        drop(self.guard.kill());
        drop(self.guard.wait());
    }
}

/// Ends the server: fast, then immediately, then by force.
fn end(server: &mut Child, stop_limit: Duration) {
    let steps = [
        (Signal::SIGINT, stop_limit),
        (Signal::SIGQUIT, IMMEDIATE_LIMIT),
        (Signal::SIGKILL, IMMEDIATE_LIMIT),
    ];
    for (signal, limit) in steps {
        let gone = |server: &mut Child| !matches!(server.try_wait(), Ok(None));
        if gone(server) {
            return;
        }
        signal_process(server.id(), signal);
        let deadline = Instant::now() + limit;
        while !gone(server) && Instant::now() < deadline {
            pause();
        }
    }
}

/// Stops a server that a killed run has left. It must be gone before its data is used, so it is waited for.
fn stop_left_behind(place: &Place, stop_limit: Duration) -> Result<(), ClusterError> {
    for (signal, limit) in [(Signal::SIGINT, stop_limit), (Signal::SIGQUIT, IMMEDIATE_LIMIT)] {
        let deadline = Instant::now() + limit;
        let Some(pid) = place.running() else { break };
        // It may have gone since: then there is nothing to signal.
        kill(pid, signal).ok();
        while place.running().is_some() && Instant::now() < deadline {
            pause();
        }
    }
    match place.running() {
        Some(pid) => Err(ClusterError::LeftBehind { data: place.data.clone(), pid: pid.as_raw() }),
        None => place.forget_pid_file(),
    }
}

/// Makes the data beside its place and moves it there once it is whole, so that a killed `initdb` leaves nothing that
/// looks like a cluster.
fn make_data(
    place: &Place,
    installation: &Installation,
    options: &Options,
) -> Result<(), ClusterError> {
    let unfinished = place.unfinished_data();
    Place::remove(&unfinished)?;
    place.give(&unfinished)?;
    let program = installation.program("initdb");
    let mut initdb = place.command(&program);
    initdb
        .arg("--pgdata")
        .arg(&unfinished)
        .args(["--username", SUPERUSER, "--encoding", "UTF8", "--no-locale"])
        .args(["--auth-local", "trust", "--auth-host", "reject", "--no-instructions"]);
    if options.settings.iter().any(|(name, value)| name == "fsync" && value == "off") {
        initdb.arg("--no-sync");
    }
    let output = initdb.stdin(Stdio::null()).output();
    let output = output.map_err(|source| ClusterError::Run { program, source })?;
    if !output.status.success() {
        let output_text = [output.stdout, output.stderr].concat();
        return Err(ClusterError::Init {
            data: place.data.clone(),
            status: output.status,
            output: String::from_utf8_lossy(&output_text).into_owned(),
        });
    }
    fs::rename(&unfinished, &place.data).map_err(file_error("move into place", &unfinished))
}

fn spawn_server(
    place: &Place,
    installation: &Installation,
    options: &Options,
) -> Result<Child, ClusterError> {
    let log =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&place.log);
    let log = log.map_err(file_error("open", &place.log))?;
    let errors = log.try_clone().map_err(file_error("open", &place.log))?;
    let program = installation.program("postgres");
    let mut server = place.command(&program);
    server
        .arg("-D")
        .arg(&place.data)
        .arg("-k")
        .arg(&place.sockets)
        .args(["-p", &PORT.to_string(), "-c", "listen_addresses="])
        .args(["-c", "unix_socket_permissions=0700", "-c", "log_destination=stderr"])
        .args(["-c", "logging_collector=off"]);
    for (name, value) in &options.settings {
        server.arg("-c").arg(format!("{name}={value}"));
    }
    server.stdin(Stdio::null()).stdout(log).stderr(errors);
    server.spawn().map_err(|source| ClusterError::Run { program, source })
}

fn spawn_guard(place: &Place, server: u32) -> Result<Child, ClusterError> {
    let mut guard = place.command("/bin/sh");
    guard
        .args(["-c", GUARD, "onced-guard", &server.to_string()])
        .arg(place.data.join("postmaster.pid"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    guard.spawn().map_err(|source| ClusterError::Run { program: "/bin/sh".into(), source })
}

fn signal_process(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // It is a child that was not yet waited for, so the number is still its own; it may only have ended.
        kill(Pid::from_raw(pid), signal).ok();
    }
}

fn is_passing(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Start { tail, .. } if tail.contains(STILL_ENDING))
}

fn not_started(place: &Place, what: String) -> ClusterError {
    let tail = tail(&place.log).unwrap_or_else(|error| format!("(it cannot be read: {error})"));
    ClusterError::Start { what, log: place.log.clone(), tail }
}

fn tail(log: &Path) -> io::Result<String> {
    let mut log = File::open(log)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut text = Vec::new();
    log.take(TAIL).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
