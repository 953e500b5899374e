//! Jobs in, outcomes out. A fixed pool of threads, each with a database connection while it has work. A writer takes one
//! job, and with it whatever else already waits, and never waits for more. It knows nothing of HTTP.

mod cache;
mod pace;
mod parked;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use fail::fail_point;

use crate::call::fingerprint::Comparison;
use crate::call::{Call, IdempotencyKey, Scope};
use crate::config;
use crate::observe::{self, METRICS};
use crate::operations::Operation;
use crate::outcome::{Fault, FaultKind, Outcome, Reason};
use crate::pending::Pending;
use crate::store::once::{self, Reply, Request, Terms, Whole, Written};
use crate::store::{Client, Store};
use crate::threads::{self, Deaths, Pulse, Thread};
pub use cache::Breaks;
use cache::{Cache, Heard};
use pace::Paces;
use parked::Parked;

/// How long a writer waits for a connection. Where there is none by then, what waits in the queue is answered too.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);

/// A server that ended a statement by its timeout has told so by then, even if the network is slow.
const GRACE: Duration = Duration::from_secs(5);

/// How long a batch waits for a rival in another daemon that holds one of its keys.
const CLAIM_WAIT_IN_A_BATCH: Duration = Duration::from_millis(50);

/// The bodies of one batch have at most so many bytes together, or there is one. The statement's parameters have a limit
/// in PostgreSQL (1 GB), and both sides hold all of them at once.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// How often a call is run at most, where running it again may help: a deadlock's loser, a session whose plans went
/// stale, a connection that broke. An operation that brings its backend down must not do so for ever.
const AGAIN_MAX: usize = 5;

/// A checked request on its way to a writer.
pub struct Job {
    /// What is asked for.
    pub call: Call,
    /// The caller who waits.
    pub pending: Pending,
    /// When the caller stops waiting: past it the job is not run.
    pub deadline: Instant,
    /// The id of the request, for the log and for a refusal's `instance`.
    pub request_id: Arc<str>,
    /// Whether it shared a transaction that failed: it does not share another.
    pub alone: bool,
    /// Whether a connection broke under an attempt, so that it may have been written all the same.
    pub in_doubt: bool,
}

/// Where http threads hand in their jobs.
#[derive(Clone)]
pub struct Desk {
    parked: Arc<Parked>,
}

impl Desk {
    /// Hands a job over. Whatever becomes of it, its [`Pending`] is answered, here and now where there is no room.
    pub fn submit(&self, job: Job) {
        self.parked.join(job);
    }

    /// A caller waits no more for the outcome of this key. To be called once its end of [`Pending`] is dropped.
    pub fn let_go(&self, scope: Scope, key: IdempotencyKey) {
        self.parked.let_go(&(scope, key));
    }
}

/// The writer threads.
pub struct Writers {
    parked: Arc<Parked>,
    threads: Vec<Thread>,
    pulses: Vec<Pulse>,
}

/// What the writers need besides their own section of the configuration.
pub struct Needs {
    /// Where they write.
    pub store: Store,
    /// What they may be asked for.
    pub operations: Vec<Arc<Operation>>,
    /// What holds for every write.
    pub terms: Terms,
    /// Duplicates that may wait beside one key.
    pub waiters_per_key: usize,
    /// How long a caller waits at most.
    pub wait: Duration,
    /// How long a record is kept at least.
    pub retention: Option<Duration>,
    /// What the cache of replays goes by.
    pub breaks: Breaks,
    /// Rung after a commit that may have written events.
    pub bell: Sender<()>,
}

