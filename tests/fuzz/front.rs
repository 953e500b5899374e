use std::io::{Read, Write};
use std::net::Shutdown;
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bolero::check;
use crossbeam_channel::{Receiver, bounded};
use onced::config::Listen;
use onced::http::front::{Client, Head, Limits, Malformed, Response, Server, Service, bind};
use onced::threads::Died;
use tempfile::TempDir;

use crate::spell::spell;

/// Longer than any answer takes; a front that never answers fails by it.
const PATIENCE: Duration = Duration::from_secs(20);
const MAX_BODY: usize = 10_000;

/// Answers with what it was asked, so that an answer shows which request it belongs to.
struct Echo;

impl Service for Echo {
    type Admitted = String;

    fn admit(&self, head: &Head<'_>) -> Result<String, Response> {
        if head.method == "HEAD" {
            // The answer would declare the length of a body that does not follow.
            return Err(answer(403, Vec::new()));
        }
        let line = format!("{} {}", head.method, head.path);
        if head.path == "/refuse" { Err(answer(403, line.into_bytes())) } else { Ok(line) }
    }

    fn respond(&self, line: String, body: Vec<u8>, _: &Client) -> Response {
        answer(200, [line.as_bytes(), b"|", &body].concat())
    }

    fn malformed(&self, what: Malformed) -> Response {
        let status = match what {
            Malformed::Request(_) => 400,
            Malformed::Timeout => 408,
            Malformed::BodyTooLarge => 413,
            Malformed::Expectation => 417,
            Malformed::HeadTooLarge => 431,
            Malformed::Failed => panic!("nothing panics here"),
            Malformed::NotImplemented => 501,
            Malformed::TooManyClients => 503,
            Malformed::Version => 505,
        };
        answer(status, Vec::new())
    }
}

fn answer(status: u16, body: Vec<u8>) -> Response {
    Response { status, headers: Vec::new(), body }
}

struct Running {
    _server: Server,
    _folder: TempDir,
    died: Receiver<Died>,
    path: PathBuf,
}

/// One front for all inputs of this process.
fn front() -> &'static Running {
    static FRONT: OnceLock<Running> = OnceLock::new();
    FRONT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("front.sock");
        let limits = Limits {
            name: "fuzz",
            threads: NonZeroUsize::new(64).unwrap(),
            max_body: MAX_BODY,
            read_timeout: PATIENCE,
            write_timeout: PATIENCE,
            keep_alive: PATIENCE,
        };
        let (deaths, died) = bounded(1);
        let listener = bind(&Listen::Unix(path.clone())).unwrap();
        let server = Server::start(listener, limits, Arc::new(Echo), &deaths).unwrap();
        Running { _server: server, _folder: folder, died, path }
    })
}

/// An answer as the client reads it: status, whether it is the connection's last, body.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    is_last: bool,
    body: Vec<u8>,
}

