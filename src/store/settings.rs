//! What a session is like: its settings, as options of the start-up packet, so that `RESET ALL` goes back to them; and
//! the check that they arrived, because a pooler may drop them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::config::{Host, SslMode, SslNegotiation};

use super::dsn::{is_local, parse_dsn};
use super::fault;
use super::tls;
use super::wire::{Connector, Negotiation, Patience};
use crate::config::{Database, Tls};
use crate::observe;
use crate::outcome::{Fault, FaultKind};

/// The oldest server that is served, as `server_version_num` says it.
const OLDEST_SERVER: u32 = 150_000;

/// The server ends a session that has a transaction open and says nothing for this long: what a daemon that was frozen
/// or cut off had locked is free again.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(10);

/// A connection that is unplugged is found out this way even where nothing is being sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// How long what was sent may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// A server that gave no answer this long after the timeout that should have ended the statement gives none any more.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of a new session, and whether it is one: see [`TAKE_SESSION`].
pub(super) const SESSION_SETTINGS: &str = "\
SELECT name, setting
FROM pg_settings
WHERE name = ANY ($1)
UNION ALL
SELECT 'onced.session', current_setting('onced.session', true)";

/// Marks a session as somebody's. One that is marked when it is new is handed around by a pooler, and what is made in
/// it, as our functions are, would be gone or somebody else's with the next transaction.
const TAKE_SESSION: &str = "SET onced.session = 'taken'";

/// No limits: what RESET ALL goes back to may have some, where a pooler is in between.
pub(super) const UNLIMITED: &str = "SET statement_timeout = 0; SET lock_timeout = 0";

/// Limits of a session's statements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// `statement_timeout`.
    pub(super) statement: Duration,
    /// `lock_timeout`.
    pub(super) lock: Duration,
}

/// How sessions are made. Made once, from the configuration, without I/O but for certificates.
#[derive(Clone)]
pub(super) struct Recipe {
    session: postgres::Config,
    connector: Connector,
    settings: Vec<(&'static str, String)>,
    /// What is set by statement. Start-up options that differ from pool to pool could not be set for a role, which is
    /// the way behind a pooler.
    set: String,
    /// How long the server may be silent by default.
    pub(super) silence: Duration,
    /// Whether `synchronous_commit` was found too low: a role or a database has it so.
    raise_commit: Arc<AtomicBool>,
}

/// A new session and the means to say how long its server may be silent.
pub(super) struct Made {
    pub(super) client: postgres::Client,
    pub(super) patience: Patience,
}

impl Recipe {
    /// Sessions with these limits, which RESET ALL goes back to; or with none.
    pub(super) fn new(database: &Database, limits: Option<Limits>) -> Result<Recipe, String> {
        let (mut session, sslmode) = parse_dsn(database.url.reveal())?;
        let mode = tls::mode(database.tls, sslmode.as_deref(), is_local(&session))?;
        let direct = session.get_ssl_negotiation() == SslNegotiation::Direct;
        let negotiation = if direct { Negotiation::Direct } else { Negotiation::Asked };
        let tls = tls::connector(mode, database.ca_file.as_deref(), direct)?
            .map(|connector| (connector, negotiation));
        take_over_the_stream(&mut session, mode)?;
        let connect_timeout =
            session.get_connect_timeout().copied().unwrap_or(database.connect_timeout);
        session.connect_timeout(connect_timeout);
        if session.get_application_name().is_none() {
            session.application_name("onced");
        }
        bound_silence(&mut session);
        // The crate's own callback logs every notice: an operation may raise any number of them.
        session.notice_callback(|_| {});
        let patience = Patience::new(connect_timeout);
        let connector = Connector { tls, handshake: connect_timeout, patience };
        let settings = settings(&database.schema, limits);
        let set = if limits.is_some() { "" } else { UNLIMITED }.to_owned();
        let silence = limits.map_or(Duration::MAX, |limits| limits.statement + GRACE);
        Ok(Recipe { session, connector, settings, set, silence, raise_commit: Arc::default() })
    }

    /// The same with another `statement_timeout`, which RESET ALL undoes.
    pub(super) fn with_statement_timeout(&self, limit: Duration) -> Recipe {
        let set = format!("SET statement_timeout = {}", limit.as_millis());
        Recipe { set, silence: limit + GRACE, ..self.clone() }
    }

    /// Connects and checks that the settings arrived.
    pub(super) fn connect(&self) -> Result<Made, Fault> {
        let raise = self.raise_commit.load(Ordering::Relaxed);
        let (made, lower) = self.connect_with(raise)?;
        let Some(lower) = lower else { return Ok(made) };
        if !self.raise_commit.swap(true, Ordering::Relaxed) {
            observe::synchronous_commit_raised(&lower);
        }
        // SET would be undone by the first RESET ALL, so the session is made again, when this one is gone.
        drop(made);
        Ok(self.connect_with(true)?.0)
    }

