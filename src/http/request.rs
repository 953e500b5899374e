//! One request of a caller: checked in order, made into a call, waited for, answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer;
use super::auth::{Caller, Principals};
use super::front::{Client, Head, Malformed, Response, Service};
use super::problem::{self, Kind};
use super::{host, request_id};
use crate::call::key::BadKey;
use crate::call::{self, Call, IdempotencyKey, Scope};
use crate::observe::{self, Answered};
use crate::operations::Operation;
use crate::outcome::{Outcome, Reason};
use crate::pending::{self, Progress};
use crate::reader::Reader;
use crate::writer::{Desk, Job};

/// Under it stand the look-ups.
const REQUESTS: &str = "/v1/requests/";

/// How often a caller that waits is looked at: whether it is still there.
const GLANCE: Duration = Duration::from_millis(250);

/// How much longer than its job a caller waits, so that a writer that gives up at the deadline is still heard.
const MARGIN: Duration = Duration::from_millis(200);

/// What the callers' API needs.
pub struct Needs {
    /// What may be called.
    pub operations: Vec<Arc<Operation>>,
    /// Who may call.
    pub principals: Arc<Principals>,
    /// Where jobs are handed in.
    pub desk: Desk,
    /// Where look-ups are handed in.
    pub reader: Reader,
    /// How long a caller waits for its outcome.
    pub wait: Duration,
    /// The status for a key that was used for another request.
    pub mismatch_status: u16,
    /// Values of `Host` that are taken besides loopback where nobody authenticates; `None` takes any.
    pub hosts: Option<Vec<String>>,
}

/// The callers' API.
pub struct Api {
    needs: Needs,
    routes: HashMap<String, Arc<Operation>>,
}

/// A request whose head is right.
pub enum Admitted {
    /// A call whose body is still to come.
    Write { caller: Caller, operation: Arc<Operation>, key: IdempotencyKey, id: Arc<str> },
    /// A look-up of a stored outcome.
    Find { scope: Scope, key: IdempotencyKey, id: Arc<str> },
}

impl Api {
    /// Puts the routes together.
    pub fn new(needs: Needs) -> Api {
        let routes = needs.operations.iter().map(|o| (o.route.clone(), Arc::clone(o))).collect();
        Api { needs, routes }
    }

    /// 401, 404, 405, 403, query, key, media type: in this order, so that an outsider learns nothing, and a caller is
    /// told first what matters most.
    fn check(&self, head: &Head<'_>, id: &str) -> Result<Admitted, Response> {
        let refuse = |kind: Kind, detail: &str| problem::response(kind, detail, id);
        let caller = self.caller(head).map_err(|(kind, detail)| refuse(kind, detail))?;
        let Some(operation) = self.routes.get(head.path.as_ref()) else {
            return self.check_look_up(head, caller, id);
        };
        if head.method != "POST" {
            return Err(not_allowed("POST", id));
        }
        if !caller.may_call(&operation.name) {
            return Err(refuse(problem::FORBIDDEN, "You may not call this operation."));
        }
        let invalid = |kind: Kind, detail: &str| {
            let answered = answered_invalid(operation, &caller.scope, id);
            observe::request_invalid(Answered { status: kind.status, ..answered }, detail);
            refuse(kind, detail)
        };
        if head.query.is_some() {
            return Err(invalid(problem::QUERY_UNSUPPORTED, NO_QUERY));
        }
        let key = IdempotencyKey::parse_header(head.values("idempotency-key"))
            .map_err(|bad| invalid(kind_of(&bad), &bad.to_string()))?;
        check_media(head).map_err(|detail| invalid(problem::MEDIA_TYPE_UNSUPPORTED, detail))?;
        Ok(Admitted::Write { caller, operation: Arc::clone(operation), key, id: id.into() })
    }

    fn caller(&self, head: &Head<'_>) -> Result<Caller, (Kind, &'static str)> {
        let principals = &self.needs.principals;
        if let Some(hosts) = &self.needs.hosts
            && !principals.are_configured()
            && !host::is_ours(head, hosts)
        {
            return Err((
                problem::FORBIDDEN,
                "The host of the request is not one that is served here.",
            ));
        }
        principals
            .authenticate(head.values("authorization"))
            .ok_or((problem::UNAUTHORIZED, "Send a valid token: Authorization: Bearer TOKEN."))
    }

