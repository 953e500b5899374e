//! One section in reading: each method reads one key.

use super::effective::Setting;
use super::kind::{Kind, Read, Reading};
use super::problem::Place;
use super::raw::{Given, Table};
use super::reader::{Known, Reader, join};

/// A section whose keys are being read. What nobody reads is left in the table.
pub(super) struct Section<'r> {
    pub(super) reader: &'r mut Reader,
    /// As messages name it: `http`, `principals[0]`, `operations.orders`; empty at the top.
    pub(super) path: String,
    /// As the manual names it.
    pub(super) manual: String,
    pub(super) table: Table,
}

impl Section<'_> {
    /// A value that has a default, which is written as a variable would be.
    pub(super) fn value<T>(&mut self, key: &str, default: &str, kind: Kind<'_, T>) -> T {
        let Kind { allowed, read } = kind;
        let standard = read(&Given::of_text(default));
        let standard = standard.unwrap_or_else(|faults| panic!("default of {key}: {faults:?}"));
        self.know(key, &allowed, Some(standard.shown.clone()));
        let allowed = format!("{allowed} (default {})", standard.shown);
        let found = self.read(key, &allowed, &read);
        self.set(key, found.unwrap_or(standard))
    }

    /// A value that may be absent.
    pub(super) fn optional<T>(&mut self, key: &str, kind: Kind<'_, T>) -> Option<T> {
        let Kind { allowed, read } = kind;
        self.know(key, &allowed, None);
        self.read(key, &allowed, &read).map(|read| self.set(key, read))
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

    /// Reads what was given, if anything was, and notes what is wrong with it.
    fn read<T>(&mut self, key: &str, allowed: &str, read: &Reading<'_, T>) -> Option<Read<T>> {
        let (place, given) = self.given(key)?;
        let path = join(&self.path, key);
        self.reader.places.insert(path.clone(), place.clone());
        let found = match given {
            Ok(given) if !given.is_readable() => Err(Vec::new()),
            Ok(given) => read(&given),
            Err(message) => Err(vec![message.into()]),
        };
        match found {
            Ok(found) => Some(found),
            Err(faults) => {
                for fault in faults {
                    let message = format!("{}; allowed: {allowed}", fault.message);
                    let path = format!("{path}{}", fault.at);
                    self.reader.problem_at(place.clone(), &path, message);
                }
                self.reader.faulty.insert(path);
                None
            }
        }
    }
}
