//! The claimer: it leases what is due, and no more than the publishers will soon take.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use fail::fail_point;

use super::demand::Demand;
use super::health::Permission;
use super::{Leased, Shared};
use crate::config;
use crate::observe;
use crate::outcome::Fault;
use crate::store::events::{self, Claim, Claiming, DueTime, KeyCursor};
use crate::store::{Client, Store};
use crate::threads::{self, Pulse, Stop};

/// How long a connection is waited for.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// The bounds of the pause after a fault of the database.
const FAULT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The pause after a pass that found something and yet not all it asked for: what is committed within it is claimed
/// together.
const SHORT_REST: Duration = Duration::from_millis(2);

/// The pause after a pass that found nothing: thousands of events that come due one by one make no busy loop.
const REST: Duration = Duration::from_millis(20);

/// How far the claims from a hint look back, for transactions that commit in another order than they began.
const SLACK: Duration = Duration::from_secs(1);

/// Claims without the hint take at most one part in so many of the time.
const WIDE_SHARE: u32 = 10;

/// A look at the whole index that takes no longer than this needs no hint.
const CHEAP: Duration = Duration::from_millis(3);

/// In one pass out of so many, events with an order key come first, where there are any.
const ORDERED_FIRST_EVERY: u64 = 4;

/// In one pass out of so many they are looked for although there were none the last time.
const ORDERED_LOOK_EVERY: u64 = 16;

pub(super) struct Claimer {
    config: config::Relay,
    store: Store,
    shared: Arc<Shared>,
    work: Sender<Leased>,
    pulse: Pulse,
    demand: Demand,
    hint: Hint,
    cursor: KeyCursor,
    has_ordered: bool,
    passes: u64,
    faults: u32,
    was_paused: bool,
}

/// What a look at the outbox gave.
struct Taken {
    claims: Vec<Claim>,
    /// There may be more that is due now.
    has_more: bool,
    /// How long until there is something to look for, where it is known.
    next: Option<Duration>,
}

impl Claimer {
    pub(super) fn new(
        config: config::Relay,
        store: Store,
        shared: Arc<Shared>,
        work: Sender<Leased>,
        pulse: Pulse,
    ) -> Claimer {
        let most = work.capacity().unwrap_or_default();
        let demand = Demand::new(config.threads.get(), most, Instant::now());
        Claimer {
            config,
            store,
            shared,
            work,
            pulse,
            demand,
            hint: Hint::default(),
            cursor: KeyCursor::default(),
            has_ordered: false,
            passes: 0,
            faults: 0,
            was_paused: false,
        }
    }

    pub(super) fn run(mut self, stop: &Stop, bell: &Receiver<()>) {
        threads::run_passes(stop, Some(bell), || {
            let (wait, rest) = self.pass();
            // The rest is deaf to the bell, and wakes for a stop: `run_passes` sees it next.
            if !rest.is_zero() && threads::stops_within(stop, rest) {
                return Duration::ZERO;
            }
            wait
        });
    }

    /// One look: how long to wait for the next, and how long to let even a ring wait.
    fn pass(&mut self) -> (Duration, Duration) {
        if self.shared.is_unsettled.load(Ordering::Relaxed) {
            return (self.config.poll, REST);
        }
        let permission = self.shared.health.permission(Instant::now());
        self.pulse.busy();
        let looked = match permission {
            Permission::Wait(pause) => Ok((pause, REST)),
            Permission::Paused => self.look_for_resume(),
            Permission::Probe => self.claim(1, true),
            Permission::Full => match self.room() {
                0 => Ok((self.config.poll, Duration::ZERO)),
                room => self.claim(room, false),
            },
        };
        self.pulse.idle();
        match looked {
            Ok(waits) => {
                self.faults = 0;
                waits
            }
            Err(fault) => {
                self.faults = self.faults.saturating_add(1);
                observe::claim_failed(&fault, self.faults);
                let (shortest, longest) = FAULT_PAUSES;
                let pause = shortest.saturating_mul(1 << self.faults.min(8)).min(longest);
                (pause, pause)
            }
        }
    }

    /// How many events to claim: none while there are enough.
    fn room(&mut self) -> usize {
        let ended = self.shared.ended.load(Ordering::Relaxed);
        let wanted = self.demand.wanted(ended, Instant::now());
        self.shared.low_water.store(wanted / 2, Ordering::Relaxed);
        let room = wanted.saturating_sub(self.work.len());
        if 2 * room >= wanted { room.min(self.config.batch.get()) } else { 0 }
    }

    fn look_for_resume(&mut self) -> Result<(Duration, Duration), Fault> {
        let mut client = self.store.client(CONNECTION_WAIT)?;
        let outlook = events::look_ahead(&mut client)?;
        self.tell_pause(outlook.is_paused);
        if !outlook.is_paused {
            self.shared.health.resumed();
            return Ok((Duration::ZERO, Duration::ZERO));
        }
        Ok((self.config.poll, REST))
    }

    fn claim(&mut self, limit: usize, is_probe: bool) -> Result<(Duration, Duration), Fault> {
        fail_point!("relay::before_claim", |_| std::process::abort());
        let mut client = self.store.client(CONNECTION_WAIT)?;
        let until = Instant::now() + self.config.lease;
        let taken = self.take(&mut client, limit)?;
        fail_point!("relay::after_claim", |_| std::process::abort());
        let count = taken.claims.len();
        if is_probe && count > 0 {
            self.shared.health.probing();
        }
        for claim in taken.claims {
            // The channel takes all that the claimer ever holds ready. It is closed only where every publisher has
            // died, and then the daemon is stopping and the lease runs out.
            drop(self.work.try_send(Leased { claim, until }));
        }
        if taken.has_more && !is_probe {
            return Ok((Duration::ZERO, Duration::ZERO));
        }
        let outlook = events::look_ahead(&mut client)?;
        self.tell_pause(outlook.is_paused);
        if outlook.has_ordered && !std::mem::replace(&mut self.has_ordered, outlook.has_ordered) {
            return Ok((Duration::ZERO, Duration::ZERO));
        }
        self.has_ordered = outlook.has_ordered;
        let next = [taken.next, outlook.next_due].into_iter().flatten().min();
        let wait = next.unwrap_or(self.config.poll).min(self.config.poll);
        Ok((wait, if count == 0 { REST } else { SHORT_REST }))
    }

