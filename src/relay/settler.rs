//! The settler: it writes down what came of the attempts, each time with whatever has come in by then, so a delivery
//! is recorded at once and many of them in one statement.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use fail::fail_point;

use super::Shared;
use crate::observe;
use crate::outcome::Fault;
use crate::store::events::{self, Failure, GivenBack};
use crate::store::outbox;
use crate::store::{Client, Store};
use crate::threads::{self, Pulse, Stop};

/// Settlements that one round takes at most.
const BATCH: usize = 500;

/// How long a connection is waited for.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// The bounds of the pause after a fault of the database.
const FAULT_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long the database may be away while the daemon stops. What is not written then comes again after its lease.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Who paused the sink where it was not a person.
const PAUSED_BY: &str = "onced";

/// What came of a claim.
pub(super) struct Settlement {
    pub(super) settled: Settled,
    /// The event has an order key: its successor may be due now.
    pub(super) ordered: bool,
}

pub(super) enum Settled {
    /// Delivered: the event's id.
    Sent(i64),
    /// The attempt failed.
    Failed(Failure),
    /// The attempt failed, and the sink wants nothing any more.
    Gone(Failure),
    /// No attempt was begun.
    GivenBack(GivenBack),
}

/// A round of settlements, by kind.
#[derive(Default)]
struct Round {
    sent: Vec<i64>,
    failed: Vec<Failure>,
    given_back: Vec<GivenBack>,
    gone: Option<String>,
    has_ordered: bool,
}

pub(super) struct Settler {
    pub(super) inbox: Receiver<Settlement>,
    pub(super) store: Store,
    pub(super) shared: Arc<Shared>,
    pub(super) give_up_after: Duration,
    pub(super) stop: Stop,
    pub(super) pulse: Pulse,
}

impl Settler {
    /// Runs until all publishers are gone and all is written.
    pub(super) fn run(self) {
        let mut give_up_at = None;
        while let Some(round) = self.next_round() {
            self.settle(&round, &mut give_up_at);
        }
    }

    /// Waits for one settlement, and takes what else is there.
    fn next_round(&self) -> Option<Round> {
        let first = self.inbox.recv().ok()?;
        let mut round = Round::default();
        for settlement in std::iter::once(first).chain(self.inbox.try_iter()).take(BATCH) {
            round.add(settlement);
        }
        Some(round)
    }

    /// Writes the round, and tries as often as it takes: all of it may be repeated. Only a stopping daemon gives up.
    fn settle(&self, round: &Round, give_up_at: &mut Option<Instant>) {
        fail_point!("relay::before_settle", |_| std::process::abort());
        let mut faults: u32 = 0;
        loop {
            self.pulse.busy();
            let written = self.write(round);
            self.pulse.idle();
            let Err(fault) = written else { break };
            faults = faults.saturating_add(1);
            observe::settle_failed(&fault, faults);
            self.shared.is_unsettled.store(true, Ordering::Relaxed);
            let (shortest, longest) = FAULT_PAUSES;
            let pause = shortest.saturating_mul(1 << faults.min(8)).min(longest);
            if !self.pause(pause, give_up_at) {
                observe::settle_given_up(round.len());
                return;
            }
        }
        if faults > 0 {
            self.shared.is_unsettled.store(false, Ordering::Relaxed);
        }
        // What failed or was given back is due at a new time, and a successor of an order key is due now.
        if faults > 0 || round.wakes_claimer() {
            self.shared.ring();
        }
    }

    /// Waits before the next try. False where the daemon stops and the grace is over.
    fn pause(&self, pause: Duration, give_up_at: &mut Option<Instant>) -> bool {
        if !threads::stops_within(&self.stop, pause) {
            return true;
        }
        let now = Instant::now();
        let end = *give_up_at.get_or_insert(now + STOP_GRACE);
        if now >= end {
            return false;
        }
        let (shortest, _) = FAULT_PAUSES;
        // `stop` is closed for good, so nothing but the time is left to wait for.
        crossbeam_channel::after(shortest.min(end - now)).recv().is_ok()
    }

    fn write(&self, round: &Round) -> Result<(), Fault> {
        let mut client = self.store.client(CONNECTION_WAIT)?;
        if let Some(reason) = &round.gone {
            if outbox::pause(&mut client, PAUSED_BY, reason)? {
                observe::sink_gone(reason);
            }
            self.shared.health.pause_written();
        }
        if !round.sent.is_empty() {
            events::settle_sent(&mut client, &round.sent)?;
        }
        self.write_failures(&mut client, &round.failed)?;
        if !round.given_back.is_empty() {
            events::give_back(&mut client, &round.given_back)?;
        }
        Ok(())
    }

    fn write_failures(&self, client: &mut Client, failed: &[Failure]) -> Result<(), Fault> {
        if failed.is_empty() {
            return Ok(());
        }
        for recorded in events::settle_failed(client, failed, self.give_up_after)? {
            if recorded.is_dead {
                observe::event_dead(&recorded.event_key, recorded.attempts, &recorded.error);
            } else {
                observe::event_failed(&recorded.event_key, recorded.attempts, &recorded.error);
            }
        }
        Ok(())
    }
}

impl Round {
    fn add(&mut self, settlement: Settlement) {
        self.has_ordered |= settlement.ordered;
        match settlement.settled {
            Settled::Sent(id) => self.sent.push(id),
            Settled::Failed(failure) => self.failed.push(failure),
            Settled::Gone(failure) => {
                self.gone = Some(failure.error.clone());
                self.failed.push(failure);
            }
            Settled::GivenBack(claim) => self.given_back.push(claim),
        }
    }

    fn len(&self) -> usize {
        self.sent.len() + self.failed.len() + self.given_back.len()
    }

    fn wakes_claimer(&self) -> bool {
        self.has_ordered || !self.failed.is_empty() || !self.given_back.is_empty()
    }
}
