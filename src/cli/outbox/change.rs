//! `onced outbox retry`, `discard` and `replay`: for events that are named, or for all that match.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use serde_json::json;

use super::super::output::{Progress, complain, count, plain, say, say_json};
use super::super::{Failure, ask};
use super::{Which, find};
use crate::outcome::Fault;
use crate::store::Session;
use crate::store::outbox::{
    Change, Entry, Filter, State, change_events, change_events_telling, count_events,
};

/// Events that one transaction changes at most.
const BATCH: usize = 500;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Events, each by its id or its event key
    #[arg(value_name = "EVENT", conflicts_with_all = ["event_type", "since", "key", "scope", "all"])]
    events: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Whatever the type, age, key and principal
    #[arg(long)]
    all: bool,
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct DiscardArguments {
    #[command(flatten)]
    common: Arguments,
    /// In this state; by default dead
    #[arg(long, value_parser = PossibleValuesParser::new(["dead", "pending"]), conflicts_with = "events")]
    state: Option<String>,
    /// Who decides; by default $SUDO_USER or $USER
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
}

/// What became of an event that was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    /// It was changed, or would be.
    Changed,
    /// There is none.
    NotFound,
    /// It is in a state that the change is not for.
    WrongState,
}

/// An event that was named, and what became of it.
#[derive(Debug, Serialize)]
struct Named {
    event: String,
    result: Fate,
    /// Where it stood before.
    state: Option<&'static str>,
}

/// Gives events up.
pub(super) fn discard(
    connect: impl FnOnce() -> anyhow::Result<Session>,
    arguments: &DiscardArguments,
) -> Result<bool, Failure> {
    let who = ask::who(arguments.by.as_deref())?;
    let state = arguments.state.as_deref().and_then(State::of_name);
    run(connect, Change::Discard(&who), &arguments.common, state)
}

/// Changes events. Returns whether each that was named could be.
pub(super) fn run(
    connect: impl FnOnce() -> anyhow::Result<Session>,
    change: Change<'_>,
    arguments: &Arguments,
    state: Option<State>,
) -> Result<bool, Failure> {
    let is_by_name = !arguments.events.is_empty();
    if !is_by_name && arguments.which.is_empty() && !arguments.all {
        let text = "which events? Name them, give --type, --since, --key or --scope, or say --all";
        return Err(Failure::Usage(text.to_owned()));
    }
    let may_be_many = !is_by_name || arguments.events.len() > 1;
    let needs_yes = may_be_many && !arguments.yes && !arguments.dry_run;
    if needs_yes && !ask::can_ask() {
        return Err(ask::needs_yes(format_args!("{} more than one event", words(change).verb)));
    }
    let mut client = connect()?;
    if is_by_name {
        let question = || {
            let events = count(u64::try_from(arguments.events.len()).unwrap_or(0), "event");
            ask::confirm(format_args!("{} {events}?", words(change).verb))
        };
        let may = !needs_yes || question();
        return if may { by_name(&mut client, change, arguments) } else { Ok(stopped()) };
    }
    let filter = change.narrow(&Filter { state, ..arguments.which.filter() });
    by_filter(&mut client, change, &filter, arguments)
}

fn by_name(
    client: &mut Session,
    change: Change<'_>,
    arguments: &Arguments,
) -> Result<bool, Failure> {
    let done = if arguments.dry_run { words(change).would } else { words(change).done };
    let mut named = Vec::new();
    for name in &arguments.events {
        let entry = find(client, name).map_err(anyhow::Error::from)?;
        let result = change_one(client, change, entry.as_ref(), arguments.dry_run);
        let result = result.map_err(anyhow::Error::from)?;
        let state = entry.as_ref().map(|entry| entry.state.name());
        let shown = plain(name);
        match result {
            _ if arguments.json => {}
            Fate::Changed => say(format_args!("{shown}  {done}")),
            Fate::NotFound => complain(format_args!("{shown}  there is no such event")),
            Fate::WrongState => complain(format_args!(
                "{shown}  is {}: {}",
                state.unwrap_or_default(),
                words(change).only
            )),
        }
        named.push(Named { event: name.clone(), result, state });
    }
    let changed = named.iter().filter(|named| named.result == Fate::Changed).count();
    if arguments.json {
        say_json(&json!({
            "action": words(change).action,
            "dry_run": arguments.dry_run,
            "matched": named.len(),
            "changed": if arguments.dry_run { 0 } else { changed },
            "events": named,
        }));
    }
    Ok(changed == named.len())
}

fn change_one(
    client: &mut Session,
    change: Change<'_>,
    entry: Option<&Entry>,
    dry_run: bool,
) -> Result<Fate, Fault> {
    let Some(entry) = entry else { return Ok(Fate::NotFound) };
    let fits = match change {
        Change::Retry => entry.state == State::Dead,
        Change::Discard(_) => matches!(entry.state, State::Dead | State::Pending),
        Change::Replay => entry.state == State::Sent,
    };
    if !fits {
        return Ok(Fate::WrongState);
    }
    if dry_run {
        return Ok(Fate::Changed);
    }
    let filter = Filter {
        event_key: Some(entry.event_key.clone()),
        state: Some(entry.state),
        ..Filter::default()
    };
    // The relays may have been quicker.
    let changed = change_events(client, change, &filter, 1)?;
    Ok(if changed > 0 { Fate::Changed } else { Fate::WrongState })
}

fn by_filter(
    client: &mut Session,
    change: Change<'_>,
    filter: &Filter,
    arguments: &Arguments,
) -> Result<bool, Failure> {
    let Words { action, verb, done, would, .. } = words(change);
    let asks = !arguments.yes && !arguments.dry_run;
    let state = filter.state.map_or("", State::name);
    let what = |number| count(number, &format!("{state} event"));
    let matched = match arguments.dry_run || asks {
        true => Some(count_events(client, filter).map_err(anyhow::Error::from)?),
        false => None,
    };
    if asks && matched > Some(1) {
        let matched = what(matched.unwrap_or(0));
        if !ask::confirm(format_args!("{verb} {matched}?")) {
            return Ok(stopped());
        }
    }
    let mut changed = 0;
    if !arguments.dry_run {
        let mut progress = Progress::new();
        let tell = |so_far| progress.show(format_args!("{} {done}", count(so_far, "event")));
        changed = change_events_telling(client, change, filter, BATCH, tell)
            .map_err(anyhow::Error::from)?;
    }
    if arguments.json {
        say_json(&json!({
            "action": action,
            "dry_run": arguments.dry_run,
            "matched": matched.unwrap_or(changed),
            "changed": changed,
        }));
    } else if arguments.dry_run {
        say(format_args!("{} {would}", what(matched.unwrap_or(0))));
    } else {
        say(format_args!("{} {done}", what(changed)));
    }
    Ok(true)
}

fn stopped() -> bool {
    complain("Nothing was changed.");
    false
}

/// How a change is spoken of.
struct Words {
    action: &'static str,
    verb: &'static str,
    done: &'static str,
    would: &'static str,
    only: &'static str,
}

fn words(change: Change<'_>) -> Words {
    match change {
        Change::Retry => Words {
            action: "retry",
            verb: "Retry",
            done: "will be tried again",
            would: "would be tried again",
            only: "only dead events can be tried again",
        },
        Change::Discard(_) => Words {
            action: "discard",
            verb: "Discard",
            done: "discarded",
            would: "would be discarded",
            only: "only events that are dead or pending can be discarded",
        },
        Change::Replay => Words {
            action: "replay",
            verb: "Replay",
            done: "will be sent again",
            would: "would be sent again",
            only: "only events that were sent can be sent again",
        },
    }
}
