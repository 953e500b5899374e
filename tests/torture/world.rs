//! What is tortured: a PostgreSQL, two daemons, a sink, and the relays in between. All of it ends with the value.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use onced::cli::dev::cluster::{Cluster, Options};
use postgres::{Client, NoTls};
use tempfile::TempDir;

use crate::clock::now;
use crate::history::{Absence, Away, Delivery, Micros};
use crate::plan::{Limits, Mood};
use crate::proxy::{Proxy, Server};
use crate::support::client;
use crate::support::daemon::{Setup, root};
use crate::support::sink::{Reply, Sink};
use crate::support::wait::pause;

/// Whose keys there are, and their tokens.
pub const PRINCIPALS: [(&str, &str); 2] = [("alice", "token-of-alice"), ("bob", "token-of-bob")];
/// The secret of the sink.
pub const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// How many daemons there are.
pub const DAEMONS: usize = 2;
/// `http.wait` of the daemons.
pub const WAIT: Duration = Duration::from_secs(5);

/// An event that is never taken is dead after so many, within half a minute; one that nothing is wrong with is taken
/// before that, since the sink is never away for so long.
const ATTEMPTS: i64 = 22;
const ROLE: &str = "onced_torture";
const SINK_TIMEOUT: Duration = Duration::from_secs(1);
/// What the sink never takes.
const POISON: &str = r#""poison": true"#;
/// How long something may take that is not under attack, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Everything that runs. The fields are in the order in which it ends.
pub struct World {
    pub daemons: Vec<Daemon>,
    pub to_database: Vec<Proxy>,
    pub to_sink: Proxy,
    pub sink: RecordingSink,
    pub postgres: Mutex<Postgres>,
    pub absences: Mutex<Vec<Absence>>,
    /// What went wrong that no answer and no table shows, in words.
    pub troubles: Mutex<Vec<String>>,
    _folder: TempDir,
}

/// A daemon's process and its configuration.
pub struct Daemon {
    number: usize,
    setup: Setup,
    child: Mutex<Option<Child>>,
    log: PathBuf,
}

/// The server, and the small disk that it lives on where we may mount one.
pub struct Postgres {
    cluster: Option<Cluster>,
    place: PathBuf,
    _disk: Option<Disk>,
}

/// A mounted tmpfs.
struct Disk(PathBuf);

/// A sink that writes down all that it is sent.
pub struct RecordingSink {
    _sink: Sink,
    state: Arc<Mutex<SinkState>>,
    address: SocketAddr,
}

struct SinkState {
    mood: Mood,
    deliveries: Vec<Delivery>,
}

impl World {
    /// Starts everything for a run of so many minutes.
    pub fn start(minutes: f32, limits: Limits) -> anyhow::Result<World> {
        // Short, since the path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("onced-torture-").tempdir_in("/tmp")?;
        let postgres = Postgres::start(&folder.path().join("pg"), minutes)?;
        postgres.prepare().context("cannot prepare the database")?;
        let sink = RecordingSink::start()?;
        let to_sink = Proxy::to(Server::Address(sink.address))?;
        let socket = postgres.socket();
        let to_database = (0..DAEMONS).map(|_| Proxy::to(Server::Socket(socket.clone())));
        let to_database = to_database.collect::<std::io::Result<Vec<_>>>()?;
        postgres.migrate()?;
        let daemons = to_database.iter().enumerate().map(|(number, proxy)| {
            let setup = limits.put_into(configure(proxy.address(), to_sink.address()));
            Daemon::new(number, setup, folder.path())
        });
        let world = World {
            daemons: daemons.collect(),
            to_database,
            to_sink,
            sink,
            postgres: Mutex::new(postgres),
            absences: Mutex::default(),
            troubles: Mutex::default(),
            _folder: folder,
        };
        for daemon in &world.daemons {
            daemon.spawn()?;
            ensure!(daemon.comes_to("/readyz"), "the daemon is not ready:\n{}", daemon.log_tail());
        }
        Ok(world)
    }

