//! A publisher: it takes one leased event at a time, makes the attempt, and hands on what came of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use fail::fail_point;

use super::backoff::Backoff;
use super::body::{self, BodyError};
use super::settler::{Settled, Settlement};
use super::sink::{Delivery, Webhook};
use super::{Leased, Shared};
use crate::observe;
use crate::store::events::{Claim, Failure, Fate, GivenBack};
use crate::threads::{self, Pulse, Stop};

/// The longest `last_error`, in characters.
const ERROR_CHARS: usize = 500;

/// When an event in a format of a later version is looked at again: by then another daemon may have sent it.
const FORMAT_WAIT: Duration = Duration::from_secs(60);

pub(super) struct Publisher {
    pub(super) ready: Receiver<Leased>,
    pub(super) settle: Sender<Settlement>,
    pub(super) webhook: Arc<Webhook>,
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Duration,
    pub(super) max_attempts: u32,
    pub(super) backoff: Backoff,
    pub(super) stop: Stop,
    pub(super) pulse: Pulse,
}

impl Publisher {
    /// Runs until the claimer is gone and nothing is left.
    pub(super) fn run(self) {
        while let Ok(leased) = self.ready.recv() {
            if self.ready.len() <= self.shared.low_water.load(Ordering::Relaxed) {
                self.shared.ring();
            }
            let ordered = leased.claim.ordered;
            let settled = self.publish(&leased);
            // The settler outlives the publishers; where it has died the daemon is stopping and the leases run out.
            drop(self.settle.send(Settlement { settled, ordered }));
        }
    }

    fn publish(&self, leased: &Leased) -> Settled {
        fail_point!("relay::mid_batch", |_| std::process::abort());
        let claim = &leased.claim;
        if threads::is_stopping(&self.stop) || !self.shared.health.may_begin() {
            return give_back(claim, Duration::ZERO);
        }
        // The attempt must be over while the event is still ours, or two might speak to the sink about it at once.
        if leased.until.saturating_duration_since(Instant::now()) <= self.timeout {
            self.shared.health.not_probed();
            return give_back(claim, Duration::ZERO);
        }
        let body = match body::build(&claim.event) {
            Ok(body) => body,
            Err(error @ BodyError::UnknownFormat(_)) => {
                observe::event_format_unknown(claim.event.id, &error.to_string());
                self.shared.health.not_probed();
                return give_back(claim, FORMAT_WAIT);
            }
            Err(error @ BodyError::EventKey) => {
                self.shared.health.not_probed();
                return Settled::Failed(failure(
                    claim,
                    &error.to_string(),
                    Duration::ZERO,
                    Fate::Dead,
                ));
            }
        };
        self.pulse.busy();
        let delivery = self.webhook.deliver(&claim.event.event_key, &body);
        self.pulse.idle();
        fail_point!("relay::after_publish", |_| std::process::abort());
        self.shared.ended.fetch_add(1, Ordering::Relaxed);
        self.judge(claim, delivery)
    }

    fn judge(&self, claim: &Claim, delivery: Delivery) -> Settled {
        if !matches!(delivery, Delivery::Unreachable { .. }) && self.shared.health.answered() {
            observe::sink_answers_again();
            self.shared.ring();
        }
        match delivery {
            Delivery::Accepted => {
                observe::event_delivered(claim.event.id, &claim.event.event_key);
                Settled::Sent(claim.event.id)
            }
            Delivery::Failed { reason, retry_after } => {
                observe::attempt_failed();
                let (failures, chance) = (claim.failures, fastrand::f64());
                let delay = match retry_after {
                    Some(asked) => self.backoff.after_asked(failures, chance, asked),
                    None => self.backoff.after(failures, chance),
                };
                let is_last = failures.saturating_add(1) >= self.max_attempts;
                let fate = if is_last { Fate::Dead } else { Fate::Retry };
                Settled::Failed(failure(claim, &reason, delay, fate))
            }
            Delivery::Gone { reason } => {
                observe::attempt_failed();
                self.shared.health.gone();
                Settled::Gone(failure(claim, &reason, Duration::ZERO, Fate::Spared))
            }
            Delivery::Unreachable { reason } => {
                if let Some((pause, times)) =
                    self.shared.health.fault(Instant::now(), fastrand::f64())
                {
                    observe::sink_unreachable(&one_line(&reason), pause, times);
                }
                observe::attempt_not_begun();
                self.shared.ring();
                give_back(claim, Duration::ZERO)
            }
        }
    }
}

fn give_back(claim: &Claim, delay: Duration) -> Settled {
    Settled::GivenBack(GivenBack { id: claim.event.id, number: claim.number, delay })
}

fn failure(claim: &Claim, reason: &str, delay: Duration, fate: Fate) -> Failure {
    Failure {
        id: claim.event.id,
        number: claim.number,
        attempts: claim.attempts,
        delay,
        error: one_line(reason),
        fate,
    }
}

/// What a sink said, fit for a column, a log and a terminal: bounded, control characters escaped.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (count, char) in text.chars().enumerate() {
        if count == ERROR_CHARS {
            line.push('…');
            break;
        }
        match char.is_control() {
            true => line.extend(char.escape_default()),
            false => line.push(char),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sink_says_is_bounded_and_cannot_control_a_terminal() {
        assert_eq!(one_line("a\0b\x1b[31m\r\né"), "a\\u{0}b\\u{1b}[31m\\r\\né");
        assert_eq!(one_line(&"é".repeat(ERROR_CHARS)).chars().count(), ERROR_CHARS);
        assert_eq!(one_line(&"é".repeat(9999)).chars().count(), ERROR_CHARS + 1);
    }
}
