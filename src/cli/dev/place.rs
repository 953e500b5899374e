//! The directory of a private cluster: who owns it, who holds it, and what an earlier run left in it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::kill;
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;

use super::cluster::ClusterError;

/// Part of the socket's name; no port is opened.
pub(super) const PORT: u16 = 5432;
/// The longest path of a Unix socket that Linux (107) and macOS (103) both take.
const SOCKET_PATH_MAX: usize = 103;
/// Who runs the server where we are root: the first one that exists.
const USERS_FOR_ROOT: [&str; 3] = ["postgres", "nobody", "daemon"];

/// The directory of a private cluster, held by a lock for as long as this lives.
///
/// Where we are root, the directory itself stays root's; only `data` and the socket's directory are the server's, so
/// nothing that root writes can be replaced by the server's user.
pub(super) struct Place {
    pub(super) data: PathBuf,
    pub(super) log: PathBuf,
    /// The directory of the socket.
    pub(super) sockets: PathBuf,
    directory: PathBuf,
    /// Who runs the server, where that is not who we are.
    runner: Option<User>,
    /// Holds the socket's directory where the path of `directory` is too long for a socket.
    _elsewhere: Option<TempDir>,
    _lock: File,
}

impl Place {
    /// Makes the directory, or takes an existing one, and locks it.
    pub(super) fn prepare(directory: &Path) -> Result<Place, ClusterError> {
        let runner = runner(&directory.join("data"))?;
        let mode = if runner.is_some() { 0o711 } else { 0o700 };
        let failed = |action| file_error(action, directory);
        let create = DirBuilder::new().recursive(true).mode(mode).create(directory);
        create.map_err(failed("create"))?;
        let directory = fs::canonicalize(directory).map_err(failed("resolve"))?;
        if let Some(user) = &runner {
            let mode = fs::metadata(&directory).map_err(file_error("look at", &directory))?.mode();
            let passable = Permissions::from_mode(mode | 0o001);
            fs::set_permissions(&directory, passable).map_err(file_error("open", &directory))?;
            check_reach(&directory, user)?;
        }
        let lock = lock(&directory)?;
        let mut sockets = directory.join("run");
        let mut elsewhere = None;
        if socket_in(&sockets).as_os_str().len() > SOCKET_PATH_MAX {
            let made = tempfile::Builder::new().prefix("onced-").tempdir_in("/tmp");
            let made = made.map_err(file_error("create a directory in", Path::new("/tmp")))?;
            made.path().clone_into(&mut sockets);
            elsewhere = Some(made);
        }
        let place = Place {
            data: directory.join("data"),
            log: directory.join("postgres.log"),
            sockets,
            directory,
            runner,
            _elsewhere: elsewhere,
            _lock: lock,
        };
        place.give(&place.sockets)?;
        Ok(place)
    }

    /// Creates the directory where it is missing, for the server alone.
    pub(super) fn give(&self, directory: &Path) -> Result<(), ClusterError> {
        let failed = |action| file_error(action, directory);
        if !directory.is_dir() {
            DirBuilder::new().mode(0o700).create(directory).map_err(failed("create"))?;
        }
        if let Some(user) = &self.runner {
            let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
            chown(directory, Some(uid), Some(gid)).map_err(failed("change the owner of"))?;
        }
        Ok(())
    }