/// Sends the bytes in pieces of this length, ends sending, and reads everything up to the close.
fn ask(bytes: &[u8], piece: usize) -> Vec<Answer> {
    let mut stream = UnixStream::connect(&front().path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    for piece in bytes.chunks(piece.max(1)) {
        // The front may have closed after a refusal.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    drop(stream.shutdown(Shutdown::Write));
    let mut received = Vec::new();
    if let Err(error) = stream.read_to_end(&mut received) {
        let was_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(was_reset, "neither answered nor closed: {error}");
    }
    assert!(front().died.is_empty(), "{:?}", front().died.try_recv());
    answers(&received)
}

fn answers(mut rest: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !rest.is_empty() {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(rest).expect("an answer is well-formed");
        let httparse::Status::Complete(head) = parsed else {
            panic!("half an answer: {}", String::from_utf8_lossy(rest))
        };
        let status = response.code.unwrap();
        let field = |name: &str| {
            let found = response.headers.iter().find(|header| header.name == name);
            found.map(|header| std::str::from_utf8(header.value).unwrap())
        };
        let length = field("Content-Length").map_or(0, |length| length.parse().unwrap());
        let is_last = field("Connection") == Some("close");
        rest = &rest[head..];
        if status >= 200 {
            answers.push(Answer { status, is_last, body: rest[..length].to_vec() });
        }
        rest = &rest[length..];
    }
    answers
}

const WORDS: &[&str] = &[
    "\r\n",
    "\r\n\r\n",
    "\r",
    "\n",
    " ",
    "\t",
    ":",
    ": ",
    ",",
    ";",
    "GET ",
    "POST ",
    "PUT ",
    "get ",
    "/",
    "/a",
    "/refuse",
    "/%61",
    "/%2f",
    "/%zz",
    "*",
    "http://h/a",
    "?q",
    "#",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/2.0\r\n",
    " HTTP/1.1\r\nHost: h\r\n",
    "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: h\r\n",
    "Host: h\r\n",
    "Host: i\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 3\r\n\r\nabc",
    "Content-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 3, 3\r\n",
    "Content-Length: +3\r\n",
    "content-length:3\r\n",
    "Content-Length: 99999\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "transfer-encoding:chunked\r\n\r\n",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "0\r\nA: b\r\n\r\n",
    "ffffffffffffffff\r\n",
    "3;x=y\r\nabc\r\n",
    "0x3\r\n",
    "-1\r\n",
    "a\r\n",
    "Expect: 100-continue\r\n",
    "Expect: x\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    " folded\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{0}",
    "é",
    "X",
    "X-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
];

/// Whatever comes: whole answers, then a close; after an answer that says so, no other.
#[test]
fn bytes() {
    check!().with_iterations(1500).for_each(|input: &[u8]| {
        let bytes = spell(input, WORDS);
        let piece = 1 + input.iter().map(|byte| usize::from(*byte)).sum::<usize>() % 977;
        let answers = ask(&bytes, piece);
        let (last, others) = match answers.split_last() {
            Some((last, others)) => (Some(last), others),
            None => (None, &[][..]),
        };
        for answer in others {
            assert!(!answer.is_last, "an answer after the last: {answers:?}");
        }
        if let Some(last) = last
            && last.status >= 400
            && last.status != 403
        {
            assert!(last.is_last, "a refusal that does not close: {last:?}");
        }
        // However the bytes were cut, they mean the same.
        assert_eq!(ask(&bytes, usize::MAX), answers);
    });
}

/// What was sent as a body comes back as that body, byte for byte, and never as a request.
#[test]
fn requests() {
    check!().with_iterations(1000).for_each(|input: &[u8]| {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (number, recipe) in input.chunks(40).enumerate() {
            let body = spell(&[&[0x80], recipe].concat(), WORDS);
            let body = &body[..body.len().min(MAX_BODY)];
            let kind = recipe[0] % 8;
            let path = if kind == 7 { "/refuse".to_owned() } else { format!("/{number}") };
            let line = format!("POST {path}");
            bytes.extend_from_slice(format!("{line} HTTP/1.1\r\nHost: h\r\n").as_bytes());
            if kind % 2 == 0 {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(1 + usize::from(recipe[0])) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            } else {
                bytes.extend_from_slice(
                    format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(),
                );
                bytes.extend_from_slice(body);
            }
            if kind == 7 {
                // It is refused by its head. With a body that is the end; without one the next request follows.
                let is_last = !body.is_empty();
                expected.push(Answer { status: 403, is_last, body: line.into_bytes() });
                if is_last {
                    break;
                }
            } else {
                let body = [line.as_bytes(), b"|", body].concat();
                expected.push(Answer { status: 200, is_last: false, body });
            }
        }
        let piece = 1 + usize::from(input.last().copied().unwrap_or(0)) * 5;
        assert_eq!(ask(&bytes, piece), expected);
    });
}
