//! Pure checks of single texts: addresses, names, routes, URLs. The messages say what was found.

use std::net::{IpAddr, SocketAddr};

use url::{Host, Url};

use super::Listen;
use super::raw::quoted;

/// Bytes that fit into the address of a Unix socket on Linux, without the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Where to listen.
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.len() {
            _ if !path.starts_with('/') => Err(format!("{} is no absolute path", quoted(path))),
            0..=LONGEST_SOCKET_PATH => Ok(Listen::Unix(path.into())),
            length => Err(format!(
                "the path has {length} bytes; a socket's has at most {LONGEST_SOCKET_PATH}"
            )),
        };
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        return match name.len() {
            1..=255 if name.bytes().all(fits) => Ok(Listen::Systemd(name.to_owned())),
            _ => Err(format!("{} is no name of a file descriptor", quoted(name))),
        };
    }
    text.parse().map(Listen::Tcp).map_err(|_| not_an_address(text))
}

fn not_an_address(text: &str) -> String {
    let found = quoted(text);
    if text.parse::<IpAddr>().is_ok() {
        return format!("{found} has no port");
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    if port.parse::<u16>().is_err() {
        return format!("{found} is no address with a port");
    }
    match host {
        "" | "*" => format!(
            "{found} names no address; write 127.0.0.1:{port} for this machine only, or \
             0.0.0.0:{port} or [::]:{port} for all"
        ),
        "localhost" => format!(
            "{found} is a name, which may mean two addresses; write 127.0.0.1:{port} or [::1]:{port}"
        ),
        _ if host.contains(':') => format!("{found} lacks brackets; write [{host}]:{port}"),
        _ => format!("{found} is a name; write the address itself"),
    }
}

/// Whether what listens there can be reached from this machine only. What systemd hands over may be anything.
pub(super) fn is_local(listen: &Listen) -> bool {
    match listen {
        Listen::Tcp(address) => super::address::is_loopback(address.ip()),
        Listen::Unix(_) => true,
        Listen::Systemd(_) => false,
    }
}

/// Whether two listeners cannot both be had.
pub(super) fn collide(one: &Listen, other: &Listen) -> bool {
    let overlap = |one: &SocketAddr, other: &SocketAddr| {
        let same_family = one.is_ipv4() == other.is_ipv4();
        let any = one.ip().is_unspecified() || other.ip().is_unspecified();
        one.port() == other.port()
            && one.port() != 0
            && (one.ip() == other.ip() || same_family && any)
    };
    match (one, other) {
        (Listen::Tcp(one), Listen::Tcp(other)) => overlap(one, other),
        (Listen::Unix(one), Listen::Unix(other)) => one == other,
        (Listen::Systemd(one), Listen::Systemd(other)) => one == other,
        (Listen::Tcp(_) | Listen::Unix(_) | Listen::Systemd(_), _) => false,
    }
}

/// A name for a `Host` header, in lower case.
pub(super) fn host(text: &str) -> Result<String, String> {
    let found = quoted(text);
    if text.contains("://") || text.contains('/') {
        return Err(format!("{found} is more than a host name"));
    }
    if text.contains('*') {
        return Err(format!("{found} has a *; every name is written out"));
    }
    let has_port = text.rsplit_once(':').is_some_and(|(before, port)| {
        port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
    });
    if has_port {
        return Err(format!("{found} has a port; leave it out, any port is taken"));
    }
    let host = Host::parse(text).map_err(|error| format!("{found} is no host name ({error})"))?;
    Ok(host.to_string())
}

/// A schema's name, such that it needs no quotes.
pub(super) fn schema(text: &str) -> Result<String, String> {
    let first = text.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let rest = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    match () {
        () if text.starts_with("pg_") => {
            Err(format!("{} is kept for PostgreSQL itself", quoted(text)))
        }
        () if first && text.bytes().all(rest) && text.len() <= 63 => Ok(text.to_owned()),
        () => Err(format!("{} is no plain name", quoted(text))),
    }
}

/// The name of a principal.
pub(super) fn principal_name(text: &str) -> Result<String, String> {
    let fits = text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.len() {
        1..=128 if fits => Ok(text.to_owned()),
        _ => Err(format!("{} does not fit", quoted(text))),
    }
}

/// A token's hash. A token that was put here by mistake is a secret: the message does not show what was found.
pub(super) fn token_sha256(text: &str) -> Result<[u8; 32], String> {
    let wrong = || {
        "this is no SHA-256; `onced token new` prints a token and its hash, and only the hash \
         belongs here"
            .to_owned()
    };
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = str::from_utf8(digits).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}

/// The name of an operation.
pub(super) fn operation_name(text: &str) -> Result<(), String> {
    let rest =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let first = text.starts_with(|first: char| first.is_ascii_lowercase());
    match () {
        () if text == "requests" => {
            Err("no operation may have this name: /v1/requests is the look-up".to_owned())
        }
        () if first && text.bytes().all(rest) && text.len() <= 63 => Ok(()),
        () => Err("an operation's name is a letter, then letters, digits, _ and -, all in lower \
                   case, at most 63"
            .to_owned()),
    }
}

/// The path that calls an operation.
pub(super) fn route(text: &str) -> Result<String, String> {
    let found = quoted(text);
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    match () {
        () if !text.starts_with('/') => Err(format!("{found} does not start with /")),
        () if text.len() > 255 => Err(format!("it has {} characters", text.len())),
        () if !text.bytes().all(unreserved) => {
            Err(format!("{found} has characters that a path may write in two ways"))
        }
        () if text.ends_with('/') || text.contains("//") => {
            Err(format!("{found} has an empty segment"))
        }
        () if text.split('/').any(|segment| segment == "." || segment == "..") => {
            Err(format!("{found} has a segment of dots"))
        }
        () if text == "/v1/requests" || text.starts_with("/v1/requests/") => {
            Err(format!("{found} is where outcomes are looked up"))
        }
        () => Ok(text.to_owned()),
    }
}

/// Where events are posted. User and password, which may be secret, are in no message.
pub(super) fn sink_url(text: &str) -> Result<Url, String> {
    let url = plain_url(text, &["https", "http"])?;
    match url.port() {
        Some(0) => Err("port 0 cannot be connected to".to_owned()),
        _ => Ok(url),
    }
}

/// A proxy: a scheme, a host and a port.
pub(super) fn proxy_url(text: &str) -> Result<Url, String> {
    let url = plain_url(text, &["http"])?;
    if url.path() != "/" || url.query().is_some() {
        return Err("it has a path or a query".to_owned());
    }
    Ok(url)
}

fn plain_url(text: &str, schemes: &[&str]) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("this is no URL ({error})"))?;
    if !schemes.contains(&url.scheme()) {
        return Err(format!("its scheme is {}", quoted(url.scheme())));
    }
    match () {
        () if !url.username().is_empty() || url.password().is_some() => {
            Err("it has a user or a password".to_owned())
        }
        () if url.fragment().is_some() => Err("it has a fragment (#)".to_owned()),
        () if text != text.trim() || text.contains(|byte: char| byte.is_ascii_control()) => {
            Err("it has white space in it".to_owned())
        }
        () => Ok(url),
    }
}

/// The address that a URL's host is written as, in whatever spelling; `localhost` counts as 127.0.0.1.
pub(super) fn literal_address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            let is_localhost = name == "localhost" || name.ends_with(".localhost");
            is_localhost.then_some(IpAddr::from([127, 0, 0, 1]))
        }
    }
}

#[cfg(test)]
mod tests;
