//! `onced forget KEY`: takes one record away before its time, so that its key counts as new.

use clap::Args;
use serde_json::json;

use super::output::{complain, count, plain, say, say_json, shell_word};
use super::{Failure, ask, settings};
use crate::config::Config;
use crate::store::retention::{Forgotten, forget_record};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The idempotency key, without quotes of its own
    key: String,
    /// The principal whose key it is; by default the one of callers that nobody authenticates
    #[arg(long, value_name = "PRINCIPAL", default_value = "")]
    scope: String,
    /// Who decides; by default $SUDO_USER or $USER
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Forgets the key. Returns whether there was something to forget, and it is gone.
pub(super) fn run(config: &Config, arguments: &Arguments) -> Result<bool, Failure> {
    let who = ask::who(arguments.by.as_deref())?;
    let shown = match arguments.scope.as_str() {
        "" => plain(&arguments.key).into_owned(),
        scope => format!("{} of {}", plain(&arguments.key), plain(scope)),
    };
    if !arguments.yes {
        if !ask::can_ask() {
            return Err(Failure::Usage(format!(
                "to forget {shown} makes its next call run again: say --yes"
            )));
        }
        let question = "Forget it? The next call with this key runs again.";
        if !ask::confirm(format_args!("{shown}: {question}")) {
            complain("Nothing was changed.");
            return Ok(false);
        }
    }
    let mut client = settings::connect(config)?;
    let forgotten = forget_record(&mut client, &arguments.scope, &arguments.key, &who)
        .map_err(anyhow::Error::from)?;
    if arguments.json {
        say_json(&report(arguments, forgotten));
    } else {
        tell(&shown, arguments, forgotten);
    }
    Ok(forgotten == Forgotten::Done)
}

fn tell(shown: &str, arguments: &Arguments, forgotten: Forgotten) {
    match forgotten {
        Forgotten::Done => say(format_args!(
            "{shown} is forgotten: the key counts as new. A line in idempotency_audit tells of it."
        )),
        Forgotten::NotFound => complain(format_args!("There is no record of {shown}.")),
        Forgotten::Undelivered(events) => {
            let events = count(u64::try_from(events).unwrap_or(0), "event");
            let [key, scope] = [&arguments.key, &arguments.scope].map(|text| shell_word(text));
            let which = format!("--key {key} --scope {scope}");
            complain(format_args!(
                "{shown} stays: {events} of it neither delivered nor discarded.\nLook at them:\n  \
                 onced outbox list {which}\nWait until they are delivered, or decide about them:\n  \
                 onced outbox retry {which}\n  \
                 onced outbox discard {which}    # dead ones\n  \
                 onced outbox discard {which} --state pending    # those that still wait"
            ));
        }
    }
}

fn report(arguments: &Arguments, forgotten: Forgotten) -> serde_json::Value {
    let (result, undelivered) = match forgotten {
        Forgotten::Done => ("forgotten", 0),
        Forgotten::NotFound => ("not_found", 0),
        Forgotten::Undelivered(events) => ("undelivered_events", events),
    };
    json!({
        "key": arguments.key,
        "scope": arguments.scope,
        "result": result,
        "undelivered_events": undelivered,
    })
}
