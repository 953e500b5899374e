//! From the file to the checked types: every key with its default and its bounds, one line each.

use std::path::{Path, PathBuf};

use url::Url;

use super::files::{self, certificates, signing_secret, token};
use super::kind::{
    Kind, count, duration, duration_or, flag, list, number, secret, size, text, word,
};
use super::problem::{Place, Problem, Problems};
use super::raw::{Document, Environment, quoted};
use super::reader::Reader;
use super::section::Section;
use super::{
    Admin, Config, Database, Http, Log, LogFormat, OnDead, Principal, Relay, Retention, Secret,
    Sink, Tls, Writers, parse, rules,
};
use crate::operations::{Operation, Script};

impl Config {
    /// Reads and checks a configuration file, with what the environment overrides.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn load(file: &Path, environment: &Environment) -> Result<Config, Problems> {
        let text = files::text_or_empty(file, files::LONGEST_TEXT).map_err(|message| {
            let place = Place::File(file.to_owned());
            Problems(vec![Problem { place, key: String::new(), message }])
        })?;
        Config::parse(file, &text, environment)
    }

    /// Checks the text of a configuration file; `file` is its path, against whose folder others are read.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn parse(file: &Path, text: &str, environment: &Environment) -> Result<Config, Problems> {
        let mut reader = Reader::new(Document::parse(file, text), environment.clone());
        let mut config = read(file, &mut reader);
        // Where the file is no TOML, what a rule misses may only be unreadable.
        if reader.is_toml {
            rules::apply(&config, &mut reader);
        }
        let finished = reader.finish()?;
        config.settings = finished.settings;
        config.warnings = finished.warnings;
        Ok(config)
    }
}

/// Reads every key. What is wrong is noted by the reader, and something harmless put in its place.
pub(super) fn read(file: &Path, reader: &mut Reader) -> Config {
    let folder = file.parent().unwrap_or(Path::new(""));
    Config {
        file: file.to_owned(),
        shutdown_timeout: reader
            .top(|top| top.value("shutdown_timeout", "30s", duration("1s", "1h"))),
        http: reader.section("http", http),
        admin: reader.section("admin", |section| admin(section, folder)),
        database: reader.section("database", |section| database(section, folder)),
        writers: reader.section("writers", writers),
        relay: reader.section("relay", relay),
        sink: reader.section_if_there("sink", |section| sink(section, folder)),
        retention: reader.section("retention", retention),
        log: reader.section("log", log),
        principals: reader.array("principals", 10_000, principal),
        operations: reader
            .named("operations", 1_000, |section, name| operation(section, name, folder)),
        warnings: Vec::new(),
        settings: Vec::new(),
    }
}

/// The kind of a file that `load` takes, by a path against `folder`.
fn file<'a, T: 'a>(
    folder: &'a Path,
    allowed: &str,
    load: impl Fn(&Path) -> Result<T, String> + 'a,
) -> Kind<'a, T> {
    text(allowed, move |path| {
        if path.is_empty() { Err("the path is empty".to_owned()) } else { load(&folder.join(path)) }
    })
}

fn certificate_file(folder: &Path) -> Kind<'_, PathBuf> {
    file(folder, "a file of PEM certificates", |path| certificates(path).map(|()| path.to_owned()))
}

fn hosts<'a>() -> Kind<'a, Vec<String>> {
    list(text("a host name or address without a port", parse::host), 0, 100)
}

fn http(section: &mut Section<'_>) -> Http {
    Http {
        listen: section.value("listen", "127.0.0.1:8080", listen()),
        threads: section.value("threads", "512", count(1, 16_384)),
        max_body: section.value("max_body", "1MiB", size("1KiB", "32MiB")),
        read_timeout: section.value("read_timeout", "10s", duration("100ms", "10m")),
        write_timeout: section.value("write_timeout", "10s", duration("100ms", "10m")),
        keep_alive: section.value("keep_alive", "75s", duration("100ms", "1h")),
        wait: section.value("wait", "10s", duration("100ms", "10m")),
        waiters_per_key: section.value("waiters_per_key", "32", count(0, 10_000)),
        mismatch_status: section.value("mismatch_status", "409", number(&[409, 422])),
        hosts: section.value("hosts", "", hosts()),
        allow_anonymous: section.value("allow_anonymous", "false", flag()),
    }
}

