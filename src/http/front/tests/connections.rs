//! Places, keep-alive, pipelining, deadlines, panics, stopping.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::support::{
    BIG, PATIENCE, Running, eventually, get, is_at_end, limits, pause, post, read_answer, send,
    start, try_read_answer,
};
use crate::http::front::Limits;
use crate::http::front::connection::Connection;
use crate::http::front::places::Places;
use crate::observe::METRICS;

const SHORT: Duration = Duration::from_millis(300);

fn with_threads(threads: usize) -> Limits {
    Limits { threads: NonZeroUsize::new(threads).unwrap(), ..limits() }
}

/// Sends `bytes` one by one, with pauses shorter than any limit, until the other side answers.
fn drip(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    for byte in bytes {
        let sent = stream.write_all(&[*byte]).is_ok();
        if !sent || stream.peek(&mut [0]).is_ok() {
            break;
        }
    }
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    began.elapsed()
}

#[test]
fn a_head_that_drips_is_cut_off_at_the_deadline() {
    let front = start(Limits { read_timeout: SHORT, ..limits() });
    let mut stream = front.connect();
    let took = drip(&mut stream, &b"GET / HTTP/1.1\r\nHost: a\r\nA: ".repeat(20));
    assert!((SHORT..SHORT * 10).contains(&took), "{took:?}");
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, answer.closes()), (408, true));
    assert_eq!(front.seen(), Vec::<String>::new());
    front.stop();
}

#[test]
fn a_body_that_drips_is_cut_off_at_the_same_deadline() {
    let front = start(Limits { read_timeout: SHORT, ..limits() });
    for head in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let mut stream = front.connect();
        send(&mut stream, format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n"));
        let took = drip(&mut stream, &b"1\r\n1\r\n".repeat(100));
        assert!((SHORT / 2..SHORT * 10).contains(&took), "{took:?}");
        assert_eq!(read_answer(&mut stream).status, 408);
        assert!(is_at_end(&mut stream));
    }
    assert_eq!(front.seen(), Vec::<String>::new());
    front.stop();
}

#[test]
fn an_idle_connection_closes_after_keep_alive_without_a_word() {
    let front = start(Limits { keep_alive: SHORT, ..limits() });
    let mut fresh = front.connect();
    let mut used = front.connect();
    send(&mut used, get("/"));
    read_answer(&mut used);
    let began = Instant::now();
    for stream in [&mut fresh, &mut used] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    assert!(began.elapsed() < SHORT * 10);
    front.stop();
}

#[test]
fn the_deadline_of_a_request_begins_with_its_first_byte() {
    let front = start(Limits { read_timeout: SHORT, ..limits() });
    let mut stream = front.connect();
    for _ in 0..2 {
        pause(SHORT * 2);
        send(&mut stream, post("/", "late but whole"));
        assert_eq!(read_answer(&mut stream).status, 200);
    }
    front.stop();
}

#[test]
fn an_answer_that_is_not_taken_is_cut_off_and_holds_up_nobody() {
    let front = start(Limits { name: "lazy", write_timeout: SHORT, ..limits() });
    let mut lazy: Vec<TcpStream> = (0..4).map(|_| front.connect()).collect();
    for stream in &mut lazy {
        send(stream, get("/big"));
    }
    eventually("the answers are begun", || front.seen().len() == 4);
    let asked = Instant::now();
    assert_eq!(front.ask(get("/")).status, 200);
    assert!(asked.elapsed() < SHORT, "nobody waits for them");
    eventually("the connections are cut", || open_connections("lazy") == 0);
    for stream in &mut lazy {
        assert!(take_in(stream, Duration::ZERO) < BIG);
    }
    front.stop();
}

#[test]
fn an_answer_that_is_taken_too_slowly_is_cut_off_in_spite_of_progress() {
    let front = start(Limits { write_timeout: SHORT, ..limits() });
    let mut stream = front.connect();
    send(&mut stream, get("/big"));
    assert!(take_in(&mut stream, Duration::from_millis(5)) < BIG);
    front.stop();
}

/// Reads to the end, with pauses, and returns how much came.
fn take_in(stream: &mut TcpStream, pauses: Duration) -> usize {
    let mut some = vec![0; 64 * 1024];
    let mut taken = 0;
    while let Ok(read @ 1..) = stream.read(&mut some) {
        taken += read;
        pause(pauses);
    }
    taken
}

fn open_connections(name: &str) -> i64 {
    METRICS.connections.with_label_values(&[name]).get()
}

