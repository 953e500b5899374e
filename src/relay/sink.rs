//! The webhook: one POST, and what the sink made of it. The only file that knows the HTTP client.
//!
//! Every default of the client is set here. No redirect is followed, no proxy of the environment is used, the whole
//! attempt has one deadline, and of a reply at most [`REPLY_BYTES`] are read. What goes wrong before there is a
//! connection is a fault of the sink as a whole; what comes after is the event's failed attempt.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::config::Config;
use ureq::http::{HeaderMap, StatusCode, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Body, Error, Proxy};

use super::backoff::parse_retry_after;
use super::signature::sign;
use crate::config::Secret;
use crate::config::address::is_public;

/// A reply may be so long, in bytes.
pub const REPLY_BYTES: u64 = 64 * 1024;

/// How much of a refusal's reply is kept for the operator, in bytes.
const EXCERPT_BYTES: usize = 300;

/// How long a looked-up name is used again. The client looks a name up for each attempt, also where it then takes an
/// open connection.
const NAME_LIFE: Duration = Duration::from_secs(5);

/// How long an idle connection is kept: less than the keep-alive of common servers, so that few are closed under us.
const IDLE_LIFE: Duration = Duration::from_secs(30);

/// What the sink made of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// 2xx, and the reply was read to its end.
    Accepted,
    /// The attempt failed: any other status, a timeout, a reply past its limit.
    Failed {
        /// What was wrong.
        reason: String,
        /// What the sink asked for by 429 or 503.
        retry_after: Option<Duration>,
    },
    /// 410: the sink wants nothing any more.
    Gone {
        /// What it said.
        reason: String,
    },
    /// There was no connection, so nothing was sent.
    Unreachable {
        /// What was wrong.
        reason: String,
    },
}

/// The keys that sign. They can be exchanged while the relays run; an attempt takes those of its begin.
#[derive(Clone)]
pub struct Secrets(Arc<Mutex<Keys>>);

type Keys = Arc<[Secret<Vec<u8>>]>;

impl Secrets {
    /// Holds the keys.
    pub fn new(secrets: Vec<Secret<Vec<u8>>>) -> Secrets {
        Secrets(Arc::new(Mutex::new(secrets.into())))
    }

    /// Exchanges the keys: every attempt that begins from now on is signed by the new ones.
    pub fn replace(&self, secrets: Vec<Secret<Vec<u8>>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = secrets.into();
    }

