//! A small HTTP client that sends exact bytes and reads answers strictly.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::daemon::ORDER;
use super::wait::LIMIT;

/// An answer, whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header that stands at most once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} stands twice in {self:?}");
        value
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body is UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    /// Whether it says that it is a replay.
    pub fn is_replay(&self) -> bool {
        match self.header("idempotent-replayed") {
            None => false,
            Some(value) => {
                assert_eq!(value, "true");
                true
            }
        }
    }

    /// The NAME of the problem's type, after checking that the problem is well-formed.
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        for member in ["title", "detail", "instance"] {
            assert!(problem[member].is_string(), "{member} of {problem}");
        }
        assert!(problem["retryable"].is_boolean(), "{problem}");
        let kind = problem["type"].as_str().expect("a problem has a type");
        kind.strip_prefix("urn:onced:problem:").expect(kind).to_owned()
    }

    /// The status and the name of the problem.
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.problem())
    }

    /// Whole seconds of `Retry-After`, at least 1.
    pub fn retry_after(&self) -> Option<u64> {
        let value = self.header("retry-after")?;
        let seconds = value.parse().expect("Retry-After is a whole number of seconds");
        assert!(seconds >= 1, "{value}");
        Some(seconds)
    }
}

/// A connection that stays open.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> Connection {
        Connection::try_open(address).expect("the daemon takes a connection")
    }

    /// Connects, where the daemon may be gone.
    pub fn try_open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// Sends bytes as they stand.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the daemon takes bytes");
    }

    /// Sends bytes as far as the daemon takes them.
    pub fn send_what_goes(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Says that nothing more will be sent.
    pub fn end_sending(&self) {
        drop(self.stream.shutdown(Shutdown::Write));
    }

    /// The next answer.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer comes whole").expect("an answer comes before the end")
    }

    /// The next answer; `None` where the connection was closed in good order, or reset, before its first byte.
    pub fn try_answer(&mut self) -> io::Result<Option<Answer>> {
        loop {
            if let Some((answer, length)) = parse(&self.buffer, false)? {
                self.buffer.drain(..length);
                return Ok(Some(answer));
            }
            match self.fill() {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, self.cut())),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset && self.buffer.is_empty() => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The answer to a HEAD request, which has no body.
    pub fn answer_to_head(&mut self) -> Answer {
        loop {
            if let Some((answer, length)) = parse(&self.buffer, true).expect("an answer") {
                self.buffer.drain(..length);
                return answer;
            }
            assert_ne!(self.fill().expect("an answer"), 0, "{}", self.cut());
        }
    }

    /// Whether the daemon closes the connection, without another byte, within the limit.
    pub fn is_closed(&mut self) -> bool {
        match self.try_answer() {
            Ok(None) => true,
            Ok(Some(answer)) => panic!("one answer too many: {answer:?}"),
            Err(_) => false,
        }
    }

    /// Takes some bytes of an answer.
    pub fn read_some(&mut self) {
        assert_ne!(self.fill().expect("bytes of an answer"), 0, "{}", self.cut());
    }

    /// Whether a byte, or the end, can be read now.
    pub fn has_bytes(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let ready = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).unwrap();
        ready
    }

    /// Whether no answer comes for a while that is long for a daemon that nobody holds.
    pub fn is_silent(&mut self) -> bool {
        self.read_within(Duration::from_millis(300));
        let answer = self.try_answer();
        self.read_within(LIMIT);
        answer.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// How long a read may take from now on.
    pub fn read_within(&self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).expect("a limit above zero");
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let length = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..length]);
        Ok(length)
    }

    fn cut(&self) -> String {
        format!("cut off after {:?}", String::from_utf8_lossy(&self.buffer))
    }
}

