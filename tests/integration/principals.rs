//! Principals in full: several tokens, tokens that change under load, operations that one may and another may not call,
//! and scopes that are kept apart wherever a key can be seen.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

use crate::support::daemon::ORDER;
use crate::support::wait::{until, until_eq};
use crate::support::{Client, Connection, Daemon, Database, Setup, fresh_key};

/// Sends SIGHUP and waits until what the file says now is in force.
fn reload(daemon: &Daemon) {
    let count = |log: &str| log.matches("were read anew").count();
    let before = count(&daemon.log());
    daemon.signal(Signal::SIGHUP);
    until_eq("the log says that it was read", &(before + 1), || count(&daemon.log()));
}

#[test]
fn every_token_of_a_principal_reaches_the_same_keys() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .principal_with("shop", &["token-1", "token-2", "token-3"])
        .principal("other", "token-4")
        .start();
    let key = fresh_key();
    let first = daemon.client_with("token-1").post("orders", &key, ORDER);
    assert_eq!((first.status, first.is_replay()), (201, false));
    for token in ["token-2", "token-3"] {
        let again = daemon.client_with(token).post("orders", &key, ORDER);
        assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    }
    assert!(!daemon.client_with("token-4").post("orders", &key, ORDER).is_replay());
}

#[test]
fn tokens_change_under_load_without_a_lost_or_refused_request() {
    let database = Database::new();
    let mut daemon = Setup::on(&database).principal("shop", "token-0").start();
    let address = daemon.setup().http();
    let key = fresh_key();
    assert_eq!(daemon.client_with("token-0").post("orders", &key, ORDER).status, 201);
    for round in 1..=5 {
        let (old, new) = (format!("token-{}", round - 1), format!("token-{round}"));
        let uses_new = AtomicBool::new(false);
        let is_over = AtomicBool::new(false);
        let call = || {
            // On one connection, so that the change meets it between two requests.
            let mut connection = Connection::open(address);
            let mut made = 0;
            while !is_over.load(Ordering::SeqCst) {
                let token = if uses_new.load(Ordering::SeqCst) { &new } else { &old };
                let client = Client { address, token: Some(token.clone()) };
                connection.send(client.request("orders", &fresh_key(), ORDER));
                assert_eq!(connection.answer().status, 201);
                made += 1;
            }
            made
        };
        let made: i64 = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            // Both are valid while callers change over.
            daemon.change(|setup| setup.without_principals().principal_with("shop", &[&old, &new]));
            reload(&daemon);
            uses_new.store(true, Ordering::SeqCst);
            let rows = database.rows("orders");
            until("calls are made with the new one", || match database.rows("orders") {
                now if now > rows + 20 => Ok(()),
                now => Err(format!("{rows}, {now}")),
            });
            daemon.change(|setup| setup.without_principals().principal("shop", &new));
            reload(&daemon);
            let rows = database.rows("orders");
            until("calls go on", || match database.rows("orders") {
                now if now > rows + 20 => Ok(()),
                now => Err(format!("{rows}, {now}")),
            });
            is_over.store(true, Ordering::SeqCst);
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert!(made > 40);
        assert_eq!(daemon.client_with(&old).post("orders", &key, ORDER).status, 401);
        assert!(daemon.client_with(&new).post("orders", &key, ORDER).is_replay());
    }
    assert!(daemon.is_alive());
}

#[test]
fn what_a_principal_may_call_changes_with_a_reload_too() {
    let database = Database::new();
    let mut daemon =
        Setup::on(&database).operation("echo").principal_for("shop", "token", &["echo"]).start();
    let client = daemon.client_with("token");
    let forbidden = (403, "forbidden".to_owned());
    let key = fresh_key();
    assert_eq!(client.post("orders", &key, ORDER).refusal(), forbidden);
    daemon.change(|setup| setup.without_principals().principal_for("shop", "token", &["orders"]));
    reload(&daemon);
    assert_eq!(client.post("orders", &key, ORDER).status, 201);
    assert_eq!(client.post("echo", &fresh_key(), "{}").refusal(), forbidden);
    // What it wrote while it might, it may still ask for.
    daemon.change(|setup| setup.without_principals().principal_for("shop", "token", &["echo"]));
    reload(&daemon);
    assert_eq!(client.get(&format!("/v1/requests/{key}")).status, 200);
    assert_eq!(client.post("orders", &key, ORDER).refusal(), forbidden);
}

