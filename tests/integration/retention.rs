//! What is old goes, and nothing else.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use onced::config::Retention;
use onced::pruner;
use onced::store::retention::{Forgotten, Old, STATEMENTS, forget_record};
use onced::threads;

use crate::outbox::{LIMIT, New, Outbox, PLAIN, until};
use crate::support::{self, Database, Setup};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn retention() -> Retention {
    Retention {
        records: Some(30 * DAY),
        events: Some(30 * DAY),
        dead: None,
        tombstones: None,
        every: Duration::from_millis(50),
        batch: NonZeroUsize::new(7).unwrap(),
    }
}

/// Records `k1`… with an age, each with one event that is in the given state.
fn fill(outbox: &Outbox, count: i32, age: &str, event: &str) {
    outbox.execute(&format!(
        "WITH record AS (
             INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status, created_at)
             SELECT 's', '{event}-{age}-' || n, 'orders', 'v1:0', 'succeeded', 201, now() - interval '{age}'
             FROM generate_series(1, {count}) n RETURNING *)
         INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, created_at,
                                    sent_at, dead_at, discarded_at, discarded_by)
         SELECT scope, key, gen_random_uuid(), 't', '1', created_at,
                CASE WHEN '{event}' = 'sent' THEN created_at END,
                CASE WHEN '{event}' IN ('dead', 'discarded') THEN created_at END,
                CASE WHEN '{event}' = 'discarded' THEN created_at END,
                CASE WHEN '{event}' = 'discarded' THEN 'eve' END
         FROM record"
    ));
}

fn rows(outbox: &Outbox, table: &str) -> i64 {
    outbox.value(&format!("SELECT count(*) FROM {table}"), &[])
}

fn prune(outbox: &Outbox, retention: &Retention) -> Old {
    outbox.with(|client| pruner::prune_once(client, retention, false).unwrap())
}

#[test]
fn what_is_old_and_decided_goes_and_all_else_stays() {
    let outbox = Outbox::new();
    // In the order of time, as events are written.
    fill(&outbox, 10, "90 days", "dead");
    fill(&outbox, 10, "90 days", "pending");
    fill(&outbox, 10, "90 days", "discarded");
    fill(&outbox, 20, "31 days", "sent");
    fill(&outbox, 20, "29 days", "sent");
    let dry = outbox.with(|client| pruner::prune_once(client, &retention(), true).unwrap());
    assert_eq!(rows(&outbox, "outbox_events"), 70, "a dry run only counts");
    let pruned = prune(&outbox, &retention());
    assert_eq!(pruned, Old { records: 30, events: 20, tombstones: 0 });
    assert_eq!(dry, pruned);
    assert_eq!(rows(&outbox, "idempotency_records"), 40);
    let undecided: i64 = outbox.value(
        "SELECT count(*) FROM idempotency_records WHERE key LIKE 'dead%' OR key LIKE 'pending%'",
        &[],
    );
    assert_eq!(undecided, 20, "a record with an event that nobody decided about stays");
    assert_eq!(prune(&outbox, &retention()), Old::default());

    // Dead ones go where an age says so, and their records with them; what is pending never.
    let strict = Retention { dead: Some(60 * DAY), ..retention() };
    let dry = outbox.with(|client| pruner::prune_once(client, &strict, true).unwrap());
    let pruned = prune(&outbox, &strict);
    assert_eq!(pruned, Old { records: 10, events: 20, tombstones: 0 });
    assert_eq!(dry, pruned);
    let never = Retention { records: None, events: None, ..retention() };
    outbox.execute("UPDATE idempotency_records SET created_at = '1999-01-01'");
    assert_eq!(prune(&outbox, &never), Old::default());
}

#[test]
fn age_counts_from_the_last_thing_that_happened() {
    let outbox = Outbox::new();
    fill(&outbox, 3, "40 days", "sent");
    outbox.execute("UPDATE outbox_events SET sent_at = now() - interval '1 day' WHERE id = 1");
    outbox.execute("UPDATE outbox_events SET sent_at = NULL WHERE id = 2");
    assert_eq!(
        prune(&outbox, &retention()).events,
        1,
        "not what was sent late, nor what is replayed"
    );
    assert_eq!(rows(&outbox, "outbox_events"), 2);
}

#[test]
fn the_bare_key_outlives_its_record_where_that_is_asked_for() {
    let outbox = Outbox::new();
    fill(&outbox, 20, "31 days", "sent");
    let keeping = Retention { tombstones: Some(365 * DAY), ..retention() };
    assert_eq!(prune(&outbox, &keeping).records, 20);
    assert_eq!(
        (rows(&outbox, "idempotency_records"), rows(&outbox, "idempotency_tombstones")),
        (0, 20)
    );
    outbox.execute("UPDATE idempotency_tombstones SET seen_at = now() - interval '366 days' WHERE key LIKE '%1'");
    assert_eq!(prune(&outbox, &keeping).tombstones, 2);
    assert_eq!(rows(&outbox, "idempotency_tombstones"), 18);
}

