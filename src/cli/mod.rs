//! The command line: what may be typed, and the one `match` that says what happens then.

mod ask;
mod call;
mod check_config;
mod client;
pub mod dev;
mod forget;
mod migrate;
mod outbox;
mod output;
mod parent;
mod prune;
mod relay;
mod serve;
mod settings;
mod show;
mod sink;
mod token;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Problems;
use output::{Style, complain, styled_error};

/// Exit code: it was tried, and failed.
const FAILED: u8 = 1;
/// Exit code: what was typed makes no sense.
const USAGE: u8 = 2;
/// Exit code: the configuration is wrong; trying again without a change is no use.
const CONFIGURATION: u8 = 78;

/// Makes retried writes take effect once: a daemon in front of PostgreSQL.
#[derive(Debug, Parser)]
#[command(
    name = "onced",
    version,
    about,
    after_help = "To try it on this machine, with nothing to prepare but an installed PostgreSQL:\n  onced dev\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage, 70 stopped at once by a second signal, \
                  78 configuration; `onced call` has more of its own."
)]
struct Arguments {
    /// The configuration; by default $ONCED_CONFIG, else onced.toml here, else /etc/onced/onced.toml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stop when standard input closes: whoever started this is gone
    #[arg(long, global = true, hide = true)]
    exit_with_parent: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    #[command(after_help = "Example:\n  onced serve --config /etc/onced/onced.toml")]
    Serve(serve::Arguments),
    /// Run everything on this machine, with nothing to configure: a private PostgreSQL, the example, a sink, the daemon
    #[command(after_help = "Examples:\n  onced dev\n  onced dev --ephemeral --http 127.0.0.1:9080")]
    Dev(dev::Arguments),
    /// Bring the database's schema up to date, and run the operations' setup
    #[command(after_help = "Any number may run at once.\n\nExample:\n  onced migrate")]
    Migrate(migrate::Arguments),
    /// Tell every problem of the configuration, and of the operations' SQL where the database answers
    #[command(after_help = "Prints the configuration that is in force, with secrets masked.\n\n\
                            Example:\n  onced check-config --config ./onced.toml")]
    CheckConfig(check_config::Arguments),
    /// Try the promises on a running daemon that serves the example `orders`
    #[command(
        after_help = "With a configuration it counts rows in the database, too. It uses new keys and \
                            leaves its orders behind.\n\n\
                            Examples:\n  onced verify\n  \
                            onced verify --url http://127.0.0.1:8080 --token-file token"
    )]
    Verify(verify::Arguments),
    /// Show what the database knows of a key: its outcome, its answer, its events
    #[command(after_help = "Exits with 1 where there is no record of the key.\n\n\
                            Example:\n  onced show demo-001 --scope billing")]
    Show(show::Arguments),
    /// Send a write for a script or cron: with one stable key, and with retries that are safe
    #[command(after_help = call::HELP)]
    Call(call::Arguments),
    /// Look at events, and decide about those that could not be delivered
    #[command(after_help = "Examples:\n  onced outbox list --state dead\n  \
                            onced outbox retry --type order.created --since 2h\n\n\
                            `onced outbox list --help` and so on have more.")]
    Outbox(outbox::Arguments),
    /// Hold deliveries back for all daemons, let them go on, or tell how they stand
    #[command(
        after_help = "Examples:\n  onced relay pause --reason 'the consumer moves house'\n  \
                            onced relay status\n  onced relay resume"
    )]
    Relay(relay::Arguments),
    /// Take away now what retention takes away in time
    #[command(
        after_help = "Small deletes, each a transaction of its own: it may be stopped at any time. A record with \
                            events that are neither delivered nor discarded stays.\n\n\
                            Example:\n  onced prune --dry-run"
    )]
    Prune(prune::Arguments),
    /// Take one record away, so that its key counts as new
    #[command(
        after_help = "Refused while the record has events that are neither delivered nor discarded. Leaves a line in \
                      the table idempotency_audit: who, when, what. Exits with 1 where nothing was taken away.\n\n\
                      Example:\n  onced forget demo-001 --scope billing --as alice"
    )]
    Forget(forget::Arguments),
    /// Run a sample consumer of events: it checks signatures and drops repeats
    #[command(
        after_help = "GET / tells counts, GET /events the newest events, GET /events/ID one of them.\n\n\
                            Example:\n  onced sink --secret-file sink.secret --state seen.jsonl"
    )]
    Sink(sink::Arguments),
    /// Make bearer tokens for principals
    #[command(after_help = "Example:\n  onced token new --name billing")]
    Token(token::Arguments),
}

