//! Good starts, and starts that must be refused: with the reason, what to do, and nothing half alive.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::Duration;

use crate::support::daemon::Process;
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::{LIMIT, until, until_eq};
use crate::support::{Daemon, Database, Setup, fresh_key};

#[test]
fn a_database_that_was_never_migrated_is_refused_with_the_way_out() {
    let database = Database::empty();
    let ended = Setup::on(&database).run(&["serve"]);
    assert_eq!(ended.code(), 78, "{ended:#?}");
    assert!(ended.stderr.contains("onced migrate"), "{}", ended.stderr);
}

#[test]
fn a_schema_that_asks_for_a_newer_program_is_refused_and_names_both_versions() {
    let database = Database::new();
    database.execute("UPDATE onced_schema SET value = '99.0.0' WHERE name = 'minimum_version'");
    let ended = Setup::on(&database).run(&["serve"]);
    assert_eq!(ended.code(), 78, "{ended:#?}");
    for word in ["99.0.0", env!("CARGO_PKG_VERSION")] {
        assert!(ended.stderr.contains(word), "{word} in {}", ended.stderr);
    }
}

#[test]
fn eight_first_starts_at_once_all_succeed() {
    let database = Database::empty();
    thread::scope(|scope| {
        let migrations: Vec<_> =
            (0..8).map(|_| scope.spawn(|| Setup::on(&database).run(&["migrate"]))).collect();
        for migration in migrations {
            let ended = migration.join().unwrap();
            assert_eq!(ended.code(), 0, "{ended:#?}");
        }
    });
    assert_eq!(Setup::on(&database).start().order(&fresh_key()).status, 201);
}

#[test]
fn any_schema_will_do() {
    let database = Database::empty();
    let setup = || Setup::on(&database).set("database.schema", "once_only");
    let migrated = setup().run(&["migrate"]);
    if migrated.code() != 0 {
        // It may ask for the schema to be there first.
        database.execute("CREATE SCHEMA once_only AUTHORIZATION onced_test");
        let migrated = setup().run(&["migrate"]);
        assert_eq!(migrated.code(), 0, "{migrated:#?}");
    }
    let daemon = setup().start();
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    assert_eq!(database.rows("once_only.idempotency_records"), 1);
    assert_eq!(database.rows("once_only.orders"), 1);
}

#[test]
fn a_port_in_use_is_named_and_nothing_stays_alive() {
    let database = Database::new();
    for admin in [false, true] {
        let setup = Setup::on(&database);
        let address = if admin { setup.admin() } else { setup.http() };
        let _taken = TcpListener::bind(address).unwrap();
        let ended = setup.run(&["serve"]);
        assert_eq!(ended.code(), 1, "{ended:#?}");
        assert!(ended.stderr.contains(&address.to_string()), "{}", ended.stderr);
        assert!(ended.stderr.contains("listens there already"), "{}", ended.stderr);
    }
}

#[test]
fn a_broken_configuration_lists_all_its_problems_and_listens_on_nothing() {
    let database = Database::new();
    let setup = Setup::on(&database)
        .set("http.treads", 4)
        .set("writer.threads", 2)
        .set("writers.threads", 0)
        .set("relay.threads", -1)
        .set("http.max_body", "1 MoB")
        .set("http.read_timeout", 5)
        .set("sink.url", "htp://example.com")
        .set("sink.secret_files", vec!["not-there"])
        .set("operations.requests.sql", "nowhere.sql")
        .set("admin.token_file", "missing-token")
        .principal("twice", "a")
        .principal("twice", "b")
        .env("ONCED_RELAY_BATCH", "many");
    for command in ["check-config", "serve"] {
        let ended = setup.run(&[command]);
        assert_eq!(ended.code(), 78, "{ended:#?}");
        for word in [
            "http.treads",
            "did you mean threads",
            "writer",
            "writers.threads",
            "relay.threads",
            "http.max_body",
            "1 MoB",
            "http.read_timeout",
            "htp",
            "not-there",
            "nowhere.sql",
            "requests",
            "missing-token",
            "twice",
            "ONCED_RELAY_BATCH",
            "onced.toml",
        ] {
            assert!(ended.stderr.contains(word), "{command}: no {word} in\n{}", ended.stderr);
        }
    }
    assert!(TcpListener::bind(setup.http()).is_ok() && TcpListener::bind(setup.admin()).is_ok());
}