impl Writers {
    /// Starts the threads.
    pub fn start(config: &config::Writers, needs: &Needs, deaths: &Deaths) -> io::Result<Writers> {
        let (jobs, inbox) = bounded(config.queue.get());
        let cache = Cache::new(config.replay_cache, needs.retention, Arc::clone(&needs.breaks));
        let parked = Arc::new(Parked::new(jobs, needs.waiters_per_key, cache));
        let paces = Arc::new(Paces::new(&needs.operations));
        let slowest = needs.operations.iter().filter_map(|operation| operation.timeout).max();
        let limit = needs.wait + slowest.unwrap_or_default().max(config.statement_timeout);
        let mut writers = Writers { parked, threads: Vec::new(), pulses: Vec::new() };
        for number in 0..config.threads.get() {
            let name = format!("writer-{number}");
            let pulse = Pulse::new(&name, limit + 6 * GRACE);
            let writer = Writer {
                store: needs.store.clone(),
                terms: needs.terms.clone(),
                batch: config.batch.get(),
                statement_timeout: config.statement_timeout,
                lock_timeout: config.lock_timeout,
                bell: needs.bell.clone(),
                parked: Arc::clone(&writers.parked),
                paces: Arc::clone(&paces),
                pulse: pulse.clone(),
                inbox: inbox.clone(),
                next: Vec::new(),
                client: None,
                breaks: Arc::clone(&needs.breaks),
            };
            writers.threads.push(threads::spawn(name, deaths, move || writer.run())?);
            writers.pulses.push(pulse);
        }
        Ok(writers)
    }

    /// Where jobs are handed in.
    pub fn desk(&self) -> Desk {
        Desk { parked: Arc::clone(&self.parked) }
    }

    /// Whether the threads make progress.
    pub fn pulses(&self) -> Vec<Pulse> {
        self.pulses.clone()
    }

    /// Takes no more jobs, writes and answers those that are in hand, and ends the threads. Returns the names of
    /// those that still run at `deadline`.
    pub fn drain(self, deadline: Instant) -> Vec<String> {
        self.parked.close();
        threads::join_all(self.threads, deadline)
    }
}

struct Writer {
    store: Store,
    terms: Terms,
    batch: usize,
    statement_timeout: Duration,
    lock_timeout: Duration,
    bell: Sender<()>,
    parked: Arc<Parked>,
    paces: Arc<Paces>,
    pulse: Pulse,
    inbox: Receiver<Job>,
    /// Jobs that are this writer's already and come before those in the queue, last in first out.
    next: Vec<Job>,
    client: Option<Client>,
    breaks: Breaks,
}

