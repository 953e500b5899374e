//! How long a failed attempt waits for the next. Pure: chance and time come from outside.

use std::time::{Duration, SystemTime};

/// The bounds of the waits.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The shortest.
    pub min: Duration,
    /// The longest, also of what a sink asks for.
    pub max: Duration,
}

impl Backoff {
    /// The wait after a failure that came after `failures` others: exponential with full jitter, so anywhere between
    /// `min` and a bound that doubles each time up to `max`. `chance` lies in 0 to 1.
    pub fn after(&self, failures: u32, chance: f64) -> Duration {
        let doublings = failures.saturating_add(1).min(31);
        let bound = self.min.saturating_mul(1 << doublings).min(self.max);
        let spread = bound.saturating_sub(self.min);
        (self.min + spread.mul_f64(chance.clamp(0.0, 1.0))).min(self.max)
    }

    /// As [`Backoff::after`], where the sink asked for `retry_after`: not earlier than that, whatever the chance, yet
    /// never past `max`. A little more than asked for, so that not all who were told the same come at one instant.
    pub fn after_asked(&self, failures: u32, chance: f64, retry_after: Duration) -> Duration {
        let asked = retry_after.saturating_add(self.min.mul_f64(chance.clamp(0.0, 1.0)));
        self.after(failures, chance).max(asked).min(self.max)
    }
}

/// What a sink asks for by `Retry-After` (RFC 9110, section 10.2.3): whole seconds, or a date. A date is held against
/// the sink's own `Date`, so that neither side's clock matters, and against `now` where the sink sent none. A date that
/// is over asks for nothing; what is neither is ignored.
pub fn parse_retry_after(value: &str, date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    let sent = date.and_then(|date| httpdate::parse_http_date(date.trim()).ok()).unwrap_or(now);
    Some(at.duration_since(sent).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff =
        Backoff { min: Duration::from_secs(1), max: Duration::from_secs(3600) };

    #[test]
    fn the_bound_doubles_up_to_the_longest_wait() {
        let bounds: Vec<u64> =
            (0..13).map(|failures| BACKOFF.after(failures, 1.0).as_secs()).collect();
        assert_eq!(bounds, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]);
        assert_eq!(BACKOFF.after(12, 0.0), BACKOFF.min);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Tue, 01 Dec 2026 09:30:00 GMT").unwrap();
        let parse = |value| parse_retry_after(value, None, now);
        assert_eq!(parse("3"), Some(Duration::from_secs(3)));
        assert_eq!(parse(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(parse("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(parse("Tue, 01 Dec 2026 09:30:03 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(parse("Tue, 01 Dec 2026 09:29:00 GMT"), Some(Duration::ZERO));
        for junk in ["", "-3", "+3", "3.5", "soon", "0x3", "3s"] {
            assert_eq!(parse(junk), None, "{junk}");
        }
    }

    #[test]
    fn a_date_is_held_against_the_clock_of_the_sink() {
        let wrong = SystemTime::UNIX_EPOCH;
        let value = "Tue, 01 Dec 2026 09:30:03 GMT";
        let date = Some("Tue, 01 Dec 2026 09:30:00 GMT");
        assert_eq!(parse_retry_after(value, date, wrong), Some(Duration::from_secs(3)));
    }

    proptest! {
        #[test]
        fn a_wait_stays_within_its_bounds(
            failures: u32,
            chance in -1.0f64..2.0,
            min_ms in 1u64..10_000,
            more_ms in 0u64..10_000_000,
        ) {
            let min = Duration::from_millis(min_ms);
            let backoff = Backoff { min, max: min + Duration::from_millis(more_ms) };
            let wait = backoff.after(failures, chance);
            prop_assert!(backoff.min <= wait && wait <= backoff.max);
        }

        #[test]
        fn what_is_asked_for_is_a_floor_up_to_the_longest_wait(
            failures: u32,
            chance in 0.0f64..1.0,
            asked_ms: u64,
        ) {
            let asked = Duration::from_millis(asked_ms);
            let wait = BACKOFF.after_asked(failures, chance, asked);
            prop_assert!(wait >= asked.min(BACKOFF.max) && wait <= BACKOFF.max);
        }
    }
}