    /// Claims from both halves of the outbox. What was claimed is claimed, also where the second half met a fault.
    fn take(&mut self, client: &mut Client, limit: usize) -> Result<Taken, Fault> {
        let mut taken = Taken { claims: Vec::new(), has_more: false, next: None };
        let looked = self.take_both(client, limit, &mut taken);
        if taken.claims.is_empty() {
            looked?;
        }
        taken.has_more |= taken.claims.len() == limit;
        Ok(taken)
    }

    /// Events with an order key get the rest of the room, and in one pass out of a few half of it, so that neither half
    /// can starve the other. Where there are none they are hardly ever looked for.
    fn take_both(
        &mut self,
        client: &mut Client,
        limit: usize,
        taken: &mut Taken,
    ) -> Result<(), Fault> {
        let lease = self.config.lease;
        self.passes = self.passes.wrapping_add(1);
        let looks = self.has_ordered || self.passes.is_multiple_of(ORDERED_LOOK_EVERY);
        let is_first = looks && self.passes.is_multiple_of(ORDERED_FIRST_EVERY);
        if is_first {
            self.take_ordered(client, Claiming { limit: limit.div_ceil(2), lease }, taken)?;
        }
        let left = limit - taken.claims.len();
        if left > 0 {
            self.take_unordered(client, Claiming { limit: left, lease }, taken)?;
        }
        let left = limit - taken.claims.len();
        if looks && !is_first && left > 0 {
            self.take_ordered(client, Claiming { limit: left, lease }, taken)?;
        }
        Ok(())
    }

    fn take_unordered(
        &mut self,
        client: &mut Client,
        claiming: Claiming,
        taken: &mut Taken,
    ) -> Result<(), Fault> {
        let begun = Instant::now();
        let from = self.hint.from(begun);
        let (claims, latest) = events::claim(client, claiming, from)?;
        let is_full = claims.len() == claiming.limit;
        match from {
            None => self.hint.looked_everywhere(begun, begun.elapsed(), latest),
            Some(_) if !is_full => taken.next = Some(self.hint.next_wide(Instant::now())),
            Some(_) => {}
        }
        taken.has_more |= is_full;
        taken.claims.extend(claims);
        Ok(())
    }

    fn take_ordered(
        &mut self,
        client: &mut Client,
        claiming: Claiming,
        taken: &mut Taken,
    ) -> Result<(), Fault> {
        let hold = self.config.on_dead == config::OnDead::Hold;
        let found = events::claim_in_order(client, claiming, hold, &mut self.cursor)?;
        self.has_ordered |= !found.claims.is_empty();
        taken.has_more |= !found.is_complete;
        taken.next = [taken.next, found.next_due].into_iter().flatten().min();
        taken.claims.extend(found.claims);
        Ok(())
    }

    fn tell_pause(&mut self, is_paused: bool) {
        if is_paused != self.was_paused {
            observe::sink_pause_seen(is_paused);
            self.was_paused = is_paused;
        }
    }
}

/// Where in the index of due events to begin.
///
/// Entries of events that were sent stay at the head of that index until vacuum removes them, which it cannot while
/// anybody holds an old snapshot. So most claims begin where the last whole look ended; and as that is a hint and not
/// the truth (a transaction may commit late, a claim may be rolled back), looks at the whole index go on, at a share of
/// the time that keeps them harmless however long one takes. In an index without such entries nearly all are whole.
#[derive(Debug, Default)]
struct Hint {
    from: Option<DueTime>,
    wide_allowed_at: Option<Instant>,
}

impl Hint {
    fn from(&self, now: Instant) -> Option<DueTime> {
        self.from.filter(|_| self.wide_allowed_at.is_some_and(|at| now < at))
    }

    fn looked_everywhere(&mut self, now: Instant, took: Duration, latest: Option<DueTime>) {
        let pause = if took <= CHEAP { Duration::ZERO } else { took.saturating_mul(WIDE_SHARE) };
        self.wide_allowed_at = Some(now + pause);
        if let Some(latest) = latest {
            self.from = Some(latest.minus(SLACK));
        }
    }

    fn next_wide(&self, now: Instant) -> Duration {
        self.wide_allowed_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_the_whole_index_take_a_tenth_of_the_time_and_never_stop() {
        let mut hint = Hint::default();
        let start = Instant::now();
        let latest = Some(DueTime::default());
        assert_eq!(hint.from(start), None, "the first look is a whole one");
        hint.looked_everywhere(start, CHEAP, latest);
        assert_eq!(hint.from(start), None, "a cheap one is always made");
        let slow = Duration::from_millis(50);
        hint.looked_everywhere(start, slow, latest);
        assert_eq!(hint.from(start), Some(DueTime::default().minus(SLACK)));
        assert!(hint.from(start + slow * (WIDE_SHARE - 1)).is_some());
        assert_eq!(hint.next_wide(start), slow * WIDE_SHARE);
        assert_eq!(hint.from(start + slow * WIDE_SHARE), None);
    }
}