/// An answer at the start of `bytes` and its length, where it is whole.
fn parse(bytes: &[u8], to_head: bool) -> io::Result<Option<(Answer, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(bytes).map_err(io::Error::other)?;
    let httparse::Status::Complete(head) = parsed else { return Ok(None) };
    let headers: Vec<_> = response
        .headers
        .iter()
        .map(|h| (h.name.to_lowercase(), String::from_utf8_lossy(h.value).into_owned()))
        .collect();
    let status = response.code.expect("a whole head has a status");
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = match length {
        _ if to_head || status < 200 || status == 204 => 0,
        Some((_, value)) => value.parse::<usize>().map_err(io::Error::other)?,
        None => panic!("an answer without Content-Length: {headers:?}"),
    };
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    Ok(Some((Answer { status, headers, body: body.to_vec() }, head + length)))
}

/// A caller: an address and perhaps a token. Each call has a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub token: Option<String>,
}

impl Client {
    /// Calls an operation. The key is sent as it stands.
    pub fn post(&self, operation: &str, key: &str, body: impl AsRef<[u8]>) -> Answer {
        self.try_post(operation, key, body).expect("a call is answered")
    }

    /// Calls an operation, where the daemon may go away.
    pub fn try_post(
        &self,
        operation: &str,
        key: &str,
        body: impl AsRef<[u8]>,
    ) -> io::Result<Answer> {
        let mut connection = Connection::try_open(self.address)?;
        connection.send_what_goes(self.request(operation, key, body))?;
        let ended = || io::Error::new(ErrorKind::UnexpectedEof, "closed without an answer");
        connection.try_answer()?.ok_or_else(ended)
    }

    /// The status of a new order; 0 where nobody answers.
    pub fn order_status(&self) -> u16 {
        self.try_post("orders", &fresh_key(), ORDER).map_or(0, |answer| answer.status)
    }

    /// Sends a call and leaves its answer to be read.
    pub fn begin(&self, operation: &str, key: &str, body: impl AsRef<[u8]>) -> Connection {
        let mut connection = Connection::open(self.address);
        connection.send(self.request(operation, key, body));
        connection
    }

    /// The bytes of a call.
    pub fn request(&self, operation: &str, key: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
        let body = body.as_ref();
        let key = format!("Idempotency-Key: {key}");
        let length = format!("Content-Length: {}", body.len());
        let headers = ["Content-Type: application/json", &key, &length];
        let mut bytes = self.head(&format!("POST /v1/{operation} HTTP/1.1"), &headers);
        bytes.extend_from_slice(body);
        bytes
    }

    /// The bytes of a head, ended, with Host and the token added.
    pub fn head(&self, request_line: &str, headers: &[&str]) -> Vec<u8> {
        let mut head = format!("{request_line}\r\nHost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            write!(head, "Authorization: Bearer {token}\r\n").unwrap();
        }
        for header in headers {
            write!(head, "{header}\r\n").unwrap();
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Gets a path.
    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path).expect("a GET is answered")
    }

    /// Gets a path, where the daemon may be away.
    pub fn try_get(&self, path: &str) -> io::Result<Answer> {
        let mut connection = Connection::try_open(self.address)?;
        connection.send_what_goes(self.head(&format!("GET {path} HTTP/1.1"), &[]))?;
        connection.try_answer()?.ok_or_else(|| io::Error::other("closed without an answer"))
    }

    /// Sends a POST to an operation with these headers (besides Host and Content-Length) and this body.
    pub fn post_with(&self, operation: &str, headers: &[&str], body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let length = format!("Content-Length: {}", body.len());
        let headers = [headers, &[length.as_str()]].concat();
        let mut bytes = self.head(&format!("POST /v1/{operation} HTTP/1.1"), &headers);
        bytes.extend_from_slice(body);
        let mut connection = Connection::open(self.address);
        // A refusal may come, and the connection end, before the body was taken.
        drop(connection.send_what_goes(bytes));
        connection.answer()
    }

    /// Sends exact bytes, ends sending, and gives all answers up to the close of the connection.
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Vec<Answer> {
        let mut connection = Connection::open(self.address);
        drop(connection.send_what_goes(bytes));
        connection.end_sending();
        let mut answers = Vec::new();
        while let Ok(Some(answer)) = connection.try_answer() {
            answers.push(answer);
        }
        answers
    }
}

/// A key that was never used.
pub fn fresh_key() -> String {
    format!("k-{}", uuid::Uuid::now_v7().simple())
}
