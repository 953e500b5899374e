//! `onced serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::Failure;

#[derive(Debug, Args)]
pub(super) struct Arguments {}

pub(super) fn run(_config: Option<PathBuf>, _arguments: &Arguments) -> Result<ExitCode, Failure> {
    Err(anyhow::anyhow!("this build has no daemon").into())
}
