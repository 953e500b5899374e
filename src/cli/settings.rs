//! The configuration as a command gets at it.

use std::path::PathBuf;

use crate::config::{Config, Environment, Problems, locate};
use crate::store::{self, Session, migrate};

/// Finds and reads the configuration: `argument` is what `--config` said.
pub(super) fn load(argument: Option<PathBuf>) -> Result<Config, Problems> {
    let environment = Environment::of_process();
    let file = locate(argument, &environment)?;
    Config::load(&file, &environment)
}

/// A connection to the configured database, whose schema is one that this program can work with.
pub(super) fn connect(config: &Config) -> anyhow::Result<Session> {
    let mut client = store::connect(&config.database)?;
    migrate::check_schema(&mut client)?;
    Ok(client)
}