fn listen<'a>() -> Kind<'a, super::Listen> {
    text("ADDRESS:PORT, unix:/PATH or systemd:NAME", parse::listen)
}

fn admin(section: &mut Section<'_>, folder: &Path) -> Admin {
    Admin {
        listen: section.value("listen", "127.0.0.1:8081", listen()),
        threads: section.value("threads", "32", count(1, 1_024)),
        token: section.optional("token_file", file(folder, "a file that holds one token", token)),
        hosts: section.value("hosts", "", hosts()),
    }
}

fn database(section: &mut Section<'_>, folder: &Path) -> Database {
    Database {
        url: database_url(section, folder).unwrap_or_else(|| Secret::new(String::new())),
        schema: section.value(
            "schema",
            "public",
            text("a lower-case name of up to 63 letters, digits and _", parse::schema),
        ),
        ca_file: section.optional("ca_file", certificate_file(folder)),
        tls: section.value("tls", "auto", word(&TLS)),
        connect_timeout: section.value("connect_timeout", "5s", duration("100ms", "5m")),
    }
}

const TLS: [(&str, Tls); 4] = [
    ("auto", Tls::Auto),
    ("off", Tls::Off),
    ("require", Tls::Require),
    ("verify-full", Tls::VerifyFull),
];

/// `url` or `url_file`; a variable for either outdoes both in the file, and the one for `url` outdoes the other.
fn database_url(section: &mut Section<'_>, folder: &Path) -> Option<Secret<String>> {
    let both = section.is_in_file("url") && section.is_in_file("url_file");
    if section.is_overridden("url") {
        section.forget("url_file");
    } else if section.is_overridden("url_file") {
        section.forget("url");
    } else if both {
        section.problem("url_file", "url is there too; keep one of them".to_owned());
    }
    let allowed = "a connection string, postgresql://… or key=value …";
    let dsn = |text: &str| crate::store::check_dsn(text).map(|()| Secret::new(text.to_owned()));
    let from_file = |path: &Path| {
        let line = files::one_line(path)?;
        dsn(&line).map_err(|message| format!("{} does not fit: {message}", path.display()))
    };
    let is_given = section.is_in_file("url")
        || section.is_in_file("url_file")
        || section.is_overridden("url")
        || section.is_overridden("url_file");
    let url = section.optional("url", secret(allowed, dsn));
    let url_file =
        section.optional("url_file", file(folder, "a file that holds one such string", from_file));
    if !is_given {
        section.missing("url", "missing; give url, url_file or ONCED_DATABASE_URL");
    }
    url.or(url_file)
}

fn writers(section: &mut Section<'_>) -> Writers {
    Writers {
        threads: section.value("threads", "4", count(1, 256)),
        queue: section.value("queue", "1024", count(1, 65_536)),
        batch: section.value("batch", "32", count(1, 64)),
        statement_timeout: section.value("statement_timeout", "5s", duration("10ms", "10m")),
        lock_timeout: section.value("lock_timeout", "2s", duration("10ms", "10m")),
        max_events: section.value("max_events", "1000", count(1, 100_000)),
        max_response: section.value("max_response", "8MiB", size("1KiB", "64MiB")),
        replay_cache: section.value("replay_cache", "0", count(0, 1_000_000)),
    }
}

