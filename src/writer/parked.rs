//! The keys that are being worked on in this process, and the duplicates that wait beside them.
//!
//! This is the one mutex of the program: http threads put jobs in, writer threads take outcomes out, and for one key
//! both must agree on who runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, TrySendError};

use super::Job;
use crate::call::{IdempotencyKey, Scope};
use crate::observe::METRICS;
use crate::outcome::{Outcome, Reason};

type Key = (Scope, IdempotencyKey);

/// The table. A key is in it exactly as long as one of its jobs is queued or being written.
pub(super) struct Parked {
    waiters_per_key: usize,
    state: Mutex<State>,
}

struct State {
    /// The way to the writers; closed where the daemon is stopping.
    jobs: Option<Sender<Job>>,
    keys: HashMap<Key, Vec<Job>>,
}

impl Parked {
    pub(super) fn new(jobs: Sender<Job>, waiters_per_key: usize) -> Parked {
        Parked {
            waiters_per_key,
            state: Mutex::new(State { jobs: Some(jobs), keys: HashMap::new() }),
        }
    }

    /// Takes a job: it goes to the writers, or waits beside its key, or is answered at once where there is no room.
    pub(super) fn join(&self, job: Job) {
        if let Some((job, outcome)) = self.place(job) {
            job.pending.answer(outcome);
        }
    }

    /// Finds a place for the job, or gives it back with what to answer.
    fn place(&self, job: Job) -> Option<(Job, Outcome)> {
        let mut state = self.lock();
        let State { jobs, keys } = &mut *state;
        let Some(jobs) = jobs else {
            return Some((job, Outcome::Unavailable(Reason::Stopping)));
        };
        match keys.entry(key_of(&job)) {
            Entry::Occupied(mut entry) => {
                let waiting = entry.get_mut();
                if waiting.len() >= self.waiters_per_key {
                    METRICS.parked.sub(count(drop_abandoned(waiting)));
                }
                if waiting.len() >= self.waiters_per_key {
                    return Some((job, Outcome::InProgress));
                }
                waiting.push(job);
                METRICS.parked.inc();
            }
            Entry::Vacant(entry) => {
                match jobs.try_send(job) {
                    Ok(()) => {}
                    Err(TrySendError::Full(job)) => {
                        return Some((job, Outcome::Unavailable(Reason::QueueFull)));
                    }
                    Err(TrySendError::Disconnected(job)) => {
                        return Some((job, Outcome::Unavailable(Reason::Stopping)));
                    }
                }
                entry.insert(Vec::new());
            }
        }
        show(&state);
        None
    }

    /// Answers a job, and those beside it from its outcome where that is a stored one: a twin gets the same answer, as
    /// a replay, and another request under this key learns that the key is taken. Where it is not stored, gives the
    /// next one, which the caller must run.
    #[must_use]
    pub(super) fn settle(&self, job: Job, outcome: Outcome) -> Option<Job> {
        let key = key_of(&job);
        let mut state = self.lock();
        let Some(mut waiting) = state.keys.remove(&key) else {
            drop(state);
            job.pending.answer(outcome);
            return None;
        };
        METRICS.parked.sub(count(waiting.len()));
        let mut next = None;
        if !matches!(outcome, Outcome::Recorded { .. }) {
            drop_abandoned(&mut waiting);
            if !waiting.is_empty() {
                next = Some(waiting.remove(0));
                METRICS.parked.add(count(waiting.len()));
                state.keys.insert(key, std::mem::take(&mut waiting));
            }
        }
        show(&state);
        drop(state);
        if let Outcome::Recorded { answer, .. } = &outcome {
            for twin in waiting {
                let same = twin.call.fingerprint == job.call.fingerprint;
                twin.pending.answer(if same {
                    Outcome::Recorded { answer: answer.clone(), replayed: true }
                } else {
                    Outcome::KeyReused
                });
            }
        }
        job.pending.answer(outcome);
        next
    }

    /// No more jobs are taken; the writers end when the queue is empty.
    pub(super) fn close(&self) {
        self.lock().jobs = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(job: &Job) -> Key {
    (job.call.scope.clone(), job.call.key.clone())
}

fn show(state: &State) {
    if let Some(jobs) = &state.jobs {
        METRICS.jobs_waiting.set(count(jobs.len()));
    }
}

/// Lets go of those whose caller has gone away, and says how many they were.
fn drop_abandoned(waiting: &mut Vec<Job>) -> usize {
    let before = waiting.len();
    waiting.retain(|job| !job.pending.is_abandoned());
    before - waiting.len()
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
