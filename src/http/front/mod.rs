//! A strict front for the small part of HTTP/1.1 that the API needs, on `std` threads, `socket2` and `httparse`. It
//! gives a whole request to a [`Service`] and takes a [`Response`]; it knows nothing of idempotency, routes or
//! principals.
//!
//! One thread serves one connection, whole: what could be read in two ways is refused and the connection closed, and
//! every wait has an end. TCP, Unix sockets and sockets that the service manager hands over take the same path.

mod body; // the request's body, by declared length or in chunks
mod connection; // one connection: request, answer, and again
mod head; // the request's head: bytes, fields, framing
mod incoming; // reads with a deadline, through one small buffer
mod listen; // where a listener listens
mod places; // the connections that are open: how many, which are idle
mod server; // the accepting of connections
mod write; // answers, and writes with a deadline

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::time::Duration;

pub use listen::{BindError, Listener, bind};
pub use places::Client;
pub use server::Server;

/// The head of a request, checked: what may be known before the body is read. It borrows from the connection's buffer.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The path of the target. Every `%` in it begins a valid escape; those of unreserved characters are decoded, once,
    /// and no others, so that decoding the rest once more gives what the client meant.
    pub path: Cow<'a, str>,
    /// What follows the `?`, where there is one.
    pub query: Option<&'a str>,
    /// The fields in order: names as they were sent (see [`Head::values`]), values trimmed. Visible ASCII, spaces, tabs.
    pub headers: Vec<(&'a str, &'a str)>,
}

impl<'a> Head<'a> {
    /// The values of a field, in order. The case of `name` does not matter.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }
}

/// An answer: the front adds `Date`, `Content-Length` and `Connection`. A HEAD request gets it without the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, 200 to 599.
    pub status: u16,
    /// Headers besides the front's own. Control characters in a value are sent as spaces.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no answer of the service's own. The connection is closed after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// 400: it could be read in two ways, or in none.
    Request(&'static str),
    /// 408: not whole in time.
    Timeout,
    /// 413: the body is longer than the service takes.
    BodyTooLarge,
    /// 417: an `Expect` other than `100-continue`.
    Expectation,
    /// 431: the head is too long, or has too many headers.
    HeadTooLarge,
    /// 500: the service panicked over this request.
    Failed,
    /// 501: a transfer coding other than `chunked`, or a method that HTTP does not know.
    NotImplemented,
    /// 503: as many clients as may be are being served.
    TooManyClients,
    /// 505: a version other than HTTP/1.0 and HTTP/1.1.
    Version,
}

/// What serves the requests of one listener. A panic in it costs the one request: 500, and the connection closes.
pub trait Service: Send + Sync + 'static {
    /// What the head of an admitted request came to.
    type Admitted;

    /// Looks at the head. A refusal is answered before the body is read (and instead of `100 Continue`), and the
    /// connection closes after it where the request has a body. A declared body past `max_body` is found after this.
    fn admit(&self, head: &Head<'_>) -> Result<Self::Admitted, Response>;

    /// Answers an admitted request. The body is whole.
    fn respond(&self, admitted: Self::Admitted, body: Vec<u8>, client: &Client) -> Response;

    /// Words the answer to a request that has no meaning, or that cannot be served.
    fn malformed(&self, what: Malformed) -> Response;
}

/// The bounds of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The listener's name: the label of its metric and the beginning of its threads' names.
    pub name: &'static str,
    /// Connections served at once, each by a thread of its own.
    pub threads: NonZeroUsize,
    /// The longest body, in bytes.
    pub max_body: usize,
    /// A head and body must be whole this long after their first byte.
    pub read_timeout: Duration,
    /// An answer must be taken within this.
    pub write_timeout: Duration,
    /// How long a connection may wait for a request.
    pub keep_alive: Duration,
}
