//! Brings the planned faults, one after the other, and takes back what they changed.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onced::threads::{Stop, stops_within};

use crate::clock::now;
use crate::history::{Away, Micros};
use crate::plan::{Fault, Mood, Planned};
use crate::proxy::Mode;
use crate::world::World;

/// A fault that came, and what came of it.
#[derive(Clone, Debug)]
pub struct Came {
    pub from: Micros,
    pub to: Micros,
    pub fault: Fault,
    pub result: Result<(), String>,
    /// Not brought, since it cannot be here.
    pub skipped: bool,
}

/// Brings the faults of one lane, each at its time or as soon as the one before is over, until `stop` closes.
pub fn bring(world: &World, planned: &[Planned], stop: &Stop, came: &Mutex<Vec<Came>>) {
    let start = Instant::now();
    for Planned { after, fault } in planned {
        let wait = (start + *after).saturating_duration_since(Instant::now());
        if stops_within(stop, wait) {
            return;
        }
        let from = now();
        let skipped = matches!(fault, Fault::FillDisk(_)) && !world.postgres().has_own_disk();
        let result = if skipped { Ok(()) } else { bring_one(world, fault, stop) };
        let result = result.map_err(|error| format!("{error:#}"));
        if let Err(error) = &result {
            world.trouble(format!("{fault:?} went wrong: {error}"));
        }
        if let Err(error) = world.look_after_daemons() {
            world.trouble(format!("a daemon cannot be started again: {error:#}"));
        }
        let one = Came { from, to: now(), fault: fault.clone(), result, skipped };
        came.lock().unwrap().push(one);
    }
}

fn bring_one(world: &World, fault: &Fault, stop: &Stop) -> anyhow::Result<()> {
    let wait = |time: &Duration| {
        stops_within(stop, *time);
    };
    match fault {
        Fault::KillDaemon(number, time) => kill_daemon(world, *number, || wait(time)),
        Fault::KillEverything(time) => kill_everything(world, || wait(time)),
        Fault::StopDaemon(number) => stop_daemon(world, *number),
        Fault::ReloadDaemon(number) => world.daemons[*number].signal(Signal::SIGHUP),
        Fault::FreezeDaemon(number, time) => {
            let from = now();
            world.daemons[*number].signal(Signal::SIGSTOP)?;
            wait(time);
            world.daemons[*number].signal(Signal::SIGCONT)?;
            world.was_away(*number, from, Away::Frozen);
            Ok(())
        }
        Fault::KillBackend => kill_backend(world),
        Fault::FreezeBackend(time) => freeze_backend(world, || wait(time)),
        Fault::TerminateBackends { all } => terminate(world, *all),
        Fault::CrashPostgres(time) => end_postgres(world, Signal::SIGQUIT, || wait(time)),
        Fault::KillPostgres(time) => end_postgres(world, Signal::SIGKILL, || wait(time)),
        Fault::FillDisk(time) => fill_disk(world, || wait(time)),
        Fault::Migrate => world.postgres().migrate(),
        Fault::AlterTables => alter_tables(world),
        Fault::LockTable(table, time) => lock_table(world, table, || wait(time)),
        Fault::ReadOnly(time) => read_only(world, || wait(time)),
        Fault::CutDatabase(number, time) => {
            while_in(world, Some(*number), Mode::Cut, || wait(time))
        }
        Fault::StallDatabase(number, time) => {
            while_in(world, Some(*number), Mode::Stall, || wait(time))
        }
        Fault::DelayDatabase(number, time) => {
            let late = Mode::Delay(Duration::from_millis(40));
            while_in(world, Some(*number), late, || wait(time))
        }
        Fault::LoseReplies(number, count) => {
            world.to_database[*number].lose_replies(*count);
            Ok(())
        }
        Fault::CutSink(time) => while_in(world, None, Mode::Cut, || wait(time)),
        Fault::StallSink(time) => while_in(world, None, Mode::Stall, || wait(time)),
        Fault::DripSink(time) => {
            let slow = Mode::Drip(Duration::from_millis(15));
            while_in(world, None, slow, || wait(time))
        }
        Fault::SpoilSink(mood, time) => {
            world.sink.set(*mood);
            wait(time);
            world.sink.set(Mood::Well);
            Ok(())
        }
    }
}

/// A relay does something else for a while: that of a daemon to its database, or the one to the sink.
fn while_in(
    world: &World,
    daemon: Option<usize>,
    mode: Mode,
    wait: impl FnOnce(),
) -> anyhow::Result<()> {
    let proxy = daemon.map_or(&world.to_sink, |number| &world.to_database[number]);
    proxy.set(mode);
    wait();
    proxy.set(Mode::Forward);
    Ok(())
}

fn kill_daemon(world: &World, number: usize, wait: impl FnOnce()) -> anyhow::Result<()> {
    let from = now();
    let daemon = &world.daemons[number];
    daemon.kill()?;
    wait();
    daemon.spawn()?;
    let came_up = daemon.comes_to("/healthz");
    world.was_away(number, from, Away::Killed);
    anyhow::ensure!(came_up, "it is not alive after a restart:\n{}", daemon.log_tail());
    Ok(())
}

