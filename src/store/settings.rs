//! What a session is like: its settings, as options of the start-up packet, so that `RESET ALL` goes back to them; and
//! the check that they arrived, because a pooler may drop them.

use std::net::IpAddr;
use std::time::Duration;

use postgres::config::{Host, SslMode, SslNegotiation};

use super::fault::{self, chain};
use super::tls;
use super::wire::{Connector, Negotiation, Patience};
use crate::config::{Database, Tls};
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

/// The settings of a new session.
pub(super) const SESSION_SETTINGS: &str = "\
SELECT name, setting
FROM pg_settings
WHERE name = ANY ($1)";

/// Limits of a session's statements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// `statement_timeout`; `None` for none.
    pub(super) statement: Option<Duration>,
    /// `lock_timeout`; `None` for none.
    pub(super) lock: Option<Duration>,
}

/// How sessions are made. Made once, from the configuration, without I/O but for certificates.
#[derive(Clone)]
pub(super) struct Recipe {
    session: postgres::Config,
    connector: Connector,
    settings: Vec<(&'static str, String)>,
    limits: Limits,
}

/// A new session and the means to say how long its server may be silent.
pub(super) struct Made {
    pub(super) client: postgres::Client,
    pub(super) patience: Patience,
    /// What `synchronous_commit` would have been, where it had to be raised.
    pub(super) raised_from: Option<String>,
}

/// Checks a connection string without using it. The text of a problem never quotes the string, which holds a password.
pub fn check_dsn(dsn: &str) -> Result<(), String> {
    parse_dsn(dsn).map(drop)
}

impl Recipe {
    pub(super) fn new(database: &Database, limits: Limits) -> Result<Recipe, String> {
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
        Ok(Recipe { session, connector, settings, limits })
    }

    /// Connects and checks that the settings arrived.
    pub(super) fn connect(&self) -> Result<Made, Fault> {
        let made = self.connect_with(&self.settings)?;
        let Some(lower) = made.raised_from else { return Ok(made) };
        // SET would be undone by the first RESET ALL, so the session is made again.
        let mut settings = self.settings.clone();
        settings.push(("synchronous_commit", "on".to_owned()));
        let made = self.connect_with(&settings)?;
        Ok(Made { raised_from: Some(lower), ..made })
    }

