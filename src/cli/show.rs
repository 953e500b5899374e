//! `onced show KEY`: what the database knows of a key.

use super::output::{Style, Table, plain, say, say_json, styled};
use crate::config::Config;
use crate::store;
use crate::store::records::{Record, RecordedEvent, find_record};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The idempotency key, without quotes of its own
    key: String,
    /// The principal whose key it is; by default the one of callers that nobody authenticates
    #[arg(long, value_name = "NAME", default_value = "")]
    scope: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the key. Returns whether it is there.
pub(super) fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<bool> {
    let mut client = store::connect(&config.database)?;
    let record = find_record(&mut client, &arguments.scope, &arguments.key)?;
    if arguments.json {
        say_json(&record);
        return Ok(record.is_some());
    }
    match &record {
        Some(record) => tell(record),
        None => say(format_args!("{}", nothing(arguments))),
    }
    Ok(record.is_some())
}

fn nothing(arguments: &Arguments) -> String {
    let key = plain(&arguments.key);
    let whose = match arguments.scope.as_str() {
        "" => "without a principal (give one with --scope)".to_owned(),
        scope => format!("of {}", plain(scope)),
    };
    format!(
        "There is no record of the key {key} {whose}: it was never used, is in progress, ended \
         in an error that is not stored, or was purged."
    )
}

fn tell(record: &Record) {
    let rows = [
        ("key", record.key.clone()),
        ("operation", record.operation.clone()),
        ("outcome", format!("{} ({})", record.status, record.http_status)),
        ("recorded", record.created_at.clone()),
        ("fingerprint", record.request_hash.clone()),
        ("response", record.response.as_ref().map_or("none", |r| r.get()).to_owned()),
    ];
    for (name, value) in rows {
        let name = styled(Style::Dim, format_args!("{name:12}"));
        say(format_args!("{name} {}", plain(&value)));
    }
    say("");
    if record.events.is_empty() {
        say("It wrote no events.");
        return;
    }
    let head = ["ID", "TYPE", "STATE", "ATTEMPTS", "EVENT KEY"];
    say(Table { head, rows: record.events.iter().map(event_row).collect() });
}

fn event_row(event: &RecordedEvent) -> [String; 5] {
    let state = match (&event.sent_at, &event.dead_at) {
        (Some(sent), _) => format!("sent {sent}"),
        (None, Some(dead)) => format!("dead {dead}"),
        (None, None) => "waiting".to_owned(),
    };
    [
        event.event_id.to_string(),
        plain(&event.event_type).into_owned(),
        state,
        event.attempts.to_string(),
        plain(&event.event_key).into_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_sent_dead_or_waiting() {
        let event = RecordedEvent {
            event_id: 7,
            event_key: "k:1".to_owned(),
            event_type: "order.created".to_owned(),
            created_at: "c".to_owned(),
            sent_at: None,
            attempts: 3,
            dead_at: None,
        };
        assert_eq!(event_row(&event), ["7", "order.created", "waiting", "3", "k:1"]);
        let dead = RecordedEvent { dead_at: Some("d".to_owned()), ..event.clone() };
        assert_eq!(event_row(&dead)[2], "dead d");
        let sent = RecordedEvent { sent_at: Some("s".to_owned()), ..event };
        assert_eq!(event_row(&sent)[2], "sent s");
    }
}
