//! Outcomes as HTTP answers.

use super::front::Response;
use super::problem::{self, PROBLEM_JSON};
use crate::outcome::{Answer, Media, Outcome, Reason};

/// The header that tells a replay.
pub const REPLAYED: &str = "Idempotent-Replayed";

/// The answer to a call. `mismatch_status` is that for a key that was used for another request.
pub fn of(outcome: &Outcome, mismatch_status: u16, request_id: &str) -> Response {
    let problem = |kind, detail| problem::response(kind, detail, request_id);
    match outcome {
        Outcome::Recorded { answer, replayed } => recorded(answer, *replayed, request_id),
        Outcome::KeyReused => problem(
            problem::Kind { status: mismatch_status, ..problem::KEY_REUSED },
            "This key stands for a request with another body or another operation. Nothing was written. Use a new \
             key for a new intent.",
        ),
        Outcome::KeyExpired => problem(
            problem::KEY_EXPIRED,
            "This key was used longer ago than answers are kept. Nothing was written. Use a new key for a new intent.",
        ),
        Outcome::FingerprintUnknown => problem(
            problem::FINGERPRINT_UNKNOWN,
            "The stored record of this key was made by a newer version of the service, so the request cannot be \
             compared with it. Nothing was written.",
        ),
        Outcome::InProgress => problem(
            problem::IN_PROGRESS,
            "The first request with this key has no answer yet. Send the same request again later.",
        ),
        Outcome::Unavailable(reason) => problem(problem::UNAVAILABLE, words(*reason)),
        Outcome::OperationFailed => problem(
            problem::OPERATION_FAILED,
            "The operation could not be run; the log has the reason under this request's id. Nothing was written, \
             and the key is unused.",
        ),
    }
}

fn recorded(answer: &Answer, replayed: bool, request_id: &str) -> Response {
    let media = match answer.media {
        Media::Json => "application/json",
        Media::Problem => PROBLEM_JSON,
    };
    let mut headers =
        vec![("Content-Type", media.to_owned()), ("X-Request-Id", request_id.to_owned())];
    if replayed {
        headers.push((REPLAYED, "true".to_owned()));
    }
    Response { status: answer.status, headers, body: answer.body.as_bytes().to_vec() }
}

fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::QueueFull => "Too many requests are waiting. Nothing was written. Try again later.",
        Reason::Database => {
            "The database cannot be reached. If the write took effect all the same, the same request with the same \
             key will tell. Try again later."
        }
        Reason::ReadOnly => {
            "The database takes no writes at the moment. Nothing was written. Try again later."
        }
        Reason::StatementTimeout => {
            "The operation took too long and was cancelled. Nothing was written. Try again later."
        }
        Reason::LockTimeout => {
            "The operation waited too long for another one. Nothing was written. Try again later."
        }
        Reason::Conflict => {
            "The operation got into conflict with others. Nothing was written. Try again later."
        }
        Reason::Deadline => "There was no time left for the request. Nothing was written.",
        Reason::Stopping => "The service is stopping. Nothing was written. Try again later.",
    }
}

/// The value of the label `outcome` in the metrics.
pub fn label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Recorded { replayed: true, .. } => "replayed",
        Outcome::Recorded { answer, .. } if answer.status >= 400 => "refused",
        Outcome::Recorded { .. } => "executed",
        Outcome::KeyReused | Outcome::KeyExpired => "reused",
        Outcome::InProgress => "in_progress",
        Outcome::Unavailable(_) => "unavailable",
        Outcome::FingerprintUnknown | Outcome::OperationFailed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_header_is_the_only_difference_between_the_first_answer_and_the_next() {
        let answer = Answer { status: 201, body: r#"{"id": 1}"#.into(), media: Media::Json };
        let first = of(&Outcome::Recorded { answer: answer.clone(), replayed: false }, 409, "r");
        let mut again = of(&Outcome::Recorded { answer, replayed: true }, 409, "r");
        assert_eq!(again.headers.pop(), Some((REPLAYED, "true".to_owned())));
        assert_eq!(first, again);
    }

    #[test]
    fn a_mismatch_has_the_configured_status_and_no_retry_after() {
        let response = of(&Outcome::KeyReused, 422, "r");
        assert_eq!(response.status, 422);
        assert!(response.headers.iter().all(|(name, _)| *name != "Retry-After"));
        let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(body["status"], 422);
    }
}
