//! The operator's side, on a listener of its own: is it alive, can it work, how much does it do.

use crate::config;
use crate::http::front::{Client, Head, Malformed, Response, Service};
use crate::http::{self, host, problem, request_id};
use crate::observe::{METRICS_CONTENT_TYPE, metrics_text};
use crate::prober::Readiness;

/// The operators' API.
pub struct Admin {
    readiness: Readiness,
    /// Values of `Host` that are taken besides loopback.
    hosts: Vec<String>,
}

impl Admin {
    /// `readiness` is what is known of the daemon's ability to work.
    pub fn new(config: &config::Admin, readiness: Readiness) -> Admin {
        Admin { readiness, hosts: config.hosts.clone() }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Whether the process lives.
    Health,
    /// Whether it can work.
    Ready,
    /// Everything that is counted.
    Metrics,
}

impl Service for Admin {
    type Admitted = (Page, String);

    fn admit(&self, head: &Head<'_>) -> Result<(Page, String), Response> {
        let id = request_id::of(head);
        let page = match head.path.as_ref() {
            "/healthz" => Page::Health,
            "/readyz" => Page::Ready,
            "/metrics" => Page::Metrics,
            // A probe by address is not refused for its host; anything else is.
            _ => {
                let kind = if host::is_ours(head, &self.hosts) {
                    problem::NOT_FOUND
                } else {
                    problem::FORBIDDEN
                };
                return Err(problem::response(
                    kind,
                    "Here are /healthz, /readyz and /metrics.",
                    &id,
                ));
            }
        };
        if head.method != "GET" && head.method != "HEAD" {
            return Err(http::not_allowed("GET", &id));
        }
        Ok((page, id))
    }

    fn respond(&self, (page, id): (Page, String), _: Vec<u8>, _: &Client) -> Response {
        match page {
            Page::Health => json(200, &serde_json::json!({ "alive": true }), id),
            Page::Ready => match self.readiness.reason() {
                None => json(200, &serde_json::json!({ "ready": true }), id),
                Some(reason) => {
                    json(503, &serde_json::json!({ "ready": false, "reason": reason }), id)
                }
            },
            Page::Metrics => Response {
                status: 200,
                headers: headers(METRICS_CONTENT_TYPE, id),
                body: metrics_text().into_bytes(),
            },
        }
    }

    fn malformed(&self, what: Malformed) -> Response {
        http::malformed(what)
    }
}

fn json(status: u16, value: &serde_json::Value, id: String) -> Response {
    Response {
        status,
        headers: headers("application/json", id),
        body: value.to_string().into_bytes(),
    }
}

fn headers(media: &str, id: String) -> Vec<(&'static str, String)> {
    vec![
        ("Content-Type", media.to_owned()),
        ("X-Request-Id", id),
        ("Cache-Control", "no-store".to_owned()),
    ]
}
