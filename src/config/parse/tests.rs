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
        assert!(!crate::config::address::is_public(address), "{host}");
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
