//! The configuration as a command gets at it.

use std::path::PathBuf;

use crate::config::{Config, Environment, Problems, locate};

/// Finds and reads the configuration: `argument` is what `--config` said.
pub(super) fn load(argument: Option<PathBuf>) -> Result<Config, Problems> {
    let environment = Environment::of_process();
    let file = locate(argument, &environment)?;
    Config::load(&file, &environment)
}
