//! Every thread of the daemon starts here: it has a name, a panic does not end it silently, and whoever owns it can
//! wait for its end until a deadline.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, never, select};

/// A thread that ended by a panic: the daemon stops in order and exits with a non-zero code.
#[derive(Clone, Debug)]
pub struct Died {
    /// The thread's name.
    pub thread: String,
    /// What the panic said.
    pub panic: String,
}

/// Where threads report a death. The main thread owns the other end.
pub type Deaths = Sender<Died>;

/// A running thread and the means to wait for its end.
pub struct Thread {
    name: String,
    handle: JoinHandle<()>,
    alive: Receiver<Infallible>,
}

/// Starts a thread with a name (Linux shows the first 15 bytes) and a fence: a panic is reported to `deaths`.
pub fn spawn(
    name: impl Into<String>,
    deaths: &Deaths,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    let name = name.into();
    let (keep, alive) = bounded::<Infallible>(0);
    let deaths = deaths.clone();
    let thread = name.clone();
    let fenced = move || {
        let _keep = keep;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            // A full channel means that other deaths are waiting already: the daemon is stopping.
            drop(deaths.try_send(Died { thread, panic: panic_text(panic.as_ref()) }));
        }
    };
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
    let handle = Builder::new().name(name.clone()).spawn(fenced)?;
    Ok(Thread { name, handle, alive })
}

/// Starts a thread that nobody joins by itself, on a stack of `stack` bytes: one connection's. `body` must carry what
/// its owner counts it by.
pub fn spawn_small(
    name: String,
    stack: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
    Builder::new().name(name).stack_size(stack).spawn(body).map(drop)
}

impl Thread {
    /// Waits for the thread's end. Returns its name where it still runs at `deadline`.
    pub fn join(self, deadline: Instant) -> Result<(), String> {
        match self.alive.recv_deadline(deadline) {
            Err(RecvTimeoutError::Timeout) => Err(self.name),
            Err(RecvTimeoutError::Disconnected) | Ok(_) => {
                // The fence caught any panic of the body and told the main thread.
                drop(self.handle.join());
                Ok(())
            }
        }
    }
}

/// Joins all of them until one deadline; returns the names of those that still run.
pub fn join_all(threads: impl IntoIterator<Item = Thread>, deadline: Instant) -> Vec<String> {
    threads.into_iter().filter_map(|thread| thread.join(deadline).err()).collect()
}

/// The text of a panic's payload.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Closed when the daemon stops: nothing is ever sent, its closing is the message.
pub type Stop = Receiver<Infallible>;

/// Whether `stop` has been closed.
pub fn is_stopping(stop: &Stop) -> bool {
    stop.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
}

/// Waits until `stop` closes, at most `wait`. True where it closed.
pub fn stops_within(stop: &Stop, wait: Duration) -> bool {
    stop.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected)
}

/// Runs `pass` until `stop` closes. A pass returns how long to wait for the next; a ring of `bell` cuts that short.
///
/// The bell is emptied before the pass looks at the database, so a commit that rings during a pass is seen by the next.
pub fn run_passes(stop: &Stop, bell: Option<&Receiver<()>>, mut pass: impl FnMut() -> Duration) {
    let silent = never();
    let bell = bell.unwrap_or(&silent);
    let mut wait = Duration::ZERO;
    loop {
        select! {
            recv(stop) -> _ => return,
            recv(bell) -> rung => if rung.is_err() { return },
            default(wait) => {}
        }
        if is_stopping(stop) {
            return;
        }
        wait = pass();
    }
}

/// Whether a thread makes progress: busy with one piece of work, and since when, or idle. The watchdog reads it.
#[derive(Clone)]
pub struct Pulse {
    name: String,
    limit: Duration,
    origin: Instant,
    /// Milliseconds after `origin` at which the piece of work began, plus one; 0 where idle.
    busy_since: Arc<AtomicU64>,
}

impl Pulse {
    /// A thread that counts as stuck when one piece of its work takes longer than `limit`.
    pub fn new(name: impl Into<String>, limit: Duration) -> Pulse {
        Pulse { name: name.into(), limit, origin: Instant::now(), busy_since: Arc::default() }
    }

    /// A piece of work begins.
    pub fn busy(&self) {
        self.busy_since.store(millis(self.origin.elapsed()) + 1, Ordering::Relaxed);
    }

    /// There is nothing to do.
    pub fn idle(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// The name of the thread, where it is stuck.
    pub fn stuck(&self) -> Option<&str> {
        let since = self.busy_since.load(Ordering::Relaxed);
        let busy_for = (millis(self.origin.elapsed()) + 1).saturating_sub(since);
        (since > 0 && busy_for > millis(self.limit)).then_some(self.name.as_str())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_panic_is_reported_with_the_name_of_its_thread() {
        let (deaths, died) = bounded(4);
        let thread = spawn("doomed", &deaths, || panic!("out of tea")).unwrap();
        assert_eq!(thread.join(deadline()), Ok(()));
        let death = died.try_recv().unwrap();
        assert_eq!((death.thread.as_str(), death.panic.as_str()), ("doomed", "out of tea"));
    }

    #[test]
    fn a_thread_that_does_not_end_is_named_at_the_deadline() {
        let (deaths, _died) = bounded(4);
        let (stop, stopped) = bounded::<Infallible>(0);
        let thread = spawn("slow", &deaths, move || assert!(stopped.recv().is_err())).unwrap();
        assert_eq!(thread.join(Instant::now()), Err("slow".to_owned()));
        drop(stop);
    }

    #[test]
    fn a_ring_cuts_the_wait_short_and_closing_stop_ends_the_loop() {
        let (stop, stopped) = bounded::<Infallible>(0);
        let (ring, bell) = bounded(1);
        let (deaths, _died) = bounded(1);
        let (passed, passes) = bounded(0);
        let looping = spawn("poller", &deaths, move || {
            run_passes(&stopped, Some(&bell), || {
                passed.send(()).unwrap_or_default();
                Duration::from_secs(3600)
            });
        })
        .unwrap();
        passes.recv_deadline(deadline()).unwrap();
        ring.send(()).unwrap();
        passes.recv_deadline(deadline()).unwrap();
        drop(stop);
        assert_eq!(looping.join(deadline()), Ok(()));
    }

    #[test]
    fn a_pulse_is_stuck_only_while_busy_past_its_limit() {
        let pulse = Pulse::new("writer-0", Duration::ZERO);
        assert_eq!(pulse.stuck(), None);
        pulse.busy();
        while pulse.stuck().is_none() {
            std::hint::spin_loop();
        }
        assert_eq!(pulse.stuck(), Some("writer-0"));
        pulse.idle();
        assert_eq!(pulse.stuck(), None);
    }
}