impl Writer {
    fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            self.pulse.busy();
            let batch = self.still_wanted(batch);
            match batch.len() {
                0 => {}
                1 => batch.into_iter().for_each(|job| self.write_alone(job)),
                _ => self.write_batch(batch),
            }
        }
    }

    /// Waits for a job, and takes with it what else already waits and may share its transaction. `None` where the
    /// daemon is stopping and nothing is left.
    fn next_batch(&mut self) -> Option<Vec<Job>> {
        let first = match self.next_waiting() {
            Some(job) => job,
            None => {
                // The connection goes back to the pool while there is nothing to do.
                self.client = None;
                self.pulse.idle();
                self.inbox.recv().ok()?
            }
        };
        // What could not join a slow one must stay where another writer finds it.
        let most = if self.goes_alone(&first) { 1 } else { self.batch };
        let mut bytes = first.call.body.as_str().len();
        let mut batch = vec![first];
        while batch.len() < most {
            let Some(job) = self.next_waiting() else { break };
            bytes += job.call.body.as_str().len();
            let has_its_timeout = job.call.operation.timeout == batch[0].call.operation.timeout;
            if bytes > BATCH_BYTES || !has_its_timeout || self.goes_alone(&job) {
                // It comes right after this batch, which is a quick one.
                self.next.push(job);
                break;
            }
            batch.push(job);
        }
        Some(batch)
    }

    fn next_waiting(&mut self) -> Option<Job> {
        self.next.pop().or_else(|| self.inbox.try_recv().ok())
    }

    /// A slow one would make its neighbours wait.
    fn goes_alone(&self, job: &Job) -> bool {
        job.alone || self.paces.is_slow(&job.call.operation)
    }

    /// Answers the jobs that came too late or whose caller has gone away, and gives the others.
    fn still_wanted(&mut self, batch: Vec<Job>) -> Vec<Job> {
        let now = Instant::now();
        let (wanted, late): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| job.deadline > now && job.pending.begin());
        for job in late {
            self.settle(job, Outcome::Unavailable(Reason::Deadline), None);
        }
        wanted
    }

    fn write_batch(&mut self, mut batch: Vec<Job>) {
        match self.attempt(&batch) {
            Ok((replies, asked)) => {
                let mut failed = Vec::new();
                for (job, reply) in batch.into_iter().zip(replies) {
                    self.paces.took(&job.call.operation, reply.took);
                    match final_outcome(&job, reply.written) {
                        Ok(outcome) => self.settle(job, outcome, Some(asked.of_age(reply.age))),
                        Err(_) => failed.push(job),
                    }
                }
                self.run_again_alone(failed);
            }
            Err(Attempt::NoConnection(fault)) => self.give_up(batch, &fault),
            // It would meet each of them.
            Err(Attempt::Whole(Whole::Fault(fault)))
                if matches!(fault.kind, FaultKind::ReadOnly | FaultKind::Overloaded) =>
            {
                self.give_up(batch, &fault);
            }
            Err(Attempt::Whole(whole)) => {
                let in_doubt = leaves_in_doubt(&whole);
                batch.iter_mut().for_each(|job| job.in_doubt |= in_doubt);
                self.run_again_alone(batch);
            }
        }
    }

    /// Neighbours may have had a part in it: what failed in a batch runs again, each by itself. This writer takes the
    /// first and leaves the others to whichever is free.
    fn run_again_alone(&mut self, failed: Vec<Job>) {
        let mut failed = failed.into_iter();
        let first = failed.next();
        for mut job in failed {
            job.alone = true;
            if !job.in_doubt {
                job.pending.queue_again();
            }
            self.hand_back(job);
        }
        if let Some(first) = first {
            self.write_alone(first);
        }
    }

    /// Puts a job into the queue, or keeps it where that is full or closed.
    fn hand_back(&mut self, job: Job) {
        if let Some(job) = self.parked.hand_back(job) {
            self.next.push(job);
        }
    }

    /// Runs one job until it has an outcome: again where that helps, until its deadline.
    fn write_alone(&mut self, mut job: Job) {
        let mut again = 0;
        loop {
            self.pulse.busy();
            let began = Instant::now();
            if again == 0 && began >= job.deadline {
                return self.settle(job, Outcome::Unavailable(Reason::Deadline), None);
            }
            let fault = match self.attempt(std::slice::from_ref(&job)) {
                Err(Attempt::NoConnection(fault)) if again == 0 => {
                    return self.give_up(vec![job], &fault);
                }
                // What became of the attempt before is unknown, and only another one tells.
                Err(Attempt::NoConnection(_)) if Instant::now() < job.deadline => continue,
                Err(Attempt::NoConnection(fault) | Attempt::Whole(Whole::Fault(fault))) => fault,
                Err(Attempt::Whole(Whole::Held)) => {
                    return self.settle(job, Outcome::InProgress, None);
                }
                Ok((replies, asked)) => match replies.into_iter().next() {
                    Some(Reply { written, age, took }) => {
                        self.paces.took(&job.call.operation, took);
                        match final_outcome(&job, written) {
                            Ok(outcome) => {
                                return self.settle(job, outcome, Some(asked.of_age(age)));
                            }
                            Err(fault) => fault,
                        }
                    }
                    None => unanswered(),
                },
            };
            again += 1;
            job.in_doubt |= fault.kind == FaultKind::Unreachable;
            if fault.kind == FaultKind::StatementTimeout {
                self.paces.took(&job.call.operation, began.elapsed());
            } else {
                self.paces.failed(&job.call.operation);
            }
            if !helps_again(&fault, again) || Instant::now() >= job.deadline {
                observe::call_failed(&job.request_id, &job.call, &fault);
                let outcome = fault
                    .reason()
                    .filter(|_| !is_of_the_operation(&fault))
                    .map_or(Outcome::OperationFailed, Outcome::Unavailable);
                return self.settle(job, outcome, None);
            }
            observe::call_runs_again(&job.request_id, &job.call, &fault);
        }
    }

    /// Sends a batch to the database, all under one timeout. A connection that broke or is not what it should be is
    /// thrown away, and so is one in the hands of a panic.
    fn attempt(&mut self, batch: &[Job]) -> Result<(Vec<Reply>, Heard), Attempt> {
        let breaks = (self.breaks)();
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.store.writer(CONNECTION_WAIT).map_err(Attempt::NoConnection)?,
        };
        let began = Instant::now();
        let written = catch_unwind(AssertUnwindSafe(|| self.send(&mut client, batch)))
            .unwrap_or_else(|panic| {
                Err(Whole::Fault(panicked(&threads::panic_text(panic.as_ref()))))
            });
        METRICS.batch_size.observe(f64::from(u32::try_from(batch.len()).unwrap_or(u32::MAX)));
        METRICS.write_seconds.observe(began.elapsed().as_secs_f64());
        if spoils_connection(&written) || client.is_spoiled() {
            client.discard();
        } else {
            self.client = Some(client);
        }
        if written.as_ref().is_ok_and(|replies| replies.iter().any(is_new)) {
            fail_point!("writer::after_write");
            // Already rung is as good as rung.
            self.bell.try_send(()).ok();
        }
        let asked = Heard { age: Duration::ZERO, asked: began, breaks };
        written.map(|replies| (replies, asked)).map_err(Attempt::Whole)
    }

    fn send(&self, client: &mut Client, batch: &[Job]) -> Result<Vec<Reply>, Whole> {
        fail_point!("writer::before_write");
        let requests = batch
            .iter()
            .map(|job| Request { call: &job.call, request_id: &job.request_id })
            .collect::<Vec<_>>();
        // All of a batch have the same timeout. One of its own costs two more round trips.
        let own_timeout = batch.first().and_then(|job| job.call.operation.timeout);
        let timeout = own_timeout.unwrap_or(self.statement_timeout);
        client.answers_within(timeout + GRACE);
        if own_timeout.is_some() {
            once::set_timeout(client, timeout).map_err(Whole::Fault)?;
        }
        let replies = once::write(client, &self.terms, self.claim_wait(batch, timeout), &requests);
        if own_timeout.is_some() && !client.is_spoiled() {
            once::reset_timeout(client).map_err(Whole::Fault)?;
        }
        replies
    }

    /// How long to wait for a rival in another daemon: shortly in a batch, whose others wait too; alone as long as for
    /// any lock, but not until the statement's timeout, which could not tell what was waited for, nor past the
    /// caller's patience.
    fn claim_wait(&self, batch: &[Job], timeout: Duration) -> Duration {
        match batch {
            [job] => {
                let left = job.deadline.saturating_duration_since(Instant::now());
                self.lock_timeout.min(timeout * 9 / 10).min(left)
            }
            _ => CLAIM_WAIT_IN_A_BATCH,
        }
    }

    /// The database cannot take a write now: a queue of jobs that each find it out would only be answered later.
    fn give_up(&mut self, batch: Vec<Job>, fault: &Fault) {
        observe::database_takes_nothing(fault);
        let waiting = self.inbox.try_iter().take(self.inbox.len()).collect::<Vec<_>>();
        let reason = fault.reason().unwrap_or(Reason::Database);
        for job in batch.into_iter().chain(waiting) {
            self.settle(job, Outcome::Unavailable(reason), None);
        }
    }

    /// Answers a job; `heard` is when and how the database gave the outcome, where it did.
    fn settle(&mut self, job: Job, outcome: Outcome, heard: Option<Heard>) {
        let outcome = if job.in_doubt { without_a_claim(outcome) } else { outcome };
        if let Some(next) = self.parked.settle(job, outcome, heard) {
            self.hand_back(next);
        }
    }
}

