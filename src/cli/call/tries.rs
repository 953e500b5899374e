//! Sending a call until its outcome is known, or time is over.

use std::time::{Duration, Instant};

use super::super::client::{Client, Reply};
use super::super::output::{complain, plain};
use super::kept::Open;
use super::verdict::{Conclusion, Stored, Verdict};
use crate::relay::backoff::Backoff;

/// The waits between attempts.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(200), max: Duration::from_secs(10) };

/// What came of all attempts.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) attempts: u32,
    pub(super) end: End,
    /// Whether an attempt before the last one may have taken effect, for all that its end tells.
    pub(super) is_open: bool,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum End {
    /// By an answer after which calling again makes no sense.
    Answer(Conclusion, Reply),
    /// Without one: the text says what the last attempt met.
    Unknown(String),
}

/// Sends the call, again and again where that may help, for no longer than `deadline`.
pub(super) fn persist(
    client: &Client,
    route: &str,
    open: &Open,
    deadline: Duration,
    verbose: bool,
) -> Ended {
    let end = Instant::now() + deadline;
    let mut attempts = 0;
    let mut is_open = false;
    loop {
        let remaining = end.saturating_duration_since(Instant::now());
        attempts += 1;
        let sent = client.call_within(remaining, route, &header(&open.key), &open.body);
        let (asked, why) = match sent {
            Ok(reply) => match Verdict::of(&reply, || look_up(client, &open.key, remaining)) {
                Verdict::Later { asked } => (asked, described(&reply)),
                Verdict::Final(conclusion) => {
                    return Ended { attempts, end: End::Answer(conclusion, reply), is_open };
                }
            },
            Err(error) => (None, format!("{error:#}")),
        };
        is_open = true;
        let remaining = end.saturating_duration_since(Instant::now());
        let Some(wait) = next_wait(attempts - 1, asked, remaining, fastrand::f64()) else {
            return Ended { attempts, end: End::Unknown(why), is_open };
        };
        if verbose {
            complain(format_args!(
                "attempt {attempts}: {}; the next one in {:.1} s",
                plain(&why),
                wait.as_secs_f64()
            ));
        }
        // A wait that nothing cuts short but the end of the process.
        crossbeam_channel::after(wait).recv().ok();
    }
}

/// What the daemon has stored of the key.
fn look_up(client: &Client, key: &str, limit: Duration) -> Option<Stored> {
    let key: String = url::form_urlencoded::byte_serialize(key.as_bytes()).collect();
    let path = format!("/v1/requests/{}", key.replace('+', "%20"));
    client.get_within(limit, &path).ok().as_ref().and_then(Stored::of)
}

/// The wait before the next attempt; none where no time is left for one. What the daemon asks for is kept to, and
/// without that the last attempts come closer together.
fn next_wait(
    failures: u32,
    asked: Option<Duration>,
    remaining: Duration,
    chance: f64,
) -> Option<Duration> {
    let wait = BACKOFF.after(failures, chance);
    let wait = match asked {
        Some(asked) => wait.max(asked.saturating_add(BACKOFF.min.mul_f64(chance))),
        None => wait.min(remaining / 2),
    };
    (remaining > BACKOFF.min && wait < remaining).then_some(wait)
}

fn header(key: &str) -> String {
    crate::call::IdempotencyKey::from_text(key)
        .map_or_else(|_| key.to_owned(), |key| key.to_header())
}

/// An answer in a few words: its status, and what it says.
pub(super) fn described(reply: &Reply) -> String {
    let said = reply.json();
    let said = said["detail"].as_str().or(said["title"].as_str());
    match (reply.problem().as_str(), said) {
        ("", _) => format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
        (problem, said) => format!("{} {problem}: {}", reply.status, said.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_daemons_wish_is_kept_to_and_one_past_the_end_is_the_end() {
        let wait = |asked, remaining| next_wait(0, Some(asked), remaining, 0.0);
        assert_eq!(wait(3 * SECOND, 60 * SECOND), Some(3 * SECOND));
        assert_eq!(wait(60 * SECOND, 60 * SECOND), None);
        assert_eq!(wait(Duration::ZERO, 60 * SECOND), Some(BACKOFF.min));
    }

    #[test]
    fn waits_grow_are_spread_and_come_to_an_end() {
        let wait = |failures, chance| next_wait(failures, None, 3600 * SECOND, chance);
        assert_eq!(wait(0, 1.0), Some(Duration::from_millis(400)));
        assert_eq!(wait(20, 1.0), Some(10 * SECOND));
        assert_eq!(wait(20, 0.0), Some(BACKOFF.min));
        assert_eq!(next_wait(20, None, 4 * SECOND, 1.0), Some(2 * SECOND));
        assert_eq!(next_wait(20, None, BACKOFF.min, 1.0), None);
    }
}
