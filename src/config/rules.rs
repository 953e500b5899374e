//! What must hold between keys, and what is allowed but worth a word at start.

use std::collections::BTreeMap;

use super::address::{is_loopback, is_public};
use super::kind::duration_text;
use super::parse::{collide, is_local, literal_address};
use super::reader::Reader;
use super::{Config, Sink};

/// Notes every breach of a rule, and every warning.
pub(super) fn apply(config: &Config, reader: &mut Reader) {
    listeners(config, reader);
    principals(config, reader);
    operations(config, reader);
    times(config, reader);
    match &config.sink {
        Some(sink) => sink_rules(config, sink, reader),
        None => reader.warn("no [sink]: events stay in the outbox until there is one".to_owned()),
    }
    retention(config, reader);
}

fn listeners(config: &Config, reader: &mut Reader) {
    if reader.are_sound(&["http.listen", "admin.listen"])
        && collide(&config.http.listen, &config.admin.listen)
    {
        let message = "http.listen is the same; callers and operators need one each".to_owned();
        reader.problem("admin.listen", message);
    }
    if reader.are_sound(&["admin.listen", "admin.token_file"])
        && !is_local(&config.admin.listen)
        && config.admin.token.is_none()
    {
        let message = "not known to be reachable from this machine only, so admin.token_file \
                       must be set; `onced token new` makes a token"
            .to_owned();
        reader.problem("admin.listen", message);
    }
    let is_anonymous = config.principals.is_empty() && !reader.is_given("principals");
    if !reader.are_sound(&["http.listen", "http.allow_anonymous"]) {
        return;
    }
    let is_open = is_anonymous && !is_local(&config.http.listen);
    match config.http.allow_anonymous {
        true if !is_anonymous => {
            let message = "true, while there are [[principals]]; keep one of them".to_owned();
            reader.problem("http.allow_anonymous", message);
        }
        true if is_open => reader.warn(
            "http.allow_anonymous: whoever reaches http.listen may call every operation".to_owned(),
        ),
        false if is_open => {
            let message = "not known to be reachable from this machine only, and there are no \
                           [[principals]]; add one, listen on 127.0.0.1 or a Unix socket, or set \
                           allow_anonymous = true"
                .to_owned();
            reader.problem("http.listen", message);
        }
        true | false => {}
    }
}

fn principals(config: &Config, reader: &mut Reader) {
    let mut names = BTreeMap::new();
    let mut hashes = BTreeMap::new();
    for (position, principal) in config.principals.iter().enumerate() {
        let path = format!("principals[{position}]");
        if let Some(first) = names.insert(&principal.name, position)
            && !principal.name.is_empty()
        {
            let message = format!("{:?} is also the name of principals[{first}]", principal.name);
            reader.problem(&format!("{path}.name"), message);
        }
        for (at, hash) in principal.token_sha256.iter().enumerate() {
            if let Some(first) = hashes.insert(hash, position) {
                let message = format!("item {at} is also a token of principals[{first}]");
                reader.problem(&format!("{path}.token_sha256"), message);
            }
        }
        for name in principal.operations.iter().flatten() {
            let is_known = config.operations.iter().any(|operation| operation.name == *name);
            if !is_known {
                let message = format!("there is no operation {name:?}{}", known(config));
                reader.problem(&format!("{path}.operations"), message);
            }
        }
    }
}

fn known(config: &Config) -> String {
    let names: Vec<&str> = config.operations.iter().map(|known| known.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("; there are: {}", names.join(", ")) }
}

fn operations(config: &Config, reader: &mut Reader) {
    let wait = config.http.wait;
    let mut routes = BTreeMap::new();
    for operation in &config.operations {
        let path = format!("operations.{}", operation.name);
        if let Some(first) = routes.insert(&operation.route, &operation.name) {
            let message = format!("{} is also the route of operations.{first}", operation.route);
            reader.problem(&format!("{path}.route"), message);
        }
        if let Some(timeout) = operation.timeout.filter(|timeout| *timeout > wait)
            && reader.are_sound(&["http.wait"])
        {
            let (timeout, wait) = (duration_text(timeout), duration_text(wait));
            let message = format!(
                "{timeout} is longer than http.wait, {wait}: a caller would be gone before its \
                 write ends"
            );
            reader.problem(&format!("{path}.timeout"), message);
        }
    }
    if config.operations.is_empty() {
        reader.warn("no [operations.NAME]: there is nothing to call".to_owned());
    }
}

