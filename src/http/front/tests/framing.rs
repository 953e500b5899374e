//! What is a request, and what is refused.

use std::time::{Duration, Instant};

use crate::http::front::head;

use super::support::{
    get, is_at_end, limits, pause, post, read_answer, send, start, try_read_answer,
};

/// Sends each input followed by an honest request on the same connection. The input must get the status and close the
/// connection, and neither it nor the honest request behind it may reach the service.
fn are_refused(inputs: &[(u16, Vec<u8>)]) {
    let front = start(limits());
    for (status, input) in inputs {
        let shown = String::from_utf8_lossy(&input[..input.len().min(200)]).into_owned();
        let mut stream = front.connect();
        send(&mut stream, [input.as_slice(), get("/smuggled").as_bytes()].concat());
        let answer = read_answer(&mut stream);
        assert_eq!(answer.status, *status, "{shown:?} got {answer:?}");
        assert!(answer.closes(), "{shown:?} got {answer:?}");
        assert!(is_at_end(&mut stream), "the connection closes after {shown:?}");
    }
    assert_eq!(front.seen(), Vec::<String>::new());
    assert_eq!(front.ask(get("/")).status, 200, "the server lives");
    front.stop();
}

fn with_headers(headers: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n").into_bytes()
}

#[test]
fn a_content_length_that_is_not_one_plain_number_is_refused() {
    let refused = [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: -1",
        "Content-Length: 5 5",
        "Content-Length:",
        "Content-Length: abc",
        "Content-Length: 18446744073709551616",
    ];
    are_refused(&refused.map(|headers| (400, with_headers(headers))));
    are_refused(&[
        (413, with_headers("Content-Length: 9000000000000000000")),
        (413, with_headers("Content-Length: 100000000000000")),
        (413, with_headers("Content-Length: 100001")),
    ]);
}

#[test]
fn a_transfer_coding_other_than_chunked_alone_is_refused() {
    are_refused(&[
        (400, with_headers("Transfer-Encoding: chunked\r\nContent-Length: 5")),
        (400, with_headers("Content-Length: 0\r\nTransfer-Encoding: chunked")),
        (400, with_headers("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")),
        (501, with_headers("Transfer-Encoding: gzip, chunked")),
        (501, with_headers("Transfer-Encoding: chunked, identity")),
        (501, with_headers("Transfer-Encoding: identity")),
        (501, with_headers("Transfer-Encoding: xchunked")),
        (501, with_headers("Transfer-Encoding:")),
        (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec()),
    ]);
}

#[test]
fn broken_chunks_are_refused() {
    let chunked = |body: &str| {
        [with_headers("Transfer-Encoding: chunked"), body.as_bytes().to_vec()].concat()
    };
    let long_extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "e".repeat(64));
    let endless_extension = format!("5;ext={}\r\nhello\r\n0\r\n\r\n", "e".repeat(1_000_000));
    let long_trailers = format!("0\r\n{}\r\n", "A: b\r\n".repeat(2000));
    are_refused(&[
        (400, chunked("zz\r\nhello\r\n0\r\n\r\n")),
        (400, chunked("FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n")),
        (413, chunked("FFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n")),
        (413, chunked("186a1\r\nhello\r\n0\r\n\r\n")),
        (400, chunked(&long_extension)),
        (400, chunked(&endless_extension)),
        (400, chunked("5\r\nhello!\r\n0\r\n\r\n")),
        (400, chunked("5\nhello\r\n0\r\n\r\n")),
        (400, chunked("5\r\nhello\n0\r\n\r\n")),
        (400, chunked("5 \r\nhello\r\n0\r\n\r\n")),
        (400, chunked("+5\r\nhello\r\n0\r\n\r\n")),
        (400, chunked("0x5\r\nhello\r\n0\r\n\r\n")),
        (400, chunked("\r\nhello\r\n0\r\n\r\n")),
        (400, chunked("5\r\nhello\r\n0\r\nA: b\n\r\n")),
        (400, chunked("5;a=\"\r\r\n\"\r\nhello\r\n0\r\n\r\n")),
        (400, chunked(&long_trailers)),
    ]);
}

#[test]
fn chunks_make_one_body_and_trailers_are_never_headers() {
    let front = start(limits());
    let head = "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nX-Mark: head\r\n\r\n";
    let body = "5\r\nhello\r\n001;x=y\r\n \r\n5\r\nworld\r\n0\r\nX-Mark: trailer\r\nB: c\r\n\r\n";
    let mut stream = front.connect();
    for _ in 0..2 {
        send(&mut stream, format!("{head}{body}"));
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.body.as_str()), (200, "POST /c - head hello world"));
    }
    // Byte by byte the meaning is the same.
    for byte in format!("{head}{body}").bytes() {
        send(&mut stream, [byte]);
    }
    assert_eq!(read_answer(&mut stream).body, "POST /c - head hello world");
    front.stop();
}