#[test]
fn a_reload_never_opens_what_was_closed() {
    let database = Database::new();
    let daemon = || Setup::on(&database).set("http.listen", "0.0.0.0:0");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut daemon =
        daemon().set("http.listen", format!("0.0.0.0:{port}")).principal("shop", "token").start();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let with_token = Client { address, token: Some("token".to_owned()) };
    let without = Client { address, token: None };
    assert_eq!((with_token.order_status(), without.order_status()), (201, 401));

    // A good file for a new start, where nobody has to authenticate; the listener is still the public one.
    for listen in ["127.0.0.1:0", "unix:/tmp/onced-never.sock"] {
        daemon.change(|setup| setup.without_principals().set("http.listen", listen));
        reload(&daemon);
        assert_eq!((with_token.order_status(), without.order_status()), (201, 401));
    }
    daemon.change(|setup| {
        setup.set("http.listen", format!("0.0.0.0:{port}")).set("http.allow_anonymous", true)
    });
    reload(&daemon);
    assert_eq!((with_token.order_status(), without.order_status()), (201, 401));
    assert!(daemon.log().contains(r#"key="principals""#), "{}", daemon.log());
}

#[test]
fn keys_of_one_principal_are_nowhere_shown_to_another() {
    let database = Database::new();
    let daemon = Setup::on(&database)
        .operation("sleepy")
        .principal("a", "token-a")
        .principal("b", "token-b")
        .set("log.level", "info")
        .start();
    let (a, b) = (daemon.client_with("token-a"), daemon.client_with("token-b"));
    let key = fresh_key();
    assert_eq!(a.post("orders", &key, ORDER).status, 201);

    // Looked up, it is not there for another, in words that are the same as for a key that nobody used.
    let path = |key: &str| format!("/v1/requests/{key}");
    assert_eq!(a.get(&path(&key)).status, 200);
    let (used, unused) = (b.get(&path(&key)), b.get(&path(&fresh_key())));
    assert_eq!(used.refusal(), (404, "not-found".to_owned()));
    assert_eq!(used.json()["detail"], unused.json()["detail"]);

    // Nor does another wait for it, or hear that it is taken, while it is being worked on or afterwards.
    let gate = database.shut_gate(1);
    let slow = fresh_key();
    let mut at_work = a.begin("sleepy", &slow, r#"{"gate": 1}"#);
    gate.wait_for(1);
    assert_eq!(b.post("sleepy", &slow, "{}").status, 201);
    assert_eq!(b.post("orders", &key, r#"{"item": "other", "quantity": 1}"#).status, 201);
    gate.open();
    assert_eq!(at_work.answer().status, 201);

    // `onced show` asks for one scope.
    let show = |scope: &[&str]| {
        daemon.setup().run(&[&["show", "--json", key.as_str()], scope].concat()).stdout
    };
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let (of_a, of_b) = (value(&show(&["--scope", "a"])), value(&show(&["--scope", "b"])));
    assert_eq!(
        (&of_a["response"]["item"], &of_b["response"]["item"]),
        (&"widget".into(), &"other".into())
    );
    assert_eq!(value(&show(&[])), serde_json::Value::Null);

    // Metrics know no keys and no principals, and logs at this level no keys.
    let metrics = daemon.operator().get("/metrics");
    for text in [metrics.text(), &daemon.log()] {
        for word in [&key, &slow, &"token-a".to_owned()] {
            assert!(!text.contains(word.as_str()), "{word} in {text}");
        }
    }
    let labels = |line: &str| line.split_once('{').map(|(_, labels)| labels.to_owned());
    for labels in metrics.text().lines().filter(|l| !l.starts_with('#')).filter_map(labels) {
        assert!(!labels.contains(r#""a""#) && !labels.contains(r#""b""#), "{labels}");
    }
}

#[test]
fn without_principals_it_serves_this_machine_only() {
    let database = Database::new();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "systemd:http"] {
        let setup = Setup::on(&database).set("http.listen", listen);
        let ended = setup.run(&["serve"]);
        assert_eq!(ended.code(), 78, "{listen}: {ended:#?}");
        assert!(ended.stderr.contains("http.listen"), "{listen}: {}", ended.stderr);
        assert!(ended.stderr.contains("allow_anonymous"), "{listen}: {}", ended.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/http.sock", folder.path().display());
    for listen in ["127.0.0.2:0", "[::1]:0", &socket] {
        let setup = Setup::on(&database).set("http.listen", listen);
        assert_eq!(setup.run(&["check-config"]).code(), 0, "{listen}");
    }
    for listen in ["0.0.0.0:0", "[::]:0", "systemd:admin"] {
        let ended = Setup::on(&database).set("admin.listen", listen).run(&["serve"]);
        assert_eq!(ended.code(), 78, "{listen}: {ended:#?}");
        assert!(ended.stderr.contains("admin.token_file"), "{listen}: {}", ended.stderr);
    }
}

#[test]
fn principals_that_could_be_mixed_up_are_refused() {
    let database = Database::new();
    let refused = |setup: Setup, word: &str| {
        let ended = setup.run(&["check-config"]);
        assert_eq!(ended.code(), 78, "{ended:#?}");
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    };
    let on = || Setup::on(&database);
    refused(on().principal("a", "one").principal("a", "other"), "is also the name of");
    refused(on().principal("a", "same").principal("b", "same"), "is also a token of");
    refused(on().principal_with("a", &["same", "same"]), "is also a token of");
    refused(on().principal_with("a", &[]), "token_sha256");
    refused(on().principal("", "token"), "principals[0].name");
    refused(on().principal_for("a", "token", &["nope"]), "there is no operation");
    refused(on().principal_for("a", "token", &[]), "principals[0].operations");
}
