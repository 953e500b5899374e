//! Reads the sections key by key. What is wrong is noted, the default put in its place, and the reading goes on, so
//! that all problems are found at once. One line of code for each key says all there is to know about it: its name,
//! its default, its kind and bounds; the manual's figures, the list of known names, the names of the variables and the
//! dump of what is in force all come from there.

use std::collections::{BTreeMap, BTreeSet};

use super::effective::Setting;
use super::problem::{Place, Problem, Problems};
use super::raw::{Document, Entry, Environment, Table, Value, kind_of};
use super::section::Section;
use super::strangers::Stranger;

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

/// The state of one reading.
pub(super) struct Reader {
    pub(super) document: Document,
    pub(super) environment: Environment,
    /// Whether the file is TOML throughout. Where not, what seems to be missing may only be unreadable.
    pub(super) is_toml: bool,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    pub(super) known: Vec<Known>,
    pub(super) settings: Vec<Setting>,
    pub(super) places: BTreeMap<String, Place>,
    pub(super) faulty: BTreeSet<String>,
    strangers: Vec<Stranger>,
}

/// What a reading gave besides the values.
pub(super) struct Finished {
    pub(super) settings: Vec<Setting>,
    pub(super) warnings: Vec<String>,
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
        let is_in_file = self.document.root.contains_key(name);
        let (settings, problems) = (self.settings.len(), self.problems.len());
        // Read in any case, so that its keys are known.
        let value = self.section(name, read);
        let prefix = format!("{name}.");
        if is_in_file || self.places.keys().any(|key| key.starts_with(&prefix)) {
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
        let kind = kind_of(&entry.value);
        let Value::List(items) = entry.value else {
            self.problem_at(place, name, format!("this is {kind}; write [[{name}]]"));
            return Vec::new();
        };
        if items.len() > most {
            self.problem_at(place, name, format!("{} are too many; up to {most}", items.len()));
            return Vec::new();
        }
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
        let kind = kind_of(&entry.value);
        if let Value::Table(table) = entry.value {
            return Some(table);
        }
        let place = self.document.place(entry.start);
        self.problem_at(place, path, format!("this is {kind}, not a section {written}"));
        None
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
            let (path, manual) = (path.clone(), manual.clone());
            self.strangers.push(Stranger { place, path, manual, key });
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

    pub(super) fn problem_at(&mut self, place: Place, key: &str, message: String) {
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

    /// The keys that no section took, and the sections that nobody read.
    pub(super) fn take_strangers(&mut self) -> Vec<Stranger> {
        let mut strangers = std::mem::take(&mut self.strangers);
        for (key, entry) in std::mem::take(&mut self.document.root) {
            let place = self.document.place(entry.start);
            let (path, manual) = (String::new(), String::new());
            strangers.push(Stranger { place, path, manual, key });
        }
        strangers
    }

    /// Ends the reading: names what nobody knows, and gives all problems if there are any.
    pub(super) fn finish(mut self) -> Result<Finished, Problems> {
        // In a broken file a key may seem to stand in another section than it was written in.
        if self.is_toml {
            self.name_strangers();
        }
        self.name_unknown_variables();
        if self.problems.is_empty() {
            let Reader { settings, warnings, .. } = self;
            return Ok(Finished { settings, warnings });
        }
        self.problems.sort();
        self.problems.dedup();
        Err(Problems(self.problems))
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
