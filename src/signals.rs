//! Signals and the service manager.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of a process that a second signal stopped at once.
const STOPPED_AT_ONCE: i32 = 70;

/// A flag that is raised by the first signal that asks to stop; the second one ends the process at once, with 70. For
/// commands; the daemon has more to listen to.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        // In this order: the flag that the first one raises arms the exit for the second.
        flag::register_conditional_shutdown(signal, STOPPED_AT_ONCE, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
