//! The head of a request (RFC 9112, 2 to 6): which bytes it may hold, what its fields say about the rest.
//!
//! `httparse` splits it. What that parser tolerates and this front does not is refused before (bare line ends, bytes
//! outside of visible ASCII) or after (fields that say where the request ends, or whom it is for).

use std::borrow::Cow;

use super::{Head, Malformed};

/// The most fields that a head may have.
const FIELDS_MAX: usize = 100;

const METHODS: [&str; 9] =
    ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"];

/// What the head says about the rest of the request, and about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Framing {
    /// Where the body ends.
    pub(super) length: Length,
    /// The client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
    /// The client may send another request.
    pub(super) keeps_alive: bool,
    /// The version is 1.0.
    pub(super) is_old: bool,
    /// The method is HEAD: the answer has no body.
    pub(super) is_head: bool,
}

/// Where the body of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// After so many bytes; 0 where there is no body.
    Exact(u64),
    /// After the last chunk.
    Chunked,
}

/// Whether a byte may stand in a line of the head: visible ASCII, space, tab.
pub(super) fn is_field_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~')
}

/// Looks for the end of the head in `bytes`, of which the first `seen` were looked at before. Returns its length, or
/// `None` where it is not there yet.
pub(super) fn end(bytes: &[u8], seen: usize) -> Result<Option<usize>, Malformed> {
    // A CR at the end of what was seen is looked at again, now that there is a byte after it.
    let mut at = seen.saturating_sub(1);
    while let Some(ahead) = bytes[at..].iter().position(|byte| !is_field_byte(*byte)) {
        at += ahead;
        match &bytes[at..] {
            [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] if bytes[..at].ends_with(b"\r\n") => return Ok(Some(at + 2)),
            [b'\r', b'\n', ..] => at += 2,
            [b'\n', ..] if at > 0 && bytes[at - 1] == b'\r' => at += 1,
            [b'\r' | b'\n', ..] => {
                return Err(Malformed::Request("a line of the head does not end in CR and LF"));
            }
            _ => {
                return Err(Malformed::Request(
                    "the head has a byte that is not visible ASCII, space or tab",
                ));
            }
        }
    }
    Ok(None)
}

/// Reads a whole head: `bytes` begin with the request line and end with the empty line, as [`end`] found it.
pub(super) fn parse(bytes: &[u8]) -> Result<(Head<'_>, Framing), Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(Malformed::Request("the head ends in two places")),
        Err(error) => return Err(fault(error, bytes)),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(REQUEST_LINE);
    };
    if !METHODS.contains(&method) {
        return Err(Malformed::NotImplemented);
    }
    let headers = request.headers.iter().map(field).collect::<Result<_, _>>()?;
    let mut head = Head { method, path: Cow::Borrowed(""), query: None, headers };
    let is_old = minor == 0;
    let host = host(&head, is_old)?;
    (head.path, head.query) = split_target(target, host)?;
    let framing = Framing {
        length: length(&head, is_old)?,
        expects_continue: expects_continue(&head, is_old)?,
        keeps_alive: keeps_alive(&head, is_old),
        is_old,
        is_head: method == "HEAD",
    };
    Ok((head, framing))
}

const REQUEST_LINE: Malformed =
    Malformed::Request("the request line is not a method, a target and a version");

fn field<'a>(field: &httparse::Header<'a>) -> Result<(&'a str, &'a str), Malformed> {
    let value = std::str::from_utf8(field.value)
        .map_err(|_| Malformed::Request("a header's value is not visible ASCII"))?;
    Ok((field.name, value.trim_matches([' ', '\t'])))
}

fn fault(error: httparse::Error, bytes: &[u8]) -> Malformed {
    match error {
        httparse::Error::TooManyHeaders => Malformed::HeadTooLarge,
        httparse::Error::Version if names_a_version(bytes) => Malformed::Version,
        httparse::Error::HeaderName => {
            Malformed::Request("a header is not a name, a colon right after it and a value")
        }
        httparse::Error::HeaderValue => Malformed::Request("a header's value is not visible ASCII"),
        httparse::Error::Version
        | httparse::Error::Token
        | httparse::Error::NewLine
        | httparse::Error::Status => REQUEST_LINE,
    }
}

/// Whether the request line ends in a version of HTTP that is neither of the two: the fault is there.
fn names_a_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let version = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit() && !matches!(version, b"HTTP/1.0" | b"HTTP/1.1"))
}

