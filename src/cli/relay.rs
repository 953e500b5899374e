//! `onced relay`: holding deliveries back for all daemons at once, and letting them go on.

use clap::{Args, Subcommand};
use serde_json::json;

use super::output::{Style, complain, count, plain, say, say_json, styled};
use super::{Failure, ask, settings};
use crate::config::Config;
use crate::store::outbox::{Backlog, backlog};
use crate::store::outbox::{Pause, find_pause, pause, resume};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver nothing until `onced relay resume`; events are kept and lose no attempt
    #[command(
        after_help = "Holds for all daemons of the database. Attempts that are under way end as they would.\n\n\
                            Example:\n  onced relay pause --reason 'the consumer moves house'"
    )]
    Pause {
        /// Why, for whoever looks
        #[arg(long, default_value = "no reason given")]
        reason: String,
        /// Who; by default $SUDO_USER or $USER
        #[arg(long = "as", value_name = "NAME")]
        by: Option<String>,
    },
    /// End a pause, be it a person's or one that the sink caused by answering 410
    #[command(after_help = "Example:\n  onced relay resume")]
    Resume,
    /// Tell whether deliveries are paused, and what waits
    #[command(after_help = "Example:\n  onced relay status --json")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Pause { reason, by } => hold(config, reason, by.as_deref()),
        Command::Resume => Ok(go_on(config)?),
        Command::Status { json } => Ok(status(config, *json)?),
    }
}

fn hold(config: &Config, reason: &str, by: Option<&str>) -> Result<(), Failure> {
    let who = ask::who(by)?;
    let mut client = settings::connect(config)?;
    if pause(&mut client, &who, reason).map_err(anyhow::Error::from)? {
        say("Deliveries are paused. `onced relay resume` lets them go on.");
        return Ok(());
    }
    // The first reason stays: who looks later must see why it began.
    let found = find_pause(&mut client).map_err(anyhow::Error::from)?;
    say(format_args!(
        "Deliveries were paused already{}.",
        found.as_ref().map(told).unwrap_or_default()
    ));
    Ok(())
}

fn go_on(config: &Config) -> anyhow::Result<()> {
    if resume(&mut settings::connect(config)?)? {
        say("Deliveries go on.");
    } else {
        say("Deliveries were not paused.");
    }
    Ok(())
}

fn status(config: &Config, as_json: bool) -> anyhow::Result<()> {
    let mut client = settings::connect(config)?;
    let pause = find_pause(&mut client)?;
    let waiting = backlog(&mut client)?;
    let has_sink = config.sink.is_some();
    if as_json {
        say_json(&json!({
            "paused": pause.is_some(),
            "paused_at": pause.as_ref().map(|pause| &pause.at),
            "paused_by": pause.as_ref().map(|pause| &pause.by),
            "reason": pause.as_ref().map(|pause| &pause.reason),
            "sink_configured": has_sink,
            "pending": waiting.pending,
            "oldest_seconds": waiting.oldest_seconds,
            "dead": waiting.dead,
        }));
        return Ok(());
    }
    match &pause {
        Some(pause) => say(format_args!("{}{}", styled(Style::Odd, "paused"), told(pause))),
        None => say(styled(Style::Good, "not paused")),
    }
    if !has_sink {
        complain("This configuration has no [sink]: its daemons deliver nothing.");
    }
    say(described(waiting));
    Ok(())
}

fn told(pause: &Pause) -> String {
    format!(" since {} by {}: {}", plain(&pause.at), plain(&pause.by), plain(&pause.reason))
}

fn described(waiting: Backlog) -> String {
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    let pending = count(number(waiting.pending), "event");
    let oldest = match waiting.pending {
        0 => String::new(),
        _ => {
            let age = std::time::Duration::from_secs(number(waiting.oldest_seconds));
            format!(", the oldest for {}", humantime::format_duration(age))
        }
    };
    let dead = count(number(waiting.dead), "dead event");
    format!("{pending} pending{oldest}; {dead} to be decided about")
}
