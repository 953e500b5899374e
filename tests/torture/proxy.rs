//! A relay in between that cuts, stalls, delays, drips, or loses the reply to a write that has committed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onced::threads::spawn_small;

/// What the relay does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It forwards them.
    Forward,
    /// It ends all connections, and every new one.
    Cut,
    /// It keeps connections open, takes new ones, and forwards nothing.
    Stall,
    /// Whatever it forwards is late by this.
    Delay(Duration),
    /// What the server sends goes on byte by byte, so long after each other.
    Drip(Duration),
    /// It has ended.
    Ended,
}

/// Where the relay leads to.
#[derive(Clone, Debug)]
pub enum Server {
    Socket(PathBuf),
    Address(SocketAddr),
}

/// The relay. It ends with this value.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: Server,
    mode: Mutex<Mode>,
    changed: Condvar,
    /// Replies to writes that are still to be lost.
    to_lose: AtomicU32,
    lost: AtomicU32,
}

const STACK: usize = 256 * 1024;
/// How often a pump looks at the mode while no byte comes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is in every write of a daemon, and in nothing else that it sends: the recipe of a fingerprint.
const IN_A_WRITE: &[u8] = b"v1:";

impl Proxy {
    /// Starts a relay on a port of its own.
    pub fn to(server: Server) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let mode = Mutex::new(Mode::Forward);
        let state = State {
            server,
            mode,
            changed: Condvar::new(),
            to_lose: AtomicU32::new(0),
            lost: AtomicU32::new(0),
        };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        spawn_small("relay".to_owned(), STACK, move || accept(&listener, &shared))?;
        Ok(Proxy { address, state })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what it does, at once.
    pub fn set(&self, mode: Mode) {
        *self.state.mode.lock().unwrap() = mode;
        self.state.changed.notify_all();
    }

    /// The replies to writes that were lost so far.
    pub fn lost(&self) -> u32 {
        self.state.lost.load(Ordering::SeqCst)
    }

    /// The replies to so many writes are thrown away when they come, and the connection ends.
    pub fn lose_replies(&self, count: u32) {
        self.state.to_lose.store(count, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Mode::Ended);
        // Wakes the one who accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for client in listener.incoming().map_while(Result::ok) {
        let mode = *state.mode.lock().unwrap();
        match mode {
            Mode::Ended => return,
            Mode::Cut => drop(client),
            // A server that is away is what some faults are about: the client is closed then.
            Mode::Forward | Mode::Stall | Mode::Delay(_) | Mode::Drip(_) => {
                connect(client, state).ok();
            }
        }
    }
}

fn connect(client: TcpStream, state: &Arc<State>) -> io::Result<()> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(LOOK_EVERY))?;
    match &state.server {
        Server::Socket(path) => {
            let server = UnixStream::connect(path)?;
            server.set_read_timeout(Some(LOOK_EVERY))?;
            let (back, forth) = (server.try_clone()?, client.try_clone()?);
            join(client, server, back, forth, state)
        }
        Server::Address(address) => {
            let server = TcpStream::connect(address)?;
            server.set_nodelay(true)?;
            server.set_read_timeout(Some(LOOK_EVERY))?;
            let (back, forth) = (server.try_clone()?, client.try_clone()?);
            join(client, server, back, forth, state)
        }
    }
}

fn join(
    client: impl Stream,
    server: impl Stream,
    back: impl Stream,
    forth: impl Stream,
    state: &Arc<State>,
) -> io::Result<()> {
    let writing = Arc::new(AtomicBool::new(false));
    let to_server = Pump { state: Arc::clone(state), writing: Arc::clone(&writing), back: false };
    let to_client = Pump { state: Arc::clone(state), writing, back: true };
    spawn_small("relay-forth".to_owned(), STACK, move || to_server.run(client, server))?;
    spawn_small("relay-back".to_owned(), STACK, move || to_client.run(back, forth))
}

trait Stream: Read + Write + Send + 'static {
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        drop(self.shutdown(Shutdown::Both));
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        drop(self.shutdown(Shutdown::Both));
    }
}

/// One direction of one connection.
struct Pump {
    state: Arc<State>,
    /// Whether the reply to a write is awaited.
    writing: Arc<AtomicBool>,
    back: bool,
}

impl Pump {
    /// Forwards until either side ends or the relay cuts.
    fn run(self, mut from: impl Stream, mut to: impl Stream) {
        let mut buffer = [0; 32 * 1024];
        while self.state.goes_on().is_some() {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    if !self.forward(&buffer[..length], &mut to) {
                        break;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        from.end();
        to.end();
    }

    fn forward(&self, bytes: &[u8], to: &mut impl Stream) -> bool {
        if !self.back {
            let writes = bytes.windows(IN_A_WRITE.len()).any(|window| window == IN_A_WRITE);
            self.writing.fetch_or(writes, Ordering::SeqCst);
        } else if self.writing.swap(false, Ordering::SeqCst) && self.state.loses_one() {
            return false;
        }
        match self.state.goes_on() {
            None => false,
            Some(Mode::Delay(late)) => {
                self.state.wait(late);
                self.state.goes_on().is_some() && to.write_all(bytes).is_ok()
            }
            Some(Mode::Drip(pause)) if self.back => bytes.chunks(1).all(|byte| {
                if matches!(self.state.goes_on(), Some(Mode::Drip(_))) {
                    self.state.wait(pause);
                }
                self.state.goes_on().is_some() && to.write_all(byte).is_ok()
            }),
            Some(_) => to.write_all(bytes).is_ok(),
        }
    }
}

impl State {
    /// Waits while the relay is stalled; `None` where it has cut.
    fn goes_on(&self) -> Option<Mode> {
        let mode = self.mode.lock().unwrap();
        let mode = self.changed.wait_while(mode, |mode| *mode == Mode::Stall).unwrap();
        (!matches!(*mode, Mode::Cut | Mode::Ended)).then_some(*mode)
    }

    /// Lets time pass, unless the mode changes.
    fn wait(&self, time: Duration) {
        let mode = self.mode.lock().unwrap();
        let before = *mode;
        drop(self.changed.wait_timeout_while(mode, time, |mode| *mode == before));
    }

    fn loses_one(&self) -> bool {
        let loses = self
            .to_lose
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        self.lost.fetch_add(u32::from(loses), Ordering::SeqCst);
        loses
    }
}
