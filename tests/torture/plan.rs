//! The faults of a run, drawn from its seed.

use std::time::Duration;

use fastrand::Rng;

/// Something that goes wrong. Numbers are those of daemons; a duration is how long it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9 of a daemon, and a restart after the time.
    KillDaemon(usize, Duration),
    /// kill -9 of everything at once, and a restart after the time.
    KillEverything(Duration),
    /// SIGTERM to a daemon, and a restart.
    StopDaemon(usize),
    /// SIGHUP to a daemon.
    ReloadDaemon(usize),
    /// SIGSTOP, and SIGCONT after the time.
    FreezeDaemon(usize, Duration),
    /// kill -9 of one of the daemons' backends: PostgreSQL restarts itself.
    KillBackend,
    /// SIGSTOP of one of the daemons' backends, with whatever it holds, and SIGCONT after the time.
    FreezeBackend(Duration),
    /// `pg_terminate_backend` of one session of the daemons, or of all.
    TerminateBackends { all: bool },
    /// An immediate shutdown of PostgreSQL, and a restart after the time.
    CrashPostgres(Duration),
    /// kill -9 of PostgreSQL's main process, and a restart after the time.
    KillPostgres(Duration),
    /// The disk of PostgreSQL is full.
    FillDisk(Duration),
    /// `onced migrate` runs again.
    Migrate,
    /// Tables and indexes change under the daemons' plans.
    AlterTables,
    /// Another session holds a table.
    LockTable(&'static str, Duration),
    /// The database takes no writes.
    ReadOnly(Duration),
    /// All connections to the database end, and new ones too.
    CutDatabase(usize, Duration),
    /// No byte passes between daemon and database.
    StallDatabase(usize, Duration),
    /// Every byte is late.
    DelayDatabase(usize, Duration),
    /// So many writes commit, and their replies are lost.
    LoseReplies(usize, u32),
    /// Nobody answers at the sink's address.
    CutSink(Duration),
    /// No byte passes between the daemons and the sink.
    StallSink(Duration),
    /// The sink's answers come byte by byte.
    DripSink(Duration),
    /// The sink behaves badly by itself.
    SpoilSink(Mood, Duration),
}

/// How the sink answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// 204.
    Well,
    /// 204, after a while.
    Slow,
    /// 200, after the daemon has stopped waiting.
    Late,
    /// 500.
    Failing,
    /// 429 with `Retry-After`.
    Busy,
    /// 302.
    Redirecting,
}

/// Limits of the daemons, which change from seed to seed: what shares a transaction, and what waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub writers: i64,
    pub queue: i64,
    pub batch: i64,
    pub waiters: i64,
}

impl Limits {
    /// Draws them. The daemons never hold more than 4 + 2 + 3 connections.
    pub fn draw(seed: u64) -> Limits {
        let mut rng = Rng::with_seed(seed);
        let mut one_of = |choices: [i64; 3]| choices[rng.usize(0..3)];
        Limits {
            writers: one_of([1, 3, 4]),
            queue: one_of([8, 64, 1024]),
            batch: one_of([1, 8, 32]),
            waiters: one_of([0, 4, 32]),
        }
    }
}

/// A fault and when it comes, after the start of the run.
#[derive(Clone, Debug)]
pub struct Planned {
    pub after: Duration,
    pub fault: Fault,
}

/// Faults of one kind of place come one after the other; those of different places may meet.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    Daemons,
    Postgres,
    Network,
}

/// All lanes.
pub const LANES: [Lane; 3] = [Lane::Daemons, Lane::Postgres, Lane::Network];

/// The faults of a lane in a run of this length. Each kind comes once before one comes again.
pub fn plan(lane: Lane, seed: u64, length: Duration) -> Vec<Planned> {
    let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(lane as u64));
    let mut planned = Vec::new();
    let mut after = Duration::from_millis(rng.u64(1000..4000));
    let mut kinds = Vec::new();
    while after < length {
        if kinds.is_empty() {
            kinds = draw_all(lane, &mut rng);
            rng.shuffle(&mut kinds);
        }
        let Some(fault) = kinds.pop() else { break };
        let pause = Duration::from_millis(rng.u64(1000..3500));
        let lasts = fault.lasts();
        planned.push(Planned { after, fault });
        after += lasts + pause;
    }
    planned
}

