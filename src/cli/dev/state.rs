//! The directory in which `onced dev` keeps everything, and what it writes there.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::super::settings;
use super::place;

/// Where root's data goes when the user who runs PostgreSQL cannot get to root's home.
const FOR_ROOT: &str = "/var/lib/onced/dev";
/// The example, as it is shipped.
const EXAMPLE: [(&str, &str); 2] = [
    ("orders.sql", include_str!("../../../config/operations/orders.sql")),
    ("orders.setup.sql", include_str!("../../../config/operations/orders.setup.sql")),
];

/// Where the listeners are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) sink: SocketAddr,
}

/// What the lock file tells a second `onced dev`.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    pid: u32,
    #[serde(flatten)]
    addresses: Addresses,
}

/// The directory, held by a lock for as long as this lives.
pub(super) struct State {
    pub(super) directory: PathBuf,
    /// Whether the run before this one was killed: what it started may still be ending.
    pub(super) was_killed: bool,
    lock: File,
    /// Where all is thrown away in the end.
    _ephemeral: Option<TempDir>,
}

impl State {
    /// A directory that is thrown away in the end.
    pub(super) fn ephemeral(addresses: Addresses) -> anyhow::Result<State> {
        let made = tempfile::Builder::new().prefix("onced-dev-").tempdir_in("/tmp");
        let made = made.context("cannot make a directory in /tmp")?;
        let state = State::lasting(made.path(), addresses)?;
        Ok(State { _ephemeral: Some(made), ..state })
    }

    /// A directory that is there for the next time, too; made where it is missing.
    pub(super) fn lasting(directory: &Path, addresses: Addresses) -> anyhow::Result<State> {
        // As root, PostgreSQL runs as another user, who must get to its own directory in this one.
        let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
        let made = DirBuilder::new().recursive(true).mode(mode).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = fs::canonicalize(directory)
            .with_context(|| format!("cannot find {}", directory.display()))?;
        if geteuid().is_root() {
            fs::set_permissions(&directory, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {}", directory.display()))?;
        }
        let (lock, was_killed) = lock(&directory, addresses)?;
        Ok(State { directory, was_killed, lock, _ephemeral: None })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes the configuration anew, and the example and the sink's secret where they are missing: those may have
    /// been changed by hand. Returns the configuration's file.
    pub(super) fn write_files(&self, addresses: Addresses, dsn: &str) -> anyhow::Result<PathBuf> {
        let operations = self.path("operations");
        fs::create_dir_all(&operations)
            .with_context(|| format!("cannot make {}", operations.display()))?;
        for (name, text) in EXAMPLE {
            write_if_missing(&operations.join(name), text)?;
        }
        write_if_missing(&self.path("sink.secret"), &new_secret()?)?;
        let file = self.path("onced.toml");
        let new = self.path("onced.toml.new");
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", new.display()));
        }
        write_if_missing(&new, &configuration(addresses, dsn))?;
        fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Says that all was stopped in order.
    pub(super) fn stopped(&self) -> anyhow::Result<()> {
        self.lock
            .set_len(0)
            .with_context(|| format!("cannot clear {}/lock", self.directory.display()))
    }
}

/// `$XDG_STATE_HOME/onced/dev`, by default in `~/.local/state`; for root, where PostgreSQL's user cannot get there,
/// a directory of the system.
pub(super) fn default_directory() -> anyhow::Result<PathBuf> {
    let directory = settings::state_directory("dev")?;
    if place::is_within_reach(&directory)? { Ok(directory) } else { Ok(PathBuf::from(FOR_ROOT)) }
}

/// Locks the directory, and tells the next one who holds it. Also tells whether the one before was killed.
fn lock(directory: &Path, addresses: Addresses) -> anyhow::Result<(File, bool)> {
    let path = directory.join("lock");
    let failed = || format!("cannot lock {}", path.display());
    let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&path);
    let mut file = file.with_context(failed)?;
    let locked = file.try_lock();
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(failed)?;
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => anyhow::bail!("{}", already_running(directory, &text)),
        Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
    }
    let running = Running { pid: std::process::id(), addresses };
    let told = serde_json::to_string(&running).with_context(failed)?;
    file.set_len(0).with_context(failed)?;
    file.write_all(told.as_bytes()).with_context(failed)?;
    Ok((file, !text.is_empty()))
}

