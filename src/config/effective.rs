//! What is in force: the dump that `check-config` prints, and what a reload cannot take over.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Config;

/// One key with the value that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// `http`, `principals[0]`, `operations.orders`; empty at the top.
    pub(super) section: String,
    pub(super) key: String,
    /// As TOML writes it, in one spelling; secrets are masked.
    pub(super) value: String,
}

/// What SIGHUP takes over: sections, or single keys.
const RELOADABLE: [&str; 3] = ["principals", "sink.secret_files", "admin.token_file"];

impl Config {
    /// Every key with the value that is in force, as TOML. What is secret is masked, so this may be shown.
    pub fn to_masked_toml(&self) -> String {
        let mut toml = String::new();
        let mut section = "";
        for setting in &self.settings {
            if setting.section != section {
                section = &setting.section;
                let title = match section.split_once('[') {
                    Some((array, _)) => format!("[[{array}]]"),
                    None => format!("[{section}]"),
                };
                write!(toml, "\n{title}\n").expect("a string takes every byte");
            }
            writeln!(toml, "{} = {}", setting.key, setting.value)
                .expect("a string takes every byte");
        }
        toml
    }

    /// The keys whose values differ between this configuration, which is in force, and `new`, and that a reload cannot
    /// take over: they need a restart. Principals, the sink's secrets and the admin token can be taken over.
    pub fn needs_restart(&self, new: &Config) -> Vec<String> {
        let (old_values, new_values) = (self.comparable(), new.comparable());
        let mut keys: Vec<&String> = old_values.keys().chain(new_values.keys()).collect();
        keys.sort();
        keys.dedup();
        let differs = |key: &&String| old_values.get(*key) != new_values.get(*key);
        keys.into_iter().filter(differs).cloned().collect()
    }

    /// Every value that needs a restart, those of secrets and files included. Not to be shown.
    fn comparable(&self) -> BTreeMap<String, String> {
        let mut values: BTreeMap<String, String> = self.settings.iter().map(full_name).collect();
        values.retain(|key, _| {
            !RELOADABLE.iter().any(|name| {
                key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            })
        });
        values.remove("database.url_file");
        values.insert("database.url".to_owned(), self.database.url.reveal().clone());
        if let Some(sink) = &self.sink {
            values.insert("sink.url".to_owned(), sink.url.to_string());
        }
        for operation in &self.operations {
            let section = format!("operations.{}", operation.name);
            values.insert(format!("{section}.sql"), operation.statement.sql.clone());
            if let Some(setup) = &operation.setup {
                values.insert(format!("{section}.setup"), setup.sql.clone());
            }
        }
        values
    }
}

fn full_name(setting: &Setting) -> (String, String) {
    let name = match setting.section.as_str() {
        "" => setting.key.clone(),
        section => format!("{section}.{}", setting.key),
    };
    (name, setting.value.clone())
}