/// Why an attempt brought no replies.
enum Attempt {
    /// There was no connection: nothing was sent.
    NoConnection(Fault),
    /// The batch failed as a whole.
    Whole(Whole),
}

/// The outcome of a job, or the fault that kept it from having one.
fn final_outcome(job: &Job, written: Written) -> Result<Outcome, Fault> {
    match written {
        Written::Ran(answer) => Ok(Outcome::Recorded { answer, replayed: false }),
        Written::Refused { answer, reason } => {
            observe::call_refused(&job.request_id, &job.call, &reason);
            Ok(Outcome::Recorded { answer, replayed: false })
        }
        Written::Exists { answer, stored_hash } => {
            Ok(match job.call.fingerprint.compare(&stored_hash) {
                Comparison::Same => Outcome::Recorded { answer, replayed: true },
                Comparison::Different => Outcome::KeyReused,
                Comparison::UnknownRecipe => {
                    observe::recipe_unknown(&job.request_id, &stored_hash);
                    Outcome::FingerprintUnknown
                }
            })
        }
        Written::Expired => Ok(Outcome::KeyExpired),
        Written::Failed(fault) => Err(fault),
        // The record was there when the claim met it, and is purged: the next attempt claims the key.
        Written::Gone => Err(Fault {
            kind: FaultKind::Conflict,
            sqlstate: None,
            text: "the record was purged in between".to_owned(),
        }),
    }
}

