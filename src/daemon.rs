//! The daemon: builds every actor, connects them, and stops them in the direction of the flow. The only file that knows
//! them all.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, tick};

use crate::admin::{self, Admin, Clerk};
use crate::config::{Config, Problems};
use crate::http::auth::Principals;
use crate::http::front::{self, BindError, Limits, Server};
use crate::http::{Api, Needs as ApiNeeds, problem};
use crate::observe::{self, METRICS};
use crate::operations::Operation;
use crate::outcome::{Fault, FaultKind};
use crate::prober::{self, Readiness};
use crate::pruner;
use crate::reader::Reader;
use crate::relay::{Relays, Wiring};
use crate::signals::{self, Signal, Signals};
use crate::store::migrate::{SchemaProblem, check_schema};
use crate::store::once::{self, Terms};
use crate::store::prepare::{DescribeError, OperationProblem, describe};
use crate::store::{Client, Install, OpenError, Store};
use crate::threads::{self, Died, Pulse, Thread};
use crate::writer::{self, Needs as WriterNeeds, Writers};

/// How long the start waits for a database before it goes on without: that is `/readyz`'s matter then.
const FIRST_CONNECTION: Duration = Duration::from_millis(500);

/// Deaths that are told of; further ones change nothing.
const DEATHS: usize = 8;

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The schema does not fit the program.
    #[error(transparent)]
    Schema(#[from] SchemaProblem),
    /// The database, or a pooler in front of it, is not set up for us.
    #[error("the database cannot be used: {0}")]
    Unusable(Fault),
    /// Operations do not fit the database.
    #[error("{}", lines(.0))]
    Operations(Vec<OperationProblem>),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refused a thread or a signal.
    #[error("cannot start")]
    System(#[from] io::Error),
}

impl StartError {
    /// Whether trying again without a change is no use.
    pub fn is_configuration(&self) -> bool {
        match self {
            StartError::Open(_) | StartError::Unusable(_) | StartError::Operations(_) => true,
            StartError::Schema(problem) => !matches!(problem, SchemaProblem::Fault(_)),
            StartError::Bind(_) | StartError::System(_) => false,
        }
    }
}

/// How the daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that was accepted is answered and settled.
    InOrder,
    /// A thread died, or some still ran at the end of `shutdown_timeout`.
    Badly,
}

/// A running daemon. Its parts stand in the order in which they are started.
pub struct Daemon {
    config: Config,
    signals: Signals,
    asked: Receiver<Signal>,
    died: Receiver<Died>,
    stop: Sender<Infallible>,
    readiness: Readiness,
    principals: Arc<Principals>,
    admin_token: Arc<admin::Token>,
    clerk: Thread,
    admin: Server,
    prober: Thread,
    pruner: Thread,
    relays: Relays,
    reader: Thread,
    writers: Writers,
    http: Server,
    pulses: Vec<Pulse>,
}