fn already_running(directory: &Path, text: &str) -> String {
    let directory = directory.display();
    match serde_json::from_str::<Running>(text) {
        Ok(Running { pid, addresses: Addresses { http, admin, sink } }) => format!(
            "`onced dev` already runs in {directory}, as process {pid}:\n  \
             calls     http://{http}\n  operator  http://{admin}\n  events    http://{sink}\n\
             Stop it with Ctrl-C in its terminal or `kill {pid}`, or run a second one with --state, --http, --admin \
             and --sink of its own."
        ),
        // It is only just starting, or stopping.
        Err(_) => format!("another `onced dev` is starting or stopping in {directory}"),
    }
}

/// Writes a file that only its owner may read, unless it is there.
fn write_if_missing(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).with_context(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(failed),
    }
}

fn new_secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system gives no random bytes")?;
    Ok(format!("whsec_{}\n", STANDARD.encode(bytes)))
}

/// Nothing in it needs escaping: addresses, and a connection string that is percent-encoded.
fn configuration(addresses: Addresses, dsn: &str) -> String {
    let Addresses { http, admin, sink } = addresses;
    format!(
        r#"# Written by `onced dev` at every start: changes are lost. The operations' files are kept as they are.
shutdown_timeout = "10s"

[http]
listen = "{http}"

[admin]
listen = "{admin}"

[database]
url = "{dsn}"

[sink]
url = "http://{sink}/"
secret_files = ["sink.secret"]
allow_private = true

[log]
level = "warn"

[operations.orders]
sql = "operations/orders.sql"
setup = "operations/orders.setup.sql"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment};

    fn addresses() -> Addresses {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Addresses { http: at(8080), admin: at(8081), sink: at(8090) }
    }

    #[test]
    fn what_is_written_is_a_right_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::lasting(folder.path(), addresses()).unwrap();
        let file = state.write_files(addresses(), "postgresql://postgres@%2Ftmp/postgres").unwrap();
        let config = Config::load(&file, &Environment::default()).unwrap();
        assert_eq!(config.operations[0].name, "orders");
        assert_eq!(config.sink.unwrap().url.as_str(), "http://127.0.0.1:8090/");
    }

    #[test]
    fn what_was_changed_by_hand_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::lasting(folder.path(), addresses()).unwrap();
        state.write_files(addresses(), "postgresql:///a").unwrap();
        let secret = fs::read_to_string(state.path("sink.secret")).unwrap();
        fs::write(state.path("operations/orders.sql"), "SELECT 200 AS status").unwrap();
        let file = state.write_files(addresses(), "postgresql:///b").unwrap();
        let sql = fs::read_to_string(state.path("operations/orders.sql")).unwrap();
        assert_eq!(sql, "SELECT 200 AS status");
        assert_eq!(fs::read_to_string(state.path("sink.secret")).unwrap(), secret);
        assert!(fs::read_to_string(file).unwrap().contains("postgresql:///b"));
    }

    #[test]
    fn a_second_one_is_told_what_runs_and_a_killed_one_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let first = State::lasting(folder.path(), addresses()).unwrap();
        assert!(!first.was_killed);
        let second = State::lasting(folder.path(), addresses()).err().unwrap().to_string();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
        assert!(second.contains("http://127.0.0.1:8080"), "{second}");
        drop(first);

        let third = State::lasting(folder.path(), addresses()).unwrap();
        assert!(third.was_killed);
        third.stopped().unwrap();
        drop(third);
        assert!(!State::lasting(folder.path(), addresses()).unwrap().was_killed);
    }
}
