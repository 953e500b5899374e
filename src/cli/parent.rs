//! Not outliving whoever started us.

use std::io::{self, Read};

use crossbeam_channel::bounded;
use nix::sys::signal::{Signal, raise};

use crate::threads;

/// Watches standard input, the other end of which our parent holds and never writes to. When it closes, the parent is
/// gone, however it died, and this process stops as if it had been told to by SIGTERM.
pub(super) fn stop_when_gone() -> io::Result<()> {
    // A death of this thread would be a panic of the standard library.
    let (deaths, _died) = bounded(1);
    let watch = || {
        let mut ignored = [0; 64];
        let mut input = io::stdin().lock();
        // An error is as good as the end: there is nobody who could be watched.
        while input.read(&mut ignored).is_ok_and(|length| length > 0) {}
        raise(Signal::SIGTERM).ok();
    };
    threads::spawn("parent", &deaths, watch).map(drop)
}
