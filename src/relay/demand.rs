//! How many events to hold ready for the publishers. Pure.
//!
//! Enough that none waits for the database, and no more: what is held is leased, and another daemon could have sent it.

use std::time::{Duration, Instant};

/// So much work is held, in time.
const AHEAD: Duration = Duration::from_millis(250);

/// Measuring over less than this gives noise.
const SHORTEST_SAMPLE: Duration = Duration::from_millis(10);

/// Follows the speed of the publishers.
#[derive(Debug)]
pub(super) struct Demand {
    least: usize,
    most: usize,
    per_second: f64,
    measured_at: Instant,
    ended: u64,
}

impl Demand {
    /// Between `least`, one for each publisher, and `most`.
    pub(super) fn new(least: usize, most: usize, now: Instant) -> Demand {
        Demand { least, most: most.max(least), per_second: 0.0, measured_at: now, ended: 0 }
    }

    /// How many events to hold, where `ended` attempts have ended so far.
    pub(super) fn wanted(&mut self, ended: u64, now: Instant) -> usize {
        let took = now.saturating_duration_since(self.measured_at);
        if took >= SHORTEST_SAMPLE {
            let count = u32::try_from(ended.saturating_sub(self.ended)).unwrap_or(u32::MAX);
            let speed = f64::from(count) / took.as_secs_f64();
            // Up at once, down slowly: a lull is no sign that the sink has become slow.
            self.per_second = speed.max(self.per_second.mul_add(0.7, speed * 0.3));
            (self.measured_at, self.ended) = (now, ended);
        }
        let ahead = self.per_second * AHEAD.as_secs_f64();
        let most = u32::try_from(self.most).unwrap_or(u32::MAX);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between 0 and `most`"
        )]
        let ahead = ahead.clamp(0.0, f64::from(most)) as usize;
        ahead.max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_sink_has_much_held_for_it_and_a_slow_one_little() {
        let start = Instant::now();
        let mut demand = Demand::new(8, 100, start);
        assert_eq!(demand.wanted(0, start), 8);
        let second = Duration::from_secs(1);
        assert_eq!(demand.wanted(200, start + second), 50);
        assert_eq!(demand.wanted(100_000, start + second * 2), 100);
        for pause in 3..60 {
            demand.wanted(100_000, start + second * pause);
        }
        assert_eq!(demand.wanted(100_000, start + second * 60), 8);
    }
}
