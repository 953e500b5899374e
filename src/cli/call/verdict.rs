//! What an answer says of a call. Pure.

use std::time::Duration;

use super::super::client::Reply;

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Calling again makes no sense.
    Final(Conclusion),
    /// The same call may succeed later.
    Later {
        /// How long the answer asks to wait.
        asked: Option<Duration>,
    },
}

/// What an answer concludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conclusion {
    /// A stored success.
    Done,
    /// The operation's own refusal, stored.
    Refused,
    /// The key stands for another request.
    Reused,
    /// Nothing came of this attempt, and nothing would come of another one like it.
    Failed,
}

/// What the daemon has stored of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// An outcome, with this HTTP status.
    Status(u16),
    /// No outcome.
    Nothing,
}

impl Stored {
    /// Reads the answer to a look-up; `None` where it tells neither.
    pub(super) fn of(reply: &Reply) -> Option<Stored> {
        match (reply.status, reply.problem().as_str()) {
            (200, _) => {
                let status = reply.json()["http_status"].as_u64()?;
                u16::try_from(status).ok().map(Stored::Status)
            }
            (404, "not-found") => Some(Stored::Nothing),
            (_, _) => None,
        }
    }
}

/// Statuses of a proxy in front that say nothing about the call, and pass.
const PASSING: [u16; 5] = [408, 429, 502, 503, 504];

impl Verdict {
    /// What follows from this answer. A problem of the daemon says itself whether to come again. What does not carry
    /// the daemon's mark is somebody else's answer, and never taken for an outcome. A gateway may refuse in the very
    /// form in which an operation does, so such a refusal counts only where `look_up` finds it stored; `look_up` gives
    /// `None` where the daemon did not tell.
    pub(super) fn of(reply: &Reply, look_up: impl FnOnce() -> Option<Stored>) -> Verdict {
        let problem = reply.problem();
        let later = Verdict::Later { asked: reply.retry_after };
        if reply.media == "application/problem+json" && !problem.is_empty() {
            return match problem.as_str() {
                "refused" => Verdict::Final(Conclusion::Refused),
                "idempotency-key-reused" => Verdict::Final(Conclusion::Reused),
                _ if reply.json()["retryable"] == true => later,
                _ => Verdict::Final(Conclusion::Failed),
            };
        }
        // What an operation answers is always this, and under a request id.
        let may_be_stored = reply.media == "application/json" && reply.request_id.is_some();
        match (may_be_stored, reply.status) {
            (true, 200..300) => Verdict::Final(Conclusion::Done),
            (true, 400..500) => match look_up() {
                Some(Stored::Status(status)) if status == reply.status => {
                    Verdict::Final(Conclusion::Refused)
                }
                // The call did run, or may have: the same call tells.
                Some(Stored::Status(_)) | None => later,
                Some(Stored::Nothing) => Verdict::of_stranger(reply),
            },
            (_, _) => Verdict::of_stranger(reply),
        }
    }

    fn of_stranger(reply: &Reply) -> Verdict {
        match PASSING.contains(&reply.status) {
            true => Verdict::Later { asked: reply.retry_after },
            false => Verdict::Final(Conclusion::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::problem::KINDS;

    fn reply(status: u16, media: &str, body: &str) -> Reply {
        Reply {
            status,
            replayed: false,
            media: media.to_owned(),
            request_id: Some("r".to_owned()),
            retry_after: Some(Duration::from_secs(1)),
            body: body.as_bytes().to_vec(),
        }
    }

    fn not_asked() -> Option<Stored> {
        panic!("nothing need be looked up")
    }

    #[test]
    fn every_problem_of_the_daemon_is_retried_exactly_if_it_says_so() {
        for kind in KINDS {
            let body = json!({
                "type": format!("urn:onced:problem:{}", kind.name),
                "status": kind.status,
                "retryable": kind.retryable,
            });
            let reply = reply(kind.status, "application/problem+json", &body.to_string());
            let verdict = Verdict::of(&reply, not_asked);
            let expected = match kind.name {
                "refused" => Verdict::Final(Conclusion::Refused),
                "idempotency-key-reused" => Verdict::Final(Conclusion::Reused),
                _ if kind.retryable => Verdict::Later { asked: Some(Duration::from_secs(1)) },
                _ => Verdict::Final(Conclusion::Failed),
            };
            assert_eq!(verdict, expected, "{}", kind.name);
        }
    }

    #[test]
    fn a_refusal_without_a_problem_counts_where_the_daemon_has_it_stored() {
        let done = Verdict::of(&reply(201, "application/json", "{}"), not_asked);
        assert_eq!(done, Verdict::Final(Conclusion::Done));
        let later = Verdict::Later { asked: Some(Duration::from_secs(1)) };
        let (refused, failed) =
            (Verdict::Final(Conclusion::Refused), Verdict::Final(Conclusion::Failed));
        for (status, unknown_to_the_daemon) in [(409, failed), (429, later.clone())] {
            let verdict = |stored| Verdict::of(&reply(status, "application/json", "{}"), || stored);
            assert_eq!(verdict(Some(Stored::Status(status))), refused);
            assert_eq!(verdict(Some(Stored::Status(201))), later);
            assert_eq!(verdict(Some(Stored::Nothing)), unknown_to_the_daemon);
            assert_eq!(verdict(None), later);
        }
    }

    #[test]
    fn what_comes_from_elsewhere_is_no_outcome() {
        let unmarked =
            |status| Reply { request_id: None, ..reply(status, "application/json", "{}") };
        let page = |status| reply(status, "text/html", "<p>");
        for status in [200, 204, 301, 400, 401, 404, 500] {
            for reply in [unmarked(status), page(status)] {
                assert_eq!(
                    Verdict::of(&reply, not_asked),
                    Verdict::Final(Conclusion::Failed),
                    "{status}"
                );
            }
        }
        for status in PASSING {
            assert!(
                matches!(Verdict::of(&unmarked(status), not_asked), Verdict::Later { .. }),
                "{status}"
            );
        }
    }

    #[test]
    fn only_the_daemons_own_404_says_that_nothing_is_stored() {
        let own = r#"{"type": "urn:onced:problem:not-found"}"#;
        assert_eq!(Stored::of(&reply(404, "application/problem+json", own)), Some(Stored::Nothing));
        assert_eq!(Stored::of(&reply(404, "text/html", "<p>")), None);
        let stored = reply(200, "application/json", r#"{"http_status": 429}"#);
        assert_eq!(Stored::of(&stored), Some(Stored::Status(429)));
        assert_eq!(Stored::of(&reply(503, "application/json", "{}")), None);
    }
}
