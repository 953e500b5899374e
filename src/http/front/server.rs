//! The accepting of connections: each gets a thread of its own, up to a limit.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc::{MSG_DONTWAIT, MSG_NOSIGNAL};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use super::connection::{Connection, word};
use super::incoming::poll_timeout;
use super::listen::Listener;
use super::places::Places;
use super::write::{self, After, Date};
use super::{Limits, Malformed, Service};
use crate::observe::{self, METRICS};
use crate::threads::{self, Deaths, Thread};

/// The stack of a connection's thread, of which only what is used takes memory. Past its end the process aborts, so what
/// recurses in a service must be bounded: parsed JSON of 120 levels fits even in a build without optimization, whose
/// frames are the largest.
const STACK: usize = 256 * 1024;

/// How long accepting rests after an error: in general a lack of descriptors, which others end.
const REST: Duration = Duration::from_millis(100);

/// What happens all the time is said once in such a while.
const WHILE: Duration = Duration::from_secs(10);

/// How many connections that were turned away are kept open, and for how long, so that the client can read why.
const TURNED_AWAY_MAX: usize = 128;
const TURNED_AWAY_TIME: Duration = Duration::from_millis(500);

/// A listener that is served. Dropping it stops it, without waiting.
pub struct Server {
    places: Arc<Places>,
    accept: Thread,
    /// Its end is the message to the accepting thread.
    wake: UnixStream,
}

impl Server {
    /// Serves `listener` with `service` from now on. A death of the accepting thread is reported to `deaths`.
    pub fn start<S: Service>(
        listener: Listener,
        limits: Limits,
        service: Arc<S>,
        deaths: &Deaths,
    ) -> io::Result<Server> {
        let (wake, woken) = UnixStream::pair()?;
        woken.set_read_timeout(Some(REST))?;
        let gauge = METRICS.connections.with_label_values(&[limits.name]);
        let places = Arc::new(Places::new(limits.name, limits.threads.get(), gauge));
        let acceptor = Acceptor {
            is_tcp: listener.socket.local_addr()?.as_socket().is_some(),
            listener,
            limits,
            service,
            places: Arc::clone(&places),
            woken,
            turned_away: VecDeque::new(),
            failures: Seldom::default(),
            refusals: Seldom::default(),
        };
        let accept =
            threads::spawn(format!("{}-accept", limits.name), deaths, move || acceptor.run())?;
        Ok(Server { places, accept, wake })
    }

    /// Takes no more connections or requests: the listener closes (where it is shared, only this process's part of it),
    /// idle connections close, and requests under way get their answer with `Connection: close`. Does not wait.
    pub fn stop_accepting(&self) {
        // It fails only where the accepting thread has ended.
        drop(self.wake.shutdown(Shutdown::Both));
        self.places.stop();
    }

    /// Waits until every connection has ended, at most until `deadline`. Returns the names of the threads that still
    /// run. Called without [`Server::stop_accepting`], it does that first.
    pub fn join(self, deadline: Instant) -> Vec<String> {
        self.stop_accepting();
        let mut running = threads::join_all([self.accept], deadline);
        running.extend(self.places.await_empty(deadline));
        running
    }
}

/// The thread that accepts.
struct Acceptor<S: Service> {
    listener: Listener,
    is_tcp: bool,
    limits: Limits,
    service: Arc<S>,
    places: Arc<Places>,
    woken: UnixStream,
    turned_away: VecDeque<(Instant, Socket)>,
    failures: Seldom,
    refusals: Seldom,
}

impl<S: Service> Acceptor<S> {
    fn run(mut self) {
        while let Some(accepted) = self.next_connection() {
            if let Err(error) = accepted.and_then(|socket| self.serve(socket)) {
                if let Some(times) = self.failures.say() {
                    observe::accept_failed(self.limits.name, &error, times);
                }
                self.turned_away.clear();
                self.rest();
            }
        }
        self.places.stop();
    }

    /// Waits for a connection. `None` where the server stops.
    fn next_connection(&mut self) -> Option<io::Result<Socket>> {
        loop {
            let timeout = self.forget_turned_away();
            let mut sockets = [
                PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.listener.socket.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut sockets, timeout) {
                Ok(_) => {}
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Some(Err(errno.into())),
            }
            let [woken, ready] = sockets.map(|socket| socket.any().unwrap_or(true));
            if woken {
                return None;
            }
            if ready {
                match self.listener.socket.accept() {
                    Ok((socket, _)) => return Some(Ok(socket)),
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::Interrupted
                        ) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
        }
    }

    fn serve(&mut self, socket: Socket) -> io::Result<()> {
        if self.is_tcp {
            // Without it an answer may wait for the client's acknowledgement of the one before.
            socket.set_tcp_nodelay(true)?;
        }
        let place = match self.places.take(socket) {
            Ok(place) => place,
            Err(socket) => {
                self.turn_away(socket);
                return Ok(());
            }
        };
        let open = Arc::clone(&place.open);
        let connection = Connection::new(Arc::clone(&self.service), self.limits, place)?;
        threads::spawn_small(open.name.clone(), STACK, move || connection.run()).inspect_err(|_| {
            // The system has no thread for it. The client is told, where it can be told without waiting.
            drop(open.socket.send_with_flags(&self.no_place(), MSG_DONTWAIT | MSG_NOSIGNAL));
        })
    }

    /// Answers that there is no place, without reading and without waiting.
    fn turn_away(&mut self, socket: Socket) {
        if let Some(times) = self.refusals.say() {
            observe::clients_turned_away(self.limits.name, self.limits.threads.get(), times);
        }
        let sent = socket.send_with_flags(&self.no_place(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if sent.is_ok() && socket.shutdown(Shutdown::Write).is_ok() {
            // Closing at once would reset the connection, as the request in it is unread, and the answer with it.
            if self.turned_away.len() == TURNED_AWAY_MAX {
                self.turned_away.pop_front();
            }
            self.turned_away.push_back((Instant::now() + TURNED_AWAY_TIME, socket));
        }
    }

    fn no_place(&self) -> Vec<u8> {
        let response = word(&*self.service, self.limits.name, Malformed::TooManyClients);
        let mut answer = Vec::new();
        write::write_head(&mut answer, &response, After::Close, &mut Date::default());
        answer.extend_from_slice(&response.body);
        answer
    }

    /// Closes those that had their time, and returns when the next one's is over.
    fn forget_turned_away(&mut self) -> PollTimeout {
        let now = Instant::now();
        while self.turned_away.front().is_some_and(|(until, _)| *until <= now) {
            self.turned_away.pop_front();
        }
        let next = self.turned_away.front().map(|(until, _)| until.saturating_duration_since(now));
        next.map_or(PollTimeout::NONE, poll_timeout)
    }

    /// Rests, unless the server stops meanwhile.
    fn rest(&mut self) {
        // The end of the stream and the end of the time are both the end of the rest.
        drop(self.woken.read(&mut [0]));
    }
}

/// Something that is said at most once in a [`WHILE`].
#[derive(Default)]
struct Seldom {
    said: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// It happened. Returns how often since it was said last, where it is to be said now.
    fn say(&mut self) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| said.elapsed() < WHILE) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.unsaid))
    }
}
