//! Committed answers in memory, so that a retry of a hot key needs no database.
//!
//! A committed record does not change before its retention is over, but a person may remove it, another daemon may have
//! a shorter retention, and a failover may lead to a server that lacks it. So the database has to confirm each answer
//! anew every second, while it is asked for: it is used no longer than a second after the question to which the database
//! gave it, nor past the retention, and all are dropped when a connection to the database is lost.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::parked::Key;
use crate::call::Fingerprint;
use crate::outcome::{Answer, Outcome};

/// A longer answer is not kept: the cache is bounded by the number of its answers.
const LONGEST_ANSWER: usize = 16 * 1024;

/// How long an answer is used.
const LIFE: Duration = Duration::from_secs(1);

/// From this age on one call goes to the database and renews the answer; the others are still answered from it, so that
/// a hot key does not turn away those who come while it is renewed.
const RENEWED_FROM: Duration = Duration::from_millis(500);

/// How many connections to the database have broken.
pub type Breaks = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The answers, the least recently used one going first.
pub(super) struct Cache {
    answers: LruCache<Key, Kept>,
    retention: Option<Duration>,
    count_breaks: Breaks,
    /// The number of broken connections to which the answers belong.
    breaks: u64,
}

struct Kept {
    fingerprint: Fingerprint,
    answer: Answer,
    renew_at: Instant,
    until: Instant,
}

/// What the cache knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// What a call is answered.
    pub(super) outcome: Outcome,
    /// It is time that somebody asks the database.
    pub(super) is_due: bool,
}

impl Cache {
    /// A cache of so many answers; none for zero.
    pub(super) fn new(
        capacity: usize,
        retention: Option<Duration>,
        count_breaks: Breaks,
    ) -> Option<Cache> {
        let answers = LruCache::new(NonZeroUsize::new(capacity)?);
        let breaks = count_breaks();
        Some(Cache { answers, retention, count_breaks, breaks })
    }

    /// What a call with this key and fingerprint is answered, where that is known.
    pub(super) fn find(
        &mut self,
        key: &Key,
        fingerprint: &Fingerprint,
        now: Instant,
    ) -> Option<Known> {
        self.drop_if_a_connection_was_lost();
        let kept = self.answers.get(key)?;
        if now >= kept.until {
            self.answers.pop(key);
            return None;
        }
        let outcome = if kept.fingerprint == *fingerprint {
            Outcome::Recorded { answer: kept.answer.clone(), replayed: true }
        } else {
            Outcome::KeyReused
        };
        Some(Known { outcome, is_due: now >= kept.renew_at })
    }

    /// Keeps the answer of a record that the database gave for this call.
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
        let left = self.retention.map_or(LIFE, |retention| retention.saturating_sub(heard.age));
        let kept = Kept {
            fingerprint: fingerprint.clone(),
            answer: answer.clone(),
            renew_at: heard.asked + RENEWED_FROM,
            until: heard.asked + left.min(LIFE),
        };
        self.answers.put(key.clone(), kept);
    }

    fn drop_if_a_connection_was_lost(&mut self) {
        let breaks = (self.count_breaks)();
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
    /// When the database was asked for it.
    pub(super) asked: Instant,
    /// How many connections had broken before that.
    pub(super) breaks: u64,
}

impl Heard {
    /// The same for a record of this age.
    pub(super) fn of_age(self, age: Duration) -> Heard {
        Heard { age, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::call::{self, IdempotencyKey, Scope};
    use crate::outcome::Media;

    struct Setting {
        cache: Cache,
        breaks: Arc<AtomicU64>,
        start: Instant,
    }

    impl Setting {
        fn new(retention: Option<Duration>) -> Setting {
            let breaks = Arc::new(AtomicU64::new(0));
            let broken = Arc::clone(&breaks);
            let count: Breaks = Arc::new(move || broken.load(Ordering::SeqCst));
            let cache = Cache::new(2, retention, count).unwrap();
            Setting { cache, breaks, start: Instant::now() }
        }

        fn keep(&mut self, name: &str, body: &str, age_ms: u64, breaks: u64) {
            let age = Duration::from_millis(age_ms);
            let heard = Heard { age, asked: self.start, breaks };
            self.cache.keep(&key(name), &fingerprint("1"), &answer(body), heard);
        }

        fn find(&mut self, name: &str, body: &str, after_ms: u64) -> Option<Known> {
            let now = self.start + Duration::from_millis(after_ms);
            self.cache.find(&key(name), &fingerprint(body), now)
        }
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

    #[test]
    fn a_kept_answer_is_replayed_and_another_body_is_refused() {
        let mut it = Setting::new(None);
        it.keep("a", "1", 0, 0);
        let replay = Outcome::Recorded { answer: answer("1"), replayed: true };
        assert_eq!(it.find("a", "1.0", 0), Some(Known { outcome: replay, is_due: false }));
        let reused = Known { outcome: Outcome::KeyReused, is_due: false };
        assert_eq!(it.find("a", "2", 0), Some(reused));
        assert_eq!(it.find("b", "1", 0), None);
    }

    #[test]
    fn an_answer_is_used_for_a_second_and_due_for_renewal_before() {
        let mut it = Setting::new(None);
        it.keep("a", "1", 0, 0);
        assert!(!it.find("a", "1", 499).unwrap().is_due);
        assert!(it.find("a", "1", 500).unwrap().is_due);
        assert!(it.find("a", "1", 999).unwrap().is_due);
        assert_eq!(it.find("a", "1", 1000), None);
        assert_eq!(it.find("a", "1", 0), None, "it is gone");
    }

    #[test]
    fn nothing_is_known_after_a_connection_was_lost() {
        let mut it = Setting::new(None);
        it.keep("a", "1", 0, 0);
        it.breaks.store(1, Ordering::SeqCst);
        assert_eq!(it.find("a", "1", 0), None);
        // It was asked for before the loss, and may have come from the server that is gone.
        it.keep("a", "1", 0, 0);
        assert_eq!(it.find("a", "1", 0), None);
        it.keep("a", "1", 0, 1);
        assert!(it.find("a", "1", 0).is_some());
    }

    #[test]
    fn an_answer_is_not_kept_past_its_retention_nor_past_the_bounds() {
        let mut it = Setting::new(Some(Duration::from_secs(60)));
        it.keep("old", "1", 59_700, 0);
        assert!(it.find("old", "1", 299).is_some());
        assert_eq!(it.find("old", "1", 300), None);
        it.keep("long", &"x".repeat(LONGEST_ANSWER + 1), 0, 0);
        assert_eq!(it.find("long", "1", 0), None);
        for name in ["a", "b", "c"] {
            it.keep(name, "1", 0, 0);
        }
        assert_eq!(it.find("a", "1", 0), None);
        assert!(it.find("c", "1", 0).is_some());
    }
}