#[test]
fn several_pruners_at_once_take_each_row_once_and_never_meet() {
    let outbox = Outbox::new();
    fill(&outbox, 1500, "31 days", "sent");
    fill(&outbox, 50, "1 days", "sent");
    let keeping =
        Retention { tombstones: Some(DAY), batch: NonZeroUsize::new(100).unwrap(), ..retention() };
    let total = std::thread::scope(|scope| {
        let pruners: Vec<_> = (0..3)
            .map(|_| {
                let (outbox, keeping) = (&outbox, &keeping);
                let prune = || {
                    pruner::prune_once(&mut outbox.session(), keeping, false).expect("no deadlock")
                };
                std::thread::Builder::new().spawn_scoped(scope, prune).unwrap()
            })
            .collect();
        pruners.into_iter().fold((0, 0), |sum, pruner| {
            let pruned = pruner.join().unwrap();
            (sum.0 + pruned.records, sum.1 + pruned.events)
        })
    });
    // What one of them passed over because another held it, that other one took.
    assert_eq!(total, (1500, 1500));
    assert_eq!(rows(&outbox, "idempotency_tombstones"), 1500);
    assert_eq!(rows(&outbox, "idempotency_records"), 50);
}

#[test]
fn a_key_that_is_used_while_its_record_is_purged_is_either_there_or_new() {
    let outbox = Outbox::new();
    fill(&outbox, 400, "31 days", "sent");
    let claim =
        "INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status)
         VALUES ('s', $1, 'orders', 'v1:1', 'succeeded', 201) ON CONFLICT DO NOTHING";
    let new: u64 = std::thread::scope(|scope| {
        let outbox = &outbox;
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let call = move || {
                    let mut session = outbox.session();
                    let mut new = 0;
                    for round in 0..800 {
                        let key = format!("sent-31 days-{}", round % 400 + 1);
                        new += session.execute(claim, &[&key]).expect("no error");
                    }
                    new
                };
                std::thread::Builder::new().spawn_scoped(scope, call).unwrap()
            })
            .collect();
        let many = Retention { batch: NonZeroUsize::new(50).unwrap(), ..retention() };
        pruner::prune_once(&mut outbox.session(), &many, false).unwrap();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    let fresh: i64 =
        outbox.value("SELECT count(*) FROM idempotency_records WHERE request_hash = 'v1:1'", &[]);
    assert_eq!(u64::try_from(fresh).unwrap(), new, "what ran anew has its record");
    assert!(rows(&outbox, "idempotency_records") <= 400);
}

#[test]
fn the_pruner_comes_by_by_itself_and_stops_when_told() {
    let outbox = Outbox::new();
    let (stop, stopped) = bounded(0);
    let (deaths, died) = bounded(1);
    let short = Retention { records: Some(Duration::from_secs(2)), ..retention() };
    let thread = pruner::start(short, outbox.store(), stopped, &deaths).unwrap();
    for _ in 0..3 {
        fill(&outbox, 30, "31 days", "sent");
        until("it came by", || rows(&outbox, "idempotency_records") == 0);
        until("it came by", || rows(&outbox, "outbox_events") == 0);
        outbox.execute("TRUNCATE outbox_events");
    }
    drop(stop);
    assert_eq!(threads::join_all([thread], Instant::now() + LIMIT), Vec::<String>::new());
    assert!(died.try_recv().is_err());
}

#[test]
fn a_forgotten_record_leaves_a_line_and_its_key_counts_as_new() {
    let outbox = Outbox::new();
    fill(&outbox, 1, "1 days", "sent");
    let key = "sent-1 days-1";
    outbox.insert(1, New { scope: "s", key, ..PLAIN });
    let forget = |key: &str| outbox.with(|client| forget_record(client, "s", key, "eve").unwrap());
    assert_eq!(forget(key), Forgotten::Undelivered(1));
    outbox.execute("UPDATE outbox_events SET dead_at = now() WHERE sent_at IS NULL");
    assert_eq!(forget(key), Forgotten::Undelivered(1), "dead is not decided");
    assert_eq!(rows(&outbox, "idempotency_audit"), 0);
    outbox.execute("UPDATE outbox_events SET discarded_at = now() WHERE sent_at IS NULL");
    assert_eq!(forget(key), Forgotten::Done);
    assert_eq!(forget(key), Forgotten::NotFound);
    assert_eq!(rows(&outbox, "idempotency_records"), 0);
    let line: String = outbox.value(
        "SELECT who || ' ' || action || ' ' || scope || ' ' || key || ' ' || (details->>'operation')
         FROM idempotency_audit WHERE at > now() - interval '1 minute'",
        &[],
    );
    assert_eq!(line, format!("eve forget s {key} orders"));
    outbox.execute("INSERT INTO idempotency_tombstones (scope, key) VALUES ('s', 'gone')");
    assert_eq!(forget("gone"), Forgotten::Done, "a tombstone stands for a record too");
}

