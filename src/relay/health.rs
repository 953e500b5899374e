//! Whether the sink as a whole can be spoken to. What is wrong with it (its name, the connection, TLS) says nothing
//! about an event, so it costs none of them an attempt: all relays pause, one attempt probes, and a sink that answers
//! has all of them back at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backoff::Backoff;

/// The longest pause: a sink that is up again is found within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What the claimer may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Claim.
    Full,
    /// Claim one event, to probe with.
    Probe,
    /// Nothing for so long.
    Wait(Duration),
    /// Nothing until the database says that nobody pauses the sink.
    Paused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Down { faults: u32, until: Instant, is_probing: bool },
    Gone { is_written: bool },
}

/// The health of the sink. It is a fact about the world that one claimer and all publishers of the process find out
/// together, attempt by attempt, so it is shared and behind a mutex; nothing is done while it is held.
#[derive(Debug)]
pub(super) struct Health {
    state: Mutex<State>,
    pauses: Backoff,
}

impl Health {
    /// A sink that counts as up. The first pause is about `min` long.
    pub(super) fn new(min: Duration) -> Health {
        let max = LONGEST_PAUSE.max(min);
        Health { state: Mutex::new(State::Up), pauses: Backoff { min, max } }
    }

    /// What the claimer may do at `now`.
    pub(super) fn permission(&self, now: Instant) -> Permission {
        match *self.lock() {
            State::Up => Permission::Full,
            State::Gone { is_written: true } => Permission::Paused,
            State::Gone { is_written: false } => Permission::Wait(self.pauses.min),
            State::Down { is_probing: true, .. } => Permission::Wait(self.pauses.max),
            State::Down { until, .. } if now < until => Permission::Wait(until - now),
            State::Down { .. } => Permission::Probe,
        }
    }

    /// An event was claimed to probe with.
    pub(super) fn probing(&self) {
        if let State::Down { is_probing, .. } = &mut *self.lock() {
            *is_probing = true;
        }
    }

    /// The probe was given back without an attempt.
    pub(super) fn not_probed(&self) {
        if let State::Down { is_probing, .. } = &mut *self.lock() {
            *is_probing = false;
        }
    }

    /// Whether an attempt may begin.
    pub(super) fn may_begin(&self) -> bool {
        match *self.lock() {
            State::Up => true,
            State::Down { is_probing, .. } => is_probing,
            State::Gone { .. } => false,
        }
    }

    /// The sink could not be reached at `now`. Returns how long it is left alone, and the how-manieth time in a row this
    /// is, where it is news: attempts that
    /// were under way when the first one failed say nothing new.
    pub(super) fn fault(&self, now: Instant, chance: f64) -> Option<(Duration, u32)> {
        let mut state = self.lock();
        let faults = match *state {
            State::Up => 0,
            State::Down { faults, is_probing: true, .. } => faults.saturating_add(1),
            State::Down { .. } | State::Gone { .. } => return None,
        };
        let pause = self.pauses.after(faults, chance);
        *state = State::Down { faults, until: now + pause, is_probing: false };
        Some((pause, faults + 1))
    }

    /// The sink answered. True where it was down before.
    pub(super) fn answered(&self) -> bool {
        let mut state = self.lock();
        let was_down = matches!(*state, State::Down { .. });
        if was_down {
            *state = State::Up;
        }
        was_down
    }

    /// The sink said that it is gone for good. Nothing is claimed until the pause is written down.
    pub(super) fn gone(&self) {
        *self.lock() = State::Gone { is_written: false };
    }

    /// The pause is in the database, where a person can end it.
    pub(super) fn pause_written(&self) {
        if let State::Gone { is_written } = &mut *self.lock() {
            *is_written = true;
        }
    }

    /// The database says that nobody pauses the sink.
    pub(super) fn resumed(&self) {
        let mut state = self.lock();
        if *state == (State::Gone { is_written: true }) {
            *state = State::Up;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_at_a_time_and_one_answer_ends_the_pause() {
        let health = Health::new(Duration::from_secs(1));
        let now = Instant::now();
        assert_eq!(health.permission(now), Permission::Full);
        assert_eq!(health.fault(now, 0.0), Some((Duration::from_secs(1), 1)));
        assert_eq!(health.fault(now, 0.0), None, "the others of the same moment are no news");
        assert!(!health.may_begin());
        assert_eq!(health.permission(now), Permission::Wait(Duration::from_secs(1)));
        let later = now + Duration::from_secs(1);
        assert_eq!(health.permission(later), Permission::Probe);
        health.probing();
        assert!(health.may_begin());
        assert!(matches!(health.permission(later), Permission::Wait(_)));
        assert!(health.answered());
        assert_eq!(health.permission(later), Permission::Full);
        assert!(!health.answered());
    }

    #[test]
    fn pauses_grow_and_stay_within_seconds() {
        let health = Health::new(Duration::from_millis(100));
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            health.probing();
            pauses.extend(health.fault(now, 1.0).map(|(pause, _)| pause));
        }
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
    }

    #[test]
    fn a_sink_that_is_gone_stays_so_until_it_is_resumed() {
        let health = Health::new(Duration::from_secs(1));
        health.gone();
        assert!(!health.answered());
        assert_eq!(health.fault(Instant::now(), 0.0), None);
        health.resumed();
        assert!(
            matches!(health.permission(Instant::now()), Permission::Wait(_)),
            "not written yet"
        );
        health.pause_written();
        assert_eq!(health.permission(Instant::now()), Permission::Paused);
        assert!(!health.may_begin());
        health.resumed();
        assert!(health.may_begin());
    }
}
