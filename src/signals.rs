//! Signals and the service manager.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals as Incoming};

use crate::observe;
use crate::threads::{self, Deaths, Thread};

/// The exit code of a process that a second signal stopped at once.
const STOPPED_AT_ONCE: i32 = 70;

/// Signals that wait to be looked at; further ones are repeats.
const QUEUE: usize = 8;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, SIGINT: stop in order.
    Stop,
    /// SIGHUP: read secrets and principals anew.
    Reload,
}

/// The thread that turns signals into messages.
pub struct Signals {
    handle: Handle,
    thread: Thread,
}

/// A flag that is raised by the first signal that asks to stop; the second one ends the process at once, with 70. For
/// commands; the daemon has more to listen to.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    stop_on(&[SIGTERM, SIGINT, SIGHUP])
}

fn stop_on(signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // In this order: the flag that the first one raises arms the exit for the second.
        flag::register_conditional_shutdown(signal, STOPPED_AT_ONCE, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

impl Signals {
    /// Takes SIGTERM, SIGINT and SIGHUP from now on. A second one that asks to stop ends the process at once, with 70.
    pub fn listen(deaths: &Deaths) -> io::Result<(Signals, Receiver<Signal>)> {
        stop_on(&[SIGTERM, SIGINT])?;
        let mut incoming = Incoming::new([SIGTERM, SIGINT, SIGHUP])?;
        let handle = incoming.handle();
        let (sender, inbox): (Sender<Signal>, _) = bounded(QUEUE);
        let thread = threads::spawn("signals", deaths, move || {
            for number in incoming.forever() {
                let signal = if number == SIGHUP { Signal::Reload } else { Signal::Stop };
                sender.try_send(signal).ok();
            }
        })?;
        Ok((Signals { handle, thread }, inbox))
    }

    /// Ends the thread.
    pub fn close(self, deadline: std::time::Instant) {
        self.handle.close();
        self.thread.join(deadline).ok();
    }
}

/// Tells the service manager that the listeners accept.
pub fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// Tells the service manager that the daemon drains.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Tells the service manager that every part makes progress.
pub fn pet_watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// How often the service manager wants to hear of progress at least, if at all.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        observe::service_manager_deaf(&error);
    }
}