#[test]
fn bodies_of_every_size_up_to_the_limit_arrive_whole() {
    let front = start(limits());
    let mut stream = front.connect();
    for size in [0, 1, 4_000, 4_096, 16_384, 65_536, 65_537, 100_000] {
        let body = "b".repeat(size);
        send(&mut stream, post("/length", &body));
        assert_eq!(read_answer(&mut stream).body, size.to_string());
        let head = "POST /length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = if size == 0 { String::new() } else { format!("{size:X}\r\n{body}\r\n") };
        send(&mut stream, format!("{head}{chunk}0\r\n\r\n"));
        assert_eq!(read_answer(&mut stream).body, size.to_string());
    }
    front.stop();
}

#[test]
fn a_body_that_ends_early_is_no_request() {
    let front = start(limits());
    let short = front.ask_all("POST /short HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(short.iter().map(|answer| answer.status).collect::<Vec<_>>(), [400]);
    let chunks =
        "POST /short HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let answers = front.ask_all(chunks);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [400]);
    assert_eq!(front.seen(), Vec::<String>::new());
    front.stop();
}

#[test]
fn continue_is_said_at_once_and_only_to_a_head_that_is_accepted() {
    let front = start(limits());
    let head = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nExpect: 100-Continue\r\n\r\n"
        )
    };
    let mut stream = front.connect();
    for _ in 0..2 {
        send(&mut stream, head("/length", 2000));
        let asked = Instant::now();
        let interim = read_answer(&mut stream);
        assert_eq!(interim.head, "HTTP/1.1 100 Continue\r\n\r\n");
        assert!(asked.elapsed() < Duration::from_secs(1), "there is no stall");
        send(&mut stream, "b".repeat(2000));
        assert_eq!(read_answer(&mut stream).body, "2000");
    }
    // A client that did not wait for it is not told.
    send(&mut stream, format!("{}hello", head("/length", 5)));
    assert_eq!(read_answer(&mut stream).body, "5");

    let refused = [
        (401, head("/refuse", 2000)),
        (413, head("/length", 1_000_000)),
        (417, head("/length", 5).replace("100-Continue", "200-ok")),
        (417, head("/length", 5).replace("100-Continue", "100-continue\r\nExpect: 100-continue")),
    ];
    for (status, head) in refused {
        let mut stream = front.connect();
        send(&mut stream, head);
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.closes()), (status, true));
        assert!(is_at_end(&mut stream));
    }
    front.stop();
}

#[test]
fn a_body_that_was_refused_unread_is_never_taken_for_a_request() {
    let front = start(limits());
    let smuggled = post("/smuggled", "x").repeat(50_000 / post("/smuggled", "x").len());
    let mut stream = front.connect();
    send(&mut stream, get("/refuse"));
    let answer = read_answer(&mut stream);
    assert!(!answer.closes(), "without a body there is nothing to mistake");
    send(&mut stream, post("/refuse", &smuggled));
    send(&mut stream, get("/honest"));
    assert_eq!(read_answer(&mut stream).status, 401);
    assert!(try_read_answer(&mut stream).is_none());
    assert_eq!(front.seen(), Vec::<String>::new());
    assert_eq!(front.ask(get("/honest")).body, "GET /honest -");
    front.stop();
}

#[test]
fn an_endless_head_is_cut_off_at_16_kib() {
    let front = start(limits());
    let fits = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "a".repeat(16 * 1024 - 32));
    assert_eq!(fits.len(), 16 * 1024);
    assert_eq!(front.ask(&fits).status, 200);
    let hundred = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(99));
    assert_eq!(front.ask(&hundred).status, 200);
    front.stop();

    are_refused(&[
        (431, fits.replace("A: a", "A: aa").into_bytes()),
        (431, hundred.replace("Host: a\r\n", "Host: a\r\nA: b\r\n").into_bytes()),
        (431, format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(60_000)).into_bytes()),
        (431, format!("GET /{} HTTP/1.1\r\n", "a".repeat(60_000)).into_bytes()),
    ]);
}

#[test]
fn a_client_that_floods_the_head_is_dropped() {
    use std::io::Write;
    let front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\nA: ");
    let chunk = [b'a'; 64 * 1024];
    let sent = (0..320).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!(sent < 320, "the connection is closed long before 20 MB");
    assert_eq!(front.seen(), Vec::<String>::new());
    front.stop();
}