impl Daemon {
    /// Starts everything: what takes work before what gives it, the callers' listener last.
    pub fn start(config: Config) -> Result<Daemon, StartError> {
        let (deaths, died) = bounded(DEATHS);
        let (signals, asked) = Signals::listen(&deaths)?;
        // Both before anything is done: a port in use is told at once.
        let admin_listener = front::bind(&config.admin.listen)?;
        let http_listener = front::bind(&config.http.listen)?;
        let operations = config.operations.iter().cloned().map(Arc::new).collect::<Vec<_>>();
        let store = open_store(&config, &operations)?;
        check_database(&store, &config.operations)?;
        operations.iter().for_each(|operation| METRICS.show_operation(&operation.name));

        let (stop, stopped) = bounded::<Infallible>(0);
        let (ring, bell) = bounded(1);
        let readiness = Readiness::new();
        let principals = Arc::new(Principals::new(config.principals.clone()));
        let addresses =
            (http_listener.local_addr().to_owned(), admin_listener.local_addr().to_owned());

        let admin_token = Arc::new(admin::Token::new(config.admin.token.clone()));
        let (clerk, asking, clerk_pulse) = Clerk::start(store.clone(), &deaths)?;
        let admin = Arc::new(Admin::new(admin::Needs {
            clerk,
            token: Arc::clone(&admin_token),
            facts: admin::Facts::of(&config, &operations, readiness.clone()),
        }));
        let admin = Server::start(admin_listener, admin_limits(&config), admin, &deaths)?;
        let (prober, probe_pulse) =
            prober::start(store.clone(), readiness.clone(), stopped.clone(), &deaths)?;
        let pruner =
            pruner::start(config.retention.clone(), store.clone(), stopped.clone(), &deaths)?;
        let wiring = Wiring {
            store: store.clone(),
            bell,
            ring: ring.clone(),
            stop: stopped,
            deaths: deaths.clone(),
        };
        let relays = Relays::start(&config.relay, config.sink.as_ref(), &wiring)?;
        let (reader, reading, reader_pulse) = Reader::start(store.clone(), &deaths)?;
        let needs = writer_needs(&config, store, &operations, ring);
        let writers = Writers::start(&config.writers, &needs, &deaths)?;
        let api = Api::new(ApiNeeds {
            operations,
            principals: Arc::clone(&principals),
            desk: writers.desk(),
            reader,
            wait: config.http.wait,
            mismatch_status: config.http.mismatch_status,
            hosts: (!config.http.allow_anonymous).then(|| config.http.hosts.clone()),
        });
        let http = Server::start(http_listener, http_limits(&config), Arc::new(api), &deaths)?;

        let mut pulses = vec![clerk_pulse, probe_pulse, reader_pulse];
        pulses.extend(relays.pulses().into_iter().chain(writers.pulses()));
        observe::started(&addresses.0, &addresses.1, &config);
        signals::notify_ready();
        Ok(Daemon {
            config,
            signals,
            asked,
            died,
            stop,
            readiness,
            principals,
            admin_token,
            clerk: asking,
            admin,
            prober,
            pruner,
            relays,
            reader: reading,
            writers,
            http,
            pulses,
        })
    }

    /// Works until a signal asks to stop or a thread dies, then stops in order. `read_config` reads the configuration
    /// anew where a signal asks for that.
    pub fn run(mut self, read_config: impl Fn() -> Result<Config, Problems>) -> Stopped {
        // Twice as often as the service manager wants to hear of it.
        let pet = signals::watchdog_interval().map_or_else(never, |interval| tick(interval / 2));
        loop {
            select! {
                recv(self.asked) -> signal => match signal {
                    Ok(Signal::Reload) => self.reload(read_config()),
                    Ok(Signal::Stop) | Err(_) => {
                        observe::stopping(self.config.shutdown_timeout);
                        return self.stop(Stopped::InOrder);
                    }
                },
                recv(self.died) -> death => {
                    if let Ok(death) = death {
                        observe::thread_died(&death);
                    }
                    return self.stop(Stopped::Badly);
                }
                recv(pet) -> _ => match self.pulses.iter().find_map(Pulse::stuck) {
                    None => signals::pet_watchdog(),
                    Some(thread) => observe::thread_stuck(thread),
                },
            }
        }
    }

    /// Takes over what can change while the daemon runs: principals, the sink's secrets, the operators' token.
    fn reload(&mut self, read: Result<Config, Problems>) {
        match read {
            Err(problems) => observe::reload_refused(&problems),
            Ok(new) => {
                let mut needs_restart = self.config.needs_restart(&new);
                // Whether anybody may call was judged by where the new file listens. This process listens where the old
                // one said, so what is closed does not open here.
                if new.principals.is_empty() && self.principals.are_configured() {
                    needs_restart.push("principals".to_owned());
                } else {
                    self.principals.replace(new.principals.clone());
                }
                if !self.admin_token.replace(new.admin.token.clone()) {
                    needs_restart.push("admin.token_file".to_owned());
                }
                self.relays.reload(new.sink.as_ref().map_or_else(Vec::new, |s| s.secrets.clone()));
                observe::reloaded(&needs_restart);
            }
        }
    }

