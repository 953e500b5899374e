//! The callers: what they send, and what they note of it.

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onced::threads::{Stop, stops_within};
use serde_json::{Value, json};

use crate::clock::now;
use crate::history::{Answer, Call, Form, Micros, Outcome};
use crate::support::client::Connection;
use crate::world::{DAEMONS, PRINCIPALS, World};

/// A request and under which key it is sent.
#[derive(Clone, Debug)]
pub struct Intent {
    /// Which of the principals.
    pub principal: usize,
    pub key: String,
    pub operation: &'static str,
    pub request: Value,
}

/// One caller: a thread with a memory of what it sent.
pub struct Caller<'a> {
    world: &'a World,
    rng: Rng,
    name: String,
    sent: usize,
    intents: Vec<Intent>,
    calls: Vec<Call>,
    /// A connection that is kept, to which daemon and for whom, and when it was last heard of.
    kept: Option<(usize, usize, Connection, Micros)>,
}

const OPERATIONS: [&str; 2] = ["transfers", "refunds"];
/// Longer than any answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(25);

impl<'a> Caller<'a> {
    /// A caller that does what the seed says.
    pub fn new(world: &'a World, name: String, seed: u64) -> Caller<'a> {
        let rng = Rng::with_seed(seed);
        Caller { world, rng, name, sent: 0, intents: Vec::new(), calls: Vec::new(), kept: None }
    }

    /// Sends until `stop` closes, and gives all calls.
    pub fn run(mut self, stop: &Stop) -> Vec<Call> {
        loop {
            let pause = Duration::from_millis(self.rng.u64(0..120));
            if stops_within(stop, pause) {
                return self.calls;
            }
            self.act(stop);
        }
    }

    /// The calls so far.
    pub fn into_calls(self) -> Vec<Call> {
        self.calls
    }

    fn act(&mut self, stop: &Stop) {
        match self.rng.u32(0..100) {
            0..32 => {
                let intent = self.new_intent();
                self.persist(&intent, stop);
            }
            32..50 => self.repeat(),
            50..57 => self.change(),
            57..67 => self.burst(),
            67..75 => self.hot(),
            75..80 => self.hang_up(),
            80..82 => self.send_form(Form::Malformed),
            82..83 => self.send_form(Form::Stranger),
            83..90 => self.look_up(),
            _ => {
                let intent = self.odd_intent();
                self.persist(&intent, stop);
            }
        }
    }

    fn fresh_key(&mut self) -> String {
        self.sent += 1;
        format!("{}-{}", self.name, self.sent)
    }

    /// A new key, and a request that is quick and fine.
    fn new_intent(&mut self) -> Intent {
        let counter = (self.rng.u32(0..4) == 0).then(|| format!("c{}", self.rng.u32(0..8)));
        let order = (self.rng.u32(0..8) == 0).then(|| format!("o{}", self.rng.u32(0..6)));
        let (n, events) = (self.rng.u32(..), self.rng.u32(0..4));
        // Its successors would come after it.
        let poison = order.is_none() && self.rng.u32(0..60) == 0;
        self.intent(json!({
            "n": n, "counter": counter, "events": events, "order": order, "sleep_ms": 0, "end": "ok",
            "poison": poison
        }))
    }

    /// A new key, and a request that is slow, refused, or fails.
    fn odd_intent(&mut self) -> Intent {
        let (end, sleep_ms) = match self.rng.u32(0..20) {
            0..6 => ("ok", self.rng.u32(100..1500)),
            // Past the statement's timeout.
            6 => ("ok", 3500),
            7..10 => ("raise", 0),
            10..13 => ("decline", 0),
            13..16 => ("unique", 0),
            16..18 => ("broken", 0),
            _ => ("flaky", self.rng.u32(0..50)),
        };
        let n = self.rng.u32(..);
        self.intent(json!({
            "n": n, "counter": null, "events": 1, "order": null, "sleep_ms": sleep_ms, "end": end,
            "poison": false
        }))
    }

    fn intent(&mut self, request: Value) -> Intent {
        let principal = self.rng.usize(0..PRINCIPALS.len());
        let operation = OPERATIONS[self.rng.usize(0..OPERATIONS.len())];
        let intent = Intent { principal, key: self.fresh_key(), operation, request };
        self.intents.push(intent.clone());
        intent
    }

    fn earlier_intent(&mut self) -> Intent {
        if self.intents.is_empty() {
            return self.new_intent();
        }
        // Mostly one of the last ones, which may be still worked on.
        let last = self.intents.len();
        let from = if self.rng.bool() { last.saturating_sub(5) } else { 0 };
        self.intents[self.rng.usize(from..last)].clone()
    }

    /// Sends as a good client does: again where it is told to come again, a few times.
    fn persist(&mut self, intent: &Intent, stop: &Stop) {
        for _ in 0..self.rng.u32(1..6) {
            let daemon = self.rng.usize(0..DAEMONS);
            if is_final(&self.send(intent, daemon)) {
                return;
            }
            let pause = Duration::from_millis(self.rng.u64(20..400));
            if stops_within(stop, pause) {
                return;
            }
        }
    }

    fn repeat(&mut self) {
        let intent = self.earlier_intent();
        let daemon = self.rng.usize(0..DAEMONS);
        self.send(&intent, daemon);
    }

    /// The same key with another body, another operation, or by another principal, whose key is not the same.
    fn change(&mut self) {
        let mut intent = self.earlier_intent();
        match self.rng.u32(0..4) {
            0 | 1 => intent.request["n"] = json!(self.rng.u32(..)),
            2 => intent.operation = OPERATIONS[usize::from(intent.operation == OPERATIONS[0])],
            _ => intent.principal = (intent.principal + 1) % PRINCIPALS.len(),
        }
        let daemon = self.rng.usize(0..DAEMONS);
        self.send(&intent, daemon);
    }

    /// Equal keys at once to both daemons, sometimes with a changed body among them.
    fn burst(&mut self) {
        let mut intent = self.new_intent();
        if self.rng.u32(0..3) == 0 {
            intent.request["sleep_ms"] = json!(self.rng.u32(20..600));
        }
        if let Some(last) = self.intents.last_mut() {
            *last = intent.clone();
        }
        let mut changed = intent.clone();
        changed.request["n"] = json!(self.rng.u32(..));
        let with_change = self.rng.u32(0..3) == 0;
        let world = self.world;
        let calls = thread::scope(|scope| {
            let callers: Vec<_> = (0..self.rng.usize(2..8))
                .map(|number| {
                    let name = format!("{}-{}-{number}", self.name, self.sent);
                    let mut caller = Caller::new(world, name, self.rng.u64(..));
                    let intent = if with_change && number == 1 { &changed } else { &intent };
                    scope.spawn(move || {
                        caller.send(intent, number % DAEMONS);
                        caller.into_calls()
                    })
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
        });
        self.calls.extend(calls);
    }

    /// A key that all callers use at this time.
    fn hot(&mut self) {
        let n = now() / 700_000;
        let sleep_ms = if n % 3 == 0 { 200 } else { 0 };
        let request = json!({
            "n": n, "counter": null, "events": 2, "order": null, "sleep_ms": sleep_ms, "end": "ok",
            "poison": false
        });
        let operation = OPERATIONS[0];
        let intent = Intent { principal: 0, key: format!("hot-{n}"), operation, request };
        let daemon = self.rng.usize(0..DAEMONS);
        self.send(&intent, daemon);
        self.intents.push(intent);
    }

    /// Goes away in the middle of the request, or before the answer.
    fn hang_up(&mut self) {
        let intent = if self.rng.bool() { self.new_intent() } else { self.earlier_intent() };
        let whole = self.rng.bool();
        let form = if whole { Form::Whole } else { Form::Partial };
        let daemon = self.rng.usize(0..DAEMONS);
        let mut call = self.begin(&intent, daemon, form);
        let bytes = self.bytes(&intent, daemon, &call.id, form);
        let length = if whole { bytes.len() } else { self.rng.usize(1..bytes.len()) };
        let address = self.world.daemons[daemon].client("").address;
        let sent = Connection::try_open(address)
            .and_then(|mut connection| connection.send_what_goes(&bytes[..length]));
        call.ended = now();
        call.outcome = match sent {
            Ok(()) => Outcome::HungUp,
            Err(error) => Outcome::Unanswered(error.to_string()),
        };
        self.calls.push(call);
    }

    /// Sends what must be refused before anything is looked up.
    fn send_form(&mut self, form: Form) {
        let intent = if self.rng.bool() { self.new_intent() } else { self.earlier_intent() };
        let daemon = self.rng.usize(0..DAEMONS);
        self.exchange(&intent, daemon, form);
    }

    fn look_up(&mut self) {
        let intent = self.earlier_intent();
        let daemon = self.rng.usize(0..DAEMONS);
        self.exchange(&intent, daemon, Form::LookUp);
    }

    /// Sends a request as it should be, and gives its outcome.
    pub fn send(&mut self, intent: &Intent, daemon: usize) -> Outcome {
        self.exchange(intent, daemon, Form::Whole)
    }

    fn exchange(&mut self, intent: &Intent, daemon: usize, form: Form) -> Outcome {
        let mut call = self.begin(intent, daemon, form);
        let bytes = self.bytes(intent, daemon, &call.id, form);
        let kept = self.kept.take().filter(|(to, whose, ..)| {
            (*to, *whose) == (daemon, intent.principal) && form == Form::Whole
        });
        let exchanged = catch_unwind(AssertUnwindSafe(|| {
            let mut connection = match kept {
                Some((_, _, connection, heard)) => {
                    call.since = heard;
                    connection
                }
                None => Connection::try_open(self.world.daemons[daemon].client("").address)?,
            };
            connection.read_within(ANSWER_LIMIT);
            connection.send_what_goes(&bytes)?;
            let answer = connection.try_answer()?;
            let ended = || io::Error::new(ErrorKind::UnexpectedEof, "closed without an answer");
            Ok((answer.ok_or_else(ended)?, connection))
        }));
        call.ended = now();
        call.outcome = match exchanged {
            Ok(Ok((answer, connection))) => {
                let stays = answer.header("connection") != Some("close");
                if stays && form == Form::Whole && self.rng.bool() {
                    self.kept = Some((daemon, intent.principal, connection, call.ended));
                }
                Outcome::Answered(noted(&answer))
            }
            Ok(Err(error)) => {
                let error: io::Error = error;
                Outcome::Unanswered(format!("{:?}: {error}", error.kind()))
            }
            Err(panic) => Outcome::Nonsense(onced::threads::panic_text(panic.as_ref())),
        };
        let outcome = call.outcome.clone();
        self.calls.push(call);
        outcome
    }

    fn begin(&mut self, intent: &Intent, daemon: usize, form: Form) -> Call {
        self.sent += 1;
        let sent = now();
        Call {
            id: format!("{}.{}", self.name, self.sent),
            daemon,
            scope: PRINCIPALS[intent.principal].0.to_owned(),
            key: intent.key.clone(),
            operation: intent.operation.to_owned(),
            request: intent.request.clone(),
            form,
            since: sent,
            sent,
            ended: sent,
            outcome: Outcome::HungUp,
        }
    }

    fn bytes(&mut self, intent: &Intent, daemon: usize, id: &str, form: Form) -> Vec<u8> {
        let token = match form {
            Form::Stranger => "nobody's",
            Form::Whole | Form::Partial | Form::Malformed | Form::LookUp => {
                PRINCIPALS[intent.principal].1
            }
        };
        let client = self.world.daemons[daemon].client(token);
        let id = format!("X-Request-Id: {id}");
        if form == Form::LookUp {
            return client.head(&format!("GET /v1/requests/{} HTTP/1.1", intent.key), &[&id]);
        }
        let mut body = self.spelled(&intent.request);
        if form == Form::Malformed {
            body.push(',');
        }
        let key = if self.rng.bool() { intent.key.clone() } else { format!("\"{}\"", intent.key) };
        let headers = [
            "Content-Type: application/json",
            &id,
            &format!("Idempotency-Key: {key}"),
            &format!("Content-Length: {}", body.len()),
        ];
        let mut bytes = client.head(&format!("POST /v1/{} HTTP/1.1", intent.operation), &headers);
        bytes.extend_from_slice(body.as_bytes());
        bytes
    }

    /// The request as JSON, its members in any order, with white space, and numbers spelled in one of their ways.
    fn spelled(&mut self, request: &Value) -> String {
        let mut members: Vec<_> =
            request.as_object().expect("a request is an object").iter().collect();
        self.rng.shuffle(&mut members);
        let members = members.into_iter().map(|(name, value)| {
            let point = if name == "n" && self.rng.bool() { ".0" } else { "" };
            let space = ["", " ", "\n\t"][self.rng.usize(0..3)];
            format!("\"{name}\":{space}{value}{point}")
        });
        let members: Vec<_> = members.collect();
        format!("{{{}}}", members.join(","))
    }
}

/// Sends every intent that has no final outcome until it has one, and some of the others again, by several callers, until
/// it is over. Gives all calls, and the intents that are left.
pub fn settle(
    world: &World,
    open: Vec<Intent>,
    seed: u64,
    is_over: &(impl Fn() -> bool + Sync),
) -> (Vec<Call>, Vec<Intent>) {
    const CALLERS: usize = 8;
    let queue = Mutex::new(open);
    let left = Mutex::new(Vec::new());
    let calls = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (queue, left) = (&queue, &left);
                scope.spawn(move || {
                    let name = format!("settle{number}");
                    let mut caller = Caller::new(world, name, seed.wrapping_add(number as u64));
                    loop {
                        let Some(intent) = queue.lock().unwrap().pop() else { break };
                        let mut daemon = caller.rng.usize(0..DAEMONS);
                        while !is_final(&caller.send(&intent, daemon)) {
                            if is_over() {
                                left.lock().unwrap().push(intent);
                                break;
                            }
                            daemon = (daemon + 1) % DAEMONS;
                            crate::support::wait::pause(Duration::from_millis(50));
                        }
                    }
                    caller.into_calls()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    (calls, left.into_inner().unwrap())
}

/// Whether sending the same again would bring nothing new.
pub fn is_final(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Answered(answer) => {
            answer.is_stored() || answer.problem().as_deref() == Some("idempotency-key-reused")
        }
        Outcome::HungUp | Outcome::Unanswered(_) | Outcome::Nonsense(_) => false,
    }
}

fn noted(answer: &crate::support::Answer) -> Answer {
    Answer {
        status: answer.status,
        replayed: answer.is_replay(),
        media: answer.header("content-type").unwrap_or_default().to_owned(),
        retry_after: answer.header("retry-after").map(str::to_owned),
        request_id: answer.header("x-request-id").map(str::to_owned),
        body: answer.text().to_owned(),
    }
}
