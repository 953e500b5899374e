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

/// Statuses of a proxy in front that say nothing about the call, and pass.
const PASSING: [u16; 5] = [408, 429, 502, 503, 504];

impl Verdict {
    /// What follows from this answer. A problem of the daemon says itself whether to come again. What does not carry
    /// the daemon's mark is somebody else's answer, and never taken for an outcome.
    pub(super) fn of(reply: &Reply) -> Verdict {
        let problem = reply.problem();
        let is_problem = reply.media == "application/problem+json" && !problem.is_empty();
        let later = Verdict::Later { asked: reply.retry_after };
        if is_problem {
            return match problem.as_str() {
                "refused" => Verdict::Final(Conclusion::Refused),
                "idempotency-key-reused" => Verdict::Final(Conclusion::Reused),
                _ if reply.json()["retryable"] == true => later,
                _ => Verdict::Final(Conclusion::Failed),
            };
        }
        match (reply.request_id.is_some(), reply.status) {
            (true, 200..300) => Verdict::Final(Conclusion::Done),
            (true, 400..500) => Verdict::Final(Conclusion::Refused),
            (_, status) if PASSING.contains(&status) => later,
            _ => Verdict::Final(Conclusion::Failed),
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

    #[test]
    fn every_problem_of_the_daemon_is_retried_exactly_if_it_says_so() {
        for kind in KINDS {
            let body = json!({
                "type": format!("urn:onced:problem:{}", kind.name),
                "status": kind.status,
                "retryable": kind.retryable,
            });
            let reply = reply(kind.status, "application/problem+json", &body.to_string());
            let verdict = Verdict::of(&reply);
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
    fn what_an_operation_answers_is_an_outcome_also_where_it_looks_like_a_proxy() {
        assert_eq!(
            Verdict::of(&reply(201, "application/json", "{}")),
            Verdict::Final(Conclusion::Done)
        );
        for status in [400, 404, 409, 429] {
            assert_eq!(
                Verdict::of(&reply(status, "application/json", "{}")),
                Verdict::Final(Conclusion::Refused)
            );
        }
    }

    #[test]
    fn what_comes_from_elsewhere_is_no_outcome() {
        let foreign = |status| Reply { request_id: None, ..reply(status, "text/html", "<p>") };
        for status in [200, 204, 301, 400, 401, 404, 500] {
            assert_eq!(
                Verdict::of(&foreign(status)),
                Verdict::Final(Conclusion::Failed),
                "{status}"
            );
        }
        for status in PASSING {
            assert!(matches!(Verdict::of(&foreign(status)), Verdict::Later { .. }), "{status}");
        }
    }
}