    fn check_look_up(
        &self,
        head: &Head<'_>,
        caller: Caller,
        id: &str,
    ) -> Result<Admitted, Response> {
        let refuse = |kind: Kind, detail: &str| problem::response(kind, detail, id);
        let Some(escaped) = head.path.strip_prefix(REQUESTS) else {
            return Err(refuse(problem::NOT_FOUND, "There is no operation at this path."));
        };
        if head.method != "GET" && head.method != "HEAD" {
            return Err(not_allowed("GET", id));
        }
        if head.query.is_some() {
            return Err(refuse(problem::QUERY_UNSUPPORTED, NO_QUERY));
        }
        let text = percent_decoded(escaped)
            .ok_or_else(|| refuse(problem::KEY_INVALID, "The key in the path is not UTF-8."))?;
        let key = IdempotencyKey::from_text(&text)
            .map_err(|bad| refuse(problem::KEY_INVALID, &bad.to_string()))?;
        Ok(Admitted::Find { scope: caller.scope, key, id: id.into() })
    }

    /// Hands the call over and waits for its outcome, as long as the caller does.
    fn outcome(
        &self,
        call: Call,
        whose: (&Scope, &IdempotencyKey),
        id: &Arc<str>,
        client: &Client,
    ) -> Outcome {
        let (pending, waiting) = pending::pair();
        let deadline = Instant::now() + self.needs.wait;
        let request_id = Arc::clone(id);
        self.needs.desk.submit(Job {
            call,
            pending,
            deadline,
            request_id,
            alone: false,
            in_doubt: false,
        });
        let end = deadline + MARGIN;
        loop {
            let now = Instant::now();
            if let Some(outcome) = waiting.wait_until(end.min(now + GLANCE)) {
                return outcome;
            }
            // Nobody reads the answer to a client that is gone; to let go frees its place beside the key.
            if now >= end || client.is_gone() {
                let progress = match waiting.give_up() {
                    Err(outcome) => return outcome,
                    Ok(progress) => progress,
                };
                self.needs.desk.let_go(whose.0.clone(), whose.1.clone());
                return match progress {
                    Progress::Begun | Progress::Parked => Outcome::InProgress,
                    Progress::Queued => Outcome::Unavailable(Reason::Deadline),
                };
            }
        }
    }

    fn find(&self, scope: Scope, key: IdempotencyKey, id: &str) -> Response {
        match self.needs.reader.find(scope, key, Instant::now() + self.needs.wait) {
            Ok(Some(record)) => {
                let body = serde_json::to_vec(&record).expect("a record is JSON");
                let headers = vec![
                    ("Content-Type", "application/json".to_owned()),
                    ("X-Request-Id", id.to_owned()),
                ];
                Response { status: 200, headers, body }
            }
            Ok(None) => problem::response(
                problem::NOT_FOUND,
                "No outcome is stored for this key: it was never used, is in progress, ended in an error that is not \
                 stored, or was purged.",
                id,
            ),
            Err(fault) => {
                observe::look_up_failed(id, &fault);
                let reason = fault.reason().unwrap_or(Reason::Database);
                answer::of(&Outcome::Unavailable(reason), self.needs.mismatch_status, id)
            }
        }
    }
}

impl Service for Api {
    type Admitted = Admitted;

    fn admit(&self, head: &Head<'_>) -> Result<Admitted, Response> {
        self.check(head, &request_id::of(head))
    }

    fn respond(&self, admitted: Admitted, body: Vec<u8>, client: &Client) -> Response {
        let (caller, operation, key, id) = match admitted {
            Admitted::Find { scope, key, id } => return self.find(scope, key, &id),
            Admitted::Write { caller, operation, key, id } => (caller, operation, key, id),
        };
        let began = Instant::now();
        let (body, fingerprint) = match call::read_body(&operation.name, body) {
            Ok(read) => read,
            Err(bad) => {
                let answered = answered_invalid(&operation, &caller.scope, &id);
                observe::request_invalid(
                    Answered { key: Some(key), elapsed: began.elapsed(), ..answered },
                    &bad.to_string(),
                );
                return problem::response(problem::BODY_INVALID, &bad.to_string(), &id);
            }
        };
        let (scope, asked) = (caller.scope.clone(), key.clone());
        let call =
            Call { scope: caller.scope, key, operation: Arc::clone(&operation), fingerprint, body };
        let outcome = self.outcome(call, (&scope, &asked), &id, client);
        let response = answer::of(&outcome, self.needs.mismatch_status, &id);
        observe::answered(Answered {
            operation,
            scope,
            key: Some(asked),
            request_id: id,
            outcome: answer::label(&outcome),
            status: response.status,
            elapsed: began.elapsed(),
        });
        response
    }

    fn malformed(&self, what: Malformed) -> Response {
        malformed(what)
    }
}

const NO_QUERY: &str = "A query string is not part of the request's fingerprint, so it must not mean anything; put \
                        what it says into the body.";

