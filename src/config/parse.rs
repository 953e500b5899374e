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
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_an_address_a_socket_or_a_name() {
        let tcp = |text: &str| Listen::Tcp(text.parse().unwrap());
        assert_eq!(listen("127.0.0.1:8080").unwrap(), tcp("127.0.0.1:8080"));
        assert_eq!(listen("[::1]:8080").unwrap(), tcp("[::1]:8080"));
        assert_eq!(listen("unix:/run/x.sock").unwrap(), Listen::Unix("/run/x.sock".into()));
        assert_eq!(listen("systemd:http").unwrap(), Listen::Systemd("http".to_owned()));
        let table = [
            ("localhost:8080", "write 127.0.0.1:8080 or [::1]:8080"),
            ("example.com:80", "is a name; write the address itself"),
            (":8080", "write 127.0.0.1:8080 for this machine only"),
            ("*:8080", "0.0.0.0:8080"),
            ("8080", "names no address"),
            ("127.0.0.1", "has no port"),
            ("::1", "has no port"),
            ("fe80::1%eth0:80", "lacks brackets"),
            ("127.0.0.1:65536", "no address with a port"),
            ("", "no address with a port"),
            ("unix:x.sock", "no absolute path"),
            ("unix:", "no absolute path"),
            ("systemd:", "no name"),
            ("systemd:a:b", "no name"),
        ];
        for (text, expected) in table {
            let message = listen(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        assert!(listen(&format!("unix:/{}", "x".repeat(106))).is_ok());
        assert!(listen(&format!("unix:/{}", "x".repeat(107))).unwrap_err().contains("108 bytes"));
    }

    #[test]
    fn listeners_collide_where_only_one_can_be_had() {
        let table = [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("127.0.0.1:1", "0.0.0.0:1", true),
            ("127.0.0.1:1", "[::1]:1", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("unix:/a", "unix:/a", true),
            ("unix:/a", "unix:/b", false),
            ("systemd:a", "systemd:a", true),
            ("systemd:a", "unix:/a", false),
        ];
        for (one, other, expected) in table {
            let (one, other) = (listen(one).unwrap(), listen(other).unwrap());
            assert_eq!(collide(&one, &other), expected, "{one:?} {other:?}");
            assert_eq!(collide(&other, &one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn a_host_is_a_name_without_a_port() {
        assert_eq!(host("Orders.Example").unwrap(), "orders.example");
        assert_eq!(host("10.0.0.5").unwrap(), "10.0.0.5");
        assert_eq!(host("[fd00::1]").unwrap(), "[fd00::1]");
        for text in ["", "a:80", "[fd00::1]:80", "http://a", "a/b", "*.a", "a b", "fd00::1"] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_route_has_one_spelling() {
        for text in ["/v1/orders", "/orders", "/v2/a.b~c-d_e", "/v1/requests-old", "/v1"] {
            assert_eq!(route(text).unwrap(), text);
        }
        for text in [
            "",
            "/",
            "orders",
            "/v1/orders/",
            "//v1/orders",
            "/v1//orders",
            "/v1/./orders",
            "/v1/../orders",
            "/v1/%6frders",
            "/v1/ord ers",
            "/v1/orders?x",
            "/v1/é",
            "/v1/requests",
            "/v1/requests/x",
        ] {
            assert!(route(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_plain() {
        for text in ["orders", "a", "a1_b-c"] {
            assert!(operation_name(text).is_ok(), "{text}");
        }
        let long = "a".repeat(64);
        for text in ["", "Orders", "1a", "_a", "a b", "é", "requests", &long] {
            assert!(operation_name(text).is_err(), "{text}");
        }
        for text in ["billing", "a:b", "x@y", "\"'\\"] {
            assert!(principal_name(text).is_ok(), "{text}");
        }
        let long = "a".repeat(129);
        for text in ["", "a b", "é", "a\n", &long] {
            assert!(principal_name(text).is_err(), "{text}");
        }
        for text in ["public", "_a1", "onced"] {
            assert!(schema(text).is_ok(), "{text}");
        }
        for text in ["", "Public", "1a", "a-b", "a,b", "pg_temp", "a\"b"] {
            assert!(schema(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_sink_is_found_private_in_every_spelling() {
        for host in [
            "127.0.0.1",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "10.0.0.5",
            "169.254.169.254",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0.0.0.0",
            "[fd00::1]",
            "100.64.0.1",
            "１２７.0.0.1",
        ] {
            let url = sink_url(&format!("https://{host}/x")).unwrap();
            let address = literal_address(&url).unwrap_or_else(|| panic!("{host}"));
            assert!(!super::super::address::is_public(address), "{host}");
        }
        assert_eq!(literal_address(&sink_url("https://sink.example/").unwrap()), None);
    }

    #[test]
    fn a_sink_url_has_no_user_no_fragment_and_a_known_scheme() {
        let table = [
            ("htp://a", "scheme is \"htp\""),
            ("ftp://a", "scheme is \"ftp\""),
            ("a.example/x", "no URL"),
            ("https://", "no URL"),
            ("https://hunter2@a/", "user or a password"),
            ("https://u:hunter2@a/", "user or a password"),
            ("https://:hunter2@a/", "user or a password"),
            ("https://a/#hunter2", "fragment"),
            ("https://a:99999/hunter2", "no URL"),
            ("https://a:0/", "port 0"),
            (" https://a/", "white space"),
            ("https://a/\nb", "white space"),
        ];
        for (text, expected) in table {
            let message = sink_url(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(proxy_url("http://proxy.example:3128").is_ok());
        assert!(proxy_url("http://proxy.example:3128/x").is_err());
        assert!(proxy_url("socks5://proxy.example:3128").is_err());
    }

    #[test]
    fn a_hash_is_64_hexadecimal_digits_and_a_token_in_its_place_is_not_told() {
        let mut expected = [0; 32];
        expected[0] = 0xab;
        assert_eq!(token_sha256(&format!("aB{}", "0".repeat(62))).unwrap(), expected);
        for text in ["hunter2", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            let message = token_sha256(text).unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