#[test]
fn a_purge_of_records_reads_its_part_of_the_table_only() {
    let outbox = Outbox::new();
    fill(&outbox, 20_000, "31 days", "sent");
    outbox.execute("ANALYZE");
    let values = ["'64'", "'128'", "1000", "100", "false"];
    let plan = outbox.plan(STATEMENTS, "retention::PURGE_RECORDS", &values);
    assert!(plan.contains("Tid Range Scan on idempotency_records r"), "{plan}");
    assert!(!plan.contains("Seq Scan on idempotency_records"), "{plan}");
    let values = ["0", "100", "1000", "1000"];
    let plan = outbox.plan(STATEMENTS, "retention::PURGE_EVENTS", &values);
    assert!(!plan.contains("Seq Scan on outbox_events"), "{plan}");
}

/// Takes away all that can go, whatever its age.
fn purge_all(database: &Database, tombstones: Option<Duration>) {
    let moment = Some(Duration::from_millis(1));
    let all = Retention { records: moment, events: moment, tombstones, ..retention() };
    pruner::prune_once(&mut database.session(), &all, false).unwrap();
    assert_eq!((database.rows("idempotency_records"), database.rows("outbox_events")), (0, 0));
}

#[test]
fn a_key_that_is_used_again_after_a_purge_runs_anew_and_its_events_have_new_ids() {
    let (database, sink) = (Database::new(), support::sink::Sink::start());
    let daemon = Setup::on(&database).sink(&sink).start();
    let sent = "SELECT count(*) FROM outbox_events WHERE sent_at IS NOT NULL";
    for round in 1..=3 {
        let answer = daemon.order("k");
        assert_eq!((answer.status, answer.is_replay()), (201, false));
        assert!(daemon.order("k").is_replay());
        until("both events are settled", || database.value::<i64>(sent, &[]) == 2);
        sink.wait_for(2 * round);
        purge_all(&database, None);
    }
    assert_eq!(database.rows("orders"), 3);
    let ids: HashSet<String> = sink.deliveries().into_iter().map(|delivery| delivery.id).collect();
    assert_eq!(ids.len(), 6, "a consumer that drops known ids drops none of these");
}

#[test]
fn a_key_whose_tombstone_stands_is_refused_and_nothing_is_written() {
    let (database, sink) = (Database::new(), support::sink::Sink::start());
    let daemon = Setup::on(&database).sink(&sink).set("retention.tombstones", "1d").start();
    assert_eq!(daemon.order("k").status, 201);
    let sent = "SELECT count(*) FROM outbox_events WHERE sent_at IS NOT NULL";
    until("both events are settled", || database.value::<i64>(sent, &[]) == 2);
    purge_all(&database, Some(DAY));
    let answer = daemon.order("k");
    assert_eq!((answer.status, answer.problem()), (409, "idempotency-key-expired".to_owned()));
    assert_eq!(database.rows("orders"), 1);
}

#[test]
fn a_replay_that_races_with_a_purge_is_answered_from_the_record_or_runs_anew() {
    let (database, sink) = (Database::new(), support::sink::Sink::start());
    let daemon = Setup::on(&database)
        .sink(&sink)
        .set("retention.records", "1s")
        .set("retention.events", "1s")
        .set("retention.every", "100ms")
        .start();
    let end = Instant::now() + Duration::from_secs(4);
    let new: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|caller| {
                let daemon = &daemon;
                let call = move || {
                    let mut new = 0;
                    let mut round = caller;
                    while Instant::now() < end {
                        let answer = daemon.order(&format!("k{}", round % 10));
                        assert!([201, 409].contains(&answer.status), "{answer:?}");
                        new += usize::from(answer.status == 201 && !answer.is_replay());
                        round += 1;
                    }
                    new
                };
                std::thread::Builder::new().spawn_scoped(scope, call).unwrap()
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert!(new >= 20, "each key ran anew once its second was over: {new}");
    assert!(new <= 50, "and not before: {new}");
    assert_eq!(database.rows("orders"), i64::try_from(new).unwrap(), "a complete run each");
}