/// The value of a field that may be there once at most.
fn only<'a>(
    head: &Head<'a>,
    name: &str,
    repeated: &'static str,
) -> Result<Option<&'a str>, Malformed> {
    let mut values = head.values(name);
    let first = values.next();
    if values.next().is_some() {
        return Err(Malformed::Request(repeated));
    }
    Ok(first)
}

fn host<'a>(head: &Head<'a>, is_old: bool) -> Result<Option<&'a str>, Malformed> {
    let host = only(head, "host", "there is more than one Host")?;
    match host {
        None if is_old => Ok(None),
        None => Err(Malformed::Request("there is no Host")),
        Some(host) if host.bytes().all(is_host_byte) => Ok(Some(host)),
        Some(_) => Err(Malformed::Request("Host is not a host and a port")),
    }
}

/// The bytes of a host and a port (RFC 3986, 3.2).
fn is_host_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=%[]:".contains(&byte)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn length(head: &Head<'_>, is_old: bool) -> Result<Length, Malformed> {
    let coding = only(head, "transfer-encoding", "there is more than one Transfer-Encoding")?;
    let declared = only(head, "content-length", "there is more than one Content-Length")?;
    match (coding, declared) {
        (None, None) => Ok(Length::Exact(0)),
        (None, Some(declared)) => decimal(declared).map(Length::Exact),
        (Some(_), Some(_)) => {
            Err(Malformed::Request("there are both a Content-Length and a Transfer-Encoding"))
        }
        (Some(_), None) if is_old => {
            Err(Malformed::Request("HTTP/1.0 does not have a Transfer-Encoding"))
        }
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Ok(Length::Chunked),
        (Some(_), None) => Err(Malformed::NotImplemented),
    }
}

fn decimal(text: &str) -> Result<u64, Malformed> {
    // The digits are looked at by themselves, because parsing takes a sign too.
    let number =
        if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None };
    number.ok_or(Malformed::Request("Content-Length is not a number of bytes"))
}

fn expects_continue(head: &Head<'_>, is_old: bool) -> Result<bool, Malformed> {
    if is_old {
        // RFC 9110, 10.1.1: an expectation in HTTP/1.0 is ignored.
        return Ok(false);
    }
    let mut expected = head.values("expect");
    match (expected.next(), expected.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.eq_ignore_ascii_case("100-continue") => Ok(true),
        (Some(_), _) => Err(Malformed::Expectation),
    }
}

fn keeps_alive(head: &Head<'_>, is_old: bool) -> bool {
    let has = |option: &str| {
        head.values("connection")
            .flat_map(|value| value.split(','))
            .any(|part| part.trim_matches([' ', '\t']).eq_ignore_ascii_case(option))
    };
    !has("close") && (!is_old || has("keep-alive"))
}

/// The path and the query of a target in origin-form, or in absolute-form with the host that `Host` names.
fn split_target<'a>(
    target: &'a str,
    host: Option<&str>,
) -> Result<(Cow<'a, str>, Option<&'a str>), Malformed> {
    let local = if target.starts_with('/') { target } else { strip_authority(target, host)? };
    if local.contains('#') {
        return Err(Malformed::Request("the target has a fragment"));
    }
    let (path, query) = match local.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (local, None),
    };
    Ok((unescape(if path.is_empty() { "/" } else { path })?, query))
}

fn strip_authority<'a>(target: &'a str, host: Option<&str>) -> Result<&'a str, Malformed> {
    let (scheme, rest) = target
        .split_once("://")
        .ok_or(Malformed::Request("the target is neither a path nor an http URL"))?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Malformed::Request("the target is neither a path nor an http URL"));
    }
    let (authority, local) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match host {
        Some(host) if !host.is_empty() && authority.eq_ignore_ascii_case(host) => Ok(local),
        Some(_) | None => Err(Malformed::Request("the target names another host than Host does")),
    }
}

/// Decodes the escapes of unreserved characters (RFC 3986, 6.2.2.2), and sees that there are no broken ones: `%2%35`
/// would become an escape only by decoding.
fn unescape(path: &str) -> Result<Cow<'_, str>, Malformed> {
    if !path.contains('%') {
        return Ok(Cow::Borrowed(path));
    }
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        let digits = after.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (Some(digits), Some(byte)) = (digits, byte) else {
            return Err(Malformed::Request("the path has a % that begins no escape"));
        };
        decoded.push_str(before);
        if is_unreserved(byte) {
            decoded.push(char::from(byte));
        } else {
            decoded.push('%');
            decoded.push_str(digits);
        }
        rest = &after[2..];
    }
    decoded.push_str(rest);
    Ok(Cow::Owned(decoded))
}