#[test]
fn a_file_that_is_no_toml_or_not_there_is_refused_with_its_name() {
    let database = Database::new();
    let setup = Setup::on(&database).write("broken.toml", "[http\nlisten = 1");
    let folder = setup.config_file().parent().unwrap().to_owned();
    for name in ["broken.toml", "absent.toml"] {
        let path = folder.join(name);
        let ended = setup.run_bare(&["serve", "--config", path.to_str().unwrap()]);
        assert_eq!(ended.code(), 78, "{ended:#?}");
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
    }
}

#[test]
fn an_operation_whose_sql_does_not_fit_is_refused_with_file_and_position() {
    let database = Database::new();
    let cases = [
        ("SELECT 200 AS status,\n  FROM orders", Some(2)),
        ("SELECT 200 AS status\nFROM nowhere", Some(2)),
        ("SELECT 200 AS status, $4 AS response", None),
        ("SELECT 200 AS status; SELECT 200 AS status", None),
        ("INSERT INTO notes (idempotency_key, body) VALUES ($2, $1); COMMIT", None),
        ("ROLLBACK", None),
        ("DO $$ BEGIN COMMIT; END $$", None),
        ("", None),
        ("-- nothing", None),
    ];
    for (sql, line) in cases {
        let setup = Setup::on(&database).inline("unfit", sql);
        for command in ["check-config", "serve"] {
            let ended = setup.run(&[command]);
            assert_eq!(ended.code(), 78, "{command} {sql}: {ended:#?}");
            let place = line.map_or("unfit.sql".to_owned(), |line| format!("unfit.sql:{line}"));
            assert!(ended.stderr.contains(&place), "{command} {sql}: {}", ended.stderr);
        }
    }
    let ended = Setup::on(&database).operation("sleepy").run(&["check-config"]);
    assert_eq!(ended.code(), 0, "{ended:#?}");
}

#[test]
fn every_unfit_operation_is_named_at_once() {
    let database = Database::new();
    let setup = Setup::on(&database).inline("first", "SELEC 1").inline("second", "SELECT nothing");
    let ended = setup.run(&["check-config"]);
    assert_eq!(ended.code(), 78, "{ended:#?}");
    assert!(
        ended.stderr.contains("first.sql") && ended.stderr.contains("second.sql"),
        "{}",
        ended.stderr
    );
}

