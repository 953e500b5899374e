//! `onced prune`: what retention does by itself, at once.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::output::{Table, complain, say, say_json};
use super::settings;
use crate::config::Config;
use crate::pruner::prune_once;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Count what would go, and take nothing away
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    let mut client = settings::connect(config)?;
    let retention = &config.retention;
    let old = prune_once(&mut client, retention, arguments.dry_run)?;
    if arguments.json {
        say_json(&json!({
            "dry_run": arguments.dry_run,
            "idempotency_records": old.records,
            "outbox_events": old.events,
            "idempotency_tombstones": old.tombstones,
        }));
        return Ok(());
    }
    let events = format!("sent {}, dead {}", age(retention.events), age(retention.dead));
    let rows = [
        ("idempotency_records", old.records, age(retention.records)),
        ("outbox_events", old.events, events),
        ("idempotency_tombstones", old.tombstones, age(retention.tombstones)),
    ];
    let head = ["TABLE", if arguments.dry_run { "WOULD GO" } else { "GONE" }, "KEPT FOR"];
    let rows = rows.map(|(table, rows, age)| [table.to_owned(), rows.to_string(), age]).to_vec();
    say(Table { head, rows });
    if arguments.dry_run {
        complain("Nothing was taken away.");
    }
    Ok(())
}

fn age(age: Option<Duration>) -> String {
    age.map_or_else(|| "-".to_owned(), |age| humantime::format_duration(age).to_string())
}
