//! A service that shows what it was given, and a client that speaks bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never};

use crate::config::Listen;
use crate::http::front::{
    Client, Head, Limits, Listener, Malformed, Response, Server, Service, bind,
};
use crate::threads::{self, Died};

/// The longest that any of these tests waits for what must come.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const BIG: usize = 32 * 1024 * 1024;

/// Answers by path; see [`Service::respond`] below.
pub(super) struct Show {
    /// The requests that were whole, as `METHOD PATH QUERY BODY`.
    pub(super) seen: Mutex<Vec<String>>,
    /// `/slow` answers once something is sent here, or the sender is gone.
    gate: Receiver<()>,
    /// How many requests wait at the gate.
    pub(super) waiting: AtomicUsize,
    /// How many `/gone` saw their client go.
    pub(super) gone: AtomicUsize,
}

impl Service for Show {
    type Admitted = (String, String);

    fn admit(&self, head: &Head<'_>) -> Result<(String, String), Response> {
        match &*head.path {
            "/refuse" => Err(text(401, "no")),
            "/panic-early" => panic!("early"),
            path => {
                let query = head.query.unwrap_or("-");
                let marks: Vec<&str> = head.values("X-Mark").collect();
                let line = format!("{} {path} {query} {}", head.method, marks.join("|"));
                Ok((path.to_owned(), line.trim_end().to_owned()))
            }
        }
    }

    fn respond(&self, (path, line): (String, String), body: Vec<u8>, client: &Client) -> Response {
        let line = format!("{line} {}", String::from_utf8_lossy(&body));
        self.seen.lock().unwrap().push(line.trim_end().to_owned());
        match path.as_str() {
            "/panic" => panic!("out of tea"),
            "/big" => Response { status: 200, headers: Vec::new(), body: vec![b'x'; BIG] },
            "/none" => text(204, ""),
            "/length" => text(200, &body.len().to_string()),
            "/json" => {
                let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                text(200, &value.to_string().len().to_string())
            }
            "/inject" => {
                let mut response = text(200, "ok");
                response.headers.push(("X-Echo", "a\r\nX-Evil: 1\u{1b}[31m".to_owned()));
                response
            }
            "/slow" => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.gate.recv_timeout(PATIENCE).ok();
                text(200, &format!("slow gone={}", client.is_gone()))
            }
            "/gone" => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                eventually("the client goes", || client.is_gone());
                self.gone.fetch_add(1, Ordering::SeqCst);
                text(200, "gone")
            }
            _ => text(200, line.trim_end()),
        }
    }

    fn malformed(&self, what: Malformed) -> Response {
        let status = match what {
            Malformed::Request(_) => 400,
            Malformed::Timeout => 408,
            Malformed::BodyTooLarge => 413,
            Malformed::Expectation => 417,
            Malformed::HeadTooLarge => 431,
            Malformed::Failed => 500,
            Malformed::NotImplemented => 501,
            Malformed::TooManyClients => 503,
            Malformed::Version => 505,
        };
        let mut response = text(status, &format!("{what:?}"));
        if what == Malformed::TooManyClients {
            response.headers.push(("Retry-After", "1".to_owned()));
        }
        response
    }
}

fn text(status: u16, text: &str) -> Response {
    let headers = vec![("Content-Type", "text/plain".to_owned())];
    Response { status, headers, body: text.as_bytes().to_vec() }
}

/// A front that runs, and what its service saw.
pub(super) struct Running {
    pub(super) server: Server,
    pub(super) address: String,
    pub(super) service: Arc<Show>,
    /// Opens `/slow`: once for each message, for good when dropped.
    pub(super) gate: Option<Sender<()>>,
    pub(super) died: Receiver<Died>,
}

/// Limits that no test meets by chance.
pub(super) fn limits() -> Limits {
    Limits {
        name: "test",
        threads: NonZeroUsize::new(64).unwrap(),
        max_body: 100_000,
        read_timeout: PATIENCE,
        write_timeout: PATIENCE,
        keep_alive: PATIENCE,
    }
}

pub(super) fn start(limits: Limits) -> Running {
    start_on(bind(&Listen::Tcp("127.0.0.1:0".parse().unwrap())).unwrap(), limits)
}

pub(super) fn start_on(listener: Listener, limits: Limits) -> Running {
    let address = listener.local_addr().to_owned();
    let (gate, opened) = bounded(64);
    let (deaths, died) = bounded(4);
    let service = Arc::new(Show {
        seen: Mutex::default(),
        gate: opened,
        waiting: AtomicUsize::new(0),
        gone: AtomicUsize::new(0),
    });
    let server = Server::start(listener, limits, Arc::clone(&service), &deaths).unwrap();
    Running { server, address, service, gate: Some(gate), died }
}

impl Running {
    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends bytes on a connection of their own and returns the one answer.
    pub(super) fn ask(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, bytes);
        read_answer(&mut stream)
    }

    /// Sends bytes on a connection of their own and returns every answer until the other side closes.
    pub(super) fn ask_all(&self, bytes: impl AsRef<[u8]>) -> Vec<Answer> {
        let mut stream = self.connect();
        send(&mut stream, bytes);
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        while let Some(answer) = try_read_answer(&mut stream) {
            answers.push(answer);
        }
        answers
    }

    pub(super) fn seen(&self) -> Vec<String> {
        self.service.seen.lock().unwrap().clone()
    }

    pub(super) fn await_waiting(&self, count: usize) {
        let waiting = &self.service.waiting;
        eventually("requests wait", || waiting.load(Ordering::SeqCst) >= count);
    }

    /// Ends the server, which must have nothing left to do.
    pub(super) fn stop(self) {
        drop(self.gate);
        let left = self.server.join(Instant::now() + PATIENCE);
        assert_eq!(left, Vec::<String>::new());
        assert!(self.died.is_empty(), "no thread of the server died");
    }
}

/// An answer, taken apart.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().skip(1).filter_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        });
        let value = values.next();
        assert_eq!(values.next(), None, "{name} is there once");
        value
    }

    pub(super) fn closes(&self) -> bool {
        self.header("Connection") == Some("close")
    }
}

pub(super) fn send(stream: &mut impl Write, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref()).unwrap();
}

pub(super) fn read_answer(stream: &mut impl Read) -> Answer {
    try_read_answer(stream).expect("an answer, and not the end of the connection")
}

/// Reads one answer; `None` where the connection ends, or is reset, before it.
pub(super) fn try_read_answer(stream: &mut impl Read) -> Option<Answer> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) if head.is_empty() => return None,
            Err(error) if head.is_empty() && error.raw_os_error() == Some(104) => return None,
            Ok(_) => panic!("the connection ended in a head: {}", String::from_utf8_lossy(&head)),
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&head)),
        }
    }
    let head = String::from_utf8(head).unwrap();
    let status = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
    let mut answer = Answer { status, head, body: String::new() };
    let length = answer.header("Content-Length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    answer.body = String::from_utf8(body).unwrap();
    Some(answer)
}

/// Whether the other side has closed: nothing more comes.
pub(super) fn is_at_end(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.raw_os_error() == Some(104),
    }
}

pub(super) fn pause(time: Duration) {
    threads::stops_within(&never(), time);
}

#[track_caller]
pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        pause(Duration::from_millis(2));
    }
}

/// A request of HTTP/1.1 with a body of declared length.
pub(super) fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}