fn times(config: &Config, reader: &mut Reader) {
    let (writers, relay, http) = (&config.writers, &config.relay, &config.http);
    let told = |key: &str, value| format!("{key} ({})", duration_text(value));
    if relay.backoff_min > relay.backoff_max
        && reader.are_sound(&["relay.backoff_min", "relay.backoff_max"])
    {
        let message = format!(
            "{} is longer than {}",
            duration_text(relay.backoff_min),
            told("relay.backoff_max", relay.backoff_max)
        );
        reader.problem("relay.backoff_min", message);
    }
    if writers.statement_timeout > http.wait {
        reader.warn(format!(
            "{} is longer than {}: a caller may be told to come again while its write still runs",
            told("writers.statement_timeout", writers.statement_timeout),
            told("http.wait", http.wait)
        ));
    }
    if writers.lock_timeout > writers.statement_timeout {
        reader.warn(format!(
            "{} is longer than {}, which ends a wait for a lock first",
            told("writers.lock_timeout", writers.lock_timeout),
            told("writers.statement_timeout", writers.statement_timeout)
        ));
    }
    if config.shutdown_timeout < http.wait {
        reader.warn(format!(
            "{} is shorter than {}: a stop may cut off calls that were accepted",
            told("shutdown_timeout", config.shutdown_timeout),
            told("http.wait", http.wait)
        ));
    }
}

fn sink_rules(config: &Config, sink: &Sink, reader: &mut Reader) {
    let (lease, timeout) = (config.relay.lease, sink.timeout);
    if lease < timeout * 2 && reader.are_sound(&["relay.lease", "sink.timeout"]) {
        let (lease, timeout) = (duration_text(lease), duration_text(timeout));
        let why = "an attempt is begun only while the lease has more than that left, so too \
                   little of a batch would be sent";
        if reader.is_given("sink.timeout") && !reader.is_given("relay.lease") {
            let message = format!("{timeout} is more than half of relay.lease ({lease}): {why}");
            reader.problem("sink.timeout", message);
        } else {
            let message = format!("{lease} is less than twice sink.timeout ({timeout}): {why}");
            reader.problem("relay.lease", message);
        }
    }
    if config.shutdown_timeout < timeout {
        reader.warn(format!(
            "shutdown_timeout ({}) is shorter than sink.timeout ({}): a stop may cut off an \
             attempt, which is made again after the next start",
            duration_text(config.shutdown_timeout),
            duration_text(timeout)
        ));
    }
    if !reader.are_sound(&["sink.url"]) {
        return;
    }
    let address = literal_address(&sink.url);
    let is_this_machine = address.is_some_and(is_loopback);
    let host = sink.url.host_str().unwrap_or_default();
    if address.is_some_and(|address| !is_public(address))
        && !sink.allow_private
        && reader.are_sound(&["sink.allow_private"])
    {
        let message = format!(
            "{host} is not an address of the public Internet; if that is meant, set \
             allow_private = true"
        );
        reader.problem("sink.url", message);
    }
    if sink.secrets.is_empty() && reader.are_sound(&["sink.secret_files"]) {
        if is_this_machine {
            reader.warn("sink.secret_files is empty: events are not signed".to_owned());
        } else {
            let message = "missing; a sink on another machine must be able to tell our events \
                           from others', so name at least one file with a secret (whsec_…)"
                .to_owned();
            reader.problem("sink.secret_files", message);
        }
    }
    let distinct = |(at, secret): (usize, _)| !sink.secrets[..at].contains(secret);
    if !sink.secrets.iter().enumerate().all(distinct) {
        reader.warn("sink.secret_files names the same secret twice".to_owned());
    }
    if sink.url.scheme() == "http" && !is_this_machine {
        reader.warn(format!("sink.url is http: events travel to {host} in clear text"));
    }
}

fn retention(config: &Config, reader: &mut Reader) {
    let retention = &config.retention;
    let give_up_after = config.relay.give_up_after;
    if let Some(records) = retention.records.filter(|records| *records < give_up_after) {
        reader.warn(format!(
            "retention.records ({}) is shorter than relay.give_up_after ({}): a key may count as \
             new while callers, or the sink, still retry what came of it",
            duration_text(records),
            duration_text(give_up_after)
        ));
    }
    if retention.records.is_none() && retention.tombstones.is_some() {
        let message = "retention.tombstones has no effect: records are never purged".to_owned();
        reader.warn(message);
    }
    if let Some(dead) = retention.dead {
        reader.warn(format!(
            "retention.dead ({}): dead events go after that time; until somebody decides about \
             them, they are the only trace of what was not delivered",
            duration_text(dead)
        ));
    }
}
