use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onced::outcome::FaultKind;
use onced::store::{self, Store};

use crate::testbed::{
    Proxy, TestDatabase, TestRole, WAIT, admin, database_at, dsn_of, open, relay, until, writers,
};

fn show(client: &mut postgres::Client, setting: &str) -> String {
    client.query_one("SELECT current_setting($1)", &[&setting]).unwrap().get(0)
}

fn backend(client: &mut postgres::Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0)
}

#[test]
fn a_session_has_our_settings_whatever_the_role_and_the_user_say_and_reset_all_keeps_them() {
    let database = TestDatabase::create("settings");
    let role = TestRole::create("settings");
    let set = [
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "intervalstyle = 'iso_8601'",
        "extra_float_digits = -5",
        "search_path = pg_catalog",
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "standard_conforming_strings = off",
    ];
    for set in set {
        admin().batch_execute(&format!("ALTER ROLE \"{}\" SET {set}", role.0)).unwrap();
    }
    let url = format!("{} options='-c work_mem=8MB -c jit=on'", role.dsn(&database));
    let mut settings = database_at(&url);
    settings.schema = "My \\ \"schema\"".to_owned();
    let store = Store::open(&settings, &writers(), &relay(), Box::new(|_| Ok(None))).unwrap();
    let mut client = store.writer(WAIT).unwrap();
    for _ in 0..2 {
        for (name, value) in [
            ("search_path", "\"My \\ \"\"schema\"\"\", pg_temp"),
            ("statement_timeout", "5500ms"),
            ("lock_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "10s"),
            ("application_name", "onced"),
            ("synchronous_commit", "on"),
            ("default_transaction_isolation", "read committed"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("IntervalStyle", "postgres"),
            ("extra_float_digits", "1"),
            ("standard_conforming_strings", "on"),
            ("client_encoding", "UTF8"),
            ("work_mem", "8MB"),
            ("jit", "off"),
        ] {
            assert_eq!(show(&mut client, name), value, "{name}");
        }
        client.batch_execute("SET lock_timeout = 1; RESET ALL").unwrap();
    }
}

#[test]
fn a_higher_synchronous_commit_and_a_name_of_the_users_own_are_kept() {
    let database = TestDatabase::create("kept");
    let role = TestRole::create("kept");
    let set = format!("ALTER ROLE \"{}\" SET synchronous_commit = remote_apply", role.0);
    admin().batch_execute(&set).unwrap();
    let url = format!("{} application_name=billing", role.dsn(&database));
    let mut client = open(&url).client(WAIT).unwrap();
    assert_eq!(show(&mut client, "synchronous_commit"), "remote_apply");
    assert_eq!(show(&mut client, "application_name"), "billing");
    assert_eq!(show(&mut client, "statement_timeout"), "30s");
}

#[test]
fn a_session_that_is_somebody_elses_already_is_refused() {
    let database = TestDatabase::create("shared");
    let role = TestRole::create("shared");
    // As a pooler that changes sessions with each transaction makes it look.
    let set = format!("ALTER ROLE \"{}\" SET onced.session = 'taken'", role.0);
    admin().batch_execute(&set).unwrap();
    let fault = open(&role.dsn(&database)).client(Duration::from_millis(500)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unusable);
    assert!(fault.text.contains("pool_mode = session"), "{fault}");
}

#[test]
fn a_database_that_is_down_is_a_fault_with_the_reason() {
    let store = open("postgresql://postgres@127.0.0.1:1/postgres");
    let fault = store.client(Duration::from_millis(300)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.text.contains("onnection refused"), "{fault}");
}

#[test]
fn a_database_or_password_that_is_wrong_is_a_fault_with_the_servers_words() {
    let store = open(&dsn_of("postgres", "database_nope"));
    let fault = store.client(Duration::from_millis(500)).unwrap_err();
    assert_eq!((fault.kind, fault.sqlstate.as_deref()), (FaultKind::Unreachable, Some("3D000")));
}

#[test]
fn what_install_says_is_the_reason_and_only_writers_have_it() {
    let database = TestDatabase::create("install");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let install: store::Install = Box::new(move |client| {
        counted.fetch_add(1, Ordering::SeqCst);
        client
            .batch_execute("SELECT nothing")
            .map(|()| None)
            .map_err(|error| store::fault::classify(&error))
    });
    let store = Store::open(&database_at(&database.dsn), &writers(), &relay(), install).unwrap();
    store.client(WAIT).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let fault = store.writer(Duration::from_millis(500)).unwrap_err();
    assert_eq!((fault.kind, fault.sqlstate.as_deref()), (FaultKind::Broken, Some("42703")));
    assert!(calls.load(Ordering::SeqCst) > 0);
}

#[test]
fn no_more_connections_are_made_than_allowed() {
    let database = TestDatabase::create("bounded");
    let store = open(&database.dsn);
    let held: Vec<_> = (0..2).map(|_| store.writer(WAIT).unwrap()).collect();
    let fault = store.writer(Duration::from_millis(200)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Overloaded);
    let others: Vec<_> = (0..5).map(|_| store.client(WAIT).unwrap()).collect();
    assert!(store.client(Duration::from_millis(200)).is_err());
    drop((held, others));
    store.writer(WAIT).unwrap();
}

#[test]
fn a_discarded_connection_is_made_anew_and_a_returned_one_is_used_again() {
    let database = TestDatabase::create("discard");
    let store = open(&database.dsn);
    let mut client = store.writer(WAIT).unwrap();
    let first = backend(&mut client);
    drop(client);
    let mut client = store.writer(WAIT).unwrap();
    assert_eq!(backend(&mut client), first);
    client.discard();
    assert_ne!(backend(&mut store.writer(WAIT).unwrap()), first);
}

#[test]
fn after_all_sessions_were_killed_one_call_fails_and_the_next_ones_do_not() {
    let database = TestDatabase::create("killed");
    let store = open(&database.dsn);
    let idle: Vec<_> = (0..5).map(|_| store.client(WAIT).unwrap()).collect();
    drop(idle);
    let kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1";
    admin().query(kill, &[&database.name]).unwrap();
    let mut client = store.client(WAIT).unwrap();
    let error = client.query_one("SELECT 1", &[]).unwrap_err();
    assert_eq!(store::fault::classify(&error).kind, FaultKind::Unreachable);
    drop(client);
    for _ in 0..10 {
        store.client(WAIT).unwrap().query_one("SELECT 1", &[]).unwrap();
    }
}

#[test]
fn a_server_that_falls_silent_holds_a_statement_only_as_long_as_was_said() {
    let database = TestDatabase::create("silent");
    let proxy = Proxy::start();
    let store = open(&proxy.dsn(&database));
    let mut client = store.writer(WAIT).unwrap();
    client.answers_within(Duration::from_millis(300));
    proxy.is_silent.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let error = client.query_one("SELECT 1", &[]).unwrap_err();
    let fault = store::fault::classify(&error);
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.text.contains("silent"), "{fault}");
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(300) && took < Duration::from_secs(4), "{took:?}");
    assert!(client.is_closed());
}

