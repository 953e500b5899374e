//! The operator's side, on a listener of its own: is it alive, can it work, how much does it do; the page for people,
//! and what that page and programs ask.

mod api;
mod clerk;
mod page;
mod route;
mod token;

use std::sync::Arc;
use std::time::Instant;

pub use api::Facts;
pub use clerk::Clerk;
pub use route::Ask;
use route::Route;
pub use token::Token;

use crate::http::front::{Client, Head, Malformed, Response, Service};
use crate::http::{self, host, problem, request_id};
use crate::observe::{METRICS_CONTENT_TYPE, metrics_text};

/// What the operators' side needs.
pub struct Needs {
    /// Who may use the API.
    pub token: Arc<Token>,
    /// Where questions to the database are handed in.
    pub clerk: Clerk,
    /// What is told of the daemon.
    pub facts: Facts,
}

/// The operators' side.
pub struct Admin {
    needs: Needs,
    started: Instant,
}

impl Admin {
    /// To be made at the start: from then on it counts the time.
    pub fn new(needs: Needs) -> Admin {
        Admin { needs, started: Instant::now() }
    }

    /// Host, token, path, method, form: in this order, so that an outsider learns nothing.
    fn check(&self, head: &Head<'_>, id: &str) -> Result<Ask, Response> {
        let refuse = |kind, detail: &str| problem::response(kind, detail, id);
        let path = head.path.as_ref();
        let Some(route) = Route::of(path) else {
            return Err(if host::is_ours(head, &self.needs.facts.hosts) {
                refuse(problem::NOT_FOUND, "Here are /, /healthz, /readyz, /metrics and /api/….")
            } else {
                refuse(problem::FORBIDDEN, FOREIGN)
            });
        };
        // A probe by address is not refused for its host; anything else is.
        if !route.is_for_anybody() && !host::is_ours(head, &self.needs.facts.hosts) {
            return Err(refuse(problem::FORBIDDEN, FOREIGN));
        }
        if route == Route::Api && !self.needs.token.admits(head.values("authorization")) {
            let detail = "Send the admin token: Authorization: Bearer TOKEN.";
            return Err(refuse(problem::UNAUTHORIZED, detail));
        }
        route::ask(route, head, self.needs.token.is_set()).map_err(|no| match no {
            route::No::Method(allowed) => http::not_allowed(allowed, id),
            route::No::Problem(kind, detail) => refuse(kind, &detail),
        })
    }
}

const FOREIGN: &str = "The host of the request is neither loopback nor in admin.hosts.";

impl Service for Admin {
    type Admitted = (Ask, String);

    fn admit(&self, head: &Head<'_>) -> Result<(Ask, String), Response> {
        let id = request_id::of(head);
        Ok((self.check(head, &id)?, id))
    }

    fn respond(&self, (ask, id): (Ask, String), body: Vec<u8>, _: &Client) -> Response {
        match ask {
            Ask::Health => json(200, &serde_json::json!({ "alive": true }), id),
            Ask::Ready => match self.needs.facts.readiness.reason() {
                None => json(200, &serde_json::json!({ "ready": true }), id),
                Some(reason) => {
                    json(503, &serde_json::json!({ "ready": false, "reason": reason }), id)
                }
            },
            Ask::Metrics => Response {
                status: 200,
                headers: headers(METRICS_CONTENT_TYPE, id),
                body: metrics_text().into_bytes(),
            },
            Ask::File(file) => page::response(file, id),
            Ask::Read(question) => self.read(question, id),
            Ask::Act(order) => self.act(order, &body, id),
        }
    }

    fn malformed(&self, what: Malformed) -> Response {
        http::malformed(what)
    }
}

fn json(status: u16, value: &impl serde::Serialize, id: String) -> Response {
    let body = serde_json::to_vec(value).expect("our own values are JSON");
    Response { status, headers: headers("application/json", id), body }
}

fn headers(media: &str, id: String) -> Vec<(&'static str, String)> {
    vec![
        ("Content-Type", media.to_owned()),
        ("X-Request-Id", id),
        ("Cache-Control", "no-store".to_owned()),
        ("X-Content-Type-Options", "nosniff".to_owned()),
    ]
}