#[test]
fn a_large_answer_reaches_a_slow_reader_whole() {
    let front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, get("/big"));
    // The kernel takes a part of it, and the server waits for room.
    pause(Duration::from_millis(100));
    let answer = read_answer(&mut stream);
    assert_eq!(answer.body.len(), BIG);
    send(&mut stream, get("/after"));
    assert_eq!(read_answer(&mut stream).body, "GET /after -");
    front.stop();
}

#[test]
fn a_client_that_resets_in_the_middle_of_an_answer_harms_nobody() {
    let front = start(limits());
    for _ in 0..10 {
        let mut stream = front.connect();
        send(&mut stream, get("/big"));
        stream.read_exact(&mut [0; 1000]).unwrap();
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
    }
    eventually("their places are free", || {
        METRICS.connections.with_label_values(&["test"]).get() == 0
            || front.ask(get("/")).status == 200
    });
    front.stop();
}

#[test]
fn pipelined_requests_are_answered_in_order_and_the_next_waits_for_the_one_before() {
    let front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, format!("{}{}", post("/slow", "1"), post("/fast", "2")));
    front.await_waiting(1);
    assert_eq!(front.seen(), ["POST /slow - 1"]);
    front.gate.as_ref().unwrap().send(()).unwrap();
    assert_eq!(read_answer(&mut stream).body, "slow gone=false");
    assert_eq!(read_answer(&mut stream).body, "POST /fast - 2");
    front.stop();
}

#[test]
fn ten_thousand_pipelined_requests_get_ten_thousand_answers() {
    let front = start(limits());
    let mut stream = front.connect();
    let mut writer = stream.try_clone().unwrap();
    let (deaths, _died) = crossbeam_channel::bounded(1);
    let writing = crate::threads::spawn("writer", &deaths, move || {
        for number in 0..10_000 {
            send(&mut writer, post("/p", &number.to_string()));
        }
    })
    .unwrap();
    let mut reader = std::io::BufReader::new(&mut stream);
    for number in 0..10_000 {
        assert_eq!(read_answer(&mut reader).body, format!("POST /p - {number}"));
    }
    writing.join(Instant::now() + PATIENCE).unwrap();
    front.stop();
}

#[test]
fn a_client_past_the_limit_is_told_to_come_again() {
    let front = start(with_threads(2));
    let mut served: Vec<TcpStream> = (0..2).map(|_| front.connect()).collect();
    for stream in &mut served {
        send(stream, get("/slow"));
    }
    front.await_waiting(2);
    for _ in 0..20 {
        let mut stream = front.connect();
        stream.peek(&mut [0]).unwrap();
        // The answer is there, and still the client may send in peace: no reset takes the answer from it.
        send(&mut stream, post("/refused", &"b".repeat(10_000)));
        pause(Duration::from_millis(2));
        send(&mut stream, get("/refused"));
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.closes()), (503, true));
        assert_eq!(answer.header("Retry-After"), Some("1"));
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end is an orderly one");
    }
    for _ in &served {
        front.gate.as_ref().unwrap().send(()).unwrap();
    }
    for stream in &mut served {
        assert_eq!(read_answer(stream).status, 200);
    }
    drop(served);
    eventually("the places are free again", || front.ask(get("/")).status == 200);
    front.stop();
}

#[test]
fn the_connection_that_is_idle_for_longest_makes_room() {
    let front = start(with_threads(3));
    let mut streams: Vec<TcpStream> = (0..3).map(|_| front.connect()).collect();
    for stream in &mut streams {
        send(stream, get("/"));
        read_answer(stream);
        pause(Duration::from_millis(20));
    }
    // The first is used again, so the second is idle for longest.
    send(&mut streams[0], get("/"));
    read_answer(&mut streams[0]);
    let used = Instant::now();
    let status = front.ask(get("/")).status;
    assert!(status == 503 || used.elapsed() > SHORT, "who was just served is not sent away");
    pause(Duration::from_millis(600));
    eventually("a newcomer is served", || front.ask(get("/")).status == 200);
    assert!(is_at_end(&mut streams[1]));
    for at in [0, 2] {
        send(&mut streams[at], get("/still"));
        assert_eq!(read_answer(&mut streams[at]).status, 200);
    }
    front.stop();
}

