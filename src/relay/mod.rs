//! The outbox, from row to webhook.
//!
//! One claimer leases events and keeps a few of them ready; publishers take one at a time and speak to the sink, so a
//! slow or failing event holds up nobody but its publisher; one settler writes down what came of the attempts, with
//! whatever has come in by then. Only the claimer and the settler use the database, and neither while a sink is spoken
//! to. Stopping runs in that direction too: the claimer goes first, the publishers give back what they have not begun,
//! the settler writes what is left.

pub mod backoff;
pub mod body;
mod claimer;
mod demand;
mod health;
mod publisher;
mod settler;
pub mod signature;
pub mod sink;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::config::{self, Secret};
use crate::store::Store;
use crate::store::events::Claim;
use crate::threads::{self, Deaths, Pulse, Stop, Thread};

use backoff::Backoff;
use claimer::Claimer;
use health::Health;
use publisher::Publisher;
use settler::Settler;
use sink::{Secrets, Webhook};

/// A database call of a relay that takes longer than this counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// What the relays are connected to.
pub struct Wiring {
    /// The outbox.
    pub store: Store,
    /// Rung after commits that wrote events, and by the relays themselves where there is more to do.
    pub bell: Receiver<()>,
    /// Its other end.
    pub ring: Sender<()>,
    /// Closed when the daemon stops.
    pub stop: Stop,
    /// Where a panic is reported.
    pub deaths: Deaths,
}

/// The running relays.
pub struct Relays {
    threads: Vec<Thread>,
    pulses: Vec<Pulse>,
    secrets: Secrets,
    _bell: Receiver<()>,
}

/// A leased event on its way to a publisher.
struct Leased {
    claim: Claim,
    /// Not later than the lease's end in the database: it was taken before the claim was sent.
    until: Instant,
}

/// What the relay threads of a process share besides their channels: numbers and flags, each written by one side.
struct Shared {
    health: Health,
    /// Attempts that have ended.
    ended: AtomicU64,
    /// A publisher that finds no more than this ready rings for more.
    low_water: AtomicUsize,
    /// The settler cannot write. Nothing is claimed meanwhile: its lease might end before its result is written.
    is_unsettled: AtomicBool,
    ring: Sender<()>,
}

impl Shared {
    /// Wakes the claimer. A bell that is rung already need not be rung again.
    fn ring(&self) {
        self.ring.try_send(()).unwrap_or_default();
    }
}

impl Relays {
    /// Starts the threads. Without a sink there are none, and events stay in the outbox.
    ///
    /// # Errors
    ///
    /// `[sink] ca_file` cannot be used, the lease is not longer than the sink's timeout, or a thread cannot be started.
    pub fn start(
        config: &config::Relay,
        sink: Option<&config::Sink>,
        wiring: &Wiring,
    ) -> io::Result<Relays> {
        let secrets = Secrets::new(sink.map_or_else(Vec::new, |sink| sink.secrets.clone()));
        let mut relays = Relays {
            threads: Vec::new(),
            pulses: Vec::new(),
            secrets: secrets.clone(),
            _bell: wiring.bell.clone(),
        };
        let Some(sink) = sink else {
            return Ok(relays);
        };
        if config.lease <= sink.timeout {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "relay.lease has to be longer than sink.timeout: no attempt could begin",
            ));
        }
        let webhook = Arc::new(Webhook::new(sink, secrets, config.threads.get())?);
        relays.start_threads(config, sink.timeout, &webhook, wiring)?;
        Ok(relays)
    }

    fn start_threads(
        &mut self,
        config: &config::Relay,
        timeout: Duration,
        webhook: &Arc<Webhook>,
        wiring: &Wiring,
    ) -> io::Result<()> {
        let shared = Arc::new(Shared {
            health: Health::new(config.backoff_min),
            ended: AtomicU64::new(0),
            low_water: AtomicUsize::new(0),
            is_unsettled: AtomicBool::new(false),
            ring: wiring.ring.clone(),
        });
        let most = (2 * config.batch.get()).max(config.threads.get());
        let (work, ready) = bounded(most);
        let (settle, settled) = bounded(most + config.threads.get());

        let settler = Settler {
            inbox: settled,
            store: wiring.store.clone(),
            shared: Arc::clone(&shared),
            give_up_after: config.give_up_after,
            stop: wiring.stop.clone(),
            pulse: self.pulse("relay-settle", STUCK_AFTER),
        };
        self.spawn("relay-settle", wiring, move || settler.run())?;
        for number in 0..config.threads.get() {
            let name = format!("relay-{number}");
            let publisher = Publisher {
                ready: ready.clone(),
                settle: settle.clone(),
                webhook: Arc::clone(webhook),
                shared: Arc::clone(&shared),
                timeout,
                max_attempts: config.max_attempts,
                backoff: Backoff { min: config.backoff_min, max: config.backoff_max },
                stop: wiring.stop.clone(),
                pulse: self.pulse(&name, timeout.saturating_mul(2) + STUCK_AFTER),
            };
            self.spawn(&name, wiring, move || publisher.run())?;
        }
        let pulse = self.pulse("relay-claim", STUCK_AFTER);
        let claimer = Claimer::new(config.clone(), wiring.store.clone(), shared, work, pulse);
        let (stop, bell) = (wiring.stop.clone(), wiring.bell.clone());
        self.spawn("relay-claim", wiring, move || claimer.run(&stop, &bell))
    }

    fn spawn(
        &mut self,
        name: &str,
        wiring: &Wiring,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.threads.push(threads::spawn(name, &wiring.deaths, body)?);
        Ok(())
    }

    fn pulse(&mut self, name: &str, limit: Duration) -> Pulse {
        let pulse = Pulse::new(name, limit);
        self.pulses.push(pulse.clone());
        pulse
    }

    /// The progress of each thread, for the watchdog.
    pub fn pulses(&self) -> Vec<Pulse> {
        self.pulses.clone()
    }

    /// Exchanges the keys that sign; every attempt that begins from now on has the new ones. Without any the old ones
    /// stay: nothing goes out unsigned.
    pub fn reload(&self, secrets: Vec<Secret<Vec<u8>>>) {
        if !secrets.is_empty() {
            self.secrets.replace(secrets);
        }
    }

    /// Waits until all threads have ended after `stop` was closed: the attempts that were begun are settled, the others
    /// given back. Returns the names of those that still run at the deadline.
    pub fn join(self, deadline: Instant) -> Vec<String> {
        threads::join_all(self.threads, deadline)
    }
}