    /// Removes a directory and all in it, where it is there.
    pub(super) fn remove(directory: &Path) -> Result<(), ClusterError> {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file_error("remove", directory)(error))
            }
            Err(_) | Ok(()) => Ok(()),
        }
    }

    /// Where data is made before it is whole.
    pub(super) fn unfinished_data(&self) -> PathBuf {
        self.directory.join("data.unfinished")
    }

    /// A command that runs as the server's user, out of reach of the terminal's signals, without the caller's
    /// PostgreSQL variables.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").current_dir("/").process_group(0);
        if let Some(user) = &self.runner {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).env("HOME", &user.dir);
        }
        command
    }

    /// The major version that made the data; `None` where there is no data yet.
    pub(super) fn data_version(&self) -> Option<u32> {
        fs::read_to_string(self.data.join("PG_VERSION")).ok()?.trim().parse().ok()
    }

    /// A connection string for a database of the cluster.
    pub(super) fn dsn(&self, user: &str, database: &str) -> String {
        let host: String =
            url::form_urlencoded::byte_serialize(self.sockets.as_os_str().as_bytes()).collect();
        format!("postgresql://{user}@{}:{PORT}/{database}", host.replace('+', "%20"))
    }

    /// Whether the server says that it accepts connections, and does.
    pub(super) fn is_ready(&self) -> bool {
        let ready = self.pid_file().and_then(|lines| Some(lines.get(7)?.trim() == "ready"));
        ready == Some(true) && UnixStream::connect(socket_in(&self.sockets)).is_ok()
    }

    /// The process of a server that runs on this data, whoever started it.
    pub(super) fn running(&self) -> Option<Pid> {
        let lines = self.pid_file()?;
        let pid = Pid::from_raw(lines.first()?.trim().parse().ok().filter(|pid| *pid > 1)?);
        if kill(pid, None).is_err() {
            return None;
        }
        // The number may be somebody else's by now. A server lives in its data directory; where the system does not
        // tell, one that answers on the socket is meant.
        let ours = match fs::read_link(format!("/proc/{pid}/cwd")) {
            Ok(directory) => directory == self.data,
            Err(_) => {
                let sockets = lines.get(4).map_or(self.sockets.as_path(), |s| Path::new(s.trim()));
                UnixStream::connect(socket_in(sockets)).is_ok()
            }
        };
        ours.then_some(pid)
    }

    /// Forgets a pid file whose process is gone or is no server on this data; PostgreSQL would take it for one where
    /// the number was given to a new process of the same user.
    pub(super) fn forget_pid_file(&self) -> Result<(), ClusterError> {
        let path = self.data.join("postmaster.pid");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file_error("remove", &path)(error))
            }
            Err(_) | Ok(()) => Ok(()),
        }
    }

    /// Lines: pid, data directory, start time, port, socket directory, address, memory key, status.
    fn pid_file(&self) -> Option<Vec<String>> {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        Some(text.lines().map(str::to_owned).collect())
    }
}

/// Turns an error of the system into one about this file.
pub(super) fn file_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> ClusterError {
    let path = path.to_owned();
    move |source| ClusterError::File { action, path, source }
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join(format!(".s.PGSQL.{PORT}"))
}

/// Who must run the server instead of us, where we are root: the owner of the data, else a user made for such things.
fn runner(data: &Path) -> Result<Option<User>, ClusterError> {
    let owner = fs::metadata(data).ok().map(|data| data.uid());
    if !geteuid().is_root() {
        let ours = owner.is_none_or(|owner| owner == geteuid().as_raw());
        return if ours { Ok(None) } else { Err(ClusterError::NotOurs(data.to_owned())) };
    }
    let named = |name: &str| User::from_name(name).ok().flatten();
    let by_owner = owner.filter(|owner| *owner != 0);
    match by_owner.and_then(|uid| User::from_uid(uid.into()).ok().flatten()) {
        Some(user) => Ok(Some(user)),
        None => {
            USERS_FOR_ROOT.into_iter().find_map(named).map(Some).ok_or(ClusterError::NobodyToRun)
        }
    }
}

/// Whether the user may enter the directory and all above it; the first one that it may not is told.
fn check_reach(directory: &Path, user: &User) -> Result<(), ClusterError> {
    let mut above: Vec<&Path> = directory.ancestors().collect();
    above.reverse();
    for step in above {
        let found = fs::metadata(step).map_err(file_error("look at", step))?;
        let enter = if found.uid() == user.uid.as_raw() {
            0o100
        } else if found.gid() == user.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        if found.mode() & enter == 0 {
            let (user, directory) = (user.name.clone(), step.to_owned());
            return Err(ClusterError::OutOfReach { user, directory });
        }
    }
    Ok(())
}

/// Whether a cluster could be in a directory that need not be there yet: as root, its other user must get to it.
pub(super) fn is_within_reach(directory: &Path) -> Result<bool, ClusterError> {
    let Some(user) = runner(directory)? else { return Ok(true) };
    let existing = directory.ancestors().find(|step| step.is_dir()).unwrap_or(Path::new("/"));
    let existing = fs::canonicalize(existing).map_err(file_error("resolve", existing))?;
    match check_reach(&existing, &user) {
        Ok(()) => Ok(true),
        Err(ClusterError::OutOfReach { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn lock(directory: &Path) -> Result<File, ClusterError> {
    let path = directory.join("lock");
    let failed = |action| file_error(action, &path);
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = file.map_err(failed("open"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ClusterError::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed("lock")(error)),
    }
}