fn relay(section: &mut Section<'_>) -> Relay {
    Relay {
        threads: section.value("threads", "8", count(1, 256)),
        batch: section.value("batch", "200", count(1, 1_000)),
        lease: section.value("lease", "30s", duration("1s", "1h")),
        poll: section.value("poll", "1s", duration("10ms", "10m")),
        connections: section.value("connections", "2", count(1, 64)),
        on_dead: section.value(
            "on_dead",
            "continue",
            word(&[("continue", OnDead::Continue), ("hold", OnDead::Hold)]),
        ),
        max_attempts: section.value("max_attempts", "100", count(1, 1_000_000)),
        give_up_after: section.value("give_up_after", "3d", duration("1s", "3650d")),
        backoff_min: section.value("backoff_min", "1s", duration("10ms", "1d")),
        backoff_max: section.value("backoff_max", "1h", duration("10ms", "30d")),
    }
}

fn sink(section: &mut Section<'_>, folder: &Path) -> Sink {
    let url = section.required("url", sink_url());
    let secret_file = file(folder, "a file that holds one secret", signing_secret);
    Sink {
        url: url.unwrap_or_else(|| {
            Url::parse("https://missing.invalid/").expect("this constant is a URL")
        }),
        secrets: section.value("secret_files", "", list(secret_file, 0, 8)),
        ca_file: section.optional("ca_file", certificate_file(folder)),
        timeout: section.value("timeout", "10s", duration("100ms", "5m")),
        allow_private: section.value("allow_private", "false", flag()),
        proxy: section.optional("proxy", text("http://HOST:PORT", parse::proxy_url)),
    }
}

/// The query may hold a token, so it is not shown.
fn sink_url<'a>() -> Kind<'a, Url> {
    let allowed = "https://… or http://… without user, password and fragment";
    text(allowed, parse::sink_url).shown_as(|url| {
        let mut shown = url.clone();
        if shown.query().is_some() {
            shown.set_query(Some("***"));
        }
        shown.to_string()
    })
}

fn retention(section: &mut Section<'_>) -> Retention {
    let age = || duration_or("never", "1s", "36500d");
    Retention {
        records: section.value("records", "30d", age()),
        events: section.value("events", "30d", age()),
        dead: section.value("dead", "never", age()),
        tombstones: section.value("tombstones", "off", duration_or("off", "1s", "36500d")),
        every: section.value("every", "1m", duration("100ms", "1d")),
        batch: section.value("batch", "1000", count(1, 100_000)),
    }
}

fn log(section: &mut Section<'_>) -> Log {
    let level =
        text("error, warn, info, debug, trace, or a filter like info,onced=debug", |text| {
            crate::observe::check_filter(text)
                .map(|()| text.to_owned())
                .map_err(|message| format!("{} is no level: {message}", quoted(text)))
        });
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    Log {
        level: section.value("level", "info", level),
        format: section.value("format", "text", word(&formats)),
    }
}

fn principal(section: &mut Section<'_>) -> Principal {
    let name = text("1 to 128 visible ASCII characters without spaces", parse::principal_name);
    let hash = secret("the 64 hexadecimal digits of a token's SHA-256", parse::token_sha256);
    let called = text("the name of an operation", |text| Ok(text.to_owned()));
    Principal {
        name: section.required("name", name).unwrap_or_default(),
        token_sha256: section.required("token_sha256", list(hash, 1, 16)).unwrap_or_default(),
        operations: section.optional("operations", list(called, 1, 1_000)),
    }
}

fn operation(section: &mut Section<'_>, name: &str, folder: &Path) -> Operation {
    if let Err(message) = parse::operation_name(name) {
        section.problem_here(message);
    }
    let script = |allowed: &str| {
        file(folder, allowed, |path| {
            files::sql(path).map(|sql| Script { path: path.to_owned(), sql })
        })
    };
    let nothing = Script { path: PathBuf::new(), sql: String::new() };
    let route = text("a path of letters, digits and - . _ ~ between single /", parse::route);
    let statement = section.required("sql", script("a file of one SQL statement"));
    Operation {
        name: name.to_owned(),
        statement: statement.unwrap_or(nothing),
        setup: section.optional("setup", script("a file of SQL statements")),
        route: section.optional("route", route).unwrap_or_else(|| format!("/v1/{name}")),
        timeout: section.optional("timeout", duration("10ms", "10m")),
    }
}
