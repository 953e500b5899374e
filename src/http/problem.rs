//! Every kind of problem that a caller can meet (RFC 9457), in one table. Each is documented in `docs/problems.md`.

use serde::Serialize;

use super::front::Response;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// What every problem's `type` begins with.
const URN: &str = "urn:onced:problem:";

/// A kind of problem: what does not vary from one occurrence to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The last part of its `type`.
    pub name: &'static str,
    /// Its HTTP status.
    pub status: u16,
    /// Its `title`.
    pub title: &'static str,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

macro_rules! kinds {
    ($($constant:ident = $name:literal $status:literal $retryable:literal $title:literal;)*) => {
        $(#[doc = $title] pub const $constant: Kind =
            Kind { name: $name, status: $status, title: $title, retryable: $retryable };)*

        /// All kinds, in the order of the documentation.
        pub const KINDS: &[Kind] = &[$($constant),*];
    };
}

kinds! {
    KEY_MISSING = "idempotency-key-missing" 400 false "The idempotency key is missing";
    KEY_INVALID = "idempotency-key-invalid" 400 false "The idempotency key is not valid";
    KEY_REUSED = "idempotency-key-reused" 409 false "The idempotency key was used for another request";
    KEY_EXPIRED = "idempotency-key-expired" 409 false "The idempotency key was used and its answer is no longer kept";
    IN_PROGRESS = "request-in-progress" 409 true "A request with this idempotency key is in progress";
    BODY_INVALID = "body-invalid" 400 false "The body is not valid";
    BODY_TOO_LARGE = "body-too-large" 413 false "The body is too large";
    MEDIA_TYPE_UNSUPPORTED = "media-type-unsupported" 415 false "The media type is not supported";
    QUERY_UNSUPPORTED = "query-unsupported" 400 false "A query string is not supported";
    UNAUTHORIZED = "unauthorized" 401 false "A valid token is needed";
    FORBIDDEN = "forbidden" 403 false "This is not allowed";
    NOT_FOUND = "not-found" 404 false "There is nothing here";
    METHOD_NOT_ALLOWED = "method-not-allowed" 405 false "The method is not allowed here";
    REFUSED = "refused" 422 false "The operation refused the request";
    OPERATION_FAILED = "operation-failed" 500 true "The operation failed";
    UNAVAILABLE = "unavailable" 503 true "The service is not available";
    FINGERPRINT_UNKNOWN = "fingerprint-unknown" 500 false "The record was made by an unknown fingerprint recipe";
    REQUEST_MALFORMED = "request-malformed" 400 false "The request is malformed";
    REQUEST_TIMEOUT = "request-timeout" 408 true "The request did not arrive in time";
    EXPECTATION_FAILED = "expectation-failed" 417 false "The expectation cannot be met";
    HEAD_TOO_LARGE = "head-too-large" 431 false "The head of the request is too large";
    NOT_IMPLEMENTED = "not-implemented" 501 false "This is not implemented";
    VERSION_UNSUPPORTED = "version-unsupported" 505 false "The version of HTTP is not supported";
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    retryable: bool,
    instance: &'a str,
}

/// The answer that tells of a problem. `instance` is the request's id.
pub fn response(kind: Kind, detail: &str, instance: &str) -> Response {
    let problem = Problem {
        r#type: format!("{URN}{}", kind.name),
        title: kind.title,
        status: kind.status,
        detail,
        retryable: kind.retryable,
        instance,
    };
    let body = serde_json::to_vec(&problem).expect("a struct of strings and numbers is JSON");
    let mut headers =
        vec![("Content-Type", PROBLEM_JSON.to_owned()), ("X-Request-Id", instance.to_owned())];
    if kind == IN_PROGRESS || kind == UNAVAILABLE {
        headers.push(("Retry-After", "1".to_owned()));
    }
    if kind == UNAUTHORIZED {
        headers.push(("WWW-Authenticate", "Bearer".to_owned()));
    }
    Response { status: kind.status, headers, body }
}

/// What a raised refusal is answered with, but for the members that only the database knows: `status`, `code`,
/// `instance`, and a `detail` that the operation wrote.
pub fn refusal_template() -> String {
    serde_json::json!({
        "type": format!("{URN}{}", REFUSED.name),
        "title": REFUSED.title,
        "detail": "The operation refused the request; the member code has the SQLSTATE that it raised.",
        "retryable": REFUSED.retryable,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_retryable_ones_are_those_of_the_contract() {
        let names = KINDS.iter().map(|kind| kind.name).collect::<HashSet<_>>();
        assert_eq!(names.len(), KINDS.len());
        let retryable = KINDS.iter().filter(|k| k.retryable).map(|k| k.name).collect::<Vec<_>>();
        assert_eq!(
            retryable,
            ["request-in-progress", "operation-failed", "unavailable", "request-timeout"]
        );
    }

    #[test]
    fn a_problem_has_its_members_and_headers() {
        let response = response(IN_PROGRESS, "come again", "req-1");
        let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        let expected = serde_json::json!({
            "type": "urn:onced:problem:request-in-progress",
            "title": "A request with this idempotency key is in progress",
            "status": 409, "detail": "come again", "retryable": true, "instance": "req-1",
        });
        assert_eq!(body, expected);
        assert!(response.headers.contains(&("Retry-After", "1".to_owned())));
    }
}
