//! What a deduplicating consumer must remember: the id of every event it has taken, on disk before it says so.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Events that are remembered at most. A consumer that forgot some would take their repeats for new, so past this one
/// no more are accepted.
const EVENTS_MAX: usize = 1_000_000;
/// How every line begins.
const BEGINNING: &str = r#"{"id":"#;

/// One event, and how often it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    /// Of the body that came first, in hex.
    pub(super) body_sha256: String,
    pub(super) deliveries: u64,
    /// Whether a repeat had another body than the first delivery: a breach of P5 by the sender.
    pub(super) body_changed: bool,
}

/// A delivery as it stands in the file, one a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Delivery {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    pub(super) body_sha256: String,
}

/// Whether a delivery had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The first of its id: this is where a consumer does its work, in the transaction that remembers the id.
    New,
    /// A repeat: nothing is done.
    Repeat {
        /// How often the event has come by now.
        deliveries: u64,
        /// Whether the body differs from the first one.
        changed: bool,
    },
}

/// All events, in the order in which they first came.
pub(super) struct Seen {
    events: Vec<Event>,
    by_id: HashMap<String, usize>,
    file: Option<File>,
    /// The file's length up to its last whole line.
    length: u64,
}

impl Seen {
    /// Remembers in memory only.
    pub(super) fn in_memory() -> Seen {
        Seen { events: Vec::new(), by_id: HashMap::new(), file: None, length: 0 }
    }

    /// Reads what the file remembers; makes the file where there is none. A last line that was cut short by a crash
    /// was never answered for, and is taken away.
    pub(super) fn open(path: &Path) -> anyhow::Result<Seen> {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let lock = file.try_lock();
        lock.with_context(|| format!("{} is in use by another onced sink", path.display()))?;
        let mut seen = Seen::in_memory();
        let mut lines = BufReader::new(&file);
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let read = lines.read_line(&mut line);
            let length = read.with_context(|| format!("cannot read {}", path.display()))?;
            if !line.ends_with('\n') {
                let cut = line.starts_with(BEGINNING) || BEGINNING.starts_with(&line);
                anyhow::ensure!(cut, "{} is no file that onced sink wrote", path.display());
                break;
            }
            let delivery = serde_json::from_str(&line).with_context(|| {
                format!("{}:{number} is no delivery that onced sink wrote", path.display())
            })?;
            seen.count(delivery);
            seen.length += length as u64;
        }
        file.set_len(seen.length).with_context(|| format!("cannot mend {}", path.display()))?;
        Ok(Seen { file: Some(file), ..seen })
    }

    /// Takes a delivery: on disk first, then in memory. On an error it counts as not delivered.
    pub(super) fn take(&mut self, delivery: Delivery) -> anyhow::Result<Taken> {
        anyhow::ensure!(
            self.events.len() < EVENTS_MAX || self.by_id.contains_key(&delivery.id),
            "{EVENTS_MAX} events are remembered, which is all there is room for"
        );
        self.write(&delivery)?;
        Ok(self.count(delivery))
    }

    pub(super) fn event(&self, id: &str) -> Option<&Event> {
        self.by_id.get(id).map(|position| &self.events[*position])
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    fn count(&mut self, delivery: Delivery) -> Taken {
        if let Some(position) = self.by_id.get(&delivery.id) {
            let event = &mut self.events[*position];
            let changed = event.body_sha256 != delivery.body_sha256;
            event.deliveries += 1;
            event.body_changed |= changed;
            return Taken::Repeat { deliveries: event.deliveries, changed };
        }
        let Delivery { id, event_type, body_sha256 } = delivery;
        self.by_id.insert(id.clone(), self.events.len());
        self.events.push(Event { id, event_type, body_sha256, deliveries: 1, body_changed: false });
        Taken::New
    }

    fn write(&mut self, delivery: &Delivery) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(delivery).context("cannot write the delivery as JSON")?;
        line.push(b'\n');
        if let Err(error) = file.write_all(&line).and_then(|()| file.sync_data()) {
            // Half a line must not stay before the next one.
            file.set_len(self.length).context("cannot mend the state file")?;
            file.seek(SeekFrom::End(0)).context("cannot mend the state file")?;
            return Err(error).context("cannot write to the state file");
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(id: &str, body: &str) -> Delivery {
        Delivery {
            id: id.to_owned(),
            event_type: "order.created".to_owned(),
            body_sha256: body.to_owned(),
        }
    }

    #[test]
    fn the_first_of_an_id_is_new_and_the_others_are_repeats() {
        let mut seen = Seen::in_memory();
        assert_eq!(seen.take(delivery("a:1", "x")).unwrap(), Taken::New);
        assert_eq!(seen.take(delivery("a:2", "y")).unwrap(), Taken::New);
        let repeat = seen.take(delivery("a:1", "x")).unwrap();
        assert_eq!(repeat, Taken::Repeat { deliveries: 2, changed: false });
        assert_eq!(seen.event("a:1").unwrap().deliveries, 2);
        assert!(!seen.event("a:1").unwrap().body_changed);
    }

    #[test]
    fn a_repeat_with_another_body_is_told() {
        let mut seen = Seen::in_memory();
        seen.take(delivery("a:1", "x")).unwrap();
        let repeat = seen.take(delivery("a:1", "y")).unwrap();
        assert_eq!(repeat, Taken::Repeat { deliveries: 2, changed: true });
        assert!(seen.event("a:1").unwrap().body_changed);
    }

    #[test]
    fn what_was_taken_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen.jsonl");
        Seen::open(&file).unwrap().take(delivery("a:1", "x")).unwrap();
        let mut again = Seen::open(&file).unwrap();
        let repeat = again.take(delivery("a:1", "x")).unwrap();
        assert_eq!(repeat, Taken::Repeat { deliveries: 2, changed: false });
        drop(again);
        assert_eq!(Seen::open(&file).unwrap().event("a:1").unwrap().deliveries, 2);
    }

    #[test]
    fn a_line_cut_short_by_a_crash_is_taken_away_and_its_event_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen.jsonl");
        Seen::open(&file).unwrap().take(delivery("a:1", "x")).unwrap();
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str(r#"{"id":"a:2","ty"#);
        std::fs::write(&file, text).unwrap();

        let mut again = Seen::open(&file).unwrap();
        assert_eq!(again.take(delivery("a:2", "y")).unwrap(), Taken::New);
        drop(again);
        let events = Seen::open(&file).unwrap().events().to_vec();
        assert_eq!(events.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(), ["a:1", "a:2"]);
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes.txt");
        for text in ["buy milk\n", "buy milk"] {
            std::fs::write(&file, text).unwrap();
            let error = Seen::open(&file).err().unwrap().to_string();
            assert!(error.contains("notes.txt"), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
