//! Where a listener listens: a TCP address, a Unix socket, or a socket that the service manager hands over.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use listenfd::ListenFd;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::Listen;
use crate::threads;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How often, and how far apart, to try for a folder in which somebody else makes a socket at this moment.
const FOLDER_TRIES: u32 = 100;
const FOLDER_PAUSE: Duration = Duration::from_millis(10);

/// The sockets that the service manager handed to this process. Each is given out once.
static HANDED_OVER: LazyLock<Mutex<ListenFd>> = LazyLock::new(|| Mutex::new(ListenFd::from_env()));

/// A socket that listens. Dropping it closes it and removes its file, where it made one; a socket that is shared with
/// the service manager goes on listening there.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Socket,
    address: String,
    file: Option<SocketFile>,
}

/// A socket's file, known again by its device and inode: another process may have put its own in its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Why a listener cannot listen, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error(
        "cannot listen on {address}: another process listens there already; stop it or set another `listen`"
    )]
    InUse {
        /// Where.
        address: String,
    },
    /// There is a file at the socket's path that is no socket.
    #[error(
        "cannot listen on {address}: a file that is not a socket stands there; move it away or set another `listen`"
    )]
    NotASocket {
        /// Where.
        address: String,
    },
    /// The service manager handed over no socket of that name, or it was taken before.
    #[error(
        "cannot listen on systemd:{name}: the service manager handed over {given}; start onced by its .socket unit, with `FileDescriptorName={name}` in it"
    )]
    NotHandedOver {
        /// The name that was looked for.
        name: String,
        /// The names that there are, in words.
        given: String,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    System {
        /// Where.
        address: String,
        /// The system's reason.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

/// Begins to listen: clients may connect from now on, and are served once a server has started on it.
pub fn bind(listen: &Listen) -> Result<Listener, BindError> {
    match listen {
        Listen::Tcp(address) => bind_tcp(*address),
        Listen::Unix(path) => bind_unix(path),
        Listen::Systemd(name) => take_over(name),
    }
}

impl Listener {
    fn new(socket: Socket, file: Option<SocketFile>) -> io::Result<Listener> {
        // A connection may be gone, or taken by another process, between the news of it and `accept`.
        socket.set_nonblocking(true)?;
        let address = address_text(&socket.local_addr()?);
        Ok(Listener { socket, address, file })
    }

    /// The address as the configuration would name it, with the port that the system chose where it was 0:
    /// `127.0.0.1:8080` or `unix:/run/onced/http.sock`.
    pub fn local_addr(&self) -> &str {
        &self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && identity(&file.path).is_ok_and(|identity| identity == file.identity)
        {
            // Nothing is lost where it stays: the next start takes it over.
            drop(fs::remove_file(&file.path));
        }
    }
}

fn bind_tcp(address: SocketAddr) -> Result<Listener, BindError> {
    let listening = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // Connections of the process before this one, waiting out their end, do not keep the port.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Listener::new(socket, None)
    };
    listening().map_err(|source| refused(address.to_string(), source))
}

fn bind_unix(path: &Path) -> Result<Listener, BindError> {
    let address = format!("unix:{}", path.display());
    let system = |source| refused(address.clone(), source);
    let _folder = lock_folder(path).map_err(system)?;
    match occupant(path).map_err(system)? {
        Occupant::Nobody => {}
        Occupant::Dead => fs::remove_file(path).map_err(system)?,
        Occupant::Alive => return Err(BindError::InUse { address }),
        Occupant::NotASocket => return Err(BindError::NotASocket { address }),
    }
    let listening = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
        Listener::new(socket, Some(file))
    };
    listening().map_err(system)
}

/// Keeps two processes that start at the same moment from taking the same dead socket over.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")))?;
    for _ in 0..FOLDER_TRIES {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) => {
                threads::stops_within(&crossbeam_channel::never(), FOLDER_PAUSE);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::TimedOut, "another process holds a lock on its folder"))
}

/// What stands at the path of a socket to be made.
enum Occupant {
    Nobody,
    Dead,
    Alive,
    NotASocket,
}

fn occupant(path: &Path) -> io::Result<Occupant> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Ok(Occupant::NotASocket),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(error) => return Err(error),
    }
    let caller = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A living process whose backlog is full must not hold this up.
    caller.set_nonblocking(true)?;
    match caller.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(Occupant::Alive),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Occupant::Alive),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Occupant::Dead),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Takes the socket that the service manager handed over under `name` (sd_listen_fds_with_names).
fn take_over(name: &str) -> Result<Listener, BindError> {
    let mut handed_over = HANDED_OVER.lock().unwrap_or_else(PoisonError::into_inner);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').take(handed_over.len()).collect();
    let socket = match names.iter().position(|given| *given == name) {
        Some(at) => take_at(&mut handed_over, at),
        None => Ok(None),
    };
    let system = |source| refused(format!("systemd:{name}"), source);
    match socket.map_err(system)? {
        Some(socket) => Listener::new(socket, None).map_err(system),
        None => Err(BindError::NotHandedOver { name: name.to_owned(), given: in_words(&names) }),
    }
}

fn take_at(handed_over: &mut ListenFd, at: usize) -> io::Result<Option<Socket>> {
    match handed_over.take_tcp_listener(at) {
        Ok(taken) => Ok(taken.map(Socket::from)),
        // It is of another kind, and still there.
        Err(_) => Ok(handed_over.take_unix_listener(at)?.map(Socket::from)),
    }
}

fn in_words(names: &[&str]) -> String {
    if names.iter().all(|name| name.is_empty()) {
        "no sockets with a name".to_owned()
    } else {
        format!("only sockets named {}, each taken once", names.join(", "))
    }
}

fn address_text(address: &SockAddr) -> String {
    if let Some(address) = address.as_socket() {
        return address.to_string();
    }
    match address.as_pathname() {
        Some(path) => format!("unix:{}", path.display()),
        None => "a socket without a name".to_owned(),
    }
}

fn refused(address: String, source: io::Error) -> BindError {
    if source.kind() == ErrorKind::AddrInUse {
        return BindError::InUse { address };
    }
    let remedies = [
        (ErrorKind::AddrNotAvailable, "use an address that this machine has"),
        (
            ErrorKind::PermissionDenied,
            "use a port above 1023, or a folder that this user may write",
        ),
        (ErrorKind::NotFound, "make the folder first"),
    ];
    let known = remedies.iter().find(|(kind, _)| *kind == source.kind());
    let remedy = known.map_or("set another `listen`", |(_, remedy)| remedy);
    BindError::System { address, source, remedy }
}
