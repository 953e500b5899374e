//! Addresses, Unix sockets, sockets that are handed over, lack of descriptors.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::{
    PATIENCE, eventually, get, limits, post, read_answer, send, start, start_on, try_read_answer,
};
use crate::config::Listen;
use crate::http::front::{BindError, bind};

fn loopback() -> Listen {
    Listen::Tcp("127.0.0.1:0".parse().unwrap())
}

#[test]
fn a_port_in_use_is_said_with_what_to_do() {
    let taken = bind(&loopback()).unwrap();
    let address = taken.local_addr().to_owned();
    let error = bind(&Listen::Tcp(address.parse().unwrap())).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {address}: another process listens there already; stop it or set another `listen`"
        )
    );
}

#[test]
fn a_port_is_free_again_at_once_after_a_stop() {
    let front = start(limits());
    let address = front.address.clone();
    // The server closes first, so that the connection's end waits on its side.
    let mut stream = front.connect();
    send(&mut stream, "GET / HTTP/1.0\r\n\r\n");
    drop(read_answer(&mut stream));
    front.stop();
    drop(bind(&Listen::Tcp(address.parse().unwrap())).unwrap());
}

#[test]
fn an_address_of_another_machine_is_said_with_what_to_do() {
    let error = bind(&Listen::Tcp("192.0.2.1:80".parse().unwrap())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("192.0.2.1:80") && text.contains("an address that this machine has"));
}

fn ask_unix(path: &Path, bytes: &str) -> super::support::Answer {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    send(&mut stream, bytes);
    read_answer(&mut stream)
}

#[test]
fn a_unix_socket_serves_and_its_file_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let front = start_on(bind(&Listen::Unix(path.clone())).unwrap(), limits());
    assert_eq!(front.address, format!("unix:{}", path.display()));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..3 {
        send(&mut stream, post("/u", &number.to_string()));
        assert_eq!(read_answer(&mut stream).body, format!("POST /u - {number}"));
    }
    send(&mut stream, get("/big"));
    assert_eq!(read_answer(&mut stream).body.len(), super::support::BIG);

    let error = bind(&Listen::Unix(path.clone())).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert_eq!(ask_unix(&path, &get("/")).status, 200, "the trial did no harm");
    front.server.stop_accepting();
    assert!(try_read_answer(&mut stream).is_none(), "the idle connection closes");
    front.stop();
    assert!(!path.exists());
}

#[test]
fn a_service_sees_that_a_unix_client_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let front = start_on(bind(&Listen::Unix(path.clone())).unwrap(), limits());
    let mut stream = UnixStream::connect(&path).unwrap();
    send(&mut stream, get("/gone"));
    front.await_waiting(1);
    drop(stream);
    let gone = &front.service.gone;
    eventually("it is seen", || gone.load(std::sync::atomic::Ordering::SeqCst) == 1);
    front.stop();
}

#[test]
fn the_socket_of_a_dead_process_is_taken_over_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.symlink_metadata().unwrap().file_type().is_socket(), "it is left behind");
    let front = start_on(bind(&Listen::Unix(path.clone())).unwrap(), limits());
    assert_eq!(ask_unix(&path, &get("/")).status, 200);
    front.stop();

    std::fs::write(&path, "precious").unwrap();
    let error = bind(&Listen::Unix(path.clone())).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    let error = bind(&Listen::Unix(folder.path().join("no/http.sock"))).unwrap_err();
    assert!(error.to_string().ends_with("make the folder first"), "{error}");
}

#[test]
fn a_socket_that_another_process_has_put_in_place_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let front = start_on(bind(&Listen::Unix(path.clone())).unwrap(), limits());
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    front.stop();
    assert!(path.exists());
    drop(other);
}

#[test]
fn a_socket_that_nobody_handed_over_is_said_with_what_to_do() {
    let text = bind(&Listen::Systemd("nobody".to_owned())).unwrap_err().to_string();
    assert!(
        text.contains("systemd:nobody") && text.contains("FileDescriptorName=nobody"),
        "{text}"
    );
}

/// Runs one of the tests that are children of others, in a process of its own, after the shell has run `prelude`.
fn in_child(prelude: &str, test: &str, stdin: Stdio) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(format!("{prelude}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture"])
        .arg(format!("{}::{test}", module_path!().strip_prefix("onced::").unwrap()))
        .stdin(stdin)
        .stdout(Stdio::piped());
    command
}

/// A child takes the listener as the service manager would hand it over, answers until asked to end, and stops. The
/// socket goes on listening here.
fn is_handed_over(listener: &OwnedFd, connect: impl Fn() -> Box<dyn Stream>) {
    let prelude =
        "exec 3<&0 4</dev/null; export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=http:other";
    for _ in 0..2 {
        // The second child shows that the first one's stop has left the socket as it was.
        let listener = listener.try_clone().unwrap();
        let mut command = in_child(prelude, "child_serves_what_is_handed_over", listener.into());
        let mut running = command.spawn().unwrap();
        let mut stream = connect();
        send(&mut stream, get("/handed"));
        assert_eq!(read_answer(&mut stream).body, "GET /handed -");
        send(&mut stream, post("/end", ""));
        read_answer(&mut stream);
        assert!(running.wait().unwrap().success());
    }
}

trait Stream: Read + std::io::Write {}
impl<T: Read + std::io::Write> Stream for T {}

#[test]
fn a_tcp_socket_that_is_handed_over_serves_and_is_not_shut_down() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    is_handed_over(&listener.into(), || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Box::new(stream)
    });
}

#[test]
fn a_unix_socket_that_is_handed_over_serves_and_keeps_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let listener = UnixListener::bind(&path).unwrap();
    is_handed_over(&listener.into(), || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Box::new(stream)
    });
    assert!(path.exists());
}

#[test]
#[ignore = "runs in a process of its own, started by the tests above"]
fn child_serves_what_is_handed_over() {
    let listener = bind(&Listen::Systemd("http".to_owned())).unwrap();
    let again = bind(&Listen::Systemd("http".to_owned())).unwrap_err().to_string();
    assert!(again.contains("only sockets named http, other, each taken once"), "{again}");
    let front = start_on(listener, limits());
    eventually("the parent ends this", || front.seen().iter().any(|line| line == "POST /end -"));
    front.stop();
}

#[test]
fn a_lack_of_descriptors_does_not_end_the_accepting() {
    let mut child = in_child("ulimit -n 40", "child_runs_out_of_descriptors", Stdio::null());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_runs_out_of_descriptors() {
    let front = start(limits());
    let at_first = descriptors();
    for _ in 0..2 {
        let mut hoard = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            hoard.push(file);
        }
        hoard.pop();
        let mut stream = front.connect();
        send(&mut stream, get("/waits"));
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(stream.read(&mut [0]).is_err(), "there is no descriptor to accept it with");
        drop(hoard);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(read_answer(&mut stream).body, "GET /waits -");
        drop(stream);
        eventually("the server closes too", || descriptors() == at_first);
    }
    front.stop();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
