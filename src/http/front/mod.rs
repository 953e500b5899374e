//! A strict front for the small part of HTTP/1.1 that the API needs, on `std::net` and `httparse`. It gives a whole
//! request to a [`Service`] and takes a [`Response`]; it knows nothing of idempotency, routes or principals.

/// The head of a request, checked: what may be known before the body is read.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method, in capitals.
    pub method: String,
    /// The path of the target, percent-escapes of unreserved characters decoded once, nothing else.
    pub path: String,
    /// What follows the `?`, where there is one.
    pub query: Option<String>,
    /// The headers in order; names in lower case, values trimmed.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The values of a header, in order. `name` is in lower case.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// An answer: the front adds `Date`, `Content-Length` and `Connection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, 200 to 599.
    pub status: u16,
    /// Headers besides the front's own.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// What was wrong with the framing of a request. The connection is closed after the answer.
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
    /// 501: a transfer coding other than `chunked`, or a method that HTTP does not know.
    NotImplemented,
    /// 503: as many clients as may be are being served.
    TooManyClients,
    /// 505: a version other than HTTP/1.0 and HTTP/1.1.
    Version,
}

/// What serves the requests of one listener.
pub trait Service: Send + Sync + 'static {
    /// What the head of an admitted request came to.
    type Admitted;

    /// Looks at the head. A refusal is answered before the body is read (and instead of `100 Continue`), and the
    /// connection closes after it where the request has a body.
    fn admit(&self, head: &Head) -> Result<Self::Admitted, Response>;

    /// Answers an admitted request. The body is whole.
    fn respond(&self, admitted: Self::Admitted, body: Vec<u8>, client: &Client) -> Response;

    /// Words the answer to a request that has no meaning.
    fn malformed(&self, what: Malformed) -> Response;
}

/// The client at the other end of a connection.
pub struct Client {}

impl Client {
    /// Whether the client has closed its side: nobody will read the answer.
    pub fn is_gone(&self) -> bool {
        false
    }
}
