//! Every fact worth telling, in one place: the words and fields of its log line, its level, and its metric.
//!
//! Actors say what happened by calling a function of this module; none formats a log line of its own. Names of fields
//! are fixed here: `request_id, scope, operation, event_id, event_key, attempt, status, elapsed_ms`. Idempotency keys
//! are the callers' data: they are logged at `debug` only, and never become a label.

mod log;
mod metrics;
mod recent;

pub use log::{check_filter, start_log};
pub use metrics::{METRICS, METRICS_CONTENT_TYPE, Metrics, metrics_text};
pub use recent::{Answered, recent_requests, request_history};

/// A thread died by a panic: the daemon stops.
pub fn thread_died(died: &crate::threads::Died) {
    tracing::error!(thread = died.thread, panic = died.panic, "a thread died; stopping");
}

/// The role or the database has a `synchronous_commit` under which an answer could be lost; our sessions have `on`.
pub fn synchronous_commit_raised(lower: &str) {
    tracing::warn!(
        found = lower,
        "synchronous_commit is lower than on for this role or database; onced's sessions have it on"
    );
}

/// An operation does not fit the database: it answers 500 until it does, and the others go on.
pub fn operation_does_not_fit(operation: &str, problem: &dyn std::fmt::Display) {
    tracing::error!(operation, %problem, "an operation does not fit the database; its calls fail");
}

/// A call came to nothing by a fault. The whole text of the fault is here and only here.
pub fn call_failed(request_id: &str, call: &crate::call::Call, fault: &crate::outcome::Fault) {
    let (scope, operation) = (call.scope.as_str(), call.operation.name.as_str());
    if fault.kind == crate::outcome::FaultKind::Broken {
        tracing::error!(request_id, scope, operation, %fault, "a call failed");
    } else {
        tracing::warn!(request_id, scope, operation, %fault, "a call could not be served now");
    }
}

/// An operation raised a refusal. The caller gets its SQLSTATE; what the database said is here and only here.
pub fn call_refused(request_id: &str, call: &crate::call::Call, reason: &crate::outcome::Fault) {
    let (scope, operation) = (call.scope.as_str(), call.operation.name.as_str());
    tracing::info!(request_id, scope, operation, %reason, "a call was refused");
}

/// A call is run again after a fault that this may help against.
pub fn call_runs_again(request_id: &str, call: &crate::call::Call, fault: &crate::outcome::Fault) {
    let (scope, operation) = (call.scope.as_str(), call.operation.name.as_str());
    tracing::debug!(request_id, scope, operation, %fault, "a call runs again");
}

/// A writer got no connection, or the server has no room for a write. The prober tells at once and once.
pub fn database_takes_nothing(fault: &crate::outcome::Fault) {
    tracing::debug!(%fault, "the database takes no writes now");
}

/// A record was made by a fingerprint recipe that this program does not know.
pub fn recipe_unknown(request_id: &str, stored_hash: &str) {
    let recipe = crate::call::fingerprint::recipe_name(stored_hash);
    tracing::error!(
        request_id,
        recipe,
        "a record was made by an unknown fingerprint recipe; a newer onced made it"
    );
}

/// A listener could not take a connection; it goes on. `times` is how often since this was said last.
pub fn accept_failed(listener: &str, error: &std::io::Error, times: u64) {
    tracing::warn!(listener, %error, times, "a connection could not be taken; going on");
}

/// As many clients as may be are being served, and more came. `times` is how often since this was said last.
pub fn clients_turned_away(listener: &str, limit: usize, times: u64) {
    tracing::warn!(listener, limit, times, "clients were turned away: every place is taken");
}

/// A request made the program panic: it was answered 500, and the daemon goes on.
pub fn request_panicked(listener: &str, panic: &str) {
    tracing::error!(listener, panic, "a request made its thread panic; it was answered 500");
}