#[test]
fn a_statement_that_takes_its_time_is_waited_for_and_so_is_one_after_a_long_pause() {
    let database = TestDatabase::create("slow");
    let store = open(&database.dsn);
    let mut client = store.writer(WAIT).unwrap();
    client.answers_within(Duration::from_millis(600));
    client.batch_execute("SELECT pg_sleep(0.3)").unwrap();
    // The pause is longer than the server may be silent, and nothing is asked of it meanwhile.
    let mut other = database.plain();
    other.batch_execute("SELECT pg_sleep(2)").unwrap();
    client.batch_execute("SELECT pg_sleep(0.3)").unwrap();
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_does_not_hold_up_recovery() {
    let database = TestDatabase::create("mute");
    let proxy = Proxy::start();
    proxy.is_silent.store(true, Ordering::SeqCst);
    let store = open(&proxy.dsn(&database));
    let fault = until("the silence is the reason", || {
        let fault = store.writer(Duration::from_millis(500)).unwrap_err();
        fault.text.contains("silent").then_some(fault)
    });
    assert_eq!(fault.kind, FaultKind::Unreachable);
    proxy.is_silent.store(false, Ordering::SeqCst);
    let mut client = store.writer(Duration::from_secs(5)).unwrap();
    client.query_one("SELECT 1", &[]).unwrap();
}

#[test]
fn a_database_that_is_back_is_found_within_a_second_however_long_it_was_away() {
    let database = TestDatabase::create("back");
    let proxy = Proxy::start();
    proxy.is_closed.store(true, Ordering::SeqCst);
    let store = open(&proxy.dsn(&database));
    store.writer(Duration::from_secs(4)).unwrap_err();
    proxy.is_closed.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    store.writer(WAIT).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
}