/// Whether running the same call again may help. Where the connection broke it is the only way to learn what became
/// of it: it replays if it was committed.
fn helps_again(fault: &Fault, again: usize) -> bool {
    match fault.kind {
        FaultKind::Unreachable | FaultKind::Conflict | FaultKind::Stale => again < AGAIN_MAX,
        FaultKind::Overloaded
        | FaultKind::Unusable
        | FaultKind::ReadOnly
        | FaultKind::LockTimeout
        | FaultKind::StatementTimeout
        | FaultKind::Broken => false,
    }
}

/// A session that stays stale on connection after connection is an operation that does not fit the database.
fn is_of_the_operation(fault: &Fault) -> bool {
    fault.kind == FaultKind::Stale
}

fn spoils_connection(written: &Result<Vec<Reply>, Whole>) -> bool {
    let spoils = |fault: &Fault| {
        matches!(fault.kind, FaultKind::Unreachable | FaultKind::Stale | FaultKind::ReadOnly)
            || fault.sqlstate.is_none()
    };
    match written {
        Ok(replies) => {
            replies.iter().any(|reply| matches!(&reply.written, Written::Failed(f) if spoils(f)))
        }
        Err(Whole::Fault(fault)) => spoils(fault),
        Err(Whole::Held) => false,
    }
}

/// Nobody may say that nothing was written where an earlier attempt may have been committed.
fn without_a_claim(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Unavailable(_) | Outcome::OperationFailed => {
            Outcome::Unavailable(Reason::Database)
        }
        Outcome::Recorded { .. }
        | Outcome::KeyReused
        | Outcome::KeyExpired
        | Outcome::FingerprintUnknown
        | Outcome::InProgress => outcome,
    }
}

fn leaves_in_doubt(whole: &Whole) -> bool {
    matches!(whole, Whole::Fault(fault) if fault.kind == FaultKind::Unreachable)
}

fn is_new(reply: &Reply) -> bool {
    matches!(reply.written, Written::Ran(_) | Written::Refused { .. })
}

fn panicked(text: &str) -> Fault {
    Fault { kind: FaultKind::Broken, sqlstate: None, text: format!("a panic: {text}") }
}

fn unanswered() -> Fault {
    Fault { kind: FaultKind::Broken, sqlstate: None, text: "the call was not answered".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_attempt_in_doubt_no_failure_says_that_nothing_was_written() {
        let unknown = Outcome::Unavailable(Reason::Database);
        for reason in [Reason::ReadOnly, Reason::Deadline, Reason::LockTimeout, Reason::Conflict] {
            assert_eq!(without_a_claim(Outcome::Unavailable(reason)), unknown);
        }
        assert_eq!(without_a_claim(Outcome::OperationFailed), unknown);
        assert_eq!(without_a_claim(Outcome::KeyReused), Outcome::KeyReused);
    }
}
