//! The metrics: named by Prometheus's conventions, registered once, shown from the start.

use std::sync::LazyLock;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// The metrics of the process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// The content type of [`metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The outcomes that `onced_requests_total` tells apart.
pub(super) const OUTCOMES: [&str; 8] = [
    "executed",
    "refused",
    "replayed",
    "reused",
    "in_progress",
    "invalid",
    "unavailable",
    "failed",
];

/// The results that `onced_delivery_attempts_total` tells apart.
const DELIVERIES: [&str; 3] = ["accepted", "failed", "sink_fault"];

/// Bounds of the buckets of a time, in seconds.
const SECONDS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bounds of the buckets of a batch's size.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// All metrics, registered once.
pub struct Metrics {
    registry: Registry,
    /// Requests by operation and outcome.
    pub requests: IntCounterVec,
    /// Seconds that a batch took in the database.
    pub write_seconds: Histogram,
    /// Jobs that a batch held.
    pub batch_size: Histogram,
    /// Jobs that wait for a writer.
    pub jobs_waiting: IntGauge,
    /// Duplicates that wait beside a key in work.
    pub parked: IntGauge,
    /// Whether the prober reaches the database.
    pub database_up: IntGauge,
    /// Events that wait for delivery.
    pub outbox_pending: IntGauge,
    /// Age of the oldest event that waits for delivery, in seconds.
    pub outbox_oldest_seconds: IntGauge,
    /// Dead events that nobody has decided about.
    pub outbox_dead: IntGauge,
    /// Whether the sink is paused.
    pub sink_paused: IntGauge,
    /// Whether the sink could be reached at the last attempt.
    pub sink_reachable: IntGauge,
    /// Attempts to deliver, by result.
    pub delivery_attempts: IntCounterVec,
    /// Rows that the pruner took away, by table.
    pub pruned: IntCounterVec,
    /// Connections open on a listener.
    pub connections: IntGaugeVec,
}

impl Metrics {
    fn new() -> Metrics {
        let registry = Registry::new();
        let metrics = Metrics::registered(registry);
        let build =
            gauges(&metrics.registry, "onced_build_info", "1, with the version.", &["version"]);
        metrics.sink_reachable.set(1);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        for result in DELIVERIES {
            metrics.delivery_attempts.with_label_values(&[result]).inc_by(0);
        }
        metrics
    }

    #[rustfmt::skip] // a table: one line for each metric
    fn registered(registry: Registry) -> Metrics {
        let r = &registry;
        Metrics {
            requests: counters(r, "onced_requests_total", "Requests to an operation, by what came of them.", &["operation", "outcome"]),
            write_seconds: histogram(r, "onced_write_seconds", "Time that one batch of writes took in the database.", SECONDS),
            batch_size: histogram(r, "onced_batch_size", "Requests that one batch of writes held.", SIZES),
            jobs_waiting: gauge(r, "onced_jobs_waiting", "Jobs that wait for a writer."),
            parked: gauge(r, "onced_parked_waiting", "Duplicates that wait beside a key in work."),
            database_up: gauge(r, "onced_database_up", "1 where the database answers and takes writes."),
            outbox_pending: gauge(r, "onced_outbox_pending", "Events that wait for delivery."),
            outbox_oldest_seconds: gauge(r, "onced_outbox_oldest_seconds", "Age of the oldest event that waits for delivery."),
            outbox_dead: gauge(r, "onced_outbox_dead", "Dead events that nobody has decided about."),
            sink_paused: gauge(r, "onced_sink_paused", "1 where the sink is paused until a person resumes it."),
            sink_reachable: gauge(r, "onced_sink_reachable", "1 where the sink could be reached at the last attempt."),
            delivery_attempts: counters(r, "onced_delivery_attempts_total", "Attempts to deliver an event, by result.", &["result"]),
            pruned: counters(r, "onced_pruned_total", "Rows that retention took away.", &["table"]),
            connections: gauges(r, "onced_connections", "Open connections of clients.", &["listener"]),
            registry,
        }
    }

    /// Requests to these operations since the start, summed by outcome.
    pub fn requests_by_outcome<'a>(
        &self,
        operations: &(impl Iterator<Item = &'a str> + Clone),
    ) -> [(&'static str, u64); OUTCOMES.len()] {
        OUTCOMES.map(|outcome| {
            let count = |operation| self.requests.with_label_values(&[operation, outcome]).get();
            (outcome, operations.clone().map(count).sum())
        })
    }

    /// Shows the known label sets from the start, so that a first event is a step and not a new series.
    pub fn show_operation(&self, operation: &str) {
        for outcome in OUTCOMES {
            self.requests.with_label_values(&[operation, outcome]).inc_by(0);
        }
    }
}

/// All metrics in Prometheus's text format.
pub fn metrics_text() -> String {
    let mut text = Vec::new();
    TextEncoder::new()
        .encode(&METRICS.registry.gather(), &mut text)
        .expect("metrics of our own are well-formed, and a vector takes every byte");
    String::from_utf8(text).expect("the text format is UTF-8")
}

const REGISTERED: &str = "each name is registered once, here, and is a valid one";

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    let metric = IntCounterVec::new(Opts::new(name, help), labels).expect(REGISTERED);
    registry.register(Box::new(metric.clone())).expect(REGISTERED);
    metric
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    let metric = IntGaugeVec::new(Opts::new(name, help), labels).expect(REGISTERED);
    registry.register(Box::new(metric.clone())).expect(REGISTERED);
    metric
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    let metric = IntGauge::new(name, help).expect(REGISTERED);
    registry.register(Box::new(metric.clone())).expect(REGISTERED);
    metric
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    let metric = Histogram::with_opts(opts).expect(REGISTERED);
    registry.register(Box::new(metric.clone())).expect(REGISTERED);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_label_sets_are_shown_before_anything_happened() {
        METRICS.show_operation("orders");
        let text = metrics_text();
        assert!(text.contains(r#"onced_requests_total{operation="orders",outcome="replayed"} 0"#));
        assert!(text.contains(r#"onced_delivery_attempts_total{result="failed"} 0"#));
        assert!(text.contains("onced_build_info{version="));
    }
}
