//! `onced dev`: everything on this machine, with nothing to configure.
//!
//! PostgreSQL, the sink and the daemon are processes of their own, and are stopped against the flow: daemon, sink,
//! PostgreSQL. None outlives this process, even one that was killed: the sink and the daemon watch a pipe that closes
//! with it, and PostgreSQL has a guard that does.

pub mod cluster;
mod guide;
pub mod installation;
mod part;
mod place;
mod state;

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::client::Client;
use super::migrate;
use super::output::{Style, say, styled};
use crate::config::{Config, Environment};
use crate::signals;
use cluster::{Cluster, Options};
use part::Part;
use state::{Addresses, State};

/// How often a condition is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the sink and the daemon may take until they serve.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long what a killed run left behind may hold on to its ports.
const PORTS_LIMIT: Duration = Duration::from_secs(20);
/// What the daemon may take to stop, beyond its own `shutdown_timeout`.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Throw all data away in the end
    #[arg(long, conflicts_with = "state")]
    ephemeral: bool,
    /// Where to keep data; by default $XDG_STATE_HOME/onced/dev (~/.local/state/onced/dev)
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where the daemon listens to callers
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Where the daemon listens to its operator
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
    /// Where the sink listens to the daemon
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    sink: SocketAddr,
}

/// All that runs, in the order in which it is stopped.
struct Running {
    daemon: Part,
    sink: Part,
    cluster: Cluster,
}

/// Why it is over.
enum End {
    Signal,
    Part(String),
}

/// Starts everything, and waits for a signal, or for a part that ends. Returns after all was stopped.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let stop = signals::stop_flag().context("cannot listen to signals")?;
    let Arguments { http, admin, sink, .. } = *arguments;
    let addresses = Addresses { http, admin, sink };
    let state = match (&arguments.state, arguments.ephemeral) {
        (_, true) => State::ephemeral(addresses)?,
        (Some(directory), false) => State::lasting(directory, addresses)?,
        (None, false) => State::lasting(&state::default_directory()?, addresses)?,
    };
    let end = run_in(&state, addresses, &stop);
    // Whatever came of it, nothing runs any more.
    state.stopped()?;
    let end = end?;
    say("All is stopped.");
    match end {
        End::Signal => Ok(ExitCode::SUCCESS),
        End::Part(what) => anyhow::bail!("{what}; so everything was stopped"),
    }
}

fn run_in(state: &State, addresses: Addresses, stop: &AtomicBool) -> anyhow::Result<End> {
    check_ports(state, addresses)?;
    progress("PostgreSQL", &format!("in {}", state.path("postgres").display()));
    let cluster = Cluster::start(&state.path("postgres"), &Options::default())?;
    let file = state.write_files(addresses, &cluster.dsn())?;
    let config = Config::load(&file, &Environment::default())?;
    progress("Schema", "migrations, and the table of the example");
    migrate::migrate(&config)?;
    progress("Sink", "and daemon");
    let sink = start_sink(state, addresses)?;
    let daemon = start_daemon(&config)?;
    let mut running = Running { daemon, sink, cluster };
    let end = match running.wait_until_ready(addresses, stop)? {
        Some(end) => end,
        None => {
            guide::tell(addresses, &config, &running.cluster.dsn())?;
            running.wait_until_over(stop)?
        }
    };
    say(
        "\nStopping: first the daemon, which answers what it has accepted; then the sink; then PostgreSQL.",
    );
    drop(running);
    Ok(end)
}

fn progress(what: &str, detail: &str) {
    say(format_args!("{} {detail}", styled(Style::Bold, format_args!("{what:10}"))));
}

/// Somebody else's program on one of the ports is best told before anything is started.
fn check_ports(state: &State, addresses: Addresses) -> anyhow::Result<()> {
    let deadline = Instant::now() + if state.was_killed { PORTS_LIMIT } else { Duration::ZERO };
    for (flag, address) in
        [("--http", addresses.http), ("--admin", addresses.admin), ("--sink", addresses.sink)]
    {
        while let Err(error) = TcpListener::bind(address) {
            if Instant::now() >= deadline {
                let hint = format!("cannot listen on {address}; choose another with {flag}");
                return Err(error).context(hint);
            }
            pause();
        }
    }
    Ok(())
}

fn start_sink(state: &State, addresses: Addresses) -> anyhow::Result<Part> {
    let (listen, secret) = (addresses.sink.to_string(), state.path("sink.secret"));
    let seen = state.path("seen.jsonl");
    let arguments: [&OsStr; 7] = [
        "sink".as_ref(),
        "--listen".as_ref(),
        listen.as_ref(),
        "--secret-file".as_ref(),
        secret.as_ref(),
        "--state".as_ref(),
        seen.as_ref(),
    ];
    Part::start("sink", arguments, GRACE)
}

fn start_daemon(config: &Config) -> anyhow::Result<Part> {
    let arguments: [&OsStr; 3] = ["serve".as_ref(), "--config".as_ref(), config.file.as_ref()];
    Part::start("daemon", arguments, config.shutdown_timeout + GRACE)
}

impl Running {
    /// Waits until all is served. Returns the end where that came first.
    fn wait_until_ready(
        &mut self,
        addresses: Addresses,
        stop: &AtomicBool,
    ) -> anyhow::Result<Option<End>> {
        let asked = [(addresses.sink, "/", "sink"), (addresses.admin, "/readyz", "daemon")];
        let deadline = Instant::now() + READY_LIMIT;
        for (address, path, name) in asked {
            let client = Client::new(&format!("http://{address}"), None, 1);
            while !client.get(path).is_ok_and(|reply| reply.is_success()) {
                if let Some(end) = self.over(stop)? {
                    return Ok(Some(end));
                }
                if Instant::now() >= deadline {
                    let limit = READY_LIMIT.as_secs();
                    return Ok(Some(End::Part(format!(
                        "the {name} was not ready within {limit} s"
                    ))));
                }
                pause();
            }
        }
        Ok(None)
    }

    fn wait_until_over(&mut self, stop: &AtomicBool) -> anyhow::Result<End> {
        loop {
            if let Some(end) = self.over(stop)? {
                return Ok(end);
            }
            pause();
        }
    }

    fn over(&mut self, stop: &AtomicBool) -> anyhow::Result<Option<End>> {
        if stop.load(Ordering::Relaxed) {
            return Ok(Some(End::Signal));
        }
        for part in [&mut self.daemon, &mut self.sink] {
            if let Some(status) = part.ended()? {
                return Ok(Some(End::Part(format!("the {} ended ({status})", part.name))));
            }
        }
        let ended = self.cluster.ended()?;
        Ok(ended.map(|status| End::Part(format!("PostgreSQL ended ({status})"))))
    }
}

/// Between two looks at what cannot be waited on: processes, ports. A signal need not cut it short, it is that short.
fn pause() {
    std::thread::park_timeout(LOOK_EVERY);
}