#[test]
fn strange_bytes_in_a_head_are_refused() {
    let in_head =
        |bytes: &[u8]| [b"GET / HTTP/1.1\r\nHost: a\r\n", bytes, b"\r\n\r\n".as_slice()].concat();
    let refused: [&[u8]; 16] = [
        "A: é".as_bytes(),
        "é: a".as_bytes(),
        b"Authorization: \xff\xff\xff",
        b"A: b\0c",
        b"A\0: b",
        b"A: b\x7f",
        b"A: b\x1b[31m",
        b"A: b\rc",
        b"A: b\nB: c",
        b"A: b\r\n folded",
        b"A: b\r\n\tfolded",
        b"no colon",
        b": empty name",
        b"A : space before the colon",
        b" A: space before the name",
        b"A\t: b",
    ];
    are_refused(&refused.map(|bytes| (400, in_head(bytes))));
    are_refused(&[
        (400, b"GET / HTTP/1.1\nHost: a\n\n".to_vec()),
        (400, b"GET / HTTP/1.1\r\nHost: a\n\r\n".to_vec()),
        (400, b"GET / HTTP/1.1\rHost: a\r\r".to_vec()),
        (400, b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n".to_vec()),
    ]);
}

#[test]
fn a_request_line_is_a_known_method_a_target_and_a_version() {
    let line = |line: &str| format!("{line}\r\nHost: a\r\n\r\n").into_bytes();
    are_refused(&[
        (501, line("post / HTTP/1.1")),
        (501, line("BREW / HTTP/1.1")),
        (400, line("GET  / HTTP/1.1")),
        (400, line("GET /  HTTP/1.1")),
        (400, line("GET / HTTP/1.1 ")),
        (400, line(" GET / HTTP/1.1")),
        (400, line("GET /a b HTTP/1.1")),
        (400, line("GET\t/ HTTP/1.1")),
        (400, line("GET /")),
        (400, line("GET")),
        (400, line("GET / http/1.1")),
        (400, line("GET / HTTP/1.11")),
        (400, line("GET / HTTP/11")),
        (400, line("GET nothing HTTP/1.1")),
        (400, line("OPTIONS * HTTP/1.1")),
        (400, line("CONNECT a:443 HTTP/1.1")),
        (400, line("GET /a#b HTTP/1.1")),
        (400, line("GET /%zz HTTP/1.1")),
        (400, line("GET /%2%35 HTTP/1.1")),
        (400, line("GET /%4 HTTP/1.1")),
        (505, line("GET / HTTP/1.2")),
        (505, line("GET / HTTP/2.0")),
        (505, line("GET / HTTP/0.9")),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
    ]);
}

#[test]
fn there_is_exactly_one_host_and_an_absolute_target_names_it() {
    let request =
        |target: &str, hosts: &str| format!("GET {target} HTTP/1.1\r\n{hosts}\r\n").into_bytes();
    are_refused(&[
        (400, request("/", "")),
        (400, request("/", "Host: a\r\nHost: a\r\n")),
        (400, request("/", "Host: a\r\nHost: b\r\n")),
        (400, request("/", "Host: a b\r\n")),
        (400, request("/", "Host: a/b\r\n")),
        (400, request("/", "Host: u@a\r\n")),
        (400, request("http://b/x", "Host: a\r\n")),
        (400, request("http://a:81/x", "Host: a\r\n")),
        (400, request("http://a@b/x", "Host: a\r\n")),
        (400, request("ftp://a/x", "Host: a\r\n")),
        (400, request("http:///x", "Host:\r\n")),
        (400, b"GET http://a/x HTTP/1.0\r\n\r\n".to_vec()),
        (400, b"GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n".to_vec()),
    ]);
    let front = start(limits());
    assert_eq!(front.ask(request("http://a/x?y", "host: A\r\n")).body, "GET /x y");
    assert_eq!(front.ask(request("HTTP://a:80", "Host: a:80\r\n")).body, "GET / -");
    assert_eq!(front.ask(request("http://a?y", "Host: a\r\n")).body, "GET / y");
    assert_eq!(front.ask(request("/", "Host: [::1]:8080\r\n")).status, 200);
    front.stop();
}

#[test]
fn a_path_is_raw_but_for_escapes_of_unreserved_characters() {
    let front = start(limits());
    let paths = [
        ("/v1/%6frders", "/v1/orders"),
        ("/v1/%6Frders", "/v1/orders"),
        ("/v1/%7eorders", "/v1/~orders"),
        ("/v1%2Forders", "/v1%2Forders"),
        ("/v1/%2541", "/v1/%2541"),
        ("/v1/%0d%0aX:1", "/v1/%0d%0aX:1"),
        ("//v1/orders", "//v1/orders"),
        ("/v1/orders/", "/v1/orders/"),
        ("/v1/../v1/orders", "/v1/../v1/orders"),
        ("/v1/%2e%2e/orders", "/v1/../orders"),
    ];
    for (sent, seen) in paths {
        assert_eq!(front.ask(get(sent)).body, format!("GET {seen} -"));
    }
    assert_eq!(front.ask(get("/a?b=%41?c")).body, "GET /a b=%41?c");
    assert_eq!(front.ask(get("/a?")).body, "GET /a");
    front.stop();
}

#[test]
fn every_known_method_reaches_the_service_and_head_has_no_body() {
    let front = start(limits());
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        let answer = front.ask(format!("{method} /m HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.body, format!("{method} /m -"));
    }
    let mut stream = front.connect();
    send(&mut stream, "HEAD /m HTTP/1.1\r\nHost: a\r\n\r\n");
    send(&mut stream, get("/after"));
    let mut received = String::new();
    while !received.ends_with("GET /after -") {
        let mut some = [0; 1024];
        let read = std::io::Read::read(&mut stream, &mut some).unwrap();
        assert!(read > 0, "{received}");
        received.push_str(std::str::from_utf8(&some[..read]).unwrap());
    }
    let (head, rest) = received.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Length: 9\r\n"), "as if it were GET: {head}");
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "the next answer follows the head: {rest}");
    front.stop();
}

#[test]
fn http_1_0_closes_unless_it_asks_to_stay() {
    let front = start(limits());
    let mut stream = front.connect();
    send(
        &mut stream,
        "POST /old HTTP/1.0\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi",
    );
    let answer = read_answer(&mut stream);
    assert_eq!(answer.body, "POST /old - hi");
    assert_eq!(answer.header("Connection"), Some("keep-alive"));
    send(&mut stream, "GET /old HTTP/1.0\r\nExpect: whatever\r\n\r\n");
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, answer.closes()), (200, true));
    assert!(is_at_end(&mut stream));
    front.stop();
}