#[test]
fn more_connections_than_places_in_a_burst_all_get_an_answer() {
    let front = start(with_threads(8));
    let mut streams: Vec<TcpStream> = (0..40).map(|_| front.connect()).collect();
    for stream in &mut streams {
        // Who was turned away and closed already cannot be written to.
        drop(stream.write_all(get("/").as_bytes()));
    }
    let answers: Vec<u16> = streams.iter_mut().map(|s| read_answer(s).status).collect();
    assert!(answers.iter().all(|status| [200, 503].contains(status)), "{answers:?}");
    assert!(answers.iter().filter(|status| **status == 200).count() >= 8, "{answers:?}");
    front.stop();
}

#[test]
fn a_service_sees_that_its_client_has_gone() {
    let front = start(limits());
    let mut closed = front.connect();
    send(&mut closed, get("/gone"));
    front.await_waiting(1);
    assert_eq!(front.service.gone.load(Ordering::SeqCst), 0, "it is there still");
    drop(closed);
    let gone = |count| move |front: &Running| front.service.gone.load(Ordering::SeqCst) == count;
    eventually("the close is seen", || gone(1)(&front));

    let mut reset = front.connect();
    send(&mut reset, get("/gone"));
    front.await_waiting(2);
    SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    eventually("the reset is seen", || gone(2)(&front));
    front.stop();
}

#[test]
fn a_client_that_has_sent_its_next_request_is_not_gone() {
    let front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, get("/slow"));
    front.await_waiting(1);
    send(&mut stream, get("/next"));
    front.gate.as_ref().unwrap().send(()).unwrap();
    assert_eq!(read_answer(&mut stream).body, "slow gone=false");
    assert_eq!(read_answer(&mut stream).body, "GET /next -");
    front.stop();
}

#[test]
fn a_client_that_has_closed_its_sending_side_gets_its_answer() {
    let front = start(limits());
    let answers = front.ask_all(format!("{}{}", get("/a"), get("/b")));
    let bodies: Vec<&str> = answers.iter().map(|answer| answer.body.as_str()).collect();
    assert_eq!(bodies, ["GET /a -", "GET /b -"]);
    front.stop();
}

#[test]
fn a_panic_of_the_service_costs_one_request() {
    let front = start(Limits { name: "panics", ..with_threads(1) });
    for path in ["/panic", "/panic-early"].repeat(5) {
        let mut stream = front.connect();
        send(&mut stream, post(path, "x"));
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.closes()), (500, true));
        assert!(is_at_end(&mut stream));
        drop(stream);
        eventually("its place is free", || open_connections("panics") == 0);
    }
    front.stop();
}

