//! The clock of a run.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::history::Micros;

/// The time now.
pub fn now() -> Micros {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(elapsed.as_micros()).expect("a clock before the year 290000")
}
