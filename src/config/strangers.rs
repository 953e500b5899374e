//! Keys, sections and variables that nobody knows, and what was probably meant.

use super::problem::Place;
use super::reader::{Reader, join};

/// Names that mean something else, or nothing to the configuration.
const RESERVED: [&str; 3] = ["ONCED_CONFIG", "ONCED_PG_BIN", "ONCED_LOG"];

/// What stands in the file only.
const TABLES: [&str; 2] = ["principals", "operations"];

/// A key that no section took.
pub(super) struct Stranger {
    pub(super) place: Place,
    /// The section it stands in, and the manual's name for that; empty at the top.
    pub(super) path: String,
    pub(super) manual: String,
    pub(super) key: String,
}

impl Reader {
    pub(super) fn name_strangers(&mut self) {
        for Stranger { place, path, manual, key } in self.take_strangers() {
            let own = self.known.iter().filter(|known| known.section == manual);
            let mut names: Vec<&str> = own.map(|known| known.key.as_str()).collect();
            if path.is_empty() {
                names.extend(self.known.iter().map(|known| known.section.as_str()));
                names.extend(TABLES);
            }
            let hint = match nearest(&key, &names) {
                Some(name) => format!("; did you mean {name}?"),
                None => self.hint_at_section(&key),
            };
            let what = if path.is_empty() { "no such key or section" } else { "no such key" };
            self.problem_at(place, &join(&path, &key), format!("{what}{hint}"));
        }
    }

    /// For a key that belongs elsewhere.
    fn hint_at_section(&self, key: &str) -> String {
        match self.known.iter().find(|known| known.key == key) {
            Some(known) if known.section.is_empty() => {
                "; it stands at the top of the file, before any section".to_owned()
            }
            Some(known) => format!("; it is a key of [{}]", known.section),
            None => String::new(),
        }
    }

    pub(super) fn name_unknown_variables(&mut self) {
        let names: Vec<String> = self.environment.names().map(str::to_owned).collect();
        for name in names {
            let value = self.environment.take(&name).and_then(Result::ok).unwrap_or_default();
            let means_something_else = RESERVED.contains(&name.as_str())
                || name.starts_with("ONCED_TEST_")
                || is_service_link(&name, &value);
            if means_something_else {
                continue;
            }
            match self.wrong_variable(&name) {
                Some(message) => self.problem_at(Place::Variable(name), "", message),
                None => self.warn(format!("{name} is set, but is no setting of onced")),
            }
        }
    }

    /// What is wrong with a variable that looks like one of ours; `None` where it does not.
    fn wrong_variable(&self, name: &str) -> Option<String> {
        if TABLES.iter().any(|table| is_of_section(name, table)) {
            return Some("principals and operations are set in the file only".to_owned());
        }
        let variables: Vec<&str> =
            self.known.iter().filter_map(|known| known.variable.as_deref()).collect();
        let ending = name.strip_prefix("ONCED").unwrap_or(name);
        let without_section = || variables.iter().find(|known| known.ends_with(ending)).copied();
        if let Some(near) = nearest(name, &variables).or_else(without_section) {
            return Some(format!("no such setting; did you mean {near}?"));
        }
        let section = self.known.iter().find(|known| is_of_section(name, &known.section))?;
        Some(format!("no such setting in [{}]", section.section))
    }
}

/// Whether a variable's name begins like those that override keys of this section.
fn is_of_section(variable: &str, section: &str) -> bool {
    let rest = variable.strip_prefix("ONCED_").unwrap_or_default();
    !section.is_empty()
        && rest.strip_prefix(&section.to_uppercase()).is_some_and(|rest| rest.starts_with('_'))
}

/// Kubernetes puts the addresses of a service called `onced…` into such variables of every container.
fn is_service_link(name: &str, value: &str) -> bool {
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
        || ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|part| name.contains(part))
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// The name that was probably meant.
fn nearest<'n>(found: &str, names: &[&'n str]) -> Option<&'n str> {
    let found = found.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&found, &name.to_lowercase());
    let name = names.iter().filter(|name| !name.is_empty()).min_by_key(|name| distance(name))?;
    (distance(name) <= (name.len() / 4).clamp(1, 3)).then_some(*name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_is_near() {
        let names = ["threads", "queue", "batch", "max_body", "url", ""];
        assert_eq!(nearest("thread", &names), Some("threads"));
        assert_eq!(nearest("Threads", &names), Some("threads"));
        assert_eq!(nearest("max-body", &names), Some("max_body"));
        assert_eq!(nearest("urk", &names), Some("url"));
        assert_eq!(nearest("password", &names), None);
        assert_eq!(nearest("x", &names), None);
    }
}
