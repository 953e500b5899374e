//! `onced serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Failure, settings};
use crate::daemon::{Daemon, Stopped};
use crate::observe;

#[derive(Debug, Args)]
pub(super) struct Arguments {}

pub(super) fn run(config: Option<PathBuf>, _: &Arguments) -> Result<ExitCode, Failure> {
    let settings = settings::load(config)?;
    observe::start_log(&settings.log);
    // The tests arm fault points by the variable FAILPOINTS; a release has none.
    #[cfg(feature = "fail-points")]
    let _armed = fail::FailScenario::setup();
    let file = settings.file.clone();
    let daemon = Daemon::start(settings).map_err(|error| match error.is_configuration() {
        true => Failure::Configuration(error.to_string()),
        false => Failure::Failed(error.into()),
    })?;
    match daemon.run(|| settings::load(Some(file.clone()))) {
        Stopped::InOrder => Ok(ExitCode::SUCCESS),
        Stopped::Badly => Ok(ExitCode::FAILURE),
    }
}