    /// Also returns `synchronous_commit` where it is lower than what keeps an answer that was given.
    fn connect_with(&self, raise_commit: bool) -> Result<(Made, Option<String>), Fault> {
        let mut settings = self.settings.clone();
        if raise_commit {
            settings.push(("synchronous_commit", "on".to_owned()));
        }
        let mut session = self.session.clone();
        let options = options(session.get_options(), &settings);
        session.options(&options);
        let patience = Patience::new(self.connector.handshake);
        let connector = Connector { patience: patience.clone(), ..self.connector.clone() };
        let mut client =
            session.connect(connector).map_err(|error| connect_fault(&self.session, &error))?;
        let lower = check_arrived(&mut client, &settings)?;
        let set = format!("{TAKE_SESSION}; {}", self.set);
        client.batch_execute(&set).map_err(|error| fault::classify_connect(&error))?;
        patience.set(self.silence);
        Ok((Made { client, patience }, lower))
    }
}

/// The settings that every session has, each with its reason.
fn settings(schema: &str, limits: Option<Limits>) -> Vec<(&'static str, String)> {
    let millis = |limit: Duration| limit.as_millis().to_string();
    let limits = limits.map(|limits| {
        [("statement_timeout", millis(limits.statement)), ("lock_timeout", millis(limits.lock))]
    });
    let mut settings = vec![
        // pg_temp last: else a temporary table that an operation left would hide a real one.
        ("search_path", format!("{}, pg_temp", quote_identifier(schema))),
        ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION)),
        // The claim of a key relies on it: under a higher level a duplicate gets an error in place of the record.
        ("default_transaction_isolation", "read committed".to_owned()),
        // How values look as text must not depend on the role: what was answered once is answered again, byte for byte.
        ("DateStyle", "ISO, MDY".to_owned()),
        ("TimeZone", "UTC".to_owned()),
        ("IntervalStyle", "postgres".to_owned()),
        ("extra_float_digits", "1".to_owned()),
        ("bytea_output", "hex".to_owned()),
        ("standard_conforming_strings", "on".to_owned()),
        // Our statements touch a few rows: compiling one takes longer than running it, however the planner errs.
        ("jit", "off".to_owned()),
        // Nobody reads an operation's chatter, and there may be any amount of it.
        ("client_min_messages", "error".to_owned()),
    ];
    settings.extend(limits.into_iter().flatten());
    settings
}

/// The start-up packet's `options`: the user's own first, so that ours win.
fn options(own: Option<&str>, settings: &[(&'static str, String)]) -> String {
    settings.iter().fold(own.unwrap_or_default().to_owned(), |options, (name, value)| {
        let gap = if options.is_empty() { "" } else { " " };
        let value: String = value
            .chars()
            .flat_map(|c| {
                let escape = (c.is_whitespace() || c == '\\').then_some('\\');
                escape.into_iter().chain([c])
            })
            .collect();
        format!("{options}{gap}-c {name}={value}")
    })
}

/// A name as an identifier of SQL.
pub(super) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Lets our connector have the whole connection: see [`Connector`]. A Unix socket it cannot have, and the kernel tells
/// when a process at its other end is gone.
fn take_over_the_stream(session: &mut postgres::Config, mode: Tls) -> Result<(), String> {
    let has_socket = session.get_hosts().iter().any(|host| matches!(host, Host::Unix(_)));
    let all_sockets = session.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
    if has_socket {
        if mode != Tls::Off {
            return Err("there is no TLS over a Unix socket: set database.tls = \"off\"".to_owned());
        }
        if !all_sockets {
            return Err("it mixes Unix sockets with other hosts".to_owned());
        }
        session.ssl_mode(SslMode::Disable);
        return Ok(());
    }
    if session.get_hosts().is_empty() {
        // The name that a certificate is checked against.
        for address in session.get_hostaddrs().to_vec() {
            session.host(&address.to_string());
        }
    }
    session.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
    Ok(())
}

fn bound_silence(session: &mut postgres::Config) {
    session
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_RETRIES);
    if session.get_tcp_user_timeout().is_none() {
        session.tcp_user_timeout(UNACKNOWLEDGED);
    }
}

fn connect_fault(session: &postgres::Config, error: &postgres::Error) -> Fault {
    let mut fault = fault::classify_connect(error);
    fault.text = format!("{}: {}", destination(session), fault.text);
    if fault.text.contains("unsupported startup parameter") {
        fault.kind = FaultKind::Unusable;
        fault.text.push_str(
            "; a pooler in front of PostgreSQL refuses the session's settings: connect to PostgreSQL \
             directly, or let PgBouncer ignore them (ignore_startup_parameters = options) and pool by \
             session, and set them for the role; onced then says which",
        );
    }
    fault
}

/// Where a connection was to go, for a person who has several databases.
fn destination(session: &postgres::Config) -> String {
    let ports = session.get_ports();
    let host = |(place, host): (usize, &Host)| {
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(folder) => format!("{} (port {port})", folder.display()),
        }
    };
    let hosts = session.get_hosts().iter().enumerate().map(host).collect::<Vec<_>>().join(", ");
    let database = session.get_dbname().or(session.get_user()).unwrap_or("not named");
    format!("{hosts}, database {database}, user {}", session.get_user().unwrap_or("not named"))
}