#[test]
fn connection_close_is_obeyed_wherever_it_stands() {
    let front = start(limits());
    for fields in
        ["Connection: close", "Connection: x , CLOSE", "Connection: x\r\nConnection: close"]
    {
        let mut stream = front.connect();
        send(&mut stream, format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"));
        assert!(read_answer(&mut stream).closes());
        assert!(is_at_end(&mut stream));
    }
    front.stop();
}

#[test]
fn answers_carry_their_length_and_a_date_and_no_line_of_their_own() {
    let front = start(limits());
    let answer = front.ask(get("/x"));
    assert!(answer.head.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(answer.header("Connection"), None);
    let date = httpdate::parse_http_date(answer.header("Date").unwrap()).unwrap();
    assert!(date.elapsed().unwrap_or_default() < Duration::from_secs(60));

    let answer = front.ask(get("/inject"));
    assert_eq!(answer.header("X-Evil"), None);
    assert_eq!(answer.header("X-Echo"), Some("a  X-Evil: 1 [31m"));

    let answer = front.ask(get("/none"));
    assert_eq!((answer.status, answer.header("Content-Length")), (204, None));
    front.stop();
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, format!("\r\n\r\n{}", get("/a")));
    assert_eq!(read_answer(&mut stream).body, "GET /a -");
    send(&mut stream, "\r");
    pause(Duration::from_millis(20));
    send(&mut stream, format!("\n{}", get("/b")));
    assert_eq!(read_answer(&mut stream).body, "GET /b -");
    front.stop();
}

proptest::proptest! {
    #[test]
    fn the_end_of_a_head_is_found_alike_however_it_arrives(
        parts in proptest::collection::vec(
            proptest::sample::select(vec!["\r\n", "\r", "\n", "\r\n\r\n", "a", "GET / HTTP/1.1", "A: b", "\0", "\u{e9}"]),
            0..12,
        ),
        steps in proptest::collection::vec(1_usize..7, 0..40),
    ) {
        let bytes = parts.concat().into_bytes();
        let whole = head::end(&bytes, 0);
        let mut seen = 0;
        for step in steps.into_iter().chain([bytes.len()]) {
            let come = (seen + step).min(bytes.len());
            let found = head::end(&bytes[..come], seen);
            if found != Ok(None) {
                proptest::prop_assert_eq!(found, whole);
                return Ok(());
            }
            seen = come;
        }
        proptest::prop_assert_eq!(whole, Ok(None));
    }
}
