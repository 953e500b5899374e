//! The two ends of one answer. They cut the knot between `http`, which waits for an outcome, and `writer`, which
//! finds it and must not know HTTP.
//!
//! It is a slot of our own and not a channel, because both ends must agree on more than the answer: a caller that stops
//! waiting says so, and from then on a job that was not begun is never run. And a thread that waits here sleeps at once,
//! where a channel would first yield the processor many times, which cost a third of the daemon's time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::outcome::{Outcome, Reason};

/// A caller who waits. Answered exactly once: [`Pending::answer`] consumes it, and dropping it answers
/// [`Outcome::Unavailable`], so that no path through the writer can forget a caller (P8).
pub struct Pending(Arc<Slot>);

/// The http thread's end: it waits for the one outcome. Dropping it gives up.
pub struct Waiting(Arc<Slot>);

struct Slot {
    stage: Mutex<Stage>,
    answered: Condvar,
}

enum Stage {
    Waits(Progress),
    Answered(Outcome),
    GivenUp,
}

/// How far a job has come that has no outcome yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No writer has come to it.
    Queued,
    /// Another job of its key is being worked on.
    Parked,
    /// A writer has it, and may be writing.
    Begun,
}

/// Makes the two ends of one answer.
pub fn pair() -> (Pending, Waiting) {
    let stage = Mutex::new(Stage::Waits(Progress::Queued));
    let slot = Arc::new(Slot { stage, answered: Condvar::new() });
    (Pending(Arc::clone(&slot)), Waiting(slot))
}

impl Pending {
    /// Says that the job waits beside another one of its key.
    pub fn park(&self) {
        self.advance(Progress::Parked);
    }

    /// Says that the job waits for a writer again.
    pub fn queue_again(&self) {
        self.advance(Progress::Queued);
    }

    /// Says that the job will be run now. False where nobody waits for it any more: then it must not be.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.advance(Progress::Begun)
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.0.lock(), Stage::GivenUp)
    }

    /// Gives the caller its outcome. A caller that has gone away in the meantime is no fault.
    pub fn answer(self, outcome: Outcome) {
        self.0.answer(outcome);
    }

    fn advance(&self, progress: Progress) -> bool {
        let mut stage = self.0.lock();
        let waits = matches!(*stage, Stage::Waits(_));
        if waits {
            *stage = Stage::Waits(progress);
        }
        waits
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.answer(Outcome::Unavailable(Reason::Stopping));
    }
}

impl Waiting {
    /// Waits for the outcome until `deadline`; `None` where it did not come in time.
    pub fn wait_until(&self, deadline: Instant) -> Option<Outcome> {
        let time = deadline.saturating_duration_since(Instant::now());
        let (stage, _) = self
            .0
            .answered
            .wait_timeout_while(self.0.lock(), time, |stage| matches!(stage, Stage::Waits(_)))
            .unwrap_or_else(PoisonError::into_inner);
        outcome(&stage)
    }

    /// Stops waiting. A job that was not begun will never be; an outcome that has come by now is given all the same.
    pub fn give_up(self) -> Result<Progress, Outcome> {
        self.0.give_up().ok_or_else(|| {
            outcome(&self.0.lock()).unwrap_or(Outcome::Unavailable(Reason::Stopping))
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Slot {
    /// The first answer counts.
    fn answer(&self, outcome: Outcome) {
        let mut stage = self.lock();
        if matches!(*stage, Stage::Waits(_)) {
            *stage = Stage::Answered(outcome);
            drop(stage);
            self.answered.notify_one();
        }
    }

    fn give_up(&self) -> Option<Progress> {
        let mut stage = self.lock();
        let Stage::Waits(progress) = *stage else { return None };
        *stage = Stage::GivenUp;
        Some(progress)
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        // Nothing in here can panic half-way through a change.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outcome(stage: &Stage) -> Option<Outcome> {
    match stage {
        Stage::Answered(outcome) => Some(outcome.clone()),
        Stage::Waits(_) | Stage::GivenUp => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn an_answer_reaches_the_one_who_waits() {
        let (pending, waiting) = pair();
        assert_eq!(waiting.wait_until(Instant::now()), None);
        pending.answer(Outcome::KeyReused);
        assert_eq!(waiting.wait_until(soon()), Some(Outcome::KeyReused));
    }

    #[test]
    fn a_pending_that_is_dropped_answers_unavailable() {
        let (pending, waiting) = pair();
        drop(pending);
        assert_eq!(waiting.wait_until(soon()), Some(Outcome::Unavailable(Reason::Stopping)));
    }

    #[test]
    fn a_caller_who_went_away_is_seen_and_its_job_is_not_begun() {
        let (pending, waiting) = pair();
        assert!(!pending.is_abandoned());
        drop(waiting);
        assert!(pending.is_abandoned());
        assert!(!pending.begin());
        pending.answer(Outcome::InProgress);
    }

    #[test]
    fn who_gives_up_learns_how_far_the_job_had_come() {
        let (_pending, waiting) = pair();
        assert_eq!(waiting.give_up(), Ok(Progress::Queued));
        let (pending, waiting) = pair();
        pending.park();
        assert_eq!(waiting.give_up(), Ok(Progress::Parked));
        let (pending, waiting) = pair();
        assert!(pending.begin());
        assert_eq!(waiting.give_up(), Ok(Progress::Begun));
        let (pending, waiting) = pair();
        pending.answer(Outcome::KeyReused);
        assert_eq!(waiting.give_up(), Err(Outcome::KeyReused));
    }

    #[test]
    fn an_answer_from_another_thread_wakes_the_one_who_waits() {
        let (pending, waiting) = pair();
        let (deaths, _died) = crossbeam_channel::bounded(1);
        let answers = move || pending.answer(Outcome::InProgress);
        let thread = crate::threads::spawn("answers", &deaths, answers).unwrap();
        assert_eq!(waiting.wait_until(soon()), Some(Outcome::InProgress));
        assert_eq!(thread.join(soon()), Ok(()));
    }
}
