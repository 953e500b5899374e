//! Whether the daemon can do its work: one thread asks the database every second, and everybody who wants to know is
//! answered from what it heard last, never by waiting.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::observe::{self, METRICS};
use crate::outcome::Fault;
use crate::store::Store;
use crate::store::migrate::{SchemaProblem, check_schema};
use crate::store::outbox;
use crate::store::records::{Health, probe};
use crate::threads::{self, Deaths, Pulse, Stop, Thread};

/// How often the database is asked.
const EVERY: Duration = Duration::from_secs(1);

/// How often the backlog of the outbox is measured.
const BACKLOG_EVERY: Duration = Duration::from_secs(5);

/// How long the prober waits for a connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// A database that is silent for this long is as good as gone.
const SILENCE: Duration = Duration::from_secs(2);

/// What was heard longer ago is not known any more: the database may have gone silent since.
const STALE: Duration = Duration::from_secs(5);

/// One probe that takes longer than this is stuck.
const STUCK: Duration = Duration::from_secs(90);

/// What is known of the daemon's ability to work. Clones share it.
#[derive(Clone)]
pub struct Readiness(Arc<Mutex<State>>);

struct State {
    heard: Option<(Instant, Result<(), String>)>,
    stopping: bool,
}

impl Readiness {
    /// Nothing is known yet.
    pub fn new() -> Readiness {
        Readiness(Arc::new(Mutex::new(State { heard: None, stopping: false })))
    }

    /// Why the daemon is not ready, if it is not. The reason is for the operator.
    pub fn reason(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stopping {
            return Some("the daemon is stopping".to_owned());
        }
        match &state.heard {
            None => Some("the daemon is starting".to_owned()),
            Some((_, Err(reason))) => Some(reason.clone()),
            Some((at, Ok(()))) if at.elapsed() > STALE => {
                Some(format!("the database has not answered for {} s", at.elapsed().as_secs()))
            }
            Some((_, Ok(()))) => None,
        }
    }

    /// The daemon takes no more requests.
    pub fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
    }

    fn hear(&self, heard: &Result<(), String>) {
        METRICS.database_up.set(i64::from(heard.is_ok()));
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.heard.replace((Instant::now(), heard.clone())).map(|(_, result)| result);
        drop(state);
        match (&before, heard) {
            (Some(Err(before)), Err(now)) if before == now => {}
            (_, Err(reason)) => observe::database_lost(reason),
            (Some(Err(_)) | None, Ok(())) => observe::database_ready(),
            (Some(Ok(())), Ok(())) => {}
        }
    }
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness::new()
    }
}

/// Starts the thread.
pub fn start(
    store: Store,
    readiness: Readiness,
    stop: Stop,
    deaths: &Deaths,
) -> io::Result<(Thread, Pulse)> {
    let pulse = Pulse::new("prober", STUCK);
    let beating = pulse.clone();
    let mut backlog_due = Instant::now();
    let mut is_checked = false;
    let thread = threads::spawn("prober", deaths, move || {
        threads::run_passes(&stop, None, || {
            beating.busy();
            let measure_backlog = Instant::now() >= backlog_due;
            let heard = ask(&store, &mut is_checked, measure_backlog);
            if measure_backlog && heard.is_ok() {
                backlog_due = Instant::now() + BACKLOG_EVERY;
            }
            readiness.hear(&heard);
            beating.idle();
            EVERY
        });
    })?;
    Ok((thread, pulse))
}

/// Asks the database. The schema is looked at anew after every time that it was not there.
fn ask(store: &Store, is_checked: &mut bool, measure_backlog: bool) -> Result<(), String> {
    let asked = ask_all(store, is_checked, measure_backlog);
    *is_checked = asked.is_ok();
    asked
}

fn ask_all(store: &Store, is_checked: &mut bool, measure_backlog: bool) -> Result<(), String> {
    let lost = |fault: Fault| format!("the database does not answer: {fault}");
    let mut client = store.client(CONNECTION_WAIT).map_err(lost)?;
    client.answers_within(SILENCE);
    let refusal = match probe(&mut client).map_err(lost)? {
        Health::Writable => None,
        Health::Standby => Some("the database is a standby and takes no writes"),
        Health::ReadOnly => Some("the database is set to take no writes"),
    };
    if let Some(refusal) = refusal {
        // Another host may have taken over, and only a new connection finds it. Those that are open are in doubt now.
        client.discard();
        return Err(refusal.to_owned());
    }
    if !*is_checked {
        check_schema(&mut client).map_err(|problem: SchemaProblem| problem.to_string())?;
    }
    if measure_backlog {
        let backlog = outbox::backlog(&mut client).map_err(lost)?;
        observe::backlog(backlog.pending, backlog.oldest_seconds, backlog.dead);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_tells_why_it_is_not() {
        let readiness = Readiness::new();
        assert_eq!(readiness.reason().as_deref(), Some("the daemon is starting"));
        readiness.hear(&Ok(()));
        assert_eq!(readiness.reason(), None);
        readiness.hear(&Err("gone".to_owned()));
        assert_eq!(readiness.reason().as_deref(), Some("gone"));
        readiness.hear(&Ok(()));
        readiness.stop();
        assert_eq!(readiness.reason().as_deref(), Some("the daemon is stopping"));
    }
}
