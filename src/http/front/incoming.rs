//! What comes in on a connection: reads with a deadline, through one small buffer that lives as long as the connection.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Malformed;
use super::places::Open;

/// The longest head, in bytes, and so the most that the buffer holds.
pub(super) const HEAD_MAX: usize = 16 * 1024;

/// What the buffer of an idle connection holds. It is most of what such a connection costs.
const IDLE_SIZE: usize = 4 * 1024;

/// The most by which a body grows before more of it has come: a declared length reserves nothing.
const STEP: usize = 64 * 1024;

/// Why a request did not come to its end.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    /// It has no meaning: say so and close.
    Malformed(Malformed),
    /// The connection broke: nobody listens.
    Broken,
    /// The client closed its side.
    Ended,
}

impl From<Malformed> for Cut {
    fn from(what: Malformed) -> Cut {
        Cut::Malformed(what)
    }
}

/// The incoming half of a connection.
pub(super) struct Incoming {
    open: Arc<Open>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    /// `keep_alive` is how long one wait for a request may last.
    pub(super) fn new(open: Arc<Open>, keep_alive: Duration) -> io::Result<Incoming> {
        // It is set once: reads that have a nearer deadline wait in `poll` instead, which saves a system call per request.
        open.socket.set_read_timeout(Some(keep_alive))?;
        Ok(Incoming { open, buffer: vec![0; IDLE_SIZE], start: 0, end: 0 })
    }

    /// What was read and not yet consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether nothing waits in the buffer.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Drops the first `count` bytes of what is buffered.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Waits for the first byte of a request, at most for the connection's `keep_alive`. False at the end of it.
    pub(super) fn begin(&mut self) -> bool {
        self.make_room();
        loop {
            match (&self.open.socket).read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return read > 0;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Reads more into the buffer, which the caller has seen to be shorter than [`HEAD_MAX`].
    pub(super) fn more(&mut self, deadline: Instant) -> Result<(), Cut> {
        self.make_room();
        self.end += read_by(&self.open, &mut self.buffer[self.end..], deadline)?;
        Ok(())
    }

    /// Moves `count` bytes to the end of `body`: those in the buffer first, the rest straight from the connection.
    pub(super) fn append(
        &mut self,
        body: &mut Vec<u8>,
        count: usize,
        deadline: Instant,
    ) -> Result<(), Cut> {
        let whole = body.len() + count;
        let here = count.min(self.buffered().len());
        body.reserve(count.min(STEP));
        body.extend_from_slice(&self.buffered()[..here]);
        self.consume(here);
        while body.len() < whole {
            let have = body.len();
            body.resize(whole.min(have + STEP), 0);
            let read = read_by(&self.open, &mut body[have..], deadline)?;
            body.truncate(have + read);
        }
        Ok(())
    }

    /// Gives back what a long head made the buffer grow by.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.buffer.len() > IDLE_SIZE {
            self.buffer.truncate(IDLE_SIZE);
            self.buffer.shrink_to_fit();
        }
    }

    /// Reads and forgets up to `limit` bytes until the client closes or `deadline`.
    ///
    /// Closing a socket with unread bytes in it resets the connection, and the client may lose the answer before it has
    /// read it.
    pub(super) fn discard(&mut self, limit: usize, deadline: Instant) {
        let mut left = limit;
        self.start = 0;
        while left > 0 {
            match read_by(&self.open, &mut self.buffer, deadline) {
                Ok(read) => left = left.saturating_sub(read),
                Err(_) => return,
            }
        }
    }

    fn make_room(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize((self.buffer.len() * 2).min(HEAD_MAX), 0);
        }
    }
}

fn read_by(open: &Open, into: &mut [u8], deadline: Instant) -> Result<usize, Cut> {
    loop {
        if !ready_by(open, PollFlags::POLLIN, deadline).map_err(|_| Cut::Broken)? {
            return Err(Malformed::Timeout.into());
        }
        match (&open.socket).read(into) {
            Ok(0) => return Err(Cut::Ended),
            Ok(read) => return Ok(read),
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => return Err(Cut::Broken),
        }
    }
}

/// Waits until the socket is ready, or broken. False where it is neither at `deadline`.
pub(super) fn ready_by(open: &Open, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut sockets = [PollFd::new(open.socket.as_fd(), flags)];
        match poll(&mut sockets, poll_timeout(left)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// In whole milliseconds, rounded up, so that a wait does not end before its time.
pub(super) fn poll_timeout(wait: Duration) -> PollTimeout {
    PollTimeout::try_from(wait + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
}
