//! The pools of connections: r2d2 keeps them, and this file says how one is made, when it counts as broken, and why
//! there is none.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postgres::{SimpleQueryMessage, Statement};
use r2d2::{HandleError, ManageConnection, PooledConnection};

use super::fault;
use super::settings::{Made, Recipe};
use super::wire::Patience;
use crate::outcome::{Fault, FaultKind};

/// What is done to a new connection before anybody gets it; what it prepares stays with the connection.
pub type Install =
    Box<dyn Fn(&mut postgres::Client) -> Result<Option<Statement>, Fault> + Send + Sync>;

/// r2d2 doubles the pause after a failed attempt to connect up to half of its `connection_timeout`, which has no other
/// use here: so a database that is back is found within half a second.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long a connection in doubt may take to answer before it is thrown away.
const PING: Duration = Duration::from_secs(1);
/// Also where the caller's time is nearly over: a sound one must not be thrown away for that.
const SHORTEST_PING: Duration = Duration::from_millis(100);

/// A pool of equal connections.
#[derive(Clone)]
pub(super) struct Pool {
    pool: r2d2::Pool<Manager>,
    trouble: Arc<Trouble>,
    patience: Duration,
}

/// What the connections of a pool have met. It is shared by those who use them and by r2d2's threads, which make them
/// and have no other way to tell why they could not.
#[derive(Default)]
struct Trouble {
    /// Why the last attempt to connect failed; `None` after one that did not.
    last: Mutex<Option<Fault>>,
    /// How many connections have broken. One that was made before the last of them is in doubt.
    breaks: AtomicU64,
}

struct Manager {
    recipe: Recipe,
    install: Install,
    trouble: Arc<Trouble>,
}

/// A connection in the pool.
struct Session {
    client: postgres::Client,
    prepared: Option<Statement>,
    patience: Patience,
    /// The value of [`Trouble::breaks`] at which it was known to work.
    sound_at: u64,
    discarded: bool,
}

/// A connection on loan: it goes back when it is dropped, unless it is broken.
pub struct Client {
    pooled: PooledConnection<Manager>,
}

impl Pool {
    pub(super) fn new(recipe: Recipe, size: usize, install: Install) -> Pool {
        let trouble = Arc::<Trouble>::default();
        let patience = recipe.silence;
        let manager = Manager { recipe, install, trouble: Arc::clone(&trouble) };
        let pool = r2d2::Pool::builder()
            .max_size(u32::try_from(size).unwrap_or(u32::MAX))
            .min_idle(Some(0))
            .test_on_check_out(false)
            .connection_timeout(2 * LONGEST_PAUSE)
            .error_handler(Box::new(Silent))
            .build_unchecked(manager);
        Pool { pool, trouble, patience }
    }

    /// How many connections have broken.
    pub(super) fn breaks(&self) -> u64 {
        self.trouble.breaks.load(Ordering::SeqCst)
    }

    pub(super) fn get(&self, wait: Duration) -> Result<Client, Fault> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut client = match self.pool.get_timeout(left) {
                Ok(pooled) => Client { pooled },
                Err(_) => return Err(self.trouble.why(wait)),
            };
            if client.is_sound(&self.trouble, left) {
                client.answers_within(self.patience);
                return Ok(client);
            }
        }
    }
}

impl Trouble {
    fn set_last(&self, fault: Option<Fault>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Why there was no connection within `wait`.
    fn why(&self, wait: Duration) -> Fault {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.unwrap_or_else(|| Fault {
            kind: FaultKind::Overloaded,
            sqlstate: None,
            text: format!("no connection was free or could be made within {wait:?}"),
        })
    }
}

impl ManageConnection for Manager {
    type Connection = Session;
    type Error = Fault;

    fn connect(&self) -> Result<Session, Fault> {
        let sound_at = self.trouble.breaks.load(Ordering::SeqCst);
        let made = self
            .recipe
            .connect()
            .and_then(|mut made| (self.install)(&mut made.client).map(|prepared| (made, prepared)));
        self.trouble.set_last(made.as_ref().err().cloned());
        let (Made { client, patience }, prepared) = made?;
        Ok(Session { client, prepared, patience, sound_at, discarded: false })
    }

    fn is_valid(&self, session: &mut Session) -> Result<(), Fault> {
        session.client.is_valid(PING).map_err(|error| fault::classify(&error))
    }

    fn has_broken(&self, session: &mut Session) -> bool {
        let broken = session.discarded || session.client.is_closed();
        if broken {
            self.trouble.breaks.fetch_add(1, Ordering::SeqCst);
        }
        broken
    }
}

impl Client {
    /// Sets how long the server may be silent while an answer is awaited, until the connection goes back. It must be
    /// longer than the `statement_timeout` that holds; by default it is that of the pool and five seconds. Past it the
    /// connection breaks, as one does that was cut. Over a Unix socket it has no effect.
    pub fn answers_within(&self, limit: Duration) {
        self.pooled.patience.set(limit);
    }

    /// What [`Install`] prepared on the connection.
    pub(super) fn prepared(&self) -> Option<Statement> {
        self.pooled.prepared.clone()
    }

    /// Throws the connection away: the next one is made anew.
    pub fn discard(mut self) {
        self.spoil();
    }

    /// Says that the connection must not be used again.
    pub(super) fn spoil(&mut self) {
        self.pooled.discarded = true;
    }

    /// Whether the connection must not be used again.
    pub fn is_spoiled(&self) -> bool {
        self.pooled.discarded || self.pooled.client.is_closed()
    }

    /// Whether it works and takes writes. It is asked only where another one broke after it was last known to: a server
    /// that was restarted broke them all, and they notice only when used; and one that was demoted keeps them all, while
    /// a new connection would lead to its successor.
    fn is_sound(&mut self, trouble: &Trouble, left: Duration) -> bool {
        let breaks = trouble.breaks.load(Ordering::SeqCst);
        if self.pooled.sound_at == breaks {
            return true;
        }
        let client = &mut self.pooled.client;
        let sound =
            client.is_valid(left.clamp(SHORTEST_PING, PING)).is_ok() && takes_writes(client);
        self.pooled.sound_at = breaks;
        self.pooled.discarded = !sound;
        sound
    }
}

/// A standby says no here too.
fn takes_writes(client: &mut postgres::Client) -> bool {
    let shown = client.simple_query("SHOW transaction_read_only").unwrap_or_default();
    shown
        .iter()
        .any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("off")))
}

impl Deref for Client {
    type Target = postgres::Client;

    fn deref(&self) -> &postgres::Client {
        &self.pooled.client
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut postgres::Client {
        &mut self.pooled.client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody knows what was under way.
            self.pooled.discarded = true;
        }
    }
}

/// r2d2 would log every failed attempt as an error; the prober says it once.
#[derive(Debug)]
struct Silent;

impl HandleError<Fault> for Silent {
    fn handle_error(&self, _: Fault) {}
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}
