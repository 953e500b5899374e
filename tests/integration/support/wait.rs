//! Waiting for a condition, never for time to pass.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine: reached only where the condition never comes.
pub const LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `look` gives a value. Fails with what it saw last, which is the error.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) => {
                assert!(
                    Instant::now() < deadline,
                    "waited in vain until {what}; seen last: {seen}"
                );
            }
        }
        pause(LOOK_EVERY);
    }
}

/// Waits until `look` gives `expected`.
pub fn until_eq<T: PartialEq + Debug>(what: &str, expected: &T, mut look: impl FnMut() -> T) {
    until(what, || {
        let seen = look();
        if seen == *expected { Ok(()) } else { Err(format!("{seen:?}, expected {expected:?}")) }
    });
}

/// Lets time pass: between two looks, or where time itself is what is tested.
pub fn pause(duration: Duration) {
    #[expect(clippy::disallowed_methods, reason = "nothing stops a test before its time")]
    std::thread::sleep(duration);
}
