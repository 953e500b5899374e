//! One of the programs that `onced dev` runs beside PostgreSQL: this program again, with another command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::installation::PG_BIN;
use super::pause;

/// Variables of ours that are no values of the configuration, and are left to the parts.
const KEPT: [&str; 2] = ["ONCED_LOG", PG_BIN];

/// A running part. Dropping it stops it.
///
/// It is in a process group of its own, so a Ctrl-C in the terminal does not reach it: it is stopped when its turn
/// comes. It watches its standard input, whose other end is held here, so it does not outlive us either.
pub(super) struct Part {
    pub(super) name: &'static str,
    child: Child,
    stop_limit: Duration,
}

impl Part {
    /// Starts this program with these arguments. Stopping it may take `stop_limit`; then it is killed.
    pub(super) fn start<'a>(
        name: &'static str,
        arguments: impl IntoIterator<Item = &'a OsStr>,
        stop_limit: Duration,
    ) -> anyhow::Result<Part> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("--exit-with-parent").args(arguments).process_group(0).stdin(Stdio::piped());
        for (variable, _) in std::env::vars_os() {
            let ours = variable.as_bytes().starts_with(b"ONCED_");
            if ours && !KEPT.iter().any(|kept| variable == *kept) {
                command.env_remove(variable);
            }
        }
        let child = command.spawn().with_context(|| format!("cannot start the {name}"))?;
        Ok(Part { name, child, stop_limit })
    }

    /// How it ended, where it did.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for the {}", self.name))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        for (signal, limit) in
            [(Signal::SIGTERM, self.stop_limit), (Signal::SIGKILL, Duration::from_secs(5))]
        {
            let gone = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
            if gone(&mut self.child) {
                return;
            }
            if let Ok(pid) = i32::try_from(self.child.id()) {
                // A child that nobody waited for keeps its number, also when it has ended meanwhile.
                kill(Pid::from_raw(pid), signal).ok();
            }
            let deadline = Instant::now() + limit;
            while !gone(&mut self.child) && Instant::now() < deadline {
                pause();
            }
        }
    }
}
