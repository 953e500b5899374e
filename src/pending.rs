//! The two ends of one answer. They cut the knot between `http`, which waits for an outcome, and `writer`, which
//! finds it and must not know HTTP.

use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::outcome::{Outcome, Reason};

/// A caller who waits. Answered exactly once: [`Pending::answer`] consumes it, and dropping it answers
/// [`Outcome::Unavailable`], so that no path through the writer can forget a caller (P8).
pub struct Pending {
    answer: Option<Sender<Outcome>>,
    waiting: Weak<()>,
}

/// The http thread's end: it waits for the one outcome.
pub struct Waiting {
    outcome: Receiver<Outcome>,
    _alive: Arc<()>,
}

/// Makes the two ends of one answer.
pub fn pair() -> (Pending, Waiting) {
    let (sender, receiver) = bounded(1);
    let alive = Arc::new(());
    let pending = Pending { answer: Some(sender), waiting: Arc::downgrade(&alive) };
    (pending, Waiting { outcome: receiver, _alive: alive })
}

impl Pending {
    /// Gives the caller its outcome. A caller that has gone away in the meantime is no fault.
    pub fn answer(mut self, outcome: Outcome) {
        self.send(outcome);
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.waiting.strong_count() == 0
    }

    fn send(&mut self, outcome: Outcome) {
        if let Some(sender) = self.answer.take() {
            // The channel holds one and is used once, so this fails only where the other end is gone.
            drop(sender.try_send(outcome));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.send(Outcome::Unavailable(Reason::Stopping));
    }
}

impl Waiting {
    /// Waits for the outcome until `deadline`; `None` where it did not come in time.
    pub fn wait_until(&self, deadline: Instant) -> Option<Outcome> {
        match self.outcome.recv_deadline(deadline) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            // Cannot be: `Pending` answers before it lets go of its sender.
            Err(RecvTimeoutError::Disconnected) => Some(Outcome::Unavailable(Reason::Stopping)),
        }
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
    fn a_caller_who_went_away_is_seen() {
        let (pending, waiting) = pair();
        assert!(!pending.is_abandoned());
        drop(waiting);
        assert!(pending.is_abandoned());
        pending.answer(Outcome::InProgress);
    }
}
