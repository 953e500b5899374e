//! `onced outbox`: looking at events, and deciding about those that could not be delivered.

mod change;
mod list;
mod view;

use clap::{Args, Subcommand};

use super::{Failure, settings};
use crate::config::Config;
use crate::outcome::Fault;
use crate::store::Session;
use crate::store::outbox::{Change, Entry, Filter, list_events};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List events, the latest first
    #[command(after_help = "Examples:\n  onced outbox list --state dead\n  \
                            onced outbox list --key demo-001 --scope billing --json")]
    List(list::Arguments),
    /// Show one event: where it stands, what was wrong, its payload
    #[command(after_help = "Exits with 1 where there is no such event.\n\n\
                            Examples:\n  onced outbox show 17\n  \
                            onced outbox show 0195f3a2-7d2c-7c31-9b0e-3f2d1a5c8e10:1")]
    Show(list::ShowArguments),
    /// Try dead events again, with all their attempts before them
    #[command(
        after_help = "Name events by id or event key, or say which by --type, --since, --key and --scope \
                            (all that are given must match); --all means every dead event.\n\
                            Exits with 1 where an event that was named is not there or not dead.\n\n\
                            Examples:\n  onced outbox retry 17 18\n  \
                            onced outbox retry --type order.created --since 2h --dry-run\n  \
                            onced outbox retry --all --yes"
    )]
    Retry(change::Arguments),
    /// Give events up for good: they are kept, with who did it and when, and are not sent
    #[command(
        after_help = "Meant for dead events. Events that still wait for delivery are given up where they are \
                            named, or with --state pending; an attempt that is under way may still deliver one.\n\
                            Exits with 1 where an event that was named is not there, or sent or discarded already.\n\n\
                            Examples:\n  onced outbox discard 17 --as alice\n  \
                            onced outbox discard --type audit.order_created --since 1d --yes\n  \
                            onced outbox discard --key demo-001 --state pending"
    )]
    Discard(change::DiscardArguments),
    /// Send events again that were sent before, for a consumer that lost them
    #[command(
        after_help = "They go out with the same event key and the same body bytes, so a consumer that drops \
                            repeats drops those that it still knows.\n\
                            Exits with 1 where an event that was named is not there or was not sent.\n\n\
                            Examples:\n  onced outbox replay 17\n  \
                            onced outbox replay --type order.created --since 6h --dry-run"
    )]
    Replay(change::Arguments),
}

/// Which events are meant: all that is given must match.
#[derive(Debug, Args)]
struct Which {
    /// Of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Written so long ago at most, as 30m, 6h or 2d
    #[arg(long, value_name = "DURATION")]
    since: Option<humantime::Duration>,
    /// Of requests with this idempotency key
    #[arg(long)]
    key: Option<String>,
    /// Of this principal; '' for callers that nobody authenticates
    #[arg(long, value_name = "PRINCIPAL")]
    scope: Option<String>,
}

impl Which {
    fn is_empty(&self) -> bool {
        let Which { event_type, since, key, scope } = self;
        event_type.is_none() && since.is_none() && key.is_none() && scope.is_none()
    }

    fn filter(&self) -> Filter {
        Filter {
            event_type: self.event_type.clone(),
            since: self.since.map(Into::into),
            key: self.key.clone(),
            scope: self.scope.clone(),
            ..Filter::default()
        }
    }
}

/// Does what was asked. Returns whether every event that was named was met.
pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<bool, Failure> {
    let connect = || settings::connect(config);
    match &arguments.command {
        Command::List(arguments) => Ok(list::list(&mut connect()?, arguments).map(|()| true)?),
        Command::Show(arguments) => Ok(list::show(&mut connect()?, arguments)?),
        Command::Retry(arguments) => change::run(connect, Change::Retry, arguments, None),
        Command::Discard(arguments) => change::discard(connect, arguments),
        Command::Replay(arguments) => change::run(connect, Change::Replay, arguments, None),
    }
}

/// The event of an id or event key. A number is an id: event keys are never numbers.
fn find(client: &mut Session, name: &str) -> Result<Option<Entry>, Fault> {
    let Ok(id) = name.parse::<i64>() else {
        let filter = Filter { event_key: Some(name.to_owned()), ..Filter::default() };
        return Ok(list_events(client, &filter, None, 1)?.into_iter().next());
    };
    let Some(after) = id.checked_add(1) else { return Ok(None) };
    let last = list_events(client, &Filter::default(), Some(after), 1)?.into_iter().next();
    Ok(last.filter(|entry| entry.id == id))
}
