//! `onced sink`: a sample of what a consumer of events must do. It checks the signature, drops repeats by their id,
//! and answers 2xx only when the id is safe on disk.
//!
//! It is for trying things out, and listens on loopback only: its HTTP server, `tiny_http`, trusts its clients (it
//! has no deadlines, and where a client declares a body that it does not send, it would claim memory for all of it).

mod seen;
mod signature;

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use crossbeam_channel::bounded;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tiny_http::{Header, Method, Request, Response, Server};

use super::output::{Style, complain, plain, say, styled};
use crate::threads;
use seen::{Delivery, Seen, Taken};
use signature::{Key, Message};

/// The longest body that is taken, in bytes: above what an event can hold by default.
const BODY_MAX: usize = 16 << 20;
/// Threads that serve requests.
const WORKERS: usize = 8;
/// Requests with too long a body that may be left unread: each costs a thread and a socket until the process ends.
const UNREAD_MAX: u64 = 32;
/// Events that `GET /events` lists, the newest ones; `GET /events/ID` finds any.
const LISTED_MAX: usize = 1000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where to listen; loopback only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// A file with a secret (`whsec_…`) that signs events; may be given several times. Without one, signatures are
    /// not checked
    #[arg(long, value_name = "FILE")]
    secret_file: Vec<PathBuf>,
    /// Where to remember which events came, so that repeats are known after a restart
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Print nothing about single events
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Print a JSON object for each event
    #[arg(long)]
    json: bool,
}

/// How a line about an event looks.
#[derive(Clone, Copy)]
enum Lines {
    None,
    Text,
    Json,
}

/// What the workers share.
struct Consumer {
    keys: Vec<Key>,
    seen: Mutex<Seen>,
    refused: AtomicU64,
    unread: AtomicU64,
    lines: Lines,
}

/// An answer: its status and what it says.
type Answer = (u16, Value);

/// The one member of the body that the sample looks at.
#[derive(Deserialize)]
struct Body {
    #[serde(rename = "type")]
    event_type: String,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let listen = arguments.listen;
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "onced sink is a sample for this machine: {listen} is not a loopback address"
    );
    let consumer = Arc::new(Consumer::new(arguments)?);
    let server = Server::http(listen)
        .map_err(|error| anyhow::anyhow!("cannot listen on {listen}: {error}"))?;
    let server = Arc::new(server);
    if !arguments.json {
        greet(arguments, &server);
    }
    let (deaths, died) = bounded(WORKERS);
    let (broke, broken) = bounded::<anyhow::Error>(WORKERS);
    for number in 0..WORKERS {
        let (server, consumer, broke) = (server.clone(), consumer.clone(), broke.clone());
        let worker = move || {
            if let Err(error) = serve(&server, &consumer) {
                // The first one ends the process.
                broke.try_send(error).ok();
            }
        };
        threads::spawn(format!("sink-{number}"), &deaths, worker)
            .context("cannot start a thread")?;
    }
    // It runs until a signal ends it: nothing is promised that is not on disk.
    crossbeam_channel::select! {
        recv(died) -> death => match death {
            Ok(death) => anyhow::bail!("the thread {} died: {}", death.thread, death.panic),
            Err(_) => anyhow::bail!("all threads ended"),
        },
        recv(broken) -> error => match error {
            Ok(error) => Err(error),
            Err(_) => anyhow::bail!("all threads ended"),
        },
    }
}

fn greet(arguments: &Arguments, server: &Server) {
    say(format_args!("The sink listens on http://{}.", server.server_addr()));
    if arguments.secret_file.is_empty() {
        complain("no --secret-file: signatures are not checked, anybody on this machine can send");
    }
    if arguments.state.is_none() {
        complain("no --state: after a restart, repeats will be taken for new");
    }
}

/// Serves requests until the server breaks.
fn serve(server: &Server, consumer: &Consumer) -> anyhow::Result<()> {
    loop {
        let mut request = server.recv().context("no more connections can be accepted")?;
        if request.body_length().is_some_and(|length| length > BODY_MAX) {
            consumer.leave_unread(request)?;
            continue;
        }
        let (status, value) = consumer.answer(&mut request);
        respond(request, status, &value);
    }
}

fn respond(request: Request, status: u16, value: &Value) {
    // A client that is gone before its answer will come again.
    if status == 204 {
        request.respond(Response::empty(204)).ok();
    } else {
        request.respond(json_response(status, value)).ok();
    }
}

fn json_response(status: u16, value: &Value) -> Response<std::io::Cursor<Vec<u8>>> {
    let header = Header::from_bytes("Content-Type", "application/json");
    let header = header.expect("this header is well-formed");
    Response::from_string(format!("{value}\n")).with_status_code(status).with_header(header)
}

impl Consumer {
    fn new(arguments: &Arguments) -> anyhow::Result<Consumer> {
        let read_key = |file: &PathBuf| {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read {}", file.display()))?;
            Key::parse(&text).with_context(|| format!("no secret in {}", file.display()))
        };
        let seen = match &arguments.state {
            Some(file) => Seen::open(file)?,
            None => Seen::in_memory(),
        };
        Ok(Consumer {
            keys: arguments.secret_file.iter().map(read_key).collect::<anyhow::Result<_>>()?,
            seen: Mutex::new(seen),
            refused: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            lines: match (arguments.quiet, arguments.json) {
                (true, _) => Lines::None,
                (false, true) => Lines::Json,
                (false, false) => Lines::Text,
            },
        })
    }

