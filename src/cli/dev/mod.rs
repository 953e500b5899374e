//! `onced dev`: everything on this machine, with nothing to configure.

pub mod cluster;
pub mod installation;
mod place;

/// To come.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

pub(super) fn run(_: Arguments) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("to come")
}