impl Arguments {
    /// An error where `--config` was given to a command that reads none: it must not seem to have had an effect.
    fn useless_config(&self) -> Option<clap::Error> {
        let name = match self.command {
            Command::Dev(_) => "dev",
            Command::Sink(_) => "sink",
            Command::Token(_) => "token",
            Command::Call(_) => "call",
            Command::Serve(_)
            | Command::Migrate(_)
            | Command::CheckConfig(_)
            | Command::Verify(_)
            | Command::Show(_)
            | Command::Outbox(_)
            | Command::Relay(_)
            | Command::Prune(_)
            | Command::Forget(_) => return None,
        };
        self.config.as_ref()?;
        let message = format!("`onced {name}` reads no configuration file: leave --config out");
        Some(Arguments::command().error(ErrorKind::ArgumentConflict, message))
    }
}

/// A command that did not do what it was asked to.
enum Failure {
    /// Exit code 1.
    Failed(anyhow::Error),
    /// Exit code 2.
    Usage(String),
    /// Exit code 78.
    Configuration(String),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Failed(error)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        Failure::Configuration(problems.to_string())
    }
}

/// Parses the arguments of the process, runs the command, and says on standard error what went wrong.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are errors to clap, too. A reader who has gone is no failure.
            error.print().ok();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(FAILED));
        }
    };
    if let Some(error) = arguments.useless_config() {
        error.print().ok();
        return ExitCode::from(USAGE);
    }
    match run(arguments) {
        Ok(code) => code,
        Err(Failure::Failed(error)) => {
            complain(format_args!("{} {error:#}", styled_error(Style::Bad, "onced:")));
            ExitCode::from(FAILED)
        }
        Err(Failure::Usage(text)) => {
            complain(format_args!("{} {text}", styled_error(Style::Bad, "onced:")));
            ExitCode::from(USAGE)
        }
        Err(Failure::Configuration(problems)) => {
            complain(problems);
            ExitCode::from(CONFIGURATION)
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { config, exit_with_parent, command } = arguments;
    if exit_with_parent {
        parent::stop_when_gone().context("cannot watch standard input")?;
    }
    match command {
        Command::Serve(arguments) => serve::run(config, &arguments),
        Command::Dev(arguments) => Ok(dev::run(&arguments)?),
        Command::Migrate(arguments) => done(migrate::run(&settings::load(config)?, &arguments)),
        Command::CheckConfig(arguments) => {
            Ok(code(check_config::run(config, &arguments), CONFIGURATION))
        }
        Command::Verify(arguments) => Ok(code(verify::run(config, &arguments)?, FAILED)),
        Command::Show(arguments) => {
            Ok(code(show::run(&settings::load(config)?, &arguments)?, FAILED))
        }
        Command::Call(arguments) => call::run(&arguments),
        Command::Outbox(arguments) => {
            Ok(code(outbox::run(&settings::load(config)?, &arguments)?, FAILED))
        }
        Command::Relay(arguments) => {
            relay::run(&settings::load(config)?, &arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::Prune(arguments) => done(prune::run(&settings::load(config)?, &arguments)),
        Command::Forget(arguments) => {
            Ok(code(forget::run(&settings::load(config)?, &arguments)?, FAILED))
        }
        Command::Sink(arguments) => done(sink::run(&arguments)),
        Command::Token(arguments) => done(token::run(arguments)),
    }
}

fn done(result: anyhow::Result<()>) -> Result<ExitCode, Failure> {
    result.map(|()| ExitCode::SUCCESS).map_err(Failure::Failed)
}

fn code(good: bool, otherwise: u8) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::from(otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example_in_its_help() {
        assert_examples("onced", &mut Arguments::command());
    }

    #[test]
    fn every_command_stands_in_the_manual() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        let manual = std::fs::read_to_string(file).unwrap();
        assert_in_manual(&manual, "onced", &Arguments::command());
    }

    fn assert_in_manual(manual: &str, above: &str, command: &clap::Command) {
        for command in command.get_subcommands() {
            let name = format!("{above} {}", command.get_name());
            assert!(manual.contains(&name), "docs/cli.md does not tell of `{name}`");
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let Some(long) = option.get_long() else { continue };
                assert!(
                    manual.contains(&format!("--{long}")),
                    "{name}: --{long} is not in docs/cli.md"
                );
            }
            assert_in_manual(manual, &name, command);
        }
    }

    fn assert_examples(above: &str, command: &mut clap::Command) {
        // `help` is clap's own.
        for command in command.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            let name = format!("{above} {}", command.get_name());
            let help = command.render_long_help().to_string();
            assert!(help.contains(&format!("  {name}")), "{name}:\n{help}");
            assert_examples(&name, command);
        }
    }
}
