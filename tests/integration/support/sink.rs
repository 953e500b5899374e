//! A webhook sink that remembers what it was sent, and answers as it is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onced::threads::spawn_small;
use tiny_http::{Header, Response, Server};

use super::wait::{pause, until};

/// One POST that the sink was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// `webhook-id`
    pub id: String,
    /// `webhook-timestamp`
    pub timestamp: String,
    /// `webhook-signature`
    pub signature: String,
    pub body: String,
}

/// What the sink answers.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// A header, where one is wanted.
    pub header: Option<(&'static str, String)>,
    /// How long the sink takes.
    pub after: Duration,
}

impl Reply {
    /// An answer at once.
    pub fn status(status: u16) -> Reply {
        Reply { status, header: None, after: Duration::ZERO }
    }
}

type Script = dyn Fn(&Delivery, usize) -> Reply + Send + Sync;

/// The sink. It stops with this value.
pub struct Sink {
    server: Arc<Server>,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
}

const THREADS: usize = 4;

impl Sink {
    /// A sink that accepts everything.
    pub fn start() -> Sink {
        Sink::answering(|_, _| Reply::status(204))
    }

    /// A sink that asks `script` for its answers: it sees the delivery, and how many came before it.
    pub fn answering(script: impl Fn(&Delivery, usize) -> Reply + Send + Sync + 'static) -> Sink {
        let server = Arc::new(Server::http("127.0.0.1:0").expect("a port for the sink"));
        let deliveries = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Script> = Arc::new(script);
        for number in 0..THREADS {
            let (server, deliveries) = (Arc::clone(&server), Arc::clone(&deliveries));
            let script = Arc::clone(&script);
            let serve = move || serve(&server, &deliveries, script.as_ref());
            spawn_small(format!("sink-{number}"), 256 * 1024, serve).expect("a thread");
        }
        Sink { server, deliveries }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.server.server_addr())
    }

    /// All that it was sent, in order.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap().clone()
    }

    /// Waits until it was sent at least as many, and gives all of them.
    pub fn wait_for(&self, count: usize) -> Vec<Delivery> {
        until("the sink has its deliveries", || {
            let seen = self.deliveries();
            if seen.len() >= count { Ok(seen) } else { Err(format!("{seen:#?}, not {count}")) }
        })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        for _ in 0..THREADS {
            self.server.unblock();
        }
    }
}

fn serve(server: &Server, deliveries: &Mutex<Vec<Delivery>>, script: &Script) {
    // `recv` fails when the sink is dropped.
    while let Ok(mut request) = server.recv() {
        let mut body = String::new();
        if request.as_reader().read_to_string(&mut body).is_err() {
            continue;
        }
        let header = |name: &'static str| {
            let found = request.headers().iter().find(|header| header.field.equiv(name));
            found.map(|header| header.value.to_string()).unwrap_or_default()
        };
        let delivery = Delivery {
            id: header("webhook-id"),
            timestamp: header("webhook-timestamp"),
            signature: header("webhook-signature"),
            body,
        };
        let before = {
            let mut all = deliveries.lock().unwrap();
            all.push(delivery.clone());
            all.len() - 1
        };
        let reply = script(&delivery, before);
        pause(reply.after);
        let mut response = Response::empty(reply.status);
        if let Some((name, value)) = reply.header {
            response.add_header(Header::from_bytes(name, value).expect("a header"));
        }
        // Whoever asked may be gone.
        drop(request.respond(response));
    }
}