    /// Notes something that went wrong.
    pub fn trouble(&self, text: String) {
        eprintln!("!! {text}");
        self.troubles.lock().unwrap().push(text);
    }

    /// Notes that a daemon was away.
    pub fn was_away(&self, daemon: usize, from: Micros, kind: Away) {
        self.absences.lock().unwrap().push(Absence { daemon, from, to: now(), kind });
    }

    /// The server; waits for a fault that is working on it.
    pub fn postgres(&self) -> MutexGuard<'_, Postgres> {
        self.postgres.lock().unwrap()
    }

    /// A daemon that ended without being told to is trouble; it is started again.
    pub fn look_after_daemons(&self) -> anyhow::Result<()> {
        for daemon in &self.daemons {
            let from = now();
            if let Some(status) = daemon.ended_by_itself()? {
                let number = daemon.number;
                self.trouble(format!(
                    "daemon {number} ended by itself: {status}\n{}",
                    daemon.log_tail()
                ));
                daemon.spawn()?;
                daemon.comes_to("/healthz");
                // It may have been gone for as long as it was not looked after.
                self.was_away(number, from - 3_000_000, Away::Killed);
            }
        }
        Ok(())
    }
}

fn configuration(dsn: &str) -> Setup {
    let operations = root().join("tests/torture/operations");
    let file = |name: &str| operations.join(name).to_str().expect("a path in UTF-8").to_owned();
    let mut setup = Setup::at(dsn)
        .set("operations.transfers.sql", file("transfers.sql"))
        .set("operations.transfers.setup", file("transfers.setup.sql"))
        .set("operations.refunds.sql", file("refunds.sql"))
        .set("operations.refunds.timeout", "2s");
    for (name, token) in PRINCIPALS {
        setup = setup.principal(name, token);
    }
    setup
}

/// The configuration of a daemon.
fn configure(database: SocketAddr, sink: SocketAddr) -> Setup {
    let (host, port) = (database.ip(), database.port());
    configuration(&format!("host={host} port={port} user={ROLE} dbname={ROLE}"))
        .write("sink-secret", &format!("whsec_{SECRET}"))
        .set("shutdown_timeout", "20s")
        .set("http.wait", format!("{}s", WAIT.as_secs()))
        .set("writers.statement_timeout", "3s")
        .set("writers.lock_timeout", "1s")
        .set("sink.url", format!("http://{sink}/hook"))
        .set("sink.allow_private", true)
        .set("sink.secret_files", vec!["sink-secret"])
        .set("sink.timeout", format!("{}s", SINK_TIMEOUT.as_secs()))
        .set("relay.threads", 4)
        .set("relay.lease", "3s")
        .set("relay.backoff_min", "100ms")
        .set("relay.backoff_max", "1s")
        .set("relay.max_attempts", ATTEMPTS)
}

impl Limits {
    fn put_into(self, setup: Setup) -> Setup {
        setup
            .set("http.waiters_per_key", self.waiters)
            .set("writers.threads", self.writers)
            .set("writers.queue", self.queue)
            .set("writers.batch", self.batch)
    }
}

impl Daemon {
    fn new(number: usize, setup: Setup, folder: &Path) -> Daemon {
        let log = folder.join(format!("daemon-{number}.log"));
        Daemon { number, setup, child: Mutex::default(), log }
    }

    /// A caller of this daemon.
    pub fn client(&self, token: &str) -> client::Client {
        client::Client { address: self.setup.http(), token: Some(token.to_owned()) }
    }

    /// Starts the process.
    pub fn spawn(&self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        // Whoever kills this program takes the daemons with it.
        let mut command = self.setup.command(&["serve", "--exit-with-parent"]);
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn()?;
        *self.child.lock().unwrap() = Some(child);
        Ok(())
    }

    /// Waits until a path of the operator's listener answers 200; false where it never does.
    pub fn comes_to(&self, path: &str) -> bool {
        let operator = client::Client { address: self.setup.admin(), token: None };
        within(PATIENCE, || operator.try_get(path).is_ok_and(|answer| answer.status == 200))
    }

