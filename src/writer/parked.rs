//! The keys that are being worked on in this process, and the duplicates that wait beside them.
//!
//! The table is behind a mutex, the only one on a request's way besides its own answer's: http threads put jobs in,
//! writer threads take outcomes out, and for one key both must agree on who runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError};

use super::Job;
use super::cache::{Cache, Heard, Known};
use crate::call::{IdempotencyKey, Scope};
use crate::observe::METRICS;
use crate::outcome::{Outcome, Reason};

/// A key and whose it is.
pub(super) type Key = (Scope, IdempotencyKey);

/// The table. A key is in it exactly as long as one of its jobs is queued or being written.
pub(super) struct Parked {
    waiters_per_key: usize,
    state: Mutex<State>,
}

struct State {
    /// The way to the writers; closed where the daemon is stopping.
    jobs: Option<Sender<Job>>,
    keys: HashMap<Key, Vec<Job>>,
    /// Under the same lock: whether to ask it depends on whose hands a key is in.
    cache: Option<Cache>,
}

impl Parked {
    pub(super) fn new(jobs: Sender<Job>, waiters_per_key: usize, cache: Option<Cache>) -> Parked {
        Parked {
            waiters_per_key,
            state: Mutex::new(State { jobs: Some(jobs), keys: HashMap::new(), cache }),
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
        let State { jobs, keys, cache } = &mut *state;
        let Some(jobs) = jobs else {
            return Some((job, Outcome::Unavailable(Reason::Stopping)));
        };
        let key = key_of(&job);
        let known = cache
            .as_mut()
            .and_then(|cache| cache.find(&key, &job.call.fingerprint, Instant::now()));
        if let Some(Known { outcome, is_due }) = known
            // One call asks the database anew, and the others need not wait for it.
            && (!is_due || keys.contains_key(&key))
        {
            return Some((job, outcome));
        }
        match keys.entry(key) {
            Entry::Occupied(mut entry) => {
                let waiting = entry.get_mut();
                if waiting.len() >= self.waiters_per_key {
                    return Some((job, Outcome::InProgress));
                }
                job.pending.park();
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
    pub(super) fn settle(&self, job: Job, outcome: Outcome, heard: Option<Heard>) -> Option<Job> {
        let key = key_of(&job);
        let mut state = self.lock();
        if let (Some(cache), Some(heard)) = (&mut state.cache, heard)
            && let Outcome::Recorded { answer, .. } = &outcome
        {
            cache.keep(&key, &job.call.fingerprint, answer, heard);
        }
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

    /// Puts a job that is in the table into the queue again. Gives it back where that is full or closed.
    pub(super) fn hand_back(&self, job: Job) -> Option<Job> {
        match &self.lock().jobs {
            Some(jobs) => jobs.try_send(job).err().map(TrySendError::into_inner),
            None => Some(job),
        }
    }

    /// Drops those beside this key whose callers have gone away: their bodies would stay in memory for as long as the
    /// first one runs, and others take their places.
    pub(super) fn let_go(&self, key: &Key) {
        if let Some(waiting) = self.lock().keys.get_mut(key) {
            METRICS.parked.sub(count(drop_abandoned(waiting)));
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, bounded};

    use super::*;
    use crate::call::{self, Call};
    use crate::operations::{Operation, Script};
    use crate::outcome::{Answer, Media};
    use crate::pending::{self, Waiting};

    fn job(key: &str, body: &str) -> (Job, Waiting) {
        let operation = Arc::new(Operation {
            name: "orders".to_owned(),
            route: "/v1/orders".to_owned(),
            statement: Script { path: "orders.sql".into(), sql: "SELECT 1".to_owned() },
            setup: None,
            timeout: None,
        });
        let (body, fingerprint) = call::read_body("orders", body.as_bytes().to_vec()).unwrap();
        let key = IdempotencyKey::from_text(key).unwrap();
        let call = Call { scope: Scope::default(), key, operation, fingerprint, body };
        let (pending, waiting) = pending::pair();
        let deadline = Instant::now() + Duration::from_secs(60);
        (
            Job {
                call,
                pending,
                deadline,
                request_id: "req".into(),
                alone: false,
                in_doubt: false,
            },
            waiting,
        )
    }

    fn table(waiters: usize) -> (Parked, Receiver<Job>) {
        let (jobs, inbox) = bounded(1);
        (Parked::new(jobs, waiters, None), inbox)
    }

    fn heard(waiting: &Waiting) -> Option<Outcome> {
        waiting.wait_until(Instant::now())
    }

    fn recorded(replayed: bool) -> Outcome {
        let answer = Answer { status: 201, body: "{}".into(), media: Media::Json };
        Outcome::Recorded { answer, replayed }
    }

    #[test]
    fn a_twin_is_answered_from_the_first_ones_outcome_and_another_body_learns_that_the_key_is_taken()
     {
        let (parked, inbox) = table(8);
        let (first, first_waits) = job("k", "1");
        let (twin, twin_waits) = job("k", "1.0");
        let (other, other_waits) = job("k", "2");
        for job in [first, twin, other] {
            parked.join(job);
        }
        let first = inbox.try_recv().unwrap();
        assert!(inbox.is_empty(), "duplicates do not become jobs");

        assert!(parked.settle(first, recorded(false), None).is_none());

        assert_eq!(heard(&first_waits), Some(recorded(false)));
        assert_eq!(heard(&twin_waits), Some(recorded(true)));
        assert_eq!(heard(&other_waits), Some(Outcome::KeyReused));
    }

    #[test]
    fn where_nothing_was_stored_the_next_one_runs_and_the_rest_waits_for_it() {
        let (parked, inbox) = table(8);
        let (first, first_waits) = job("k", "1");
        let (second, second_waits) = job("k", "2");
        let (third, third_waits) = job("k", "1");
        for job in [first, second, third] {
            parked.join(job);
        }

        let next =
            parked.settle(inbox.try_recv().unwrap(), Outcome::OperationFailed, None).unwrap();

        assert_eq!(heard(&first_waits), Some(Outcome::OperationFailed));
        assert_eq!(heard(&second_waits), None);
        assert!(parked.settle(next, recorded(false), None).is_none());
        assert_eq!(heard(&second_waits), Some(recorded(false)));
        assert_eq!(heard(&third_waits), Some(Outcome::KeyReused), "never another request's answer");
    }

    #[test]
    fn waiters_are_bounded_and_who_went_away_frees_its_place() {
        let (parked, _inbox) = table(1);
        let (first, _first_waits) = job("k", "1");
        let (gone, gone_waits) = job("k", "1");
        let (late, late_waits) = job("k", "1");
        let (last, last_waits) = job("k", "1");
        parked.join(first);
        parked.join(gone);
        parked.join(late);
        assert_eq!(heard(&late_waits), Some(Outcome::InProgress));
        drop(gone_waits);
        parked.let_go(&(Scope::default(), IdempotencyKey::from_text("k").unwrap()));
        parked.join(last);
        assert_eq!(heard(&last_waits), None);
    }

    #[test]
    fn a_full_queue_and_a_closed_one_answer_at_once_and_keep_no_key() {
        let (parked, inbox) = table(8);
        let (first, _first_waits) = job("a", "1");
        let (second, second_waits) = job("b", "1");
        parked.join(first);
        parked.join(second);
        assert_eq!(heard(&second_waits), Some(Outcome::Unavailable(Reason::QueueFull)));
        inbox.try_recv().unwrap();
        parked.close();
        let (third, third_waits) = job("b", "1");
        parked.join(third);
        assert_eq!(heard(&third_waits), Some(Outcome::Unavailable(Reason::Stopping)));
        assert!(inbox.recv().is_err(), "the writers end");
    }

    #[test]
    fn a_key_is_free_after_its_outcome() {
        let (parked, inbox) = table(8);
        for _ in 0..2 {
            let (first, waits) = job("k", "1");
            parked.join(first);
            assert!(parked.settle(inbox.try_recv().unwrap(), recorded(true), None).is_none());
            assert_eq!(heard(&waits), Some(recorded(true)));
        }
    }
}