fn kill_everything(world: &World, wait: impl FnOnce()) -> anyhow::Result<()> {
    let mut postgres = world.postgres();
    let from = now();
    for daemon in &world.daemons {
        daemon.kill()?;
    }
    postgres.end(Signal::SIGKILL)?;
    wait();
    // A daemon comes up without its database, too.
    for daemon in &world.daemons {
        daemon.spawn()?;
    }
    let runs = postgres.see_that_it_runs();
    drop(postgres);
    for (number, daemon) in world.daemons.iter().enumerate() {
        let came_up = daemon.comes_to("/healthz");
        world.was_away(number, from, Away::Killed);
        anyhow::ensure!(came_up, "daemon {number} is not alive:\n{}", daemon.log_tail());
    }
    runs
}

fn stop_daemon(world: &World, number: usize) -> anyhow::Result<()> {
    let from = now();
    let daemon = &world.daemons[number];
    let stopped = daemon.stop();
    daemon.spawn()?;
    let came_up = daemon.comes_to("/healthz");
    world.was_away(number, from, Away::Stopped);
    let status = stopped?;
    anyhow::ensure!(status.success(), "it stopped badly ({status}):\n{}", daemon.log_tail());
    anyhow::ensure!(came_up, "it is not alive after a restart:\n{}", daemon.log_tail());
    Ok(())
}

/// Sessions of the daemons.
const BACKENDS: &str =
    "SELECT pid FROM pg_stat_activity WHERE usename = 'onced_torture' ORDER BY random()";

fn kill_backend(world: &World) -> anyhow::Result<()> {
    let mut postgres = world.postgres();
    let row = postgres.session()?.query_opt(&format!("{BACKENDS} LIMIT 1"), &[])?;
    if let Some(row) = row {
        kill(Pid::from_raw(row.get(0)), Signal::SIGKILL)?;
    }
    postgres.see_that_it_runs()
}

fn freeze_backend(world: &World, wait: impl FnOnce()) -> anyhow::Result<()> {
    let postgres = world.postgres();
    let row = postgres.session()?.query_opt(&format!("{BACKENDS} LIMIT 1"), &[])?;
    let Some(row) = row else { return Ok(()) };
    let pid = Pid::from_raw(row.get(0));
    kill(pid, Signal::SIGSTOP)?;
    wait();
    // The server is ours for as long, so the process is still there.
    Ok(kill(pid, Signal::SIGCONT)?)
}

fn terminate(world: &World, all: bool) -> anyhow::Result<()> {
    let limit = if all { "ALL" } else { "1" };
    let sql = format!("SELECT pg_terminate_backend(pid) FROM ({BACKENDS} LIMIT {limit}) AS b");
    world.postgres().session()?.query(&sql, &[])?;
    Ok(())
}

fn end_postgres(world: &World, signal: Signal, wait: impl FnOnce()) -> anyhow::Result<()> {
    let mut postgres = world.postgres();
    postgres.end(signal)?;
    wait();
    postgres.see_that_it_runs()
}

fn fill_disk(world: &World, wait: impl FnOnce()) -> anyhow::Result<()> {
    let mut postgres = world.postgres();
    let path = postgres.place().join("ballast");
    let mut ballast = File::create(&path).context("cannot create the ballast")?;
    let block = vec![0; 64 * 1024];
    // The disk is small, and it ends this.
    while ballast.write_all(&block).is_ok() {}
    drop(ballast);
    wait();
    fs::remove_file(&path).context("cannot remove the ballast")?;
    postgres.see_that_it_runs()
}

/// What an upgrade of somebody's schema may do while writes go on.
fn alter_tables(world: &World) -> anyhow::Result<()> {
    let postgres = world.postgres();
    let mut session = postgres.session()?;
    for statement in [
        "ALTER TABLE effects ADD COLUMN spare integer DEFAULT 1",
        "REINDEX TABLE idempotency_records",
        "ALTER TABLE effects DROP COLUMN spare",
        "VACUUM ANALYZE outbox_events",
    ] {
        session.batch_execute(statement)?;
    }
    Ok(())
}

fn lock_table(world: &World, table: &str, wait: impl FnOnce()) -> anyhow::Result<()> {
    let postgres = world.postgres();
    let mut session = postgres.session()?;
    let mut transaction = session.transaction()?;
    transaction.batch_execute("SET LOCAL lock_timeout = '10s'")?;
    transaction.batch_execute(&format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))?;
    wait();
    Ok(transaction.rollback()?)
}

fn read_only(world: &World, wait: impl FnOnce()) -> anyhow::Result<()> {
    let postgres = world.postgres();
    let set = |value: &str| {
        let sql =
            format!("ALTER DATABASE onced_torture SET default_transaction_read_only = {value}");
        // The session of the superuser has to be one that may still write.
        let mut session = postgres.session()?;
        session.batch_execute(&format!("SET transaction_read_only = off; {sql}"))?;
        session.query(&format!("SELECT pg_terminate_backend(pid) FROM ({BACKENDS}) AS b"), &[])?;
        anyhow::Ok(())
    };
    set("on")?;
    wait();
    set("off")
}