    /// The value of a metric; `None` where nobody tells.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let operator = client::Client { address: self.setup.admin(), token: None };
        let answer = operator.try_get("/metrics").ok()?;
        let text = String::from_utf8(answer.body).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        value.parse().ok()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.lock().unwrap();
        let child = child.as_ref().context("the daemon is not running")?;
        Ok(kill(Pid::from_raw(i32::try_from(child.id())?), signal)?)
    }

    /// kill -9.
    pub fn kill(&self) -> anyhow::Result<()> {
        let child = self.child.lock().unwrap().take();
        let mut child = child.context("the daemon is not running")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and what came of it; killed where it does not end.
    pub fn stop(&self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let child = self.child.lock().unwrap().take();
        let mut child = child.context("the daemon is not running")?;
        let mut status = None;
        within(PATIENCE, || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        });
        match status {
            Some(status) => Ok(status),
            None => {
                child.kill()?;
                child.wait()?;
                bail!("daemon {} did not stop within {PATIENCE:?}", self.number)
            }
        }
    }

    fn ended_by_itself(&self) -> anyhow::Result<Option<ExitStatus>> {
        let mut child = self.child.lock().unwrap();
        let Some(running) = child.as_mut() else { return Ok(None) };
        let status = running.try_wait()?;
        if status.is_some() {
            *child = None;
        }
        Ok(status)
    }

    /// Lines of its log that hold a text.
    pub fn log_about(&self, text: &str) -> Vec<String> {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its threads and its open files.
    pub fn size(&self) -> Option<(usize, usize)> {
        let child = self.child.lock().unwrap();
        let process = PathBuf::from(format!("/proc/{}", child.as_ref()?.id()));
        let count = |name: &str| Some(fs::read_dir(process.join(name)).ok()?.count());
        Some((count("task")?, count("fd")?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = self.child.lock().unwrap().as_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Postgres {
    fn start(place: &Path, minutes: f32) -> anyhow::Result<Postgres> {
        fs::create_dir(place)?;
        let disk = Disk::mount(place, minutes);
        let mut postgres = Postgres { cluster: None, place: place.to_owned(), _disk: disk };
        postgres.launch()?;
        Ok(postgres)
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        let settings = [
            // The write-ahead log must fit on the small disk.
            ("max_wal_size", "96MB"),
            ("min_wal_size", "48MB"),
            ("checkpoint_timeout", "30s"),
            ("shared_buffers", "32MB"),
            ("wal_writer_delay", "2s"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let options =
            Options { settings, start_limit: PATIENCE, stop_limit: Duration::from_secs(5) };
        self.cluster = Some(Cluster::start(&self.place, &options)?);
        Ok(())
    }

    fn prepare(&self) -> anyhow::Result<()> {
        let mut session = self.session_in("postgres")?;
        session.batch_execute(&format!("CREATE ROLE {ROLE} LOGIN"))?;
        // The daemons have to turn it on again, or a crash would lose what they have answered.
        session.batch_execute(&format!("ALTER ROLE {ROLE} SET synchronous_commit = off"))?;
        session.batch_execute(&format!("CREATE DATABASE {ROLE} OWNER {ROLE}"))?;
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.place.join("run/.s.PGSQL.5432")
    }

    fn dsn(&self) -> String {
        format!("host={} user={ROLE} dbname={ROLE}", self.place.join("run").display())
    }

    /// Runs `onced migrate`, with the operations' setup.
    pub fn migrate(&self) -> anyhow::Result<()> {
        let ended = configuration(&self.dsn()).run(&["migrate"]);
        ensure!(ended.status.success(), "onced migrate failed: {ended:#?}");
        Ok(())
    }

    /// A session of the superuser in the daemons' database.
    pub fn session(&self) -> anyhow::Result<Client> {
        self.session_in(ROLE)
    }

    fn session_in(&self, database: &str) -> anyhow::Result<Client> {
        let cluster = self.cluster.as_ref().context("PostgreSQL is not running")?;
        let mut config: postgres::Config = cluster.dsn_of(database).parse()?;
        Ok(config.connect_timeout(Duration::from_secs(5)).connect(NoTls)?)
    }

    /// Whether the disk can be filled without harm to anybody else.
    pub fn has_own_disk(&self) -> bool {
        self._disk.is_some()
    }

    /// The folder that the server lives in.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Ends the server by a signal to its main process.
    pub fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let mut cluster = self.cluster.take().context("PostgreSQL is not running")?;
        kill(Pid::from_raw(i32::try_from(cluster.pid())?), signal)?;
        within(PATIENCE, || !matches!(cluster.ended(), Ok(None)));
        // Where it did not end, dropping it ends it.
        Ok(())
    }

    /// Starts the server where it does not run, and waits until it takes connections.
    pub fn see_that_it_runs(&mut self) -> anyhow::Result<()> {
        if self.cluster.as_mut().is_none_or(|cluster| !matches!(cluster.ended(), Ok(None))) {
            self.cluster = None;
            self.launch()?;
        }
        let runs = within(PATIENCE, || self.session().is_ok());
        ensure!(runs, "PostgreSQL takes no connections:\n{}", self.log_tail());
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.place.join("postgres.log")).unwrap_or_default();
        let start = log.len().saturating_sub(3000);
        String::from_utf8_lossy(&log[start..]).into_owned()
    }
}

impl Disk {
    /// `None` where we may not mount.
    fn mount(place: &Path, minutes: f32) -> Option<Disk> {
        if !geteuid().is_root() {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes")]
        let size = format!("size={}m,mode=0711", 320 + 24 * minutes.ceil() as u64);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "onced-torture"]).arg(place);
        let status = mount.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then(|| Disk(place.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that is still ending holds it for a moment.
        let unmounted = within(Duration::from_secs(5), || {
            let status = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        });
        if !unmounted {
            eprintln!("{} stays mounted", self.0.display());
        }
    }
}

impl RecordingSink {
    fn start() -> anyhow::Result<RecordingSink> {
        let state = SinkState { mood: Mood::Well, deliveries: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let sink = Sink::answering(move |delivery, number| {
            let mut state = shared.lock().unwrap();
            let reply = match delivery.body.contains(POISON) {
                true => Reply::status(500),
                false => reply(state.mood, number),
            };
            state.deliveries.push(Delivery {
                at: now(),
                id: delivery.id.clone(),
                timestamp: delivery.timestamp.clone(),
                signature: delivery.signature.clone(),
                body: delivery.body.clone(),
                status: reply.status,
            });
            reply
        });
        let url = sink.url();
        let address = url.trim_start_matches("http://").trim_end_matches("/hook").parse()?;
        Ok(RecordingSink { _sink: sink, state, address })
    }

    /// Changes how it answers.
    pub fn set(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    /// All that it was sent.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.state.lock().unwrap().deliveries.clone()
    }
}

fn reply(mood: Mood, number: usize) -> Reply {
    let after = |reply: Reply, time: Duration| Reply { after: time, ..reply };
    match mood {
        // Now and then also in good times.
        Mood::Well if number % 50 == 7 => Reply::status(500),
        Mood::Well => Reply::status(204),
        Mood::Slow => after(Reply::status(204), SINK_TIMEOUT / 3),
        Mood::Late => after(Reply::status(200), SINK_TIMEOUT * 3 / 2),
        Mood::Failing => Reply::status(500),
        Mood::Busy => Reply { header: Some(("Retry-After", "1".to_owned())), ..Reply::status(429) },
        Mood::Redirecting => {
            Reply { header: Some(("Location", "/".to_owned())), ..Reply::status(302) }
        }
    }
}

/// Waits until `met`; false where that takes longer than the limit.
pub fn within(limit: Duration, mut met: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if met() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        pause(LOOK_EVERY);
    }
}