#[test]
fn the_small_stack_is_enough_for_deep_json_and_its_panic() {
    let front = start(limits());
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    assert_eq!(front.ask(post("/json", &deep)).body, "240");
    let objects = format!("{}1{}", r#"{"a":"#.repeat(120), "}".repeat(120));
    assert_eq!(front.ask(post("/json", &objects)).status, 200);
    let too_deep = "[".repeat(50_000);
    assert_eq!(front.ask(post("/json", &too_deep)).status, 500, "an error, and unwrap panics");
    front.stop();
}

#[test]
fn stopping_lets_running_requests_end_and_closes_the_rest() {
    let mut front = start(Limits { name: "stopping", ..limits() });
    let mut idle = front.connect();
    send(&mut idle, get("/"));
    read_answer(&mut idle);
    let mut fresh = front.connect();
    let mut running = front.connect();
    send(&mut running, get("/slow"));
    let mut half = front.connect();
    let head =
        "POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    send(&mut half, head);
    let mut goes_on = [0; 25];
    half.read_exact(&mut goes_on).unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n", "it is under way");
    send(&mut half, "ab");
    front.await_waiting(1);
    eventually("all are accepted", || open_connections("stopping") == 4);

    front.server.stop_accepting();
    assert!(is_at_end(&mut idle));
    assert!(is_at_end(&mut fresh));
    eventually("nobody listens", || TcpStream::connect(&front.address).is_err());

    send(&mut half, "cd");
    let answer = read_answer(&mut half);
    assert_eq!((answer.body.as_str(), answer.closes()), ("POST /half - abcd", true));
    front.gate.take();
    let answer = read_answer(&mut running);
    assert_eq!((answer.status, answer.closes()), (200, true));
    drop((half, running));
    front.stop();
}

#[test]
fn join_names_what_still_runs_at_its_deadline() {
    let mut front = start(limits());
    let mut stream = front.connect();
    send(&mut stream, get("/slow"));
    front.await_waiting(1);
    front.server.stop_accepting();
    let left = front.server.join(Instant::now() + Duration::from_millis(100));
    assert_eq!(left, ["test-1"]);
    front.gate.take();
    assert_eq!(read_answer(&mut stream).status, 200);
}

#[test]
fn what_was_sent_before_the_stop_is_still_answered() {
    let front = start(limits());
    let mut stream = front.connect();
    for _ in 0..200 {
        send(&mut stream, get("/"));
        read_answer(&mut stream);
    }
    send(&mut stream, get("/last"));
    eventually("the request has arrived", || front.seen().last().unwrap() == "GET /last -");
    front.server.stop_accepting();
    assert_eq!(read_answer(&mut stream).body, "GET /last -");
    assert!(try_read_answer(&mut stream).is_none());
    front.stop();
}

#[test]
fn what_lies_unread_when_an_idle_connection_is_told_to_close_is_still_answered() {
    let front = start(limits());
    let (mut client, socket) = UnixStream::pair().unwrap();
    let places = Arc::new(Places::new("test", 1, METRICS.connections.with_label_values(&["test"])));
    let place = places.take(socket.into()).ok().unwrap();
    // No thread reads yet: this is the request that comes in the moment the listener stops.
    send(&mut client, get("/slow"));
    places.stop();
    let service = Arc::clone(&front.service);
    let connection = Connection::new(service, limits(), place).unwrap();
    front.gate.as_ref().unwrap().send(()).unwrap();
    let (deaths, _died) = crossbeam_channel::bounded(1);
    let serving = crate::threads::spawn("serving", &deaths, move || connection.run()).unwrap();
    let answer = read_answer(&mut client);
    assert_eq!((answer.body.as_str(), answer.closes()), ("slow gone=false", true));
    drop(client);
    serving.join(Instant::now() + PATIENCE).unwrap();
    assert_eq!(places.await_empty(Instant::now()), Vec::<String>::new());
    front.stop();
}

#[test]
fn open_connections_are_counted_while_they_are_open() {
    let front = start(Limits { name: "counted", ..limits() });
    let streams: Vec<TcpStream> = (0..5).map(|_| front.connect()).collect();
    eventually("all are counted", || open_connections("counted") == 5);
    drop(streams);
    eventually("none is left", || open_connections("counted") == 0);
    front.stop();
}

#[test]
fn a_long_head_and_a_long_body_leave_the_connection_in_step() {
    let front = start(limits());
    let mut stream = front.connect();
    for size in [10, 15_000, 10, 9_000, 10] {
        let mark = "m".repeat(size);
        let body = "b".repeat(size * 5);
        send(
            &mut stream,
            format!(
                "POST /l HTTP/1.1\r\nHost: a\r\nX-Mark: {mark}\r\nContent-Length: {}\r\n\r\n{body}{}",
                body.len(),
                get("/next")
            ),
        );
        assert_eq!(read_answer(&mut stream).body, format!("POST /l - {mark} {body}"));
        assert_eq!(read_answer(&mut stream).body, "GET /next -");
    }
    stream.shutdown(Shutdown::Both).unwrap();
    front.stop();
}

#[test]
#[ignore = "a measure, not a test: cargo test --release hello -- --ignored --nocapture"]
fn hello_requests_per_second() {
    const CLIENTS: u32 = 16;
    const TIME: Duration = Duration::from_secs(2);
    let front = start(limits());
    let (deaths, _died) = crossbeam_channel::bounded(1);
    let (count, counts) = crossbeam_channel::bounded::<u32>(16);
    let began = Instant::now();
    for number in 0..CLIENTS {
        let mut stream = front.connect();
        let count = count.clone();
        let client = move || {
            let mut answers = 0;
            let mut answer = [0; 1024];
            while began.elapsed() < TIME {
                stream.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                assert!(stream.read(&mut answer).unwrap() > 0);
                answers += 1;
            }
            count.send(answers).unwrap();
        };
        crate::threads::spawn(format!("client-{number}"), &deaths, client).unwrap();
    }
    drop(count);
    let answers: u32 = counts.iter().sum();
    assert_eq!(front.seen().len(), usize::try_from(answers).unwrap());
    println!("{:.0} requests/s", f64::from(answers) / began.elapsed().as_secs_f64());
    front.stop();
}

#[test]
#[ignore = "a measure, not a test: cargo test --release idle -- --ignored --nocapture"]
fn memory_of_256_idle_connections() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned()
    };
    let front = start(with_threads(256));
    println!("before: {}", resident());
    let mut streams: Vec<TcpStream> = (0..256).map(|_| front.connect()).collect();
    for stream in &mut streams {
        send(stream, get("/"));
        read_answer(stream);
    }
    println!("with 256: {}", resident());
    front.stop();
}
