//! Asking a person before something is done that cannot be undone, and who it is that does it.

use std::fmt::Display;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use nix::unistd::{User, geteuid};

use super::Failure;

/// The longest name that is written down with a decision, in characters.
const NAME_MAX: usize = 200;

/// Whether there is a person who can be asked.
pub(super) fn can_ask() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Whether the person says yes. Everything else is a no.
pub(super) fn confirm(question: impl Display) -> bool {
    let mut stderr = stderr().lock();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).ok();
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// What is said where nobody can be asked and `--yes` is missing.
pub(super) fn needs_yes(what: impl Display) -> Failure {
    Failure::Usage(format!(
        "{what}: without a terminal to ask on, say --yes (or --dry-run to look first)"
    ))
}

/// Who decides: the name that was given, else the user behind sudo, else the user.
pub(super) fn who(given: Option<&str>) -> Result<String, Failure> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => user(),
    };
    let is_good = !name.trim().is_empty()
        && name.chars().count() <= NAME_MAX
        && !name.chars().any(char::is_control);
    if is_good {
        return Ok(name);
    }
    Err(Failure::Usage(format!(
        "--as: a name of 1 to {NAME_MAX} characters is needed, on one line"
    )))
}

fn user() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let account = || User::from_uid(geteuid()).ok().flatten().map(|user| user.name);
    let known = variable("SUDO_USER").or_else(|| variable("USER")).or_else(account);
    known.unwrap_or_else(|| format!("uid {}", geteuid()))
}
