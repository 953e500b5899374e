//! Reads the sections key by key. What is wrong is noted, the default put in its place, and the reading goes on, so
//! that all problems are found at once. One line of code for each key says all there is to know about it: its name,
//! its default, its kind and bounds; the manual's figures, the list of known names, the names of the variables and the
//! dump of what is in force all come from there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::effective::Setting;
use super::kind::{Kind, Read};
use super::problem::{Place, Problem, Problems};
use super::raw::{Document, Entry, Environment, Given, Table, Value, kind_of};

/// A key that the program knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The section as the manual calls it; empty at the top.
    pub(super) section: String,
    pub(super) key: String,
    /// In words.
    pub(super) allowed: String,
    /// As TOML writes it; `None` where there is none.
    pub(super) default: Option<String>,
    /// The variable that overrides it.
    pub(super) variable: Option<String>,
}

/// Names that mean something else, or nothing to the configuration.
const RESERVED: [&str; 3] = ["ONCED_CONFIG", "ONCED_PG_BIN", "ONCED_LOG"];

/// The state of one reading.
pub(super) struct Reader {
    document: Document,
    environment: Environment,
    /// Whether the file is TOML throughout. Where not, what seems to be missing may only be unreadable.
    pub(super) is_toml: bool,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    known: Vec<Known>,
    settings: Vec<Setting>,
    places: BTreeMap<String, Place>,
    faulty: BTreeSet<String>,
    /// Keys that no section took: the place, the section's name and its name in the manual, the key.
    strangers: Vec<(Place, String, String, String)>,
}

/// What a reading gave besides the values.
pub(super) struct Finished {
    pub(super) settings: Vec<Setting>,
    pub(super) warnings: Vec<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests hold the manual against it"))]
    pub(super) known: Vec<Known>,
}

impl Reader {
    pub(super) fn new(mut document: Document, environment: Environment) -> Reader {
        let problems = std::mem::take(&mut document.syntax_errors);
        Reader {
            document,
            environment,
            is_toml: problems.is_empty(),
            problems,
            warnings: Vec::new(),
            known: Vec::new(),
            settings: Vec::new(),
            places: BTreeMap::new(),
            faulty: BTreeSet::new(),
            strangers: Vec::new(),
        }
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.document.folder()
    }

    /// Reads the keys at the top of the file; the sections are left.
    pub(super) fn top<T>(&mut self, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let table = std::mem::take(&mut self.document.root);
        let mut section =
            Section { reader: self, path: String::new(), manual: String::new(), table };
        let value = read(&mut section);
        self.document.root = section.table;
        value
    }

    /// Reads a section; where it is not there, every key has its default.
    pub(super) fn section<T>(&mut self, name: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let table = match self.document.root.remove(name) {
            None => None,
            Some(entry) => {
                self.places.insert(name.to_owned(), self.document.place(entry.start));
                self.table_of(name, entry, &format!("[{name}]"))
            }
        };
        self.read_table(name, name, table.unwrap_or_default(), read)
    }

    /// Reads a section that means something by being there, in the file or by a variable.
    pub(super) fn section_if_there<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Option<T> {
        let is_there = self.document.root.contains_key(name)
            || self.environment.names().any(|variable| is_of_section(variable, name));
        let (settings, problems) = (self.settings.len(), self.problems.len());
        // Read in any case, so that its keys are known.
        let value = self.section(name, read);
        if is_there {
            return Some(value);
        }
        self.settings.truncate(settings);
        self.problems.truncate(problems);
        None
    }