    fn current(&self) -> Keys {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sink.
pub struct Webhook {
    agent: Agent,
    url: String,
    secrets: Secrets,
}

impl Webhook {
    /// Makes the client; nothing is connected yet. `connections` attempts may be under way at once.
    pub fn new(
        sink: &crate::config::Sink,
        secrets: Secrets,
        connections: usize,
    ) -> io::Result<Webhook> {
        let proxy = sink.proxy.as_ref().map(|url| Proxy::new(url.as_str())).transpose();
        let proxy = proxy.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Name and connection have a share of the time each, so that a timeout says which part was slow, and a sink
        // that is not there is told from one that does not answer.
        let share = sink.timeout.mul_f64(0.4);
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .save_redirect_history(false)
            .proxy(proxy)
            .timeout_global(Some(sink.timeout))
            .timeout_resolve(Some(share))
            .timeout_connect(Some(share))
            .user_agent(concat!("onced/", env!("CARGO_PKG_VERSION")))
            .accept("")
            .accept_encoding("identity")
            .no_delay(true)
            .max_response_header_size(16 * 1024)
            .input_buffer_size(32 * 1024)
            .output_buffer_size(32 * 1024)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(IDLE_LIFE)
            .tls_config(TlsConfig::builder().root_certs(roots(sink.ca_file.as_deref())?).build())
            .build();
        let guard = Guard {
            lookup: DefaultResolver::default(),
            allow_private: sink.allow_private,
            proxy_host: sink.proxy.as_ref().and_then(|url| url.host_str().map(str::to_owned)),
            recent: Mutex::new(None),
        };
        let agent = Agent::with_parts(config, Dialer(DefaultConnector::new()), guard);
        Ok(Webhook { agent, url: sink.url.as_str().to_owned(), secrets })
    }

    /// Makes one attempt: a fresh time and signature, the same id and body as ever.
    pub fn deliver(&self, event_key: &str, body: &str) -> Delivery {
        // A clock before 1970 is signed as it is: the consumer will refuse it and say so.
        let now = SystemTime::now();
        let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let signature = sign(event_key, timestamp, body, &self.secrets.current());
        let reply = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("webhook-id", event_key)
            .header("webhook-timestamp", timestamp.to_string())
            .header("webhook-signature", signature)
            .send(body);
        match reply {
            Ok(mut reply) => {
                let status = reply.status();
                let retry_after = asked_for(status, reply.headers(), now);
                judge(status, retry_after, read(reply.body_mut()))
            }
            Err(error) => of_error(&error),
        }
    }
}

/// The system's roots, and those of the file beside them.
fn roots(ca_file: Option<&Path>) -> io::Result<RootCerts> {
    let Some(path) = ca_file else { return Ok(RootCerts::PlatformVerifier) };
    let named = |error: String| io::Error::other(format!("[sink] ca_file {path:?}: {error}"));
    let pem = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let system = rustls_native_certs::load_native_certs().certs;
    let mut roots: Vec<Certificate<'static>> =
        system.iter().map(|root| Certificate::from_der(root.as_ref()).to_owned()).collect();
    let before = roots.len();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(root) = item.map_err(|error| named(error.to_string()))? {
            roots.push(root);
        }
    }
    if roots.len() == before {
        return Err(named("there is no certificate in it".to_owned()));
    }
    Ok(RootCerts::new_with_certs(&roots))
}

/// Reads the reply to its end, so that the connection can be used again.
fn read(body: &mut Body) -> Result<Vec<u8>, Error> {
    body.with_config().limit(REPLY_BYTES).read_to_vec()
}

fn asked_for(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let heeded =
        status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE;
    text("retry-after")
        .filter(|_| heeded)
        .and_then(|value| parse_retry_after(value, text("date"), now))
}

fn judge(
    status: StatusCode,
    retry_after: Option<Duration>,
    reply: Result<Vec<u8>, Error>,
) -> Delivery {
    if status == StatusCode::GONE {
        return Delivery::Gone {
            reason: format!("HTTP 410{}", excerpt(&reply.unwrap_or_default())),
        };
    }
    let reason = match (status.is_success(), &reply) {
        (true, Ok(_)) => return Delivery::Accepted,
        (false, Ok(reply)) => format!("HTTP {}{}", status.as_u16(), excerpt(reply)),
        (_, Err(error)) => format!("HTTP {}, and the reply: {}", status.as_u16(), words(error)),
    };
    Delivery::Failed { reason, retry_after }
}

fn excerpt(reply: &[u8]) -> String {
    let start = reply.get(..EXCERPT_BYTES).unwrap_or(reply);
    let text = String::from_utf8_lossy(start);
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn of_error(error: &Error) -> Delivery {
    if let Error::Other(other) = &error
        && other.is::<Unreachable>()
    {
        return Delivery::Unreachable { reason: other.to_string() };
    }
    Delivery::Failed { reason: words(error), retry_after: None }
}

/// An error of the client in words for the operator.
#[expect(clippy::wildcard_enum_match_arm, reason = "the client's errors are open-ended")]
fn words(error: &Error) -> String {
    match error {
        Error::Timeout(_) => "no answer within the sink's timeout".to_owned(),
        Error::BodyExceedsLimit(limit) => format!("longer than {limit} bytes"),
        Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// There is no connection to the sink.
#[derive(Debug)]
struct Unreachable(String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

fn unreachable(what: &str, error: Error) -> Error {
    if matches!(&error, Error::Other(other) if other.is::<Unreachable>()) {
        return error;
    }
    let is_late = matches!(error, Error::Timeout(_));
    let reason = if is_late { "no answer in time".to_owned() } else { words(&error) };
    Error::Other(Box::new(Unreachable(format!("{what}: {reason}"))))
}

/// Connects, and marks what goes wrong with it (TCP, TLS, a proxy) as the sink's fault.
#[derive(Debug)]
struct Dialer(DefaultConnector);

impl Connector<()> for Dialer {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        let connected = self.0.connect(details, chained);
        connected.map_err(|error| unreachable("cannot connect to the sink", error))
    }
}

/// Looks names up and lets only public addresses through, unless private ones are allowed. What it returns is what the
/// client dials, so a name that changes its mind between a check and a connection gains nothing.
#[derive(Debug)]
struct Guard {
    lookup: DefaultResolver,
    allow_private: bool,
    /// The proxy is where the operator put it; which addresses it dials is its own to decide.
    proxy_host: Option<String>,
    recent: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    uri: Uri,
    at: Instant,
    addresses: Vec<SocketAddr>,
}

impl Guard {
    fn known(&self, uri: &Uri) -> Option<Vec<SocketAddr>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent.as_ref().filter(|known| {
            known.uri.authority() == uri.authority() && known.at.elapsed() < NAME_LIFE
        })?;
        Some(known.addresses.clone())
    }

    fn look_up(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<Vec<SocketAddr>, Error> {
        if let Some(address) = literal(uri) {
            return Ok(vec![address]);
        }
        if let Some(addresses) = self.known(uri) {
            return Ok(addresses);
        }
        let found = self.lookup.resolve(uri, config, timeout);
        let found = found.map_err(|error| unreachable("cannot look up the sink's name", error))?;
        let addresses: Vec<SocketAddr> = found.iter().copied().collect();
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Known { uri: uri.clone(), at: Instant::now(), addresses: addresses.clone() });
        Ok(addresses)
    }
}

/// The address that stands in the URL itself.
fn literal(uri: &Uri) -> Option<SocketAddr> {
    let host: IpAddr = uri.host()?.trim_matches(['[', ']']).parse().ok()?;
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    Some(SocketAddr::new(host, uri.port_u16().unwrap_or(default)))
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.look_up(uri, config, timeout)?;
        let is_proxy = self.proxy_host.is_some() && self.proxy_host.as_deref() == uri.host();
        let may_dial =
            |address: &&SocketAddr| self.allow_private || is_proxy || is_public(address.ip());
        let mut addresses = self.empty();
        for address in found.iter().filter(may_dial).take(16) {
            addresses.push(*address);
        }
        if addresses.is_empty() {
            let refused: Vec<String> = found.iter().map(|one| one.ip().to_string()).collect();
            return Err(Error::Other(Box::new(Unreachable(format!(
                "the sink's address is not public: {} (set [sink] allow_private to reach it)",
                refused.join(", ")
            )))));
        }
        Ok(addresses)
    }
}