    fn answer(&self, request: &mut Request) -> Answer {
        let path = request.url().to_owned();
        match (request.method(), path.strip_prefix("/events/")) {
            (Method::Post, _) => self.receive(request),
            (Method::Get, Some(id)) => match self.seen().event(id) {
                Some(event) => (200, json!(event)),
                None => (404, json!({ "error": "no such event came" })),
            },
            (Method::Get, None) if path == "/events" => (200, self.list()),
            (Method::Get, None) if path == "/" => (200, self.counts()),
            (Method::Get, None) => (404, json!({ "error": "try /, /events or /events/ID" })),
            (_, _) => (405, json!({ "error": "POST an event, or GET /, /events or /events/ID" })),
        }
    }

    /// What a consumer does with a delivery, in this order: check, remember, answer.
    fn receive(&self, request: &mut Request) -> Answer {
        let header = |name: &'static str| {
            let found = request.headers().iter().find(|header| header.field.equiv(name));
            found.map(|header| header.value.as_str().to_owned()).unwrap_or_default()
        };
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
        let signatures = header("webhook-signature");
        if id.is_empty() || timestamp.is_empty() {
            return self.refuse(&id, 400, "webhook-id or webhook-timestamp is missing");
        }
        let mut body = Vec::new();
        let mut limited = request.as_reader().take(BODY_MAX as u64 + 1);
        if limited.read_to_end(&mut body).is_err() || body.len() > BODY_MAX {
            return self.refuse(&id, 400, "the body is cut off or too long");
        }
        let message = Message { id: &id, timestamp: &timestamp, body: &body };
        if !self.keys.is_empty()
            && let Err(refused) = signature::verify(&self.keys, &message, &signatures, now())
        {
            return self.refuse(&id, 401, &refused.to_string());
        }
        let Ok(Body { event_type }) = serde_json::from_slice(&body) else {
            return self.refuse(&id, 400, "the body is no JSON object with a `type`");
        };
        let body_sha256 = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        self.accept(Delivery { id, event_type, body_sha256 })
    }

    fn accept(&self, delivery: Delivery) -> Answer {
        let (id, event_type) = (delivery.id.clone(), delivery.event_type.clone());
        let taken = self.seen().take(delivery);
        let (style, word, deliveries) = match taken {
            Ok(Taken::New) => (Style::Good, "new", 1),
            Ok(Taken::Repeat { deliveries, changed: false }) => (Style::Dim, "repeat", deliveries),
            Ok(Taken::Repeat { deliveries, changed: true }) => (Style::Bad, "changed", deliveries),
            Err(error) => return self.refuse(&id, 503, &format!("{error:#}")),
        };
        match self.lines {
            Lines::None => {}
            Lines::Json => say(json!({
                "event": word, "id": id, "type": event_type, "deliveries": deliveries
            })),
            Lines::Text => {
                let (id, event_type) = (plain(&id), plain(&event_type));
                let what = match word {
                    "new" => String::new(),
                    "repeat" => format!(" (delivery {deliveries}, dropped)"),
                    _ => format!(" (delivery {deliveries}, dropped, with ANOTHER BODY)"),
                };
                say(format_args!("{} {event_type} {id}{what}", styled(style, format!("{word:8}"))));
            }
        }
        (204, Value::Null)
    }

    fn refuse(&self, id: &str, status: u16, reason: &str) -> Answer {
        self.refused.fetch_add(1, Ordering::Relaxed);
        match self.lines {
            Lines::None => {}
            Lines::Json => {
                say(json!({ "event": "refused", "id": id, "status": status, "reason": reason }));
            }
            Lines::Text => {
                let word = styled(Style::Bad, "refused ");
                say(format_args!("{word} {} ({status}: {})", plain(id), plain(reason)));
            }
        }
        (status, json!({ "error": reason }))
    }

    /// Answers 413 to a request whose body is not to be read. What the server would do with it in the end, claim
    /// memory for all of the rest, is kept from happening by never letting it end; how many there may be is bounded.
    fn leave_unread(&self, request: Request) -> anyhow::Result<()> {
        let (status, value) = self.refuse("", 413, "the body is too long");
        std::mem::forget(request.upgrade("none", json_response(status, &value)));
        let before = self.unread.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(before < UNREAD_MAX, "too many requests with too long a body");
        Ok(())
    }

    fn list(&self) -> Value {
        let seen = self.seen();
        let left_out = seen.events().len().saturating_sub(LISTED_MAX);
        json!({ "left_out": left_out, "events": &seen.events()[left_out..] })
    }

    fn counts(&self) -> Value {
        let seen = self.seen();
        let deliveries: u64 = seen.events().iter().map(|event| event.deliveries).sum();
        json!({
            "onced_sink": env!("CARGO_PKG_VERSION"),
            "events": seen.events().len(),
            "deliveries": deliveries,
            "repeats": deliveries - seen.events().len() as u64,
            "changed": seen.events().iter().filter(|event| event.body_changed).count(),
            "refused": self.refused.load(Ordering::Relaxed),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // What is in memory follows the disk, so a panic in between leaves nothing half done.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