/// A request was answered with the outcome of a call.
pub fn answered(answered: Answered) {
    let Answered { operation, request_id, outcome, status, elapsed, .. } = &answered;
    let operation = operation.name.as_str();
    METRICS.requests.with_label_values(&[operation, *outcome]).inc();
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(%request_id, operation, outcome, status, elapsed_ms, "answered");
    recent::note(answered);
}

/// A request to an operation was refused for its form: nothing was looked up.
pub fn request_invalid(answered: Answered, detail: &str) {
    let Answered { operation, request_id, outcome, .. } = &answered;
    let operation = operation.name.as_str();
    METRICS.requests.with_label_values(&[operation, *outcome]).inc();
    tracing::debug!(%request_id, operation, detail, "a request was not valid");
    recent::note(answered);
}

/// A look-up of a stored outcome failed.
pub fn look_up_failed(request_id: &str, fault: &crate::outcome::Fault) {
    tracing::warn!(request_id, %fault, "a look-up failed");
}

/// Whether a fault that came `times` times in a row is worth another line: the first, the second, the fourth…
fn is_news(times: u32) -> bool {
    times.is_power_of_two()
}

/// The sink took an event.
pub fn event_delivered(event_id: i64, event_key: &str) {
    METRICS.delivery_attempts.with_label_values(&["accepted"]).inc();
    tracing::debug!(event_id, event_key, "event delivered");
}

/// An attempt that was begun failed; [`event_failed`] or [`event_dead`] tells what it means for the event.
pub fn attempt_failed() {
    METRICS.delivery_attempts.with_label_values(&["failed"]).inc();
}

/// The sink could not be reached, so the attempt was not begun.
pub fn attempt_not_begun() {
    METRICS.delivery_attempts.with_label_values(&["sink_fault"]).inc();
}

/// A failed attempt was recorded. The first two are nothing special.
pub fn event_failed(event_key: &str, attempt: i32, error: &str) {
    if attempt < 3 {
        tracing::debug!(event_key, attempt, error, "attempt failed; it will be tried again");
    } else {
        tracing::warn!(event_key, attempt, error, "attempt failed; it will be tried again");
    }
}

/// An event is dead until a person decides.
pub fn event_dead(event_key: &str, attempt: i32, error: &str) {
    tracing::error!(
        event_key,
        attempt,
        error,
        "event is dead: see `onced outbox list`, then retry or discard it"
    );
}

/// An event was written by a later version.
pub fn event_format_unknown(event_id: i64, error: &str) {
    tracing::warn!(event_id, error, "event left to a daemon of a later version");
}

/// The sink as a whole cannot be reached, for the `times`-th time in a row.
pub fn sink_unreachable(error: &str, pause: std::time::Duration, times: u32) {
    METRICS.sink_reachable.set(0);
    if is_news(times) {
        let pause_ms = pause.as_millis();
        tracing::warn!(
            error,
            pause_ms,
            times,
            "the sink cannot be reached; no event is charged for it"
        );
    }
}

/// The sink answers after it could not be reached.
pub fn sink_answers_again() {
    METRICS.sink_reachable.set(1);
    tracing::info!("the sink answers again");
}

/// The sink said 410: it is paused until a person resumes it.
pub fn sink_gone(error: &str) {
    METRICS.sink_paused.set(1);
    tracing::error!(
        error,
        "the sink says that it is gone: paused, its events stay; `onced relay resume` goes on"
    );
}

/// The sink was found paused, or not paused any more.
pub fn sink_pause_seen(is_paused: bool) {
    METRICS.sink_paused.set(i64::from(is_paused));
    if is_paused {
        tracing::error!("the sink is paused: its events stay until `onced relay resume`");
    } else {
        tracing::info!("the sink is not paused any more");
    }
}

/// Events could not be claimed, for the `times`-th time in a row.
pub fn claim_failed(fault: &crate::outcome::Fault, times: u32) {
    if is_news(times) {
        tracing::warn!(%fault, times, "cannot claim events; trying again");
    }
}

