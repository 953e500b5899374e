//! `onced migrate`: brings the schema up to date, and runs the operations' setup.

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::output::{say, say_json};
use crate::config::Config;
use crate::store;
use crate::store::migrate::Report;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    let report = migrate(config)?;
    if arguments.json {
        say_json(&json!({ "migrations": report.migrations, "setups": report.setups }));
        return Ok(());
    }
    if report.migrations.is_empty() {
        say(format_args!("The schema {:?} was up to date.", config.database.schema));
    }
    for migration in &report.migrations {
        say(format_args!("applied {migration}"));
    }
    for setup in &report.setups {
        say(format_args!("ran     {}", setup.display()));
    }
    Ok(())
}

/// Migrates the database of a configuration.
pub(super) fn migrate(config: &Config) -> anyhow::Result<Report> {
    let mut client = store::connect(&config.database)?;
    store::migrate::migrate(&mut client, &config.database.schema, &config.operations)
        .context("the migration stopped; what was applied before stands, and running it again goes on from there")
}
