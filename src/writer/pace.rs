//! How long each operation takes, as a moving average: one that is known to be slow is not put into a batch, where its
//! neighbours would wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::operations::Operation;

/// An operation is slow from here on.
const SLOW: Duration = Duration::from_millis(20);

/// Each measurement moves the average by one part in this many.
const WEIGHT: u64 = 8;

/// The moving average of each operation, in microseconds. Writers share it; a lost update costs nothing.
pub(super) struct Paces(HashMap<String, AtomicU64>);

impl Paces {
    pub(super) fn new(operations: &[Arc<Operation>]) -> Paces {
        Paces(operations.iter().map(|o| (o.name.clone(), AtomicU64::new(0))).collect())
    }

    pub(super) fn is_slow(&self, operation: &Operation) -> bool {
        self.average(operation)
            .is_some_and(|average| u128::from(average.load(Ordering::Relaxed)) >= SLOW.as_micros())
    }

    /// Learns how long one run took.
    pub(super) fn took(&self, operation: &Operation, time: Duration) {
        if let Some(average) = self.average(operation) {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / WEIGHT);
            let old = average.load(Ordering::Relaxed);
            average.store(old - old / WEIGHT + micros / WEIGHT, Ordering::Relaxed);
        }
    }

    /// Learns that one run came to nothing: it goes alone for a while, as its failure costs its neighbours a second run.
    pub(super) fn failed(&self, operation: &Operation) {
        self.took(operation, SLOW * 4 * u32::try_from(WEIGHT).unwrap_or(u32::MAX));
    }

    fn average(&self, operation: &Operation) -> Option<&AtomicU64> {
        self.0.get(&operation.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Script;

    fn operation() -> Arc<Operation> {
        Arc::new(Operation {
            name: "orders".to_owned(),
            route: "/v1/orders".to_owned(),
            statement: Script { path: "orders.sql".into(), sql: "select 1".to_owned() },
            setup: None,
            timeout: None,
        })
    }

    #[test]
    fn an_operation_is_slow_after_slow_runs_and_quick_again_after_quick_ones() {
        let operation = operation();
        let paces = Paces::new(std::slice::from_ref(&operation));
        assert!(!paces.is_slow(&operation));
        paces.took(&operation, Duration::from_secs(1));
        assert!(paces.is_slow(&operation));
        for _ in 0..40 {
            paces.took(&operation, Duration::from_micros(100));
        }
        assert!(!paces.is_slow(&operation));
    }

    #[test]
    fn one_slow_outlier_of_modest_size_changes_nothing() {
        let operation = operation();
        let paces = Paces::new(std::slice::from_ref(&operation));
        paces.took(&operation, Duration::from_millis(100));
        assert!(!paces.is_slow(&operation));
    }

    #[test]
    fn an_operation_that_failed_goes_alone_for_a_while() {
        let operation = operation();
        let paces = Paces::new(std::slice::from_ref(&operation));
        paces.failed(&operation);
        assert!(paces.is_slow(&operation));
    }
}
