//! The connections of one listener that are open: how many there may be, which are idle, and what ends them.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::libc::{MSG_DONTWAIT, MSG_PEEK};
use prometheus::IntGauge;
use socket2::Socket;

/// A connection that was idle for less is probably about to send; it is not closed for a newcomer.
const IDLE_GRACE: Duration = Duration::from_millis(500);

/// How long a newcomer waits for the place of an idle connection that was told to close.
const HANDOVER: Duration = Duration::from_millis(100);

/// A request is being read, worked on or answered.
const BUSY: u64 = 0;
/// Idle, and told to close.
const CLOSING: u64 = 1;
/// Idle since the first millisecond; later ones count up from here.
const IDLE: u64 = 2;

/// The open connections of one listener.
///
/// The mutex is held for a moment when a connection opens and ends, never for a request: there a thread only changes
/// its own connection's state.
pub(super) struct Places {
    name: &'static str,
    limit: usize,
    origin: Instant,
    stopping: AtomicBool,
    table: Mutex<Table>,
    freed: Condvar,
    gauge: IntGauge,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Arc<Open>>,
}

/// One open connection, as its own thread and those who may end it see it.
pub(super) struct Open {
    /// Also the name of its thread.
    pub(super) name: String,
    pub(super) socket: Socket,
    /// `BUSY`, `CLOSING`, or `IDLE` plus the milliseconds after the table's origin since when it is.
    state: AtomicU64,
}

/// A place in the table, held by the thread of a connection; dropping it frees the place.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    pub(super) open: Arc<Open>,
}

impl Places {
    pub(super) fn new(name: &'static str, limit: usize, gauge: IntGauge) -> Places {
        Places {
            name,
            limit,
            origin: Instant::now(),
            stopping: AtomicBool::new(false),
            table: Mutex::default(),
            freed: Condvar::new(),
            gauge,
        }
    }

    /// Takes a place for a new connection. Where all are taken, the connection that has been idle for longest is closed
    /// first; where none is idle, the socket comes back.
    pub(super) fn take(self: &Arc<Self>, socket: Socket) -> Result<Place, Socket> {
        let mut table = self.lock();
        if table.open.len() >= self.limit {
            if !self.close_longest_idle(&table) {
                return Err(socket);
            }
            let full = |table: &mut Table| table.open.len() >= self.limit;
            let (after, waited) = self
                .freed
                .wait_timeout_while(table, HANDOVER, full)
                .unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Err(socket);
            }
            table = after;
        }
        table.next += 1;
        let number = table.next;
        let state = AtomicU64::new(self.idle_now());
        let open = Arc::new(Open { name: format!("{}-{number}", self.name), socket, state });
        table.open.insert(number, Arc::clone(&open));
        self.gauge.inc();
        Ok(Place { places: Arc::clone(self), number, open })
    }

    /// Closes the idle connections, and those that are busy after their answer.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for open in self.lock().open.values() {
            let state = open.state.load(Ordering::SeqCst);
            if state >= IDLE {
                open.close_idle(state);
            }
        }
    }

    /// Waits until no connection is open, at most until `deadline`. Returns the names of those that still are.
    pub(super) fn await_empty(&self, deadline: Instant) -> Vec<String> {
        let wait = deadline.saturating_duration_since(Instant::now());
        let (table, _) = self
            .freed
            .wait_timeout_while(self.lock(), wait, |table| !table.open.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        table.open.values().map(|open| open.name.clone()).collect()
    }

    fn close_longest_idle(&self, table: &Table) -> bool {
        let long_enough = self.idle_now().saturating_sub(millis(IDLE_GRACE));
        let longest = table
            .open
            .values()
            .map(|open| (open.state.load(Ordering::SeqCst), open))
            .filter(|(state, _)| (IDLE..=long_enough).contains(state))
            .min_by_key(|(state, _)| *state);
        longest.is_some_and(|(state, open)| open.close_idle(state))
    }

    fn idle_now(&self) -> u64 {
        IDLE + millis(self.origin.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Tells an idle connection to close, unless its state has changed since it was `state`. What the client had sent by
    /// then is still read and answered; after it the connection's thread sees the end.
    fn close_idle(&self, state: u64) -> bool {
        let was =
            self.state.compare_exchange(state, CLOSING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if was {
            // It fails where the client has gone already, which is the same end.
            drop(self.socket.shutdown(Shutdown::Read));
        }
        was
    }
}

impl Place {
    /// The connection waits for a request from now on.
    pub(super) fn idle(&self) {
        let state = self.places.idle_now();
        self.open.state.store(state, Ordering::SeqCst);
        // Either `stop` sees this connection idle, or this sees `stop`.
        if self.is_stopping() {
            self.open.close_idle(state);
        }
    }

    /// A request has begun. False where the connection has been told to close after it.
    pub(super) fn busy(&self) -> bool {
        self.open.state.swap(BUSY, Ordering::SeqCst) != CLOSING
    }

    /// Whether the listener is stopping: the answer under way is the connection's last.
    pub(super) fn is_stopping(&self) -> bool {
        self.places.stopping.load(Ordering::SeqCst)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().open.remove(&self.number);
        self.places.gauge.dec();
        self.places.freed.notify_all();
    }
}

/// The client at the other end of a connection.
pub struct Client {
    open: Arc<Open>,
    /// What the socket says about its end would not be the client's doing.
    is_there: bool,
}

impl Client {
    pub(super) fn new(open: Arc<Open>) -> Client {
        Client { open, is_there: false }
    }

    /// Takes the client to be there, or asks the socket: bytes of a next request that were read already, and an incoming
    /// half that this side has closed, hide from the socket what the client does.
    pub(super) fn set_is_there(&mut self, is_there: bool) {
        self.is_there = is_there;
    }

    /// Whether the client has closed its side or reset the connection. One system call that does not wait.
    ///
    /// A client that has sent more than this request is not gone. One that closed only its sending side looks gone too,
    /// so an answer is written in any case.
    pub fn is_gone(&self) -> bool {
        if self.is_there {
            return false;
        }
        let mut next = [MaybeUninit::uninit(); 1];
        match self.open.socket.recv_with_flags(&mut next, MSG_PEEK | MSG_DONTWAIT) {
            Ok(read) => read == 0,
            Err(error) => !matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX - IDLE)
}
