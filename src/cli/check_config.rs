//! `onced check-config`: every problem of the file at once, and, with the database, of every operation's SQL.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::output::{Style, complain, say, say_json, styled_error};
use super::settings;
use crate::config::{Config, Place, Problem};
use crate::store;
use crate::store::migrate::check_schema;
use crate::store::prepare::{DescribeError, describe};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Look at the file only, not at the database
    #[arg(long)]
    offline: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found. Problems make the configuration unusable; a database that cannot be asked does not.
#[derive(Default)]
struct Found {
    problems: Vec<Finding>,
    warnings: Vec<String>,
    /// Why the operations were not checked against the database.
    unchecked: Option<String>,
    /// The configuration that is in force, secrets masked.
    effective: Option<String>,
    operations: usize,
}

/// A problem of the configuration or of an operation's SQL.
struct Finding {
    place: String,
    key: String,
    message: String,
}

/// Checks. Returns whether all is right.
pub(super) fn run(config: Option<PathBuf>, arguments: &Arguments) -> bool {
    let mut found = Found::default();
    match settings::load(config) {
        Ok(config) => look_at(&config, arguments.offline, &mut found),
        Err(problems) => found.problems = problems.0.into_iter().map(finding).collect(),
    }
    if arguments.json {
        say_json(&report(&found));
    } else {
        tell(&found);
    }
    found.problems.is_empty()
}

fn look_at(config: &Config, offline: bool, found: &mut Found) {
    found.warnings.clone_from(&config.warnings);
    found.effective = Some(config.to_masked_toml());
    found.operations = config.operations.len();
    if offline {
        found.unchecked = Some("not asked, because of --offline".to_owned());
        return;
    }
    let mut client = match store::connect(&config.database) {
        Ok(client) => client,
        Err(store::ConnectError::Open(error)) => {
            found.problems.push(of_file(config, "database", error.to_string()));
            return;
        }
        Err(store::ConnectError::Fault(fault)) => {
            found.unchecked = Some(fault.to_string());
            return;
        }
    };
    // Before `onced migrate` has run, an operation's tables need not be there.
    if let Err(problem) = check_schema(&mut client) {
        found.unchecked = Some(problem.to_string());
        return;
    }
    for operation in &config.operations {
        match describe(&mut client, operation) {
            Ok(_) => {}
            Err(DescribeError::Problem(problem)) => {
                let place = match problem.at {
                    Some(at) => format!("{}:{}:{}", problem.path.display(), at.line, at.column),
                    None => problem.path.display().to_string(),
                };
                let key = format!("operations.{}", operation.name);
                found.problems.push(Finding { place, key, message: problem.message });
            }
            Err(DescribeError::Fault(fault)) => {
                found.unchecked = Some(fault.to_string());
                return;
            }
        }
    }
}

fn finding(problem: Problem) -> Finding {
    Finding { place: problem.place.to_string(), key: problem.key, message: problem.message }
}

fn of_file(config: &Config, key: &str, message: String) -> Finding {
    let place = Place::File(config.file.clone());
    finding(Problem { place, key: key.to_owned(), message })
}

fn tell(found: &Found) {
    for problem in &found.problems {
        let place = styled_error(Style::Bold, &problem.place);
        let key = if problem.key.is_empty() { String::new() } else { format!("{}: ", problem.key) };
        complain(format_args!("{place}: {key}{}", problem.message));
    }
    for warning in &found.warnings {
        complain(format_args!("{}: {warning}", styled_error(Style::Odd, "warning")));
    }
    if let Some(reason) = &found.unchecked {
        let what = "the operations' SQL was not checked against the database";
        complain(format_args!("{}: {what}: {reason}", styled_error(Style::Odd, "note")));
    }
    if let Some(effective) = &found.effective {
        say(effective.trim());
    }
    match found.problems.len() {
        0 if found.unchecked.is_some() => {
            complain(styled_error(Style::Good, "The file is right."));
        }
        0 => {
            let right = "The configuration is right, and so is the SQL of its operations";
            let right = format!("{right} ({}).", found.operations);
            complain(styled_error(Style::Good, right));
        }
        1 => complain(styled_error(Style::Bad, "1 problem")),
        count => complain(styled_error(Style::Bad, format_args!("{count} problems"))),
    }
}

fn report(found: &Found) -> Value {
    let problems: Vec<Value> = found
        .problems
        .iter()
        .map(|p| json!({ "place": p.place, "key": p.key, "message": p.message }))
        .collect();
    json!({
        "ok": found.problems.is_empty(),
        "problems": problems,
        "warnings": found.warnings,
        "operations_unchecked": found.unchecked,
        "effective": found.effective,
    })
}