    /// Stops in the direction of the flow, so that whatever was accepted is answered.
    fn stop(self, end: Stopped) -> Stopped {
        let deadline = Instant::now() + self.config.shutdown_timeout;
        signals::notify_stopping();
        self.readiness.stop();
        // Relays, pruner and prober begin to end; they have the whole time.
        drop(self.stop);
        // No new request is taken, and what was handed over is written and answered; then the answers go out.
        self.http.stop_accepting();
        let mut left = self.writers.drain(deadline);
        left.extend(self.http.join(deadline));
        left.extend(self.relays.join(deadline));
        left.extend(threads::join_all([self.pruner, self.prober, self.reader], deadline));
        // Last: it told of the stop all along.
        left.extend(self.admin.join(deadline));
        left.extend(threads::join_all([self.clerk], deadline));
        self.signals.close(deadline);
        observe::stopped(&left);
        if left.is_empty() { end } else { Stopped::Badly }
    }
}

fn open_store(config: &Config, operations: &[Arc<Operation>]) -> Result<Store, OpenError> {
    let operations = operations.to_vec();
    let install: Install = Box::new(move |client| {
        check_schema(client).map_err(schema_fault)?;
        once::install(client, &operations)
    });
    Store::open(&config.database, &config.writers, &config.relay, install)
}

/// A writer must not touch a schema that is not made for it, also where the database came up later than the daemon.
fn schema_fault(problem: SchemaProblem) -> Fault {
    if let SchemaProblem::Fault(fault) = problem {
        return fault;
    }
    Fault { kind: FaultKind::Overloaded, sqlstate: None, text: problem.to_string() }
}

/// Where the database answers, a schema or an operation that does not fit is found before anything is served.
fn check_database(store: &Store, operations: &[Operation]) -> Result<(), StartError> {
    let mut client: Client = match store.client(FIRST_CONNECTION) {
        Ok(client) => client,
        Err(fault) => return started_without(fault),
    };
    // Held beside the first, it shows a pooler that hands one session to two clients.
    let second = store.client(FIRST_CONNECTION).map_err(SchemaProblem::Fault);
    match second.and_then(|_| check_schema(&mut client)) {
        Err(SchemaProblem::Fault(fault)) => return started_without(fault),
        checked => checked?,
    }
    let problems = operations
        .iter()
        .filter_map(|operation| match describe(&mut client, operation) {
            Err(DescribeError::Problem(problem)) => Some(problem),
            Ok(_) | Err(DescribeError::Fault(_)) => None,
        })
        .collect::<Vec<_>>();
    if problems.is_empty() { Ok(()) } else { Err(StartError::Operations(problems)) }
}

/// A database that is away is waited for; what no waiting helps with is told at once.
fn started_without(fault: Fault) -> Result<(), StartError> {
    // A missing right, too, stays until a person grants it.
    if matches!(fault.kind, FaultKind::Unusable | FaultKind::Broken) {
        return Err(StartError::Unusable(fault));
    }
    observe::started_without_database(&fault);
    Ok(())
}

fn writer_needs(
    config: &Config,
    store: Store,
    operations: &[Arc<Operation>],
    bell: Sender<()>,
) -> WriterNeeds {
    WriterNeeds {
        breaks: count_breaks(&store),
        store,
        operations: operations.to_vec(),
        terms: terms(config),
        waiters_per_key: config.http.waiters_per_key,
        wait: config.http.wait,
        retention: config.retention.records,
        bell,
    }
}

fn count_breaks(store: &Store) -> writer::Breaks {
    let store = store.clone();
    Arc::new(move || store.breaks())
}

fn terms(config: &Config) -> Terms {
    Terms {
        max_events: config.writers.max_events,
        max_response: config.writers.max_response,
        tombstones: config.retention.tombstones.is_some(),
        refusal: problem::refusal_template(),
    }
}

fn http_limits(config: &Config) -> Limits {
    let http = &config.http;
    Limits {
        name: "http",
        threads: http.threads,
        max_body: http.max_body,
        read_timeout: http.read_timeout,
        write_timeout: http.write_timeout,
        keep_alive: http.keep_alive,
    }
}

/// The operators' listener has the callers' time limits; its bodies are small.
fn admin_limits(config: &Config) -> Limits {
    const MAX_BODY: usize = 64 * 1024;
    Limits {
        name: "admin",
        threads: config.admin.threads,
        max_body: MAX_BODY,
        ..http_limits(config)
    }
}

fn lines(problems: &[OperationProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