#[test]
fn readiness_is_told_after_both_listeners_accept_and_the_drain_when_it_begins() {
    let database = Database::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let heard = |wanted: &str| {
        let mut all = String::new();
        loop {
            let mut buffer = [0; 4096];
            let length =
                socket.recv(&mut buffer).unwrap_or_else(|e| panic!("{wanted}: {e}: {all}"));
            all.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
            all.push('\n');
            if all.lines().any(|line| line.starts_with(wanted)) {
                return all;
            }
        }
    };
    let setup = Setup::on(&database)
        .env("NOTIFY_SOCKET", path.to_str().unwrap())
        .env("WATCHDOG_USEC", "400000");
    let (http, admin) = (setup.http(), setup.admin());
    let starter = thread::scope(|scope| {
        let starting = scope.spawn(|| setup.start());
        heard("READY=1");
        assert!(crate::support::Connection::try_open(http).is_ok());
        assert!(crate::support::Connection::try_open(admin).is_ok());
        starting.join().unwrap()
    });
    let mut daemon = starter;
    heard("WATCHDOG=1");
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(heard("STOPPING=1").contains("STOPPING=1"));
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_start_that_fails_tells_nobody_that_it_is_ready() {
    let database = Database::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let setup = Setup::on(&database).env("NOTIFY_SOCKET", path.to_str().unwrap());
    let _taken = TcpListener::bind(setup.admin()).unwrap();
    assert_eq!(setup.run(&["serve"]).code(), 1);
    let mut buffer = [0; 4096];
    while let Ok(length) = socket.recv(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(!text.contains("READY=1"), "{text}");
    }
}

#[test]
fn health_tells_the_truth_and_never_waits_for_the_database() {
    let database = Database::new();
    let proxy = Proxy::to(&database);
    let mut daemon = Setup::at(&database.url_through(proxy.address())).start();
    assert_eq!(daemon.operator().get("/readyz").json()["ready"], true);
    for mode in [Mode::Cut, Mode::Stall] {
        proxy.set(mode);
        let answer = until("readyz says so", || {
            let answer = daemon.operator().get("/readyz");
            if answer.status == 503 { Ok(answer) } else { Err(format!("{answer:?}")) }
        });
        assert_eq!(answer.json()["ready"], false);
        assert!(answer.json()["reason"].is_string());
        assert_eq!(daemon.operator().get("/healthz").status, 200);
        let metrics = daemon.operator().get("/metrics");
        assert_eq!(
            metrics.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        until_eq("the metric says so", &0.0, || daemon.metric("onced_database_up"));
        proxy.set(Mode::Forward);
        daemon.wait_until_ready();
    }
}

#[test]
fn a_sink_that_is_down_does_not_make_the_daemon_unready() {
    let database = Database::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sink = crate::support::sink::Sink::start();
    let daemon =
        Setup::on(&database).sink(&sink).set("sink.url", format!("http://{nobody}/hook")).start();
    assert_eq!(daemon.order(&fresh_key()).status, 201);
    until_eq("an attempt failed", &true, || {
        daemon.metric(r#"onced_delivery_attempts_total{result="failed"}"#)
            + daemon.metric(r#"onced_delivery_attempts_total{result="sink_fault"}"#)
            >= 1.0
    });
    assert_eq!(daemon.operator().get("/readyz").status, 200);
    until_eq("the backlog is shown", &2.0, || daemon.metric("onced_outbox_pending"));
}

#[test]
fn outcomes_are_counted_by_operation() {
    let database = Database::new();
    let daemon = Setup::on(&database).operation("refuse").start();
    let requests = |operation: &str, outcome: &str| {
        let series =
            format!(r#"onced_requests_total{{operation="{operation}",outcome="{outcome}"}}"#);
        daemon.metric(&series)
    };
    let key = fresh_key();
    daemon.order(&key);
    daemon.order(&key);
    daemon.post("orders", &key, "{}");
    daemon.post("orders", &key, "{");
    daemon.post("refuse", &fresh_key(), r#"{"code": "PT409"}"#);
    daemon.post("refuse", &fresh_key(), r#"{"code": "XX000"}"#);
    for (operation, outcome) in [
        ("orders", "executed"),
        ("orders", "replayed"),
        ("orders", "reused"),
        ("orders", "invalid"),
        ("refuse", "refused"),
        ("refuse", "failed"),
    ] {
        assert_eq!(requests(operation, outcome), 1.0, "{operation} {outcome}");
    }
    assert!(!daemon.operator().get("/metrics").text().contains(&key));
}

#[test]
fn a_unix_socket_serves_like_a_port() {
    use std::io::{Read, Write};
    let database = Database::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let daemon =
        Setup::on(&database).set("http.listen", format!("unix:{}", path.display())).start();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut request =
        daemon.client().request("orders", &fresh_key(), crate::support::daemon::ORDER);
    let end = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    request.splice(end..end, *b"\r\nConnection: close");
    stream.write_all(&request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
}

#[test]
fn a_socket_that_the_service_manager_hands_over_is_served() {
    let database = Database::new();
    let setup =
        Setup::on(&database).set("http.listen", "systemd:http").principal("a", "good-token");
    let address = setup.http();
    let config = setup.config_file();
    let Ok(activated) = std::process::Command::new("systemd-socket-activate")
        .args(["--listen", &address.to_string(), "--fdname", "http"])
        .args([crate::support::daemon::PROGRAM, "serve", "--config"])
        .arg(config)
        .stderr(std::process::Stdio::null())
        .spawn()
    else {
        eprintln!("skipped: systemd-socket-activate is not installed");
        return;
    };
    let activated = Process(activated);
    let client = crate::support::Client { address, token: Some("good-token".to_owned()) };
    until_eq("a call is served", &201, || client.order_status());
    assert_eq!(activated.stop(), Some(0));
}

#[test]
fn two_daemons_serve_one_database() {
    let database = Database::new();
    let daemons = [Daemon::start(&database), Daemon::start(&database)];
    let key = fresh_key();
    let first = daemons[0].order(&key);
    let second = daemons[1].order(&key);
    assert_eq!((first.status, second.status, second.is_replay()), (201, 201, true));
    assert_eq!(first.body, second.body);
}