/// Asks the session for its settings. Returns `synchronous_commit` where it is too low.
fn check_arrived(
    client: &mut postgres::Client,
    settings: &[(&'static str, String)],
) -> Result<Option<String>, Fault> {
    let mut names: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
    names.extend(["server_version_num", "server_version", "synchronous_commit"]);
    let rows = client
        .query(SESSION_SETTINGS, &[&names])
        .map_err(|error| fault::classify_connect(&error))?;
    let found: Vec<(&str, Option<&str>)> =
        rows.iter().map(|row| (row.get("name"), row.get("setting"))).collect();
    let value_of = |name: &str| {
        let value = found.iter().find(|(found, _)| *found == name);
        value.and_then(|(_, value)| *value).unwrap_or_default()
    };
    if !value_of("onced.session").is_empty() {
        return Err(unusable(
            "a pooler stands in front of PostgreSQL and gives one session to several connections: pool by session \
             (PgBouncer: pool_mode = session, server_reset_query = DISCARD ALL), or connect to PostgreSQL directly"
                .to_owned(),
        ));
    }
    let version: u32 = value_of("server_version_num").parse().unwrap_or_default();
    if version < OLDEST_SERVER {
        let version = value_of("server_version");
        return Err(unusable(format!("PostgreSQL {version} is too old: 15 or later is needed")));
    }
    let lost: Vec<_> = settings
        .iter()
        .filter(|(name, value)| !is_same(name, value, value_of(name)))
        .map(|(name, value)| (*name, value.as_str(), value_of(name)))
        .collect();
    if !lost.is_empty() {
        return Err(unusable(lost_text(&lost)));
    }
    let commit = value_of("synchronous_commit");
    Ok((!matches!(commit, "on" | "remote_apply")).then(|| commit.to_owned()))
}

/// Whether a setting arrived. One that is set for a role has only the quotes that its names need.
fn is_same(name: &str, wanted: &str, found: &str) -> bool {
    let bare = |list: &str| list.replace(['"', ' '], "");
    found == wanted || (name == "search_path" && bare(found) == bare(wanted))
}

fn lost_text(lost: &[(&str, &str, &str)]) -> String {
    let found: Vec<String> =
        lost.iter().map(|(name, _, found)| format!("{name} is {found:?}")).collect();
    let remedy: Vec<String> = lost
        .iter()
        .map(|(name, wanted, _)| {
            // Lists are written as they are, all else as a string.
            let value =
                if *name == "search_path" { (*wanted).to_owned() } else { format!("'{wanted}'") };
            format!("ALTER ROLE CURRENT_USER SET {name} = {value};")
        })
        .collect();
    format!(
        "the session's settings did not arrive ({}): a pooler stands in front of PostgreSQL and drops them. \
         Connect to PostgreSQL directly, or pool by session, set them for the role and let the pooler make its \
         connections anew (PgBouncer: RECONNECT): {}",
        found.join(", "),
        remedy.join(" ")
    )
}

fn unusable(text: String) -> Fault {
    Fault { kind: FaultKind::Unusable, sqlstate: None, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_escaped_and_come_after_the_users_own() {
        let settings = [("search_path", "\"my \\schema\", pg_temp".to_owned())];
        assert_eq!(
            options(Some("-c work_mem=8MB"), &settings),
            "-c work_mem=8MB -c search_path=\"my\\ \\\\schema\",\\ pg_temp"
        );
        assert_eq!(quote_identifier("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn what_a_pooler_dropped_is_named_with_the_statement_that_sets_it_for_the_role() {
        let lost = [("search_path", "\"s\", pg_temp", "public"), ("lock_timeout", "2000", "0")];
        let text = lost_text(&lost);
        assert!(text.contains("search_path is \"public\", lock_timeout is \"0\""), "{text}");
        assert!(text.contains("SET search_path = \"s\", pg_temp;"), "{text}");
        assert!(text.contains("SET lock_timeout = '2000';"), "{text}");
    }
}