/// Results could not be written, for the `times`-th time in a row. Nothing is claimed meanwhile.
pub fn settle_failed(fault: &crate::outcome::Fault, times: u32) {
    if is_news(times) {
        tracing::warn!(%fault, times, "cannot record deliveries; trying again");
    }
}

/// The daemon stops without having written so many results.
pub fn settle_given_up(events: usize) {
    tracing::error!(
        events,
        "stopping while deliveries are not recorded: these events come again after their lease"
    );
}

/// Retention took rows away.
pub fn pruned(table: &'static str, rows: u64) {
    METRICS.pruned.with_label_values(&[table]).inc_by(rows);
    if rows > 0 {
        tracing::info!(table, rows, "pruned");
    }
}

/// Retention could not go on, for the `times`-th time in a row.
pub fn prune_failed(fault: &crate::outcome::Fault, times: u32) {
    if is_news(times) {
        tracing::warn!(%fault, times, "cannot prune; trying again");
    }
}

/// What waits in the outbox.
pub fn backlog(pending: i64, oldest_seconds: i64, dead: i64) {
    METRICS.outbox_pending.set(pending);
    METRICS.outbox_oldest_seconds.set(oldest_seconds);
    METRICS.outbox_dead.set(dead);
}

/// The daemon serves.
pub fn started(http: &str, admin: &str, config: &crate::config::Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let operations =
        config.operations.iter().map(|operation| operation.name.as_str()).collect::<Vec<_>>();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = %config.file.display(),
        http,
        admin,
        operations = operations.join(","),
        principals = config.principals.len(),
        "onced serves"
    );
}

/// The daemon started, and the database does not answer yet.
pub fn started_without_database(fault: &crate::outcome::Fault) {
    tracing::warn!(%fault, "the database does not answer; starting all the same");
}

/// The database answers, takes writes, and its schema fits.
pub fn database_ready() {
    tracing::info!("the database is ready");
}

/// The database cannot be worked with.
pub fn database_lost(reason: &str) {
    tracing::warn!(reason, "not ready");
}

/// A signal asked to stop.
pub fn stopping(within: std::time::Duration) {
    tracing::info!(within_s = within.as_secs(), "stopping; a second signal stops at once");
}

/// The daemon has stopped; `left` are the threads that still ran at the deadline.
pub fn stopped(left: &[String]) {
    if left.is_empty() {
        tracing::info!("stopped in order");
    } else {
        let threads = left.join(",");
        tracing::error!(
            threads,
            "stopped at the end of shutdown_timeout with threads still running"
        );
    }
}

/// A thread makes no progress: the watchdog is not fed.
pub fn thread_stuck(thread: &str) {
    tracing::error!(thread, "a thread makes no progress; the watchdog is not fed");
}

/// Principals, secrets and the admin token were read anew.
pub fn reloaded(needs_restart: &[String]) {
    tracing::info!("principals, the sink's secrets and the admin token were read anew");
    for key in needs_restart {
        tracing::warn!(key, "changed in the configuration; it takes effect at the next start");
    }
}

/// The configuration could not be read anew: what was in force stays in force.
pub fn reload_refused(problems: &crate::config::Problems) {
    tracing::error!(%problems, "the configuration has problems; the one in force stays in force");
}

/// The service manager cannot be told anything.
pub fn service_manager_deaf(error: &std::io::Error) {
    tracing::debug!(%error, "the service manager could not be notified");
}

/// An operator did something through the admin listener. `what` has the ids or the reason; `who` is what they said.
pub fn operator_acted(action: &'static str, who: &str, what: &str, request_id: &str) {
    tracing::info!(action, who, what, request_id, "an operator acted");
}

/// The database did not answer an operator's question.
pub fn operator_question_failed(request_id: &str, fault: &crate::outcome::Fault) {
    tracing::warn!(request_id, %fault, "an operator's question failed");
}
