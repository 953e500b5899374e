//! What goes out on a connection: an answer in one write, by a deadline.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::libc::{MSG_DONTWAIT, MSG_NOSIGNAL};
use nix::poll::PollFlags;

use super::Response;
use super::incoming::ready_by;
use super::places::Open;

/// The interim answer that asks for the body.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What happens to the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It stays open, as HTTP/1.1 has it.
    Stay,
    /// It stays open, which HTTP/1.0 has to be told.
    StayTold,
    /// It closes.
    Close,
}

/// The value of `Date`, made at most once a second.
#[derive(Default)]
pub(super) struct Date {
    second: u64,
    text: String,
}

impl Date {
    fn text(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = httpdate::fmt_http_date(now);
        }
        &self.text
    }
}

/// Writes the head of an answer over what `head` held. Answers to HEAD have the head of the whole answer.
pub(super) fn write_head(head: &mut Vec<u8>, response: &Response, after: After, date: &mut Date) {
    head.clear();
    let status = response.status;
    head.extend_from_slice(b"HTTP/1.1 ");
    write_number(head, usize::from(status));
    head.push(b' ');
    head.extend_from_slice(reason(status).as_bytes());
    write_field(head, "Date", date.text());
    if may_have_body(status) {
        head.extend_from_slice(b"\r\nContent-Length: ");
        write_number(head, response.body.len());
    }
    for (name, value) in &response.headers {
        write_field(head, name, value);
    }
    match after {
        After::Stay => {}
        After::StayTold => write_field(head, "Connection", "keep-alive"),
        After::Close => write_field(head, "Connection", "close"),
    }
    head.extend_from_slice(b"\r\n\r\n");
}

fn write_field(head: &mut Vec<u8>, name: &str, value: &str) {
    head.extend_from_slice(b"\r\n");
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend(value.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
}

fn write_number(head: &mut Vec<u8>, number: usize) {
    write!(head, "{number}").expect("a vector takes every byte");
}

/// Whether an answer of this status has a body, and a length of it (RFC 9110, 8.6).
pub(super) fn may_have_body(status: u16) -> bool {
    status != 204 && status != 304
}

/// Writes all of it. `timeout` is for the whole, however the client takes it in.
pub(super) fn send(open: &Open, head: &[u8], body: &[u8], timeout: Duration) -> io::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(body)];
    let mut parts = &mut parts[..];
    let mut left = head.len() + body.len();
    let mut deadline = None;
    while left > 0 {
        match open.socket.send_vectored_with_flags(parts, MSG_DONTWAIT | MSG_NOSIGNAL) {
            Ok(sent) => {
                left -= sent;
                IoSlice::advance_slices(&mut parts, sent);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The clock is asked only where the first try did not do: what it took until then is nothing.
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
                if !ready_by(open, PollFlags::POLLOUT, deadline)? {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The words of a status, which no program reads (RFC 9110, 15).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}
