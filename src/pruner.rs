//! The pruner: it comes by every so often and takes away what retention does not keep, in small deletes with rests
//! between them, so that writers keep their speed.

use std::io;
use std::time::{Duration, Instant};

use crate::config;
use crate::observe;
use crate::outcome::Fault;
use crate::store::retention::{self, EventAges, Old, RECORD_BLOCKS, RecordAges};
use crate::store::{Session, Store};
use crate::threads::{self, Deaths, Stop, Thread};

/// How long a connection is waited for.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);

/// The shortest rest between two deletes. A delete that took longer is followed by as long a rest as it took.
const SHORTEST_REST: Duration = Duration::from_millis(2);

/// A walk through all records begins so many times in the life of one, so that one is kept a hundredth too long at most.
const RECORD_WALKS: u32 = 100;

/// The longest pause after a fault.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A walk through the events begins where the last one found its first, and every so often at the very first one.
const WALKS_FROM_WHERE_IT_WAS: u32 = 60;

/// Starts the pruner.
///
/// # Errors
///
/// The thread cannot be started.
pub fn start(
    config: config::Retention,
    store: Store,
    stop: Stop,
    deaths: &Deaths,
) -> io::Result<Thread> {
    threads::spawn("pruner", deaths, move || {
        let mut pruner = Pruner { config, place: Place::default(), faults: 0 };
        threads::run_passes(&stop, None, || pruner.pass(&store, &stop));
    })
}

/// Takes away all that is old enough, at once and with rests; with `dry_run` only counts it.
pub fn prune_once(
    client: &mut Session,
    config: &config::Retention,
    dry_run: bool,
) -> Result<Old, Fault> {
    if dry_run {
        return retention::count_old(client, config.records, ages(config), config.tombstones);
    }
    let rest = |took: Duration| crossbeam_channel::after(took.max(SHORTEST_REST)).recv().is_err();
    prune(client, config, &mut Place::default(), rest)
}

/// Where walks begin.
#[derive(Debug, Default)]
struct Place {
    first_event: i64,
    walks: u32,
    records_walked_at: Option<Instant>,
}

struct Pruner {
    config: config::Retention,
    place: Place,
    faults: u32,
}

impl Pruner {
    fn pass(&mut self, store: &Store, stop: &Stop) -> Duration {
        let rest = |took: Duration| threads::stops_within(stop, took.max(SHORTEST_REST));
        let pruned = store
            .client(CONNECTION_WAIT)
            .and_then(|mut client| prune(&mut client, &self.config, &mut self.place, rest));
        match pruned {
            Ok(_) => {
                self.faults = 0;
                self.config.every
            }
            Err(fault) => {
                self.faults = self.faults.saturating_add(1);
                observe::prune_failed(&fault, self.faults);
                let pause = Duration::from_secs(1).saturating_mul(1 << self.faults.min(6));
                pause.min(LONGEST_PAUSE)
            }
        }
    }
}

fn ages(config: &config::Retention) -> EventAges {
    EventAges { sent: config.events, dead: config.dead }
}

/// One pass over all tables. Events go first: a record stays as long as it has one that nobody has decided about.
/// `rest` is told how long a delete took, and says whether to stop.
fn prune(
    client: &mut Session,
    config: &config::Retention,
    place: &mut Place,
    rest: impl Fn(Duration) -> bool,
) -> Result<Old, Fault> {
    let mut pruned = Old::default();
    let mut steps = Steps { rest, is_stopping: false };
    let ages = ages(config);
    if ages.sent.is_some() || ages.dead.is_some() {
        pruned.events = prune_events(client, ages, config.batch.get(), place, &mut steps)?;
        observe::pruned("outbox_events", pruned.events);
    }
    if let Some(record) = config.records {
        let ages = RecordAges { record, keep_key: config.tombstones.is_some() };
        pruned.records = prune_records(client, ages, config.batch.get(), place, &mut steps)?;
        observe::pruned("idempotency_records", pruned.records);
    }
    if let Some(age) = config.tombstones {
        while steps.go_on() {
            let begun = Instant::now();
            let deleted = retention::purge_tombstones(client, age, config.batch.get())?;
            pruned.tombstones += deleted;
            if deleted == 0 {
                break;
            }
            steps.rest(begun.elapsed());
        }
        observe::pruned("idempotency_tombstones", pruned.tombstones);
    }
    Ok(pruned)
}

fn prune_events(
    client: &mut Session,
    ages: EventAges,
    batch: usize,
    place: &mut Place,
    steps: &mut Steps<impl Fn(Duration) -> bool>,
) -> Result<u64, Fault> {
    place.walks += 1;
    if place.walks > WALKS_FROM_WHERE_IT_WAS {
        (place.walks, place.first_event) = (0, 0);
    }
    let mut deleted = 0;
    let mut first_kept = None;
    let mut after = place.first_event;
    while steps.go_on() {
        let begun = Instant::now();
        let step = retention::purge_events(client, ages, after, batch)?;
        deleted += step.deleted;
        first_kept = first_kept.or(step.first_kept);
        after = step.last_id;
        if step.is_last {
            break;
        }
        steps.rest(begun.elapsed());
    }
    place.first_event = first_kept.map_or(after, |first| first - 1);
    Ok(deleted)
}

fn prune_records(
    client: &mut Session,
    ages: RecordAges,
    batch: usize,
    place: &mut Place,
    steps: &mut Steps<impl Fn(Duration) -> bool>,
) -> Result<u64, Fault> {
    let is_due = |at: Instant| at.elapsed() >= ages.record / RECORD_WALKS;
    if !place.records_walked_at.is_none_or(is_due) {
        return Ok(0);
    }
    let walked_at = Instant::now();
    let blocks = retention::count_record_blocks(client)?;
    let (mut deleted, mut block) = (0, 0);
    while block < blocks && steps.go_on() {
        let begun = Instant::now();
        let step = retention::purge_records(client, ages, block, batch)?;
        deleted += u64::try_from(step).unwrap_or(u64::MAX);
        if step < batch {
            block += RECORD_BLOCKS;
        }
        steps.rest(begun.elapsed());
    }
    place.records_walked_at = Some(walked_at);
    Ok(deleted)
}

/// Paces a pass.
struct Steps<R> {
    rest: R,
    is_stopping: bool,
}

impl<R: Fn(Duration) -> bool> Steps<R> {
    fn go_on(&self) -> bool {
        !self.is_stopping
    }

    fn rest(&mut self, took: Duration) {
        self.is_stopping = (self.rest)(took);
    }
}