fn draw_all(lane: Lane, rng: &mut Rng) -> Vec<Fault> {
    let mut daemon = {
        let mut rng = rng.fork();
        move || rng.usize(0..2)
    };
    let mut time = |from: u64, to: u64| Duration::from_millis(rng.u64(from..to));
    match lane {
        Lane::Daemons => vec![
            Fault::KillDaemon(daemon(), time(0, 1500)),
            Fault::KillDaemon(daemon(), time(0, 300)),
            Fault::StopDaemon(daemon()),
            Fault::ReloadDaemon(daemon()),
            Fault::FreezeDaemon(daemon(), time(500, 6000)),
            Fault::FreezeDaemon(daemon(), time(3500, 6000)),
            Fault::KillEverything(time(0, 1000)),
        ],
        Lane::Postgres => vec![
            Fault::KillBackend,
            Fault::FreezeBackend(time(500, 5000)),
            Fault::TerminateBackends { all: true },
            Fault::TerminateBackends { all: false },
            Fault::CrashPostgres(time(0, 3000)),
            Fault::KillPostgres(time(0, 3000)),
            Fault::FillDisk(time(1000, 4000)),
            Fault::Migrate,
            Fault::AlterTables,
            Fault::LockTable("idempotency_records", time(500, 4000)),
            Fault::LockTable("outbox_events", time(500, 4000)),
            Fault::LockTable("effects", time(500, 4000)),
            Fault::ReadOnly(time(500, 3000)),
        ],
        Lane::Network => vec![
            Fault::CutDatabase(daemon(), time(0, 2000)),
            Fault::StallDatabase(daemon(), time(500, 6000)),
            Fault::DelayDatabase(daemon(), time(500, 4000)),
            Fault::LoseReplies(daemon(), 3),
            Fault::LoseReplies(daemon(), 12),
            Fault::CutSink(time(500, 4000)),
            Fault::StallSink(time(500, 4000)),
            Fault::DripSink(time(500, 4000)),
            Fault::SpoilSink(Mood::Slow, time(1000, 4000)),
            Fault::SpoilSink(Mood::Late, time(1000, 4000)),
            Fault::SpoilSink(Mood::Failing, time(1000, 4000)),
            Fault::SpoilSink(Mood::Busy, time(1000, 4000)),
            Fault::SpoilSink(Mood::Redirecting, time(500, 2000)),
        ],
    }
}

impl Fault {
    /// How long it lasts at least.
    pub fn lasts(&self) -> Duration {
        match self {
            Fault::KillDaemon(_, time)
            | Fault::KillEverything(time)
            | Fault::FreezeDaemon(_, time)
            | Fault::CrashPostgres(time)
            | Fault::KillPostgres(time)
            | Fault::FillDisk(time)
            | Fault::FreezeBackend(time)
            | Fault::LockTable(_, time)
            | Fault::ReadOnly(time)
            | Fault::CutDatabase(_, time)
            | Fault::StallDatabase(_, time)
            | Fault::DelayDatabase(_, time)
            | Fault::CutSink(time)
            | Fault::StallSink(time)
            | Fault::DripSink(time)
            | Fault::SpoilSink(_, time) => *time,
            Fault::StopDaemon(_)
            | Fault::ReloadDaemon(_)
            | Fault::Migrate
            | Fault::AlterTables
            | Fault::KillBackend
            | Fault::TerminateBackends { .. }
            | Fault::LoseReplies(..) => Duration::ZERO,
        }
    }

    /// Its kind, for the summary.
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        let name = text.split(['(', ' ']).next().unwrap_or_default().to_owned();
        match self {
            Fault::SpoilSink(mood, _) => format!("{name} {mood:?}"),
            Fault::LockTable(table, _) => format!("{name} {table}"),
            Fault::KillDaemon(..)
            | Fault::KillEverything(_)
            | Fault::Migrate
            | Fault::AlterTables
            | Fault::StopDaemon(_)
            | Fault::ReloadDaemon(_)
            | Fault::FreezeDaemon(..)
            | Fault::KillBackend
            | Fault::FreezeBackend(_)
            | Fault::TerminateBackends { .. }
            | Fault::CrashPostgres(_)
            | Fault::KillPostgres(_)
            | Fault::FillDisk(_)
            | Fault::ReadOnly(_)
            | Fault::CutDatabase(..)
            | Fault::StallDatabase(..)
            | Fault::DelayDatabase(..)
            | Fault::LoseReplies(..)
            | Fault::CutSink(_)
            | Fault::StallSink(_)
            | Fault::DripSink(_) => name,
        }
    }
}