/// The answer to a request that has no meaning, on any listener.
pub(crate) fn malformed(what: Malformed) -> Response {
    let (kind, detail) = match what {
        Malformed::Request(detail) => (problem::REQUEST_MALFORMED, detail),
        Malformed::Timeout => {
            (problem::REQUEST_TIMEOUT, "The request was not whole in time. Nothing was done.")
        }
        Malformed::BodyTooLarge => {
            (problem::BODY_TOO_LARGE, "The body is longer than is taken here (http.max_body).")
        }
        Malformed::Expectation => {
            (problem::EXPECTATION_FAILED, "Only Expect: 100-continue is known.")
        }
        Malformed::HeadTooLarge => {
            (problem::HEAD_TOO_LARGE, "The head may have 16 KiB and 100 header fields.")
        }
        Malformed::Failed => (
            problem::OPERATION_FAILED,
            "The request met a fault of the service; the log has it. Send the same request again later.",
        ),
        Malformed::NotImplemented => (
            problem::NOT_IMPLEMENTED,
            "The method or the transfer coding of the request is not known here.",
        ),
        Malformed::TooManyClients => {
            (problem::UNAVAILABLE, "Too many clients are connected. Try again later.")
        }
        Malformed::Version => {
            (problem::VERSION_UNSUPPORTED, "HTTP/1.1 and HTTP/1.0 are spoken here.")
        }
    };
    problem::response(kind, detail, &request_id::new())
}

pub(crate) fn not_allowed(allowed: &str, id: &str) -> Response {
    let detail = format!("Only {allowed} is allowed here.");
    let mut response = problem::response(problem::METHOD_NOT_ALLOWED, &detail, id);
    response.headers.push(("Allow", allowed.to_owned()));
    response
}

/// A request that was refused for its form, before there was a key.
fn answered_invalid(operation: &Arc<Operation>, scope: &Scope, id: &str) -> Answered {
    Answered {
        operation: Arc::clone(operation),
        scope: scope.clone(),
        key: None,
        request_id: id.into(),
        outcome: "invalid",
        status: problem::BODY_INVALID.status,
        elapsed: Duration::ZERO,
    }
}

fn kind_of(bad: &BadKey) -> Kind {
    if *bad == BadKey::Missing { problem::KEY_MISSING } else { problem::KEY_INVALID }
}

/// The body is JSON in UTF-8, and nothing that is not in the fingerprint may change what it means.
fn check_media(head: &Head<'_>) -> Result<(), &'static str> {
    const HINT: &str = "The body must be JSON: send Content-Type: application/json (curl: --json, or -H \
                        'Content-Type: application/json').";
    let mut types = head.values("content-type");
    let (Some(value), None) = (types.next(), types.next()) else { return Err(HINT) };
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || essence.split_once('/').is_some_and(|(kind, subtype)| {
            !kind.is_empty() && subtype.len() > "+json".len() && subtype.ends_with("+json")
        });
    if !is_json {
        return Err(HINT);
    }
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, charset)) if name.trim().eq_ignore_ascii_case("charset") => {
            charset.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    if !parts.all(is_utf8) {
        return Err("JSON is UTF-8; no other charset is taken.");
    }
    let is_plain = |coding: &str| coding.eq_ignore_ascii_case("identity");
    if !head.values("content-encoding").all(is_plain) {
        return Err("A compressed body is not taken: send it without Content-Encoding.");
    }
    Ok(())
}

/// Decodes percent-escapes once. The front has checked their form.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'%')
            .then(|| tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = if escaped.is_some() { &tail[2..] } else { tail };
        bytes.push(escaped.unwrap_or(byte));
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(headers: &[(&'static str, &'static str)]) -> bool {
        let head =
            Head { method: "POST", path: "/".into(), query: None, headers: headers.to_vec() };
        check_media(&head).is_ok()
    }

    #[test]
    fn only_json_in_utf8_without_a_coding_is_taken() {
        for good in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/vnd.x+json",
            "application/json; profile=x",
        ] {
            assert!(media(&[("Content-Type", good)]), "{good}");
        }
        for bad in [
            "",
            "text/plain",
            "application/json; charset=utf-16",
            "application/jsonx",
            "+json",
            "application/x-www-form-urlencoded",
        ] {
            assert!(!media(&[("Content-Type", bad)]), "{bad}");
        }
        assert!(!media(&[]));
        let json = ("Content-Type", "application/json");
        assert!(!media(&[json, json]));
        assert!(!media(&[json, ("Content-Encoding", "gzip")]));
        assert!(media(&[json, ("Content-Encoding", "identity")]));
    }

    #[test]
    fn a_path_is_decoded_once() {
        assert_eq!(percent_decoded("a%2Fb").as_deref(), Some("a/b"));
        assert_eq!(percent_decoded("%2525").as_deref(), Some("%25"));
        assert_eq!(percent_decoded("%ff"), None);
    }
}
