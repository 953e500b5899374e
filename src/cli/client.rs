//! The caller's half of the HTTP interface, for the commands that speak to a running daemon or sink.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderMap, Request};
use ureq::tls::{RootCerts, TlsConfig};

use crate::config::Secret;
use crate::relay::backoff::parse_retry_after;

/// Longer than a daemon makes a caller wait by default, and than a slow statement takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest body that is read, in bytes.
const BODY_MAX: u64 = 32 << 20;

/// Speaks to one base URL.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    base: String,
    token: Option<Secret<String>>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Whether `Idempotent-Replayed: true` came with it.
    pub(super) replayed: bool,
    /// The media type, without parameters.
    pub(super) media: String,
    /// The daemon's id for the request; no answer of a daemon is without one.
    pub(super) request_id: Option<String>,
    /// How long `Retry-After` asks to wait.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// The body as JSON; null where it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The name of the problem, as `idempotency-key-reused`; empty where the answer is no problem.
    pub(super) fn problem(&self) -> String {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        kind.strip_prefix("urn:onced:problem:").unwrap_or_default().to_owned()
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Client {
    /// A client of `base`, as `http://127.0.0.1:8080`. Connections are kept for `callers` at once.
    pub(super) fn new(base: &str, token: Option<Secret<String>>, callers: usize) -> Client {
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_connections_per_host(callers)
            .build();
        Client { agent: config.into(), base: base.trim_end_matches('/').to_owned(), token }
    }

    /// Sends a write under a key.
    pub(super) fn call(&self, route: &str, key: &str, body: &str) -> anyhow::Result<Reply> {
        self.call_within(TIMEOUT, route, key, body)
    }

    /// The same, with an end to it after `limit` at most.
    pub(super) fn call_within(
        &self,
        limit: Duration,
        route: &str,
        key: &str,
        body: &str,
    ) -> anyhow::Result<Reply> {
        let request = self
            .request("POST", route)
            .header("Idempotency-Key", key)
            .header("Content-Type", "application/json");
        self.run(request, limit.min(TIMEOUT), body, route)
    }

    /// Reads what is at a path.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.get_within(TIMEOUT, path)
    }

    /// The same, with an end to it after `limit` at most.
    pub(super) fn get_within(&self, limit: Duration, path: &str) -> anyhow::Result<Reply> {
        self.run(self.request("GET", path), limit.min(TIMEOUT), (), path)
    }

    fn request(&self, method: &str, path: &str) -> ureq::http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {}", token.reveal())),
            None => request,
        }
    }

    fn run(
        &self,
        request: ureq::http::request::Builder,
        limit: Duration,
        body: impl ureq::AsSendBody,
        path: &str,
    ) -> anyhow::Result<Reply> {
        let request = request.body(body).with_context(|| format!("bad request to {path}"))?;
        let request = self.agent.configure_request(request).timeout_global(Some(limit)).build();
        let answer = self.agent.run(request);
        let mut answer = answer.with_context(|| format!("no answer from {}{path}", self.base))?;
        let read = answer.body_mut().with_config().limit(BODY_MAX).read_to_vec();
        let body = read.with_context(|| format!("half an answer from {}{path}", self.base))?;
        let headers = answer.headers();
        let media = text(headers, "content-type").unwrap_or_default();
        let retry_after = text(headers, "retry-after")
            .and_then(|value| parse_retry_after(value, text(headers, "date"), SystemTime::now()));
        Ok(Reply {
            status: answer.status().as_u16(),
            replayed: text(headers, "idempotent-replayed") == Some("true"),
            media: media.split(';').next().unwrap_or_default().trim().to_lowercase(),
            request_id: text(headers, "x-request-id").map(str::to_owned),
            retry_after,
            body,
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
