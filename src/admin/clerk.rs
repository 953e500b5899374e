//! Questions and orders of operators to the database, for admin threads, which never touch it: one thread with a
//! connection of its own, and a short queue before it.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::outcome::{Fault, FaultKind};
use crate::store::{self, Client, Store, once};
use crate::threads::{self, Deaths, Pulse, Thread};

/// Questions that may wait.
const QUEUE: usize = 32;

/// How long a question waits for its turn, and each of its statements for the database.
const PATIENCE: Duration = Duration::from_secs(4);

/// Longer than a question can take by its own limits.
const ANSWERED_WITHIN: Duration = Duration::from_secs(6);

/// How long the clerk waits for a connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);

/// One question takes longer than this only where the clerk is stuck.
const STUCK: Duration = Duration::from_secs(600);

type Work = Box<dyn FnOnce(&Store) + Send>;

struct Question {
    work: Work,
    /// Past it nobody waits any more, so it is not begun.
    deadline: Instant,
}

/// Where questions are handed in. The thread ends when the last clone is gone.
#[derive(Clone)]
pub struct Clerk {
    questions: Sender<Question>,
}

impl Clerk {
    /// Starts the thread.
    pub fn start(store: Store, deaths: &Deaths) -> io::Result<(Clerk, Thread, Pulse)> {
        let (questions, inbox) = bounded(QUEUE);
        let pulse = Pulse::new("clerk", STUCK);
        let beating = pulse.clone();
        let thread = threads::spawn("clerk", deaths, move || run(&store, &inbox, &beating))?;
        Ok((Clerk { questions }, thread, pulse))
    }

    /// Has work done on a connection, and waits for what comes of it, a few seconds at most. Work that was begun may
    /// still take effect where the wait was too short for it.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (answer, answered) = bounded(1);
        let deadline = Instant::now() + PATIENCE;
        let work: Work = Box::new(move |store| {
            // Who asked may have stopped waiting.
            answer.try_send(work_within(store, work)).ok();
        });
        self.questions
            .try_send(Question { work, deadline })
            .map_err(|_| busy("too many questions of operators are waiting"))?;
        answered
            .recv_timeout(ANSWERED_WITHIN)
            .map_err(|_| busy("the database took too long for an operator's question"))?
    }
}

fn run(store: &Store, inbox: &Receiver<Question>, pulse: &Pulse) {
    for Question { work, deadline } in inbox {
        pulse.busy();
        if Instant::now() < deadline {
            work(store);
        }
        pulse.idle();
    }
}

fn work_within<T>(
    store: &Store,
    work: impl FnOnce(&mut Client) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut client = store.client(CONNECTION_WAIT)?;
    once::set_timeout(&mut client, PATIENCE)?;
    let done = work(&mut client);
    if once::set_timeout(&mut client, store::OTHER_STATEMENT_TIMEOUT).is_err() {
        client.discard();
    }
    done
}

fn busy(text: &str) -> Fault {
    Fault { kind: FaultKind::Overloaded, sqlstate: None, text: text.to_owned() }
}
