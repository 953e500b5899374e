//! Look-ups of stored outcomes, for http threads, which never touch the database: one thread with a connection of its
//! own, and a short queue before it.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::call::{IdempotencyKey, Scope};
use crate::outcome::{Fault, FaultKind};
use crate::store::Store;
use crate::store::records::{Record, find_record};
use crate::threads::{self, Deaths, Pulse, Thread};

/// Look-ups that may wait.
const QUEUE: usize = 64;

/// How long the reader waits for a connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);

/// One look-up takes longer than this only where the reader is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// What came of a look-up.
pub type Found = Result<Option<Record>, Fault>;

/// Where look-ups are handed in. The thread ends when the last clone is gone.
#[derive(Clone)]
pub struct Reader {
    questions: Sender<Question>,
}

struct Question {
    scope: Scope,
    key: IdempotencyKey,
    answer: Sender<Found>,
}

impl Reader {
    /// Starts the thread.
    pub fn start(store: Store, deaths: &Deaths) -> io::Result<(Reader, Thread, Pulse)> {
        let (questions, inbox) = bounded(QUEUE);
        let pulse = Pulse::new("reader", STUCK);
        let beating = pulse.clone();
        let thread = threads::spawn("reader", deaths, move || run(&store, &inbox, &beating))?;
        Ok((Reader { questions }, thread, pulse))
    }

    /// The stored outcome of a key, waited for until `deadline`.
    pub fn find(&self, scope: Scope, key: IdempotencyKey, deadline: Instant) -> Found {
        let (answer, found) = bounded(1);
        self.questions
            .try_send(Question { scope, key, answer })
            .map_err(|_| busy("too many look-ups are waiting"))?;
        found.recv_deadline(deadline).map_err(|_| busy("the look-up took too long"))?
    }
}

fn run(store: &Store, inbox: &Receiver<Question>, pulse: &Pulse) {
    for question in inbox {
        pulse.busy();
        let found = store.client(CONNECTION_WAIT).and_then(|mut client| {
            find_record(&mut client, question.scope.as_str(), question.key.as_str())
        });
        // Who asked may have stopped waiting.
        question.answer.try_send(found).ok();
        pulse.idle();
    }
}

fn busy(text: &str) -> Fault {
    Fault { kind: FaultKind::Overloaded, sqlstate: None, text: text.to_owned() }
}