    /// Reads each table of an array `[[name]]`.
    pub(super) fn array<T>(
        &mut self,
        name: &str,
        most: usize,
        mut read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Vec<T> {
        let Some(entry) = self.document.root.remove(name) else {
            return Vec::new();
        };
        let place = self.document.place(entry.start);
        self.places.insert(name.to_owned(), place.clone());
        let items = match entry.value {
            Value::List(items) if items.len() <= most => items,
            Value::List(items) => {
                self.problem_at(place, name, format!("{} are too many; up to {most}", items.len()));
                return Vec::new();
            }
            other => {
                let kind = kind_of(&other);
                self.problem_at(place, name, format!("this is {kind}; write [[{name}]]"));
                return Vec::new();
            }
        };
        let mut values = Vec::new();
        for (position, item) in items.into_iter().enumerate() {
            let path = format!("{name}[{position}]");
            self.places.insert(path.clone(), self.document.place(item.start));
            if let Some(table) = self.table_of(&path, item, &format!("[[{name}]]")) {
                values.push(self.read_table(&path, name, table, &mut read));
            }
        }
        values
    }

    /// Reads each table `[name.…]`, in the order of the file, with its own name.
    pub(super) fn named<T>(
        &mut self,
        name: &str,
        most: usize,
        mut read: impl FnMut(&mut Section<'_>, &str) -> T,
    ) -> Vec<T> {
        let Some(entry) = self.document.root.remove(name) else {
            return Vec::new();
        };
        let place = self.document.place(entry.start);
        let Some(table) = self.table_of(name, entry, &format!("[{name}.NAME]")) else {
            return Vec::new();
        };
        if table.len() > most {
            self.problem_at(place, name, format!("{} are too many; up to {most}", table.len()));
            return Vec::new();
        }
        let mut items: Vec<_> = table.into_iter().collect();
        items.sort_by_key(|(_, item)| item.start);
        let mut values = Vec::new();
        for (key, item) in items {
            let path = format!("{name}.{key}");
            self.places.insert(path.clone(), self.document.place(item.start));
            if let Some(table) = self.table_of(&path, item, &format!("[{path}]")) {
                let manual = format!("{name}.NAME");
                let mut read = |section: &mut Section<'_>| read(section, &key);
                values.push(self.read_table(&path, &manual, table, &mut read));
            }
        }
        values
    }

    fn table_of(&mut self, path: &str, entry: Entry, written: &str) -> Option<Table> {
        let place = self.document.place(entry.start);
        match entry.value {
            Value::Table(table) => Some(table),
            other => {
                let kind = kind_of(&other);
                self.problem_at(place, path, format!("this is {kind}, not a section {written}"));
                None
            }
        }
    }

    fn read_table<T>(
        &mut self,
        path: &str,
        manual: &str,
        table: Table,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> T {
        let (path, manual) = (path.to_owned(), manual.to_owned());
        let mut section = Section { reader: self, path, manual, table };
        let value = read(&mut section);
        let Section { path, manual, table, .. } = section;
        for (key, entry) in table {
            let place = self.document.place(entry.start);
            self.strangers.push((place, path.clone(), manual.clone(), key));
        }
        value
    }

    /// Notes a problem of a key, where it was given, else of the file as a whole.
    pub(super) fn problem(&mut self, key: &str, message: String) {
        let section = key.rsplit_once('.').map_or(key, |(section, _)| section);
        let given = self.places.get(key).or_else(|| self.places.get(section));
        let place = given.cloned().unwrap_or_else(|| self.document.whole());
        self.problem_at(place, key, message);
    }

    fn problem_at(&mut self, place: Place, key: &str, message: String) {
        self.faulty.insert(key.to_owned());
        self.problems.push(Problem { place, key: key.to_owned(), message });
    }

    /// Whether a key or section was given, in the file or by a variable.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    pub(super) fn warn(&mut self, message: String) {
        self.warnings.push(message);
    }

    /// Whether all of these keys were read well, so that a rule may judge them.
    pub(super) fn are_sound(&self, keys: &[&str]) -> bool {
        !keys.iter().any(|key| self.faulty.contains(*key))
    }

    /// Ends the reading: names what nobody knows, and gives all problems if there are any.
    pub(super) fn finish(mut self) -> Result<Finished, Problems> {
        if self.is_toml {
            self.name_unknown_sections();
            self.name_unknown_keys();
        }
        self.name_unknown_variables();
        if self.problems.is_empty() {
            let Reader { settings, warnings, known, .. } = self;
            return Ok(Finished { settings, warnings, known });
        }
        self.problems.sort();
        self.problems.dedup();
        Err(Problems(self.problems))
    }

    fn name_unknown_sections(&mut self) {
        for (key, entry) in std::mem::take(&mut self.document.root) {
            let place = self.document.place(entry.start);
            self.strangers.push((place, String::new(), String::new(), key));
        }
    }

    fn name_unknown_keys(&mut self) {
        for (place, path, manual, key) in std::mem::take(&mut self.strangers) {
            let all: Vec<Known> = self.known.clone();
            let own = all.iter().filter(|known| known.section == manual);
            let mut names: Vec<&str> = own.map(|known| known.key.as_str()).collect();
            if path.is_empty() {
                names.extend(all.iter().map(|known| known.section.as_str()));
                names.extend(["principals", "operations"]);
            }
            let elsewhere = all.iter().find(|known| known.key == key && known.section != manual);
            let hint = match (nearest(&key, &names), elsewhere) {
                (Some(name), _) => format!("; did you mean {name}?"),
                (None, Some(known)) => match known.section.as_str() {
                    "" => "; it stands at the top of the file, before any section".to_owned(),
                    section => format!("; it is a key of [{section}]"),
                },
                (None, None) => String::new(),
            };
            let what = if path.is_empty() { "no such key or section" } else { "no such key" };
            self.problem_at(place, &join(&path, &key), format!("{what}{hint}"));
        }
    }

    fn name_unknown_variables(&mut self) {
        let all: Vec<Known> = self.known.clone();
        let variables: Vec<&str> =
            all.iter().filter_map(|known| known.variable.as_deref()).collect();
        let names: Vec<String> = self.environment.names().map(str::to_owned).collect();
        for name in names {
            let value = self.environment.take(&name).and_then(Result::ok).unwrap_or_default();
            if RESERVED.contains(&name.as_str())
                || name.starts_with("ONCED_TEST_")
                || is_service_link(&name, &value)
            {
                continue;
            }
            let tables = ["principals", "operations"];
            if tables.iter().any(|table| is_of_section(&name, table)) {
                let message = "principals and operations are set in the file only".to_owned();
                self.problem_at(Place::Variable(name), "", message);
                continue;
            }
            let section = all.iter().find(|known| is_of_section(&name, &known.section));
            match (nearest(&name, &variables), section) {
                (Some(near), _) => {
                    let message = format!("no such setting; did you mean {near}?");
                    self.problem_at(Place::Variable(name), "", message);
                }
                (None, Some(known)) => {
                    let message = format!("no such setting in [{}]", known.section);
                    self.problem_at(Place::Variable(name), "", message);
                }
                (None, None) => self.warn(format!("{name} is set, but is no setting of onced")),
            }
        }
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

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// One section in reading.
pub(super) struct Section<'r> {
    reader: &'r mut Reader,
    /// As messages name it: `http`, `principals[0]`, `operations.orders`; empty at the top.
    path: String,
    /// As the manual names it.
    manual: String,
    table: Table,
}

impl Section<'_> {
    /// A value that has a default, which is written as a variable would be.
    pub(super) fn value<T>(&mut self, key: &str, default: &str, kind: Kind<'_, T>) -> T {
        let standard = (kind.read)(&Given::of_text(default));
        let standard = standard.unwrap_or_else(|faults| panic!("default of {key}: {faults:?}"));
        self.know(key, &kind.allowed, Some(standard.shown.clone()));
        match self.read(key, &kind, Some(&standard.shown)) {
            Some(read) => self.set(key, read),
            None => self.set(key, standard),
        }
    }

    /// A value that may be absent.
    pub(super) fn optional<T>(&mut self, key: &str, kind: Kind<'_, T>) -> Option<T> {
        self.know(key, &kind.allowed, None);
        self.read(key, &kind, None).map(|read| self.set(key, read))
    }

    /// A value that must be there.
    pub(super) fn required<T>(&mut self, key: &str, kind: Kind<'_, T>) -> Option<T> {
        let path = join(&self.path, key);
        let allowed = kind.allowed.clone();
        let value = self.optional(key, kind);
        if value.is_none() && self.reader.are_sound(&[&path]) {
            self.missing(key, &format!("missing; allowed: {allowed}"));
        }
        value
    }

    /// Notes that something must be there, unless the file could not be read to its end.
    pub(super) fn missing(&mut self, key: &str, message: &str) {
        let path = join(&self.path, key);
        if self.reader.is_toml {
            self.reader.problem(&path, message.to_owned());
        }
        self.reader.faulty.insert(path);
    }

    pub(super) fn problem(&mut self, key: &str, message: String) {
        self.reader.problem(&join(&self.path, key), message);
    }

    /// Notes a problem of the section as a whole.
    pub(super) fn problem_here(&mut self, message: String) {
        let path = self.path.clone();
        self.reader.problem(&path, message);
    }

    /// Whether a variable overrides this key.
    pub(super) fn is_overridden(&self, key: &str) -> bool {
        let variable = self.variable(key);
        variable.is_some_and(|name| self.reader.environment.text(&name).is_some())
    }

    /// Whether the file has this key.
    pub(super) fn is_in_file(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Leaves out what the file and the environment say about this key.
    pub(super) fn forget(&mut self, key: &str) {
        self.table.remove(key);
        if let Some(variable) = self.variable(key) {
            self.reader.environment.forget(&variable);
        }
    }

    fn variable(&self, key: &str) -> Option<String> {
        let section = self.path.to_uppercase();
        let key = key.to_uppercase();
        match self.path.as_str() {
            "" => Some(format!("ONCED_{key}")),
            path if path == self.manual => Some(format!("ONCED_{section}_{key}")),
            _ => None,
        }
    }

    fn know(&mut self, key: &str, allowed: &str, default: Option<String>) {
        let known = Known {
            section: self.manual.clone(),
            key: key.to_owned(),
            allowed: allowed.to_owned(),
            default,
            variable: self.variable(key),
        };
        if !self.reader.known.contains(&known) {
            self.reader.known.push(known);
        }
    }

    fn set<T>(&mut self, key: &str, read: Read<T>) -> T {
        let (section, key) = (self.path.clone(), key.to_owned());
        self.reader.settings.push(Setting { section, key, value: read.shown });
        read.value
    }

    /// What the environment says about a key, else the file.
    fn given(&mut self, key: &str) -> Option<(Place, Result<Given, String>)> {
        let in_file = self.table.remove(key);
        let variable = self.variable(key).filter(|_| self.is_overridden(key));
        if let Some(name) = variable {
            let text = self.reader.environment.take(&name)?;
            let given = text.map(|text| Given::of_text(&text)).map_err(|_| "not UTF-8".to_owned());
            return Some((Place::Variable(name), given));
        }
        let entry = in_file?;
        let place = self.reader.document.place(entry.start);
        Some((place, Ok(Given::of_file(entry.value))))
    }

    fn read<T>(&mut self, key: &str, kind: &Kind<'_, T>, default: Option<&str>) -> Option<Read<T>> {
        let (place, given) = self.given(key)?;
        let path = join(&self.path, key);
        self.reader.places.insert(path.clone(), place.clone());
        let read = match given {
            Ok(given) => (kind.read)(&given),
            Err(message) => Err(vec![message.into()]),
        };
        let allowed = &kind.allowed;
        let default = default.map(|default| format!(" (default {default})")).unwrap_or_default();
        match read {
            Ok(read) => Some(read),
            Err(faults) => {
                for fault in faults {
                    let message = format!("{}; allowed: {allowed}{default}", fault.message);
                    let path = format!("{path}{}", fault.at);
                    self.reader.problem_at(place.clone(), &path, message);
                }
                self.reader.faulty.insert(path);
                None
            }
        }
    }
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