    fn connect_with(&self, settings: &[(&'static str, String)]) -> Result<Made, Fault> {
        let mut session = self.session.clone();
        let options = options(session.get_options(), settings);
        session.options(&options);
        let starting = session.get_connect_timeout().copied().unwrap_or(GRACE);
        let connector = Connector { patience: Patience::new(starting), ..self.connector.clone() };
        let patience = connector.patience.clone();
        let mut client = session.connect(connector).map_err(|error| connect_fault(&error))?;
        let raised_from = check_arrived(&mut client, settings)?;
        patience.set(self.patience());
        Ok(Made { client, patience, raised_from })
    }

    /// How long the server may be silent by default.
    pub(super) fn patience(&self) -> Duration {
        self.limits.statement.map_or(Duration::MAX, |limit| limit + GRACE)
    }
}

impl Limits {
    /// None at all: for migrations, which take what they take.
    pub(super) const NONE: Limits = Limits { statement: None, lock: None };
}

/// The settings that every session has, each with its reason.
fn settings(schema: &str, limits: Limits) -> Vec<(&'static str, String)> {
    let millis = |limit: Option<Duration>| limit.map_or(0, |limit| limit.as_millis()).to_string();
    vec![
        // pg_temp last: else a temporary table that an operation left would hide a real one.
        ("search_path", format!("{}, pg_temp", quote_identifier(schema))),
        ("statement_timeout", millis(limits.statement)),
        ("lock_timeout", millis(limits.lock)),
        ("idle_in_transaction_session_timeout", millis(Some(IDLE_IN_TRANSACTION))),
        // The claim of a key relies on it: under a higher level a duplicate gets an error in place of the record.
        ("default_transaction_isolation", "read committed".to_owned()),
        // How values look as text must not depend on the role: what was answered once is answered again, byte for byte.
        ("DateStyle", "ISO".to_owned()),
        ("TimeZone", "UTC".to_owned()),
        ("IntervalStyle", "postgres".to_owned()),
        ("extra_float_digits", "1".to_owned()),
        ("bytea_output", "hex".to_owned()),
        ("standard_conforming_strings", "on".to_owned()),
        // Our statements touch a few rows: compiling one takes longer than running it, however the planner errs.
        ("jit", "off".to_owned()),
        // Nobody reads an operation's chatter, and there may be any amount of it.
        ("client_min_messages", "error".to_owned()),
    ]
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

fn is_local(session: &postgres::Config) -> bool {
    let addresses = session.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    session.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
    })
}

fn connect_fault(error: &postgres::Error) -> Fault {
    let mut fault = fault::classify_connect(error);
    if fault.text.contains("unsupported startup parameter") {
        fault.text.push_str(
            "; a pooler in front of PostgreSQL refuses the session's settings: connect to PostgreSQL \
             directly, or let PgBouncer ignore them (ignore_startup_parameters = options) and pool by \
             session, and set them for the role; onced then says which",
        );
    }
    fault
}

/// Asks the session for its settings. Returns `synchronous_commit` where it is lower than a promise to keep what was
/// answered allows.
fn check_arrived(
    client: &mut postgres::Client,
    settings: &[(&'static str, String)],
) -> Result<Option<String>, Fault> {
    let mut names: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
    names.extend(["server_version_num", "server_version", "synchronous_commit"]);
    let rows = client
        .query(SESSION_SETTINGS, &[&names])
        .map_err(|error| fault::classify_connect(&error))?;
    let found: Vec<(String, String)> =
        rows.iter().map(|row| (row.get("name"), row.get("setting"))).collect();
    let value_of = |name: &str| {
        let value = found.iter().find(|(found, _)| found == name);
        value.map_or("", |(_, value)| value.as_str())
    };
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

/// Whether a setting arrived. The server adds the order of day and month, which is left to the role.
fn is_same(name: &str, wanted: &str, found: &str) -> bool {
    found == wanted || (name == "DateStyle" && found.starts_with("ISO,"))
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
         Connect to PostgreSQL directly, or pool by session and set them for the role: {}",
        found.join(", "),
        remedy.join(" ")
    )
}

fn unusable(text: String) -> Fault {
    Fault { kind: FaultKind::Unreachable, sqlstate: None, text }
}

/// The connection string without its `sslmode`, which the crate knows only in part, and that.
fn parse_dsn(dsn: &str) -> Result<(postgres::Config, Option<String>), String> {
    let (rest, sslmode) = take_sslmode(dsn);
    let session: postgres::Config = rest.parse().map_err(|error| dsn_problem(&error))?;
    if session.get_hosts().is_empty() && session.get_hostaddrs().is_empty() {
        return Err("it names no host".to_owned());
    }
    // Problems of the mode itself do not depend on the rest of the configuration.
    tls::mode(Tls::Auto, sslmode.as_deref(), true)?;
    Ok((session, sslmode))
}

/// Options of libpq that people have in their connection strings, and what to do here.
const UNKNOWN_OPTIONS: [(&str, &str); 8] = [
    ("sslrootcert", "name the certificates in database.ca_file"),
    ("sslcert", "client certificates are not supported"),
    ("sslkey", "client certificates are not supported"),
    ("keepalives_count", "its name is keepalives_retries here"),
    ("passfile", "put the password into the string, and the string into database.url_file"),
    ("service", "write the service's parameters into the string"),
    ("gssencmode", "leave it out"),
    ("fallback_application_name", "use application_name"),
];

/// What is wrong with a connection string, without quoting it: what looks like an option's name may be half a password.
fn dsn_problem(error: &postgres::Error) -> String {
    let text = chain(error);
    let unknown = UNKNOWN_OPTIONS.iter().find(|(name, _)| text.contains(&format!("`{name}`")));
    if let Some((name, remedy)) = unknown {
        return format!("the option {name} is not known: {remedy}");
    }
    let invalid = ["connect_timeout", "port", "sslnegotiation", "target_session_attrs", "hostaddr"]
        .into_iter()
        .find(|name| text.contains(&format!("invalid value for option `{name}`")));
    match invalid {
        Some(name) => format!("the value of {name} is not valid"),
        None => "it is neither postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE nor \
                 host=… user=… dbname=…; special characters in a part of a URL are written as %XX, and \
                 a value with spaces in quotes"
            .to_owned(),
    }
}

fn take_sslmode(dsn: &str) -> (String, Option<String>) {
    if dsn.starts_with("postgres://") || dsn.starts_with("postgresql://") {
        take_from_url(dsn)
    } else {
        take_from_pairs(dsn)
    }
}

fn take_from_url(dsn: &str) -> (String, Option<String>) {
    // A question mark before the first at sign belongs to the password.
    let after_user = dsn.find('@').unwrap_or_default();
    let Some(question) = dsn[after_user..].find('?').map(|at| after_user + at) else {
        return (dsn.to_owned(), None);
    };
    let is_mode = |pair: &&str| pair.starts_with("sslmode=");
    let pairs = || dsn[question + 1..].split('&');
    let mode = pairs().filter(is_mode).next_back().map(|pair| pair["sslmode=".len()..].to_owned());
    let others: Vec<&str> = pairs().filter(|pair| !is_mode(pair)).collect();
    let base = &dsn[..question];
    let rest =
        if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
    (rest, mode)
}

fn take_from_pairs(dsn: &str) -> (String, Option<String>) {
    let (mut rest, mut mode) = (String::new(), None);
    let mut left = dsn;
    while let Some((pair, after)) = split_pair(left) {
        match pair.split_once('=') {
            Some((name, value)) if name.trim() == "sslmode" => {
                mode = Some(value.trim().trim_matches('\'').to_owned());
            }
            Some(_) | None => rest.push_str(pair),
        }
        left = after;
    }
    rest.push_str(left);
    (rest, mode)
}

/// Splits the first `name = value` off, with the blanks before it. A value ends at a blank outside its quotes; a
/// backslash takes the next character with it.
fn split_pair(text: &str) -> Option<(&str, &str)> {
    let equals = text.find('=')?;
    let value = &text[equals + 1..];
    let start = value.len() - value.trim_start().len();
    let (mut quoted, mut escaped) = (false, false);
    let end = value[start..]
        .char_indices()
        .find(|(_, c)| {
            let was_escaped = escaped;
            escaped = *c == '\\' && !was_escaped;
            if *c == '\'' && !was_escaped {
                quoted = !quoted;
            }
            c.is_whitespace() && !quoted && !was_escaped
        })
        .map_or(text.len(), |(at, _)| equals + 1 + start + at);
    Some(text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_taken_out_of_both_kinds_of_strings() {
        let table = [
            ("postgresql://u:p?w@h/d?sslmode=verify-full", "postgresql://u:p?w@h/d", "verify-full"),
            (
                "postgres://h/d?application_name=x&sslmode=require&connect_timeout=3",
                "postgres://h/d?application_name=x&connect_timeout=3",
                "require",
            ),
            ("postgresql://u@h/d?options=-c%20a=b", "postgresql://u@h/d?options=-c%20a=b", ""),
            ("host=h sslmode=verify-full user=u", "host=h user=u", "verify-full"),
            (
                "host=h password='a b\\' sslmode=x' user=u",
                "host=h password='a b\\' sslmode=x' user=u",
                "",
            ),
            ("host = h sslmode = 'disable'", "host = h", "disable"),
            ("nonsense", "nonsense", ""),
        ];
        for (dsn, rest, mode) in table {
            assert_eq!(
                take_sslmode(dsn),
                (rest.to_owned(), (!mode.is_empty()).then(|| mode.to_owned()))
            );
        }
    }

    #[test]
    fn a_wrong_string_is_refused_without_quoting_it() {
        let table = [
            ("postgresql://u:hunter2@h:port/d", "value of port"),
            ("host=h password=hun ter2 hunter2=1", "neither"),
            ("host=h hunter2=1", "neither"),
            ("postgresql://u:hunter2@h/d?sslrootcert=/x", "database.ca_file"),
            ("postgresql://u:hunter2@h/d?sslmode=prefer", "clear text"),
            ("host=h password=hunter2 connect_timeout=soon", "connect_timeout"),
            ("user=u password=hunter2", "no host"),
            ("", "no host"),
        ];
        for (dsn, word) in table {
            let problem = check_dsn(dsn).unwrap_err();
            assert!(problem.contains(word) && !problem.contains("hunter2"), "{dsn}: {problem}");
        }
        for dsn in ["postgresql://u:p@h:5433/d?sslmode=verify-full", "host=/tmp user=u"] {
            assert_eq!(check_dsn(dsn), Ok(()));
        }
    }

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
    fn only_loopback_and_sockets_are_local() {
        let local = |dsn: &str| is_local(&dsn.parse().unwrap());
        assert!(local("host=/run/postgresql"));
        assert!(local("host=localhost,127.0.0.5,::1"));
        assert!(local("host=db hostaddr=127.0.0.1"));
        assert!(!local("host=localhost,db"));
        assert!(!local("host=localhost hostaddr=192.0.2.1"));
    }
}
