//! `onced outbox list` and `onced outbox show`.

use std::num::NonZeroUsize;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use super::super::output::{Style, Table, complain, cut, plain, say, say_json, styled};
use super::view::View;
use super::{Which, find};
use crate::store::Session;
use crate::store::outbox::{Entry, Filter, State, list_events};

/// The names of the states, for the option.
pub(super) const STATES: [&str; 4] = ["pending", "dead", "sent", "discarded"];
/// How wide the last column of the table may be.
const NOTE_WIDTH: usize = 60;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    #[command(flatten)]
    which: Which,
    /// So many at most, the latest
    #[arg(long, value_name = "N", default_value = "50")]
    limit: NonZeroUsize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    /// Its id or its event key
    event: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists events.
pub(super) fn list(client: &mut Session, arguments: &Arguments) -> anyhow::Result<()> {
    let state = arguments.state.as_deref().and_then(State::of_name);
    let filter = Filter { state, ..arguments.which.filter() };
    let limit = arguments.limit.get();
    // One more than asked for, to know whether there are more.
    let mut entries = list_events(client, &filter, None, limit.saturating_add(1))?;
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    if arguments.json {
        let events: Vec<View<'_>> = entries.iter().map(View::of).collect();
        say_json(&json!({ "events": events, "more": has_more }));
        return Ok(());
    }
    if entries.is_empty() {
        complain("No event matches.");
        return Ok(());
    }
    let head = ["ID", "STATE", "TYPE", "WRITTEN", "ATTEMPTS", "KEY", "NOTE"];
    say(Table { head, rows: entries.iter().map(row).collect() });
    if has_more {
        complain(format_args!("The latest {limit} are shown; there are more (--limit)."));
    }
    Ok(())
}

fn row(entry: &Entry) -> [String; 7] {
    [
        entry.id.to_string(),
        entry.state.name().to_owned(),
        plain(&entry.event_type).into_owned(),
        seconds(&entry.created_at),
        entry.attempts.to_string(),
        key(entry),
        cut(&plain(&note(entry)), NOTE_WIDTH).into_owned(),
    ]
}

/// A time without the parts of its second.
fn seconds(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(whole, _)| format!("{whole}Z"))
}

fn key(entry: &Entry) -> String {
    let key = plain(&entry.idempotency_key);
    if entry.scope.is_empty() {
        key.into_owned()
    } else {
        format!("{key} ({})", plain(&entry.scope))
    }
}

/// What there is to say about its state.
fn note(entry: &Entry) -> String {
    let error = entry.last_error.as_deref().unwrap_or_default();
    let time = |time: &Option<String>| time.as_deref().map(seconds).unwrap_or_default();
    match entry.state {
        State::Sent => format!("sent {}", time(&entry.sent_at)),
        State::Dead => error.to_owned(),
        State::Discarded => {
            let by = entry.discarded_by.as_deref().unwrap_or("somebody");
            format!("by {by}, {}", time(&entry.discarded_at))
        }
        State::Pending if error.is_empty() => String::new(),
        State::Pending => format!("next {}: {error}", seconds(&entry.due_at)),
    }
}

/// Shows one event. Returns whether it is there.
pub(super) fn show(client: &mut Session, arguments: &ShowArguments) -> anyhow::Result<bool> {
    let entry = find(client, &arguments.event)?;
    match &entry {
        Some(entry) if arguments.json => say_json(&View::with_payload(entry)),
        Some(entry) => tell(entry),
        None if arguments.json => say_json(&entry.as_ref().map(View::of)),
        None => complain(format_args!(
            "There is no event {}: it never was, or retention has taken it away.",
            plain(&arguments.event)
        )),
    }
    Ok(entry.is_some())
}

fn tell(entry: &Entry) {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let state = match entry.state {
        State::Pending => format!("pending, may be tried from {} on", entry.due_at),
        State::Sent => format!("sent {}", or_dash(&entry.sent_at)),
        State::Dead => format!("dead since {}", or_dash(&entry.dead_at)),
        State::Discarded => {
            format!(
                "discarded {} by {}",
                or_dash(&entry.discarded_at),
                or_dash(&entry.discarded_by)
            )
        }
    };
    let rows = [
        ("id", entry.id.to_string()),
        ("event key", entry.event_key.clone()),
        ("type", entry.event_type.clone()),
        ("state", state),
        ("written", entry.created_at.clone()),
        ("key", entry.idempotency_key.clone()),
        ("principal", entry.scope.clone()),
        ("order key", or_dash(&entry.order_key)),
        ("attempts", format!("{} ({} claims)", entry.attempts, entry.claims)),
        ("last error", or_dash(&entry.last_error)),
        ("payload", entry.payload.clone()),
    ];
    for (name, value) in rows {
        let name = styled(Style::Dim, format_args!("{name:10}"));
        say(format_args!("{name} {}", plain(&value)));
    }
}
