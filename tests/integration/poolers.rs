//! PgBouncer between the daemon and PostgreSQL: right in session mode, and refused with a word on what to do otherwise.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::support::daemon::{ORDER, Process};
use crate::support::postgres::ROLE;
use crate::support::server::as_server;
use crate::support::sink::Sink;
use crate::support::wait::until;
use crate::support::{Counts, Database, Setup, fresh_key};

/// PgBouncer drops the options of the start-up packet where it is told to; it knows none of them.
const IGNORE: &str = "ignore_startup_parameters = options";

struct Pooler {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Pooler {
    /// A pooler in front of this database, in this mode; `None`, with a word, where PgBouncer is not installed.
    fn start(database: &Database, mode: &str, more: &str) -> Option<Pooler> {
        if let Err(error) = Command::new("pgbouncer").arg("--version").output() {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            eprintln!("skipped: pgbouncer is not installed");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("onced-pool-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (host, port) = database.address();
        let users = folder.path().join("users.txt");
        fs::write(&users, format!("\"{ROLE}\" \"\"\n")).unwrap();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n\
             admin_users = {ROLE}\n{more}\n",
            address.port(),
            users.display(),
        );
        fs::write(&config, text).unwrap();
        let mut pooler = as_server(Path::new("pgbouncer"));
        let pooler = pooler.arg("--quiet").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(pooler.spawn().unwrap());
        until("the pooler listens", || TcpStream::connect(address).map_err(|e| e.to_string()));
        Some(Pooler { address, _process: process, _folder: folder })
    }
}

impl Pooler {
    /// What the pooler has open was made before something changed: it makes its connections anew.
    fn reconnect(&self) {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.address.port()).user(ROLE).dbname("pgbouncer");
        config.connect(postgres::NoTls).unwrap().batch_execute("RECONNECT").unwrap();
    }
}

/// What `serve` says, in one line, where it refuses to start.
fn refusal(setup: &Setup) -> String {
    let ended = setup.run(&["serve"]);
    assert_eq!(ended.code(), 78, "{ended:?}");
    let told: Vec<&str> =
        ended.stderr.lines().filter(|line| line.contains("the database cannot be used")).collect();
    assert_eq!(told.len(), 1, "{}", ended.stderr);
    told[0].to_owned()
}

/// Sets for the daemon's role in this database what the refusal says to set.
fn set_for_the_role(database: &Database, refusal: &str) {
    let whose = format!("ALTER ROLE {ROLE} IN DATABASE {} SET ", database.name());
    let statements = refusal.split("ALTER ROLE CURRENT_USER SET ").skip(1);
    let statements: Vec<String> = statements.map(|set| format!("{whose}{set}")).collect();
    assert!(statements.len() > 4, "{refusal}");
    database.execute(&statements.concat());
}

#[test]
fn a_pooler_that_refuses_the_settings_is_told_what_to_ignore() {
    let database = Database::new();
    let Some(pooler) = Pooler::start(&database, "session", "") else { return };
    let told = refusal(&Setup::at(&database.url_through(pooler.address)));
    assert!(told.contains(IGNORE) && told.contains("pool by session"), "{told}");
}

#[test]
fn behind_a_session_pooler_everything_works_once_the_role_has_the_settings_that_the_refusal_names()
{
    let database = Database::new();
    let Some(pooler) = Pooler::start(&database, "session", IGNORE) else { return };
    let sink = Sink::start();
    let setup = Setup::at(&database.url_through(pooler.address)).operation("setter").sink(&sink);
    let told = refusal(&setup);
    set_for_the_role(&database, &told);
    pooler.reconnect();

    let daemon = setup.start();

    let key = fresh_key();
    let answers: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..20).map(|_| scope.spawn(|| daemon.order(&key))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    assert_eq!(database.counts(), Counts { records: 1, events: 2, business: 1 });
    assert_eq!(daemon.post("orders", &key, r#"{"item": "x", "quantity": 1}"#).status, 409);
    sink.wait_for(2);
    // A session that is given back and taken again is one of ours anew.
    database.kill_sessions();
    let again = until("the sessions are made anew", || {
        let answer = daemon.post("orders", &key, ORDER);
        if answer.status == 201 { Ok(answer) } else { Err(format!("{answer:?}")) }
    });
    assert_eq!((again.is_replay(), &again.body), (true, &answers[0].body));
}

#[test]
fn a_pooler_that_takes_the_session_away_is_refused() {
    let database = Database::new();
    let Some(session) = Pooler::start(&database, "session", IGNORE) else { return };
    let told = refusal(&Setup::at(&database.url_through(session.address)));
    set_for_the_role(&database, &told);
    for mode in ["transaction", "statement"] {
        let Some(pooler) = Pooler::start(&database, mode, IGNORE) else { return };
        let told = refusal(&Setup::at(&database.url_through(pooler.address)));
        assert!(told.contains("pool_mode = session"), "{mode}: {told}");
    }
}

#[test]
fn a_pooler_that_hands_on_a_used_session_as_it_is_is_refused() {
    let database = Database::new();
    let Some(first) = Pooler::start(&database, "session", IGNORE) else { return };
    let told = refusal(&Setup::at(&database.url_through(first.address)));
    set_for_the_role(&database, &told);
    let more = format!("{IGNORE}\nserver_reset_query =\ndefault_pool_size = 7");
    let Some(pooler) = Pooler::start(&database, "session", &more) else { return };
    let setup = || Setup::at(&database.url_through(pooler.address));
    let mut daemon = setup().start();
    daemon.stop();
    let told = refusal(&setup());
    assert!(told.contains("server_reset_query = DISCARD ALL"), "{told}");
}
