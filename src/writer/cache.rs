//! Committed answers in memory, so that a retry of a hot key needs no database.
//!
//! A committed record does not change before its retention is over. So an answer is kept only after its commit was
//! heard, until then at most; all are dropped when a connection to the database is lost, for the next one may lead to a
//! server that lacks the write; and none is used unless the database was heard within the last second.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::parked::Key;
use crate::call::Fingerprint;
use crate::outcome::{Answer, Outcome};

/// A longer answer is not kept: the cache is bounded by the number of its answers.
const LONGEST_ANSWER: usize = 16 * 1024;

/// The pruner's clock is the database's, and ours may run a little slower than it.
const SLACK: Duration = Duration::from_secs(2);

/// What the cache must know of the database at every moment.
#[derive(Clone)]
pub struct Database {
    /// Whether it was heard within the last second.
    pub is_heard: Arc<dyn Fn() -> bool + Send + Sync>,
    /// How many connections to it have broken.
    pub breaks: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// The answers, the least recently used one going first.
pub(super) struct Cache {
    answers: LruCache<Key, Kept>,
    retention: Option<Duration>,
    database: Database,
    /// The number of broken connections to which the answers belong.
    breaks: u64,
}

struct Kept {
    fingerprint: Fingerprint,
    answer: Answer,
    until: Option<Instant>,
}

impl Cache {
    /// A cache of so many answers; none for zero.
    pub(super) fn new(
        capacity: usize,
        retention: Option<Duration>,
        database: Database,
    ) -> Option<Cache> {
        let answers = LruCache::new(NonZeroUsize::new(capacity)?);
        let breaks = (database.breaks)();
        Some(Cache { answers, retention, database, breaks })
    }

    /// What a call with this key and fingerprint is answered, where that is known.
    pub(super) fn find(&mut self, key: &Key, fingerprint: &Fingerprint) -> Option<Outcome> {
        self.drop_if_a_connection_was_lost();
        let kept = self.answers.get(key)?;
        if kept.until.is_some_and(|until| Instant::now() >= until) {
            self.answers.pop(key);
            return None;
        }
        if !(self.database.is_heard)() {
            return None;
        }
        Some(if kept.fingerprint == *fingerprint {
            Outcome::Recorded { answer: kept.answer.clone(), replayed: true }
        } else {
            Outcome::KeyReused
        })
    }

    /// Keeps the answer of a record of this age, whose commit was heard when so many connections had broken.
    pub(super) fn keep(
        &mut self,
        key: &Key,
        fingerprint: &Fingerprint,
        answer: &Answer,
        heard: Heard,
    ) {
        self.drop_if_a_connection_was_lost();
        if answer.body.len() > LONGEST_ANSWER || heard.breaks != self.breaks {
            return;
        }
        let left = self.retention.map(|retention| retention.saturating_sub(heard.age + SLACK));
        if left == Some(Duration::ZERO) {
            return;
        }
        let until = left.map(|left| Instant::now() + left);
        let kept = Kept { fingerprint: fingerprint.clone(), answer: answer.clone(), until };
        self.answers.put(key.clone(), kept);
    }

    fn drop_if_a_connection_was_lost(&mut self) {
        let breaks = (self.database.breaks)();
        if breaks != self.breaks {
            self.answers.clear();
            self.breaks = breaks;
        }
    }
}

/// What is known of a record when its answer comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// How old it is.
    pub(super) age: Duration,
    /// How many connections had broken before it was asked for.
    pub(super) breaks: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::call::{self, IdempotencyKey, Scope};
    use crate::outcome::Media;

    struct Setting {
        cache: Cache,
        is_heard: Arc<AtomicBool>,
        breaks: Arc<AtomicU64>,
    }

    fn setting(retention: Option<Duration>) -> Setting {
        let (is_heard, breaks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (heard, broken) = (Arc::clone(&is_heard), Arc::clone(&breaks));
        let database = Database {
            is_heard: Arc::new(move || heard.load(Ordering::SeqCst)),
            breaks: Arc::new(move || broken.load(Ordering::SeqCst)),
        };
        Setting { cache: Cache::new(2, retention, database).unwrap(), is_heard, breaks }
    }

    fn key(text: &str) -> Key {
        (Scope::default(), IdempotencyKey::from_text(text).unwrap())
    }

    fn fingerprint(body: &str) -> Fingerprint {
        call::read_body("orders", body.as_bytes().to_vec()).unwrap().1
    }

    fn answer(body: &str) -> Answer {
        Answer { status: 201, body: body.into(), media: Media::Json }
    }

    fn fresh(breaks: u64) -> Heard {
        Heard { age: Duration::ZERO, breaks }
    }

    #[test]
    fn a_kept_answer_is_replayed_and_another_body_is_refused() {
        let mut it = setting(None);
        it.cache.keep(&key("a"), &fingerprint("1"), &answer("1"), fresh(0));
        let replay = Outcome::Recorded { answer: answer("1"), replayed: true };
        assert_eq!(it.cache.find(&key("a"), &fingerprint("1.0")), Some(replay));
        assert_eq!(it.cache.find(&key("a"), &fingerprint("2")), Some(Outcome::KeyReused));
        assert_eq!(it.cache.find(&key("b"), &fingerprint("1")), None);
    }

    #[test]
    fn nothing_is_known_while_the_database_is_not_heard_or_after_a_connection_was_lost() {
        let mut it = setting(None);
        it.cache.keep(&key("a"), &fingerprint("1"), &answer("1"), fresh(0));
        it.is_heard.store(false, Ordering::SeqCst);
        assert_eq!(it.cache.find(&key("a"), &fingerprint("1")), None);
        it.is_heard.store(true, Ordering::SeqCst);
        it.breaks.store(1, Ordering::SeqCst);
        assert_eq!(it.cache.find(&key("a"), &fingerprint("1")), None);
        // It was asked for before the loss, and may have come from the server that is gone.
        it.cache.keep(&key("a"), &fingerprint("1"), &answer("1"), fresh(0));
        assert_eq!(it.cache.find(&key("a"), &fingerprint("1")), None);
        it.cache.keep(&key("a"), &fingerprint("1"), &answer("1"), fresh(1));
        assert!(it.cache.find(&key("a"), &fingerprint("1")).is_some());
    }

    #[test]
    fn an_answer_is_not_kept_past_its_retention_nor_past_the_bounds() {
        let mut it = setting(Some(Duration::from_secs(60)));
        let old = Heard { age: Duration::from_secs(59), breaks: 0 };
        it.cache.keep(&key("old"), &fingerprint("1"), &answer("1"), old);
        let long = "x".repeat(LONGEST_ANSWER + 1);
        it.cache.keep(&key("long"), &fingerprint("1"), &answer(&long), fresh(0));
        assert_eq!(it.cache.find(&key("old"), &fingerprint("1")), None);
        assert_eq!(it.cache.find(&key("long"), &fingerprint("1")), None);
        for name in ["a", "b", "c"] {
            it.cache.keep(&key(name), &fingerprint("1"), &answer("1"), fresh(0));
        }
        assert_eq!(it.cache.find(&key("a"), &fingerprint("1")), None);
        assert!(it.cache.find(&key("c"), &fingerprint("1")).is_some());
    }
}
