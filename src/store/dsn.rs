//! The connection string: what of it the postgres crate does not know, and what is wrong with it, without quoting it.

use std::net::IpAddr;

use postgres::config::Host;

use super::fault::chain;
use super::tls;
use crate::config::Tls;

/// Checks a connection string without using it. The text of a problem never quotes the string, which holds a password.
pub fn check_dsn(dsn: &str) -> Result<(), String> {
    parse_dsn(dsn).map(drop)
}

/// The connection string without its `sslmode`, which the crate knows only in part, and that.
pub(super) fn parse_dsn(dsn: &str) -> Result<(postgres::Config, Option<String>), String> {
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
    let mode = pairs().rfind(is_mode).map(|pair| pair["sslmode=".len()..].to_owned());
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

/// Whether every host is loopback or a Unix socket.
pub(super) fn is_local(session: &postgres::Config) -> bool {
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
    fn only_loopback_and_sockets_are_local() {
        let local = |dsn: &str| is_local(&dsn.parse().unwrap());
        assert!(local("host=/run/postgresql"));
        assert!(local("host=localhost,127.0.0.5,::1"));
        assert!(local("host=db hostaddr=127.0.0.1"));
        assert!(!local("host=localhost,db"));
        assert!(!local("host=localhost hostaddr=192.0.2.1"));
    }
}
