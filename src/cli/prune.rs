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
    let kept = |age: Option<Duration>| age.map_or_else(|| "for ever".to_owned(), days);
    let events = format!("sent {}, dead {}", kept(retention.events), kept(retention.dead));
    let tombstones = retention.tombstones.map_or_else(|| "off".to_owned(), days);
    let rows = [
        ("idempotency_records", old.records, kept(retention.records)),
        ("outbox_events", old.events, events),
        ("idempotency_tombstones", old.tombstones, tombstones),
    ];
    let head = ["TABLE", if arguments.dry_run { "WOULD GO" } else { "GONE" }, "KEPT"];
    let rows = rows.map(|(table, rows, age)| [table.to_owned(), rows.to_string(), age]).to_vec();
    say(Table { head, rows });
    if arguments.dry_run {
        complain("Nothing was taken away.");
    }
    Ok(())
}

fn days(age: Duration) -> String {
    humantime::format_duration(age).to_string()
}
