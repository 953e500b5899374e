use std::num::NonZeroUsize;
use std::time::Duration;

use onced::config::{self, Secret, Tls};
use onced::outcome::FaultKind;
use onced::store::Store;

const WAIT: Duration = Duration::from_secs(10);

/// The test cluster's connection string; `scripts/test` starts one and sets it.
fn base_dsn() -> String {
    std::env::var("ONCED_TEST_POSTGRES").expect("ONCED_TEST_POSTGRES: run scripts/test")
}

fn database_at(url: &str) -> config::Database {
    config::Database {
        url: Secret::new(url.to_owned()),
        schema: "public".to_owned(),
        ca_file: None,
        tls: Tls::Auto,
        connect_timeout: Duration::from_secs(5),
    }
}

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn writers() -> config::Writers {
    config::Writers {
        threads: count(2),
        queue: count(16),
        batch: count(8),
        statement_timeout: Duration::from_secs(5),
        lock_timeout: Duration::from_secs(2),
        max_events: 1000,
        max_response: 8 << 20,
    }
}

fn relay() -> config::Relay {
    config::Relay {
        threads: count(2),
        batch: count(10),
        lease: Duration::from_secs(30),
        poll: Duration::from_secs(1),
        connections: count(2),
        on_dead: config::OnDead::Continue,
        max_attempts: 3,
        give_up_after: Duration::from_secs(60),
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(2),
    }
}

fn open(url: &str) -> Store {
    Store::open(&database_at(url), &writers(), &relay(), Box::new(|_| Ok(()))).unwrap()
}

#[test]
fn a_connection_answers() {
    let mut client = open(&base_dsn()).client(WAIT).unwrap();
    assert_eq!(client.query_one("SELECT 1", &[]).unwrap().get::<_, i32>(0), 1);
}

#[test]
fn a_database_that_is_down_is_a_fault_with_the_reason() {
    let store = open("postgresql://postgres@127.0.0.1:1/postgres");
    let fault = store.client(Duration::from_millis(300)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.text.contains("onnection refused"), "{fault}");
}
