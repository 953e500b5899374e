//! A relay between the daemon and PostgreSQL that a test can cut or stall, and that tells what was sent.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onced::threads::spawn_small;

use super::postgres::Database;
use super::trips::{Frontend, Trip};

/// What the relay does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It forwards them.
    Forward,
    /// It ends all connections, and every new one.
    Cut,
    /// It keeps connections open, takes new ones, and forwards nothing.
    Stall,
    /// It has ended.
    Ended,
}

/// The relay. It ends with this value.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    mode: Mutex<Mode>,
    changed: Condvar,
    host: String,
    port: u16,
    trips: Mutex<Vec<Trip>>,
}

const STACK: usize = 256 * 1024;
/// How often a pump looks at the mode while no byte comes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Proxy {
    /// A relay to the server of this database.
    pub fn to(database: &Database) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the relay");
        let address = listener.local_addr().unwrap();
        let (host, port) = database.address();
        let mode = Mutex::new(Mode::Forward);
        let state =
            Arc::new(State { mode, changed: Condvar::new(), host, port, trips: Mutex::default() });
        let shared = Arc::clone(&state);
        spawn_small("relay".to_owned(), STACK, move || accept(&listener, &shared)).unwrap();
        Proxy { address, state }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The round trips of all connections so far, in the order in which they were begun.
    pub fn trips(&self) -> Vec<Trip> {
        self.state.trips.lock().unwrap().clone()
    }

    /// Changes what it does, at once.
    pub fn set(&self, mode: Mode) {
        *self.state.mode.lock().unwrap() = mode;
        self.state.changed.notify_all();
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
    for (connection, client) in listener.incoming().map_while(Result::ok).enumerate() {
        let mode = *state.mode.lock().unwrap();
        match mode {
            Mode::Ended => return,
            Mode::Cut => drop(client),
            Mode::Forward | Mode::Stall => {
                drop(client.set_nodelay(true));
                if let Err(error) = connect(connection, client, state) {
                    eprintln!("the relay cannot forward: {error}");
                }
            }
        }
    }
}

fn connect(connection: usize, client: TcpStream, state: &Arc<State>) -> std::io::Result<()> {
    client.set_read_timeout(Some(LOOK_EVERY))?;
    let frontend = Frontend::new(connection);
    if state.host.starts_with('/') {
        let path = format!("{}/.s.PGSQL.{}", state.host, state.port);
        let server = UnixStream::connect(path)?;
        server.set_read_timeout(Some(LOOK_EVERY))?;
        let (back, forth) = (server.try_clone()?, client.try_clone()?);
        pump(client, server, Some(frontend), state)?;
        pump(back, forth, None, state)
    } else {
        let server = TcpStream::connect((state.host.as_str(), state.port))?;
        server.set_nodelay(true)?;
        server.set_read_timeout(Some(LOOK_EVERY))?;
        let (back, forth) = (server.try_clone()?, client.try_clone()?);
        pump(client, server, Some(frontend), state)?;
        pump(back, forth, None, state)
    }
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

/// Forwards one direction in a thread of its own, until either side ends or the relay cuts.
fn pump(
    mut from: impl Stream,
    mut to: impl Stream,
    mut frontend: Option<Frontend>,
    state: &Arc<State>,
) -> std::io::Result<()> {
    let state = Arc::clone(state);
    spawn_small("relay-pump".to_owned(), STACK, move || {
        let mut buffer = [0; 32 * 1024];
        while state.goes_on() {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    if let Some(frontend) = &mut frontend {
                        state.trips.lock().unwrap().extend(frontend.hear(&buffer[..length]));
                    }
                    if !state.goes_on() || to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        from.end();
        to.end();
    })
}

impl State {
    /// Waits while the relay is stalled; false where it has cut.
    fn goes_on(&self) -> bool {
        let mode = self.mode.lock().unwrap();
        let mode = self.changed.wait_while(mode, |mode| *mode == Mode::Stall).unwrap();
        *mode == Mode::Forward
    }
}
