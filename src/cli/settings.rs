//! The configuration, and what else is set, as a command gets at it.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::{Config, Environment, Problems, Secret, locate};
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

/// The bearer token in a file, without the white space around it.
pub(super) fn token(file: Option<&Path>) -> anyhow::Result<Option<Secret<String>>> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Some(Secret::new(text.trim().to_owned())))
}

/// Where data of this program is kept between runs: `onced/NAME` in `$XDG_STATE_HOME`, by default `~/.local/state`.
pub(super) fn state_directory(name: &str) -> anyhow::Result<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state
        .context("neither XDG_STATE_HOME nor HOME is set: say with --state where to keep data")?;
    Ok(state.join("onced").join(name))
}
