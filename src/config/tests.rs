//! Whole files: what is wrong with them, and what is in force. The manual and the shipped file are held to the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::reader::Known;
use super::*;

const SHIPPED: &str = include_str!("../../config/onced.toml");
const MANUAL: &str = include_str!("../../docs/configuration.md");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";

/// A folder with the files that the tests' configurations name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    fs::create_dir(folder.path().join("operations")).unwrap();
    write("operations/orders.sql", "SELECT 201 AS status");
    write("operations/orders.setup.sql", "SELECT 1");
    write("admin.token", "0123456789abcdef\n");
    write("database.url", "postgresql://onced:hunter2@db.example/onced\n");
    write("database-ca.pem", "-----BEGIN CERTIFICATE-----\n");
    write("sink-ca.pem", "-----BEGIN CERTIFICATE-----\n");
    write("sink.secret", SECRET);
    write("second.secret", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX\n");
    folder
}

fn parse_in(folder: &Path, text: &str, environment: &[(&str, &str)]) -> Result<Config, Problems> {
    let environment = environment.iter().copied().collect();
    Config::parse(&folder.join("onced.toml"), text, &environment)
}

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, Problems> {
    parse_in(folder().path(), text, environment)
}

/// A file with a database and what `rest` says.
fn good(rest: &str) -> Config {
    parse(&with_database(rest), &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn with_database(rest: &str) -> String {
    format!("database.url = 'postgresql://db.example/onced'\n{rest}")
}

/// The problems of a text, one a line, with the file's folder left out.
fn problems(text: &str, environment: &[(&str, &str)]) -> String {
    let folder = folder();
    let problems = parse_in(folder.path(), text, environment).unwrap_err().to_string();
    problems.replace(&format!("{}/", folder.path().display()), "")
}

#[track_caller]
fn assert_problem(rest: &str, expected: &str) {
    let problems = problems(&with_database(rest), &[]);
    assert!(problems.contains(expected), "{problems}\nlacks: {expected}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[track_caller]
fn assert_warning(rest: &str, expected: &str) {
    let warnings = good(rest).warnings;
    assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:#?}");
}

/// The shipped file with everything in it that is commented out.
fn shipped_in_full() -> String {
    let uncomment = |line: &'static str| {
        let rest = line.strip_prefix('#').unwrap_or(line);
        if rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') {
            rest
        } else {
            line
        }
    };
    let lines = SHIPPED.lines().map(uncomment).filter(|line| !line.starts_with("url_file"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every key that the program knows.
fn known() -> Vec<Known> {
    let folder = folder();
    let file = folder.path().join("onced.toml");
    let document = raw::Document::parse(&file, &shipped_in_full());
    let mut reader = reader::Reader::new(document, Environment::default());
    check::read(&file, &mut reader);
    let known = reader.known.clone();
    assert_eq!(reader.finish().err(), None);
    known
}

fn title(known: &Known) -> String {
    match known.section.as_str() {
        "" => known.key.clone(),
        section => format!("{section}.{}", known.key),
    }
}

/// What the manual must say below the heading of a key.
fn facts(known: &Known) -> String {
    let default = known
        .default
        .as_ref()
        .map_or("No default".to_owned(), |value| format!("Default `{value}`"));
    let variable = known
        .variable
        .as_ref()
        .map_or("in the file only".to_owned(), |name| format!("variable `{name}`"));
    format!("{default}; allowed: {}; {variable}.", known.allowed)
}

#[test]
fn the_manual_has_every_key_with_its_default_bounds_and_variable() {
    let missing: Vec<String> = known()
        .iter()
        .map(|known| format!("### {}\n\n{}\n", title(known), facts(known)))
        .filter(|entry| !MANUAL.contains(entry.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks:\n{}", missing.join("\n"));
    let titles: BTreeSet<String> = known().iter().map(title).collect();
    let mut headings = MANUAL.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(headings.find(|heading| !titles.contains(*heading)), None, "is no key");
}
#[test]
fn the_shipped_file_is_good_and_states_the_defaults() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/onced.toml");
    let config = Config::load(&shipped, &Environment::default()).unwrap();
    assert_eq!(config.operations[0].name, "orders");
    assert_eq!(config.warnings, ["no [sink]: events stay in the outbox until there is one"]);

    let folder = folder();
    let full = shipped_in_full();
    let dump = parse_in(folder.path(), &full, &[]).unwrap().to_masked_toml();
    let mut section = String::new();
    let lines = dump.lines().map(|line| {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).replace(".orders", ".NAME");
        }
        format!("{section}.{line}")
    });
    let lines: BTreeSet<String> = lines.collect();
    for known in known() {
        let Some(default) = &known.default else { continue };
        let line = format!("{}.{} = {default}", known.section, known.key);
        let is_list_with_example = known.key == "secret_files";
        assert!(lines.contains(&line) || is_list_with_example, "config/onced.toml: {line}");
    }
    for known in known() {
        let assigned = format!("{} = ", known.key);
        assert!(SHIPPED.lines().any(|line| line.trim_start_matches('#').starts_with(&assigned)));
    }
}

#[test]
fn every_fault_of_a_file_is_told_at_once_with_its_place() {
    let text = r#"shutdown_timeuot = "30s"
[htpp]
listen = "127.0.0.1:9"
[http]
listen = "0.0.0.0:8080"
max_body = "1 MoB"
lease = "5s"
[database]
url = 5
pasword = "hunter2"
[writers]
threads = 0
thread = 4
[relay]
threads = -1
lease = "5s"
poll = "soon"
[sink]
url = "htp://u:hunter2@sink.example/"
timeout = 5
secret_files = ["sink.secret", "missing.secret"]
[retention]
records = "0s"
events = "-1d"
every = "0s"
[[principals]]
name = "a"
token_sha256 = ["hunter2"]
[[principals]]
name = "a"
token_sha256 = ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]
operations = ["order"]
[operations.requests]
sql = "missing.sql"
[operations.orders]
sql = "operations/orders.sql"
timeout = "30s"
"#;
    let environment = [
        ("ONCED_HTTP_WIAT", "5s"),
        ("ONCED_WRITERS_BATCH", "many"),
        ("ONCED_LISTEN", "127.0.0.1:1"),
        ("ONCED_RELAY_COLOUR", "red"),
        ("ONCED_OPERATIONS_ORDERS_TIMEOUT", "5s"),
        ("ONCED_CONFIG", "x"),
        ("ONCED_PG_BIN", "x"),
        ("ONCED_LOG", "x"),
        ("ONCED_TEST_POSTGRES", "x"),
        ("ONCED_SERVICE_HOST", "10.0.0.1"),
        ("ONCED_SINK_PORT", "tcp://10.0.0.1:80"),
        ("HOME", "/root"),
    ];
    let found = problems(text, &environment);
    let user = {
        let (_, after) = found.split_once("this runs as ").unwrap();
        after.split_once(';').unwrap().0
    };
    let expected = format!(
        r#"onced.toml:1:1: shutdown_timeuot: no such key or section; did you mean shutdown_timeout?
onced.toml:2:2: htpp: no such key or section; did you mean http?
onced.toml:6:1: http.max_body: "1 MoB" is no size; write it like "64KiB" or "1MiB"; allowed: 1KiB to 64MiB (default "1MiB")
onced.toml:7:1: http.lease: no such key; it is a key of [relay]
onced.toml:9:1: database.url: this is a whole number, not a string; allowed: a connection string, postgresql://… or key=value …
onced.toml:10:1: database.pasword: no such key
onced.toml:12:1: writers.threads: 0 is too small; allowed: 1 to 256 (default 4)
onced.toml:13:1: writers.thread: no such key; did you mean threads?
onced.toml:15:1: relay.threads: -1 is too small; allowed: 1 to 256 (default 8)
onced.toml:17:1: relay.poll: "soon" is no time (expected number at 0); allowed: 10ms to 10m (default "1s")
onced.toml:19:1: sink.url: its scheme is "htp"; allowed: https://… or http://… without user, password and fragment
onced.toml:20:1: sink.timeout: 5 has no unit; write "5s" for seconds; allowed: 100ms to 5m (default "10s")
onced.toml:21:1: sink.secret_files[1]: missing.secret cannot be read: No such file or directory (os error 2); this runs as {user}; allowed: a list of 0 to 8, each a file that holds one secret (default [])
onced.toml:23:1: retention.records: "0s" is too short; allowed: 1s to 36500d, or "never" (default "30d")
onced.toml:24:1: retention.events: "-1d" is no time (expected number at 0); allowed: 1s to 36500d, or "never" (default "30d")
onced.toml:25:1: retention.every: "0s" is too short; allowed: 100ms to 1d (default "1m")
onced.toml:28:1: principals[0].token_sha256[0]: this is no SHA-256; `onced token new` prints a token and its hash, and only the hash belongs here; allowed: a list of 1 to 16, each the 64 hexadecimal digits of a token's SHA-256
onced.toml:30:1: principals[1].name: "a" is also the name of principals[0]
onced.toml:32:1: principals[1].operations: there is no operation "order"; there are: requests, orders
onced.toml:33:13: operations.requests: no operation may have this name: /v1/requests is the look-up
onced.toml:34:1: operations.requests.sql: missing.sql cannot be read: No such file or directory (os error 2); this runs as {user}; allowed: a file of one SQL statement
onced.toml:37:1: operations.orders.timeout: 30s is longer than http.wait, 10s: a caller would be gone before its write ends
ONCED_HTTP_WIAT: no such setting; did you mean ONCED_HTTP_WAIT?
ONCED_LISTEN: no such setting; did you mean ONCED_HTTP_LISTEN?
ONCED_OPERATIONS_ORDERS_TIMEOUT: principals and operations are set in the file only
ONCED_RELAY_COLOUR: no such setting in [relay]
ONCED_WRITERS_BATCH: writers.batch: "many" is not a whole number; allowed: 1 to 64 (default 32)"#
    );
    assert_eq!(found, expected);
}

#[test]
fn a_file_that_is_no_toml_is_judged_as_far_as_it_can_be_read() {
    let text = "[database]\nurl = 'postgresql://a:hunter2@b/c\n[writers]\nthreads = 0\n[relay\n";
    assert_eq!(
        problems(text, &[]),
        "onced.toml:2:34: not TOML: invalid literal string, expected `'`\n\
         onced.toml:4:1: writers.threads: 0 is too small; allowed: 1 to 256 (default 4)\n\
         onced.toml:5:7: not TOML: unclosed table, expected `]`"
    );
    let endless = problems("[http]\nhosts = ['a',\nthreads = 4\n[writers]\nbatch = 0\n", &[]);
    assert!(endless.lines().all(|line| line.contains("not TOML")), "{endless}");
    let twice = problems(&with_database("[http]\nwait = '5s'\nwait = '6s'\n"), &[]);
    assert_eq!(twice, "onced.toml:4:1: not TOML: duplicate key");
}

#[test]
fn a_section_of_the_wrong_shape_is_told() {
    assert_problem("[[http]]\nthreads = 4", "http: this is a list, not a section [http]");
    assert_problem("log = 'info'", "log: this is a string, not a section [log]");
    assert_problem("[principals]\nname = 'a'", "principals: this is a table; write [[principals]]");
    assert_problem("[operations]\ntimeout = '5s'", "not a section [operations.timeout]");
    assert_problem("principals = [5]", "principals[0]: this is a whole number, not a section");
    assert_problem("\"od\\nd\" = 1", "od\\nd: no such key or section");
}

#[test]
fn a_variable_overrides_the_file_and_makes_a_section() {
    let environment = [
        ("ONCED_SHUTDOWN_TIMEOUT", "1m"),
        ("ONCED_HTTP_MAX_BODY", "2048"),
        ("ONCED_HTTP_HOSTS", "a.example, b.example"),
        ("ONCED_WRITERS_THREADS", "7"),
        ("ONCED_SINK_URL", "http://127.0.0.1:8090/"),
        ("ONCED_SINK_ALLOW_PRIVATE", "true"),
    ];
    let config = parse(&with_database("[writers]\nthreads = 0"), &environment).unwrap();
    assert_eq!(config.shutdown_timeout, Duration::from_secs(60));
    assert_eq!(config.http.max_body, 2048);
    assert_eq!(config.http.hosts, ["a.example", "b.example"]);
    assert_eq!(config.writers.threads.get(), 7);
    assert_eq!(config.sink.unwrap().url.as_str(), "http://127.0.0.1:8090/");
}

#[test]
fn an_empty_variable_is_an_empty_value() {
    let found = problems(&with_database(""), &[("ONCED_HTTP_WAIT", ""), ("ONCED_HTTP_HOSTS", "")]);
    assert!(found.starts_with("ONCED_HTTP_WAIT: http.wait: \"\" is no time"), "{found}");
    assert_eq!(found.lines().count(), 1);
}

#[test]
fn a_variable_that_is_not_utf8_is_a_problem_where_it_is_ours() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let value = OsString::from_vec(vec![b'5', 0xff]);
    let environment = [("ONCED_HTTP_WAIT", value.clone()), ("HOME", value)].into_iter().collect();
    let file = Path::new("onced.toml");
    let problems = Config::parse(file, &with_database(""), &environment).unwrap_err();
    assert!(problems.to_string().starts_with("ONCED_HTTP_WAIT: http.wait: not UTF-8"));
}

#[test]
fn an_unknown_variable_that_resembles_none_of_ours_is_a_warning() {
    let config = parse(&with_database(""), &[("ONCED_FLAVOUR", "mint")]).unwrap();
    assert!(
        config.warnings.contains(&"ONCED_FLAVOUR is set, but is no setting of onced".to_owned())
    );
    let linked = [("ONCED_SINK_SERVICE_PORT", "80"), ("ONCED_PORT_80_TCP_ADDR", "10.0.0.1")];
    let config = parse(&with_database(""), &linked).unwrap();
    assert!(config.sink.is_none());
    assert!(!config.warnings.iter().any(|warning| warning.contains("ONCED_")));
}

#[test]
fn the_database_is_named_once_and_its_variable_outdoes_the_file() {
    const FROM_ENVIRONMENT: (&str, &str) = ("ONCED_DATABASE_URL", "host=env.example dbname=onced");
    let url = |text: &str, environment: &[(&str, &str)]| {
        parse(text, environment).map(|config| config.database.url.reveal().clone())
    };
    let file = "[database]\nurl_file = 'database.url'";
    assert_eq!(url(file, &[]).unwrap(), "postgresql://onced:hunter2@db.example/onced");
    let broken = "[database]\nurl_file = 'missing'\nurl = 5";
    assert_eq!(url(broken, &[FROM_ENVIRONMENT]).unwrap(), FROM_ENVIRONMENT.1);
    let by_file = ("ONCED_DATABASE_URL_FILE", "database.url");
    assert_eq!(url(broken, &[by_file]).unwrap(), "postgresql://onced:hunter2@db.example/onced");
    assert_eq!(url(broken, &[by_file, FROM_ENVIRONMENT]).unwrap(), FROM_ENVIRONMENT.1);
    assert_problem(
        "database.url_file = 'database.url'",
        "database.url_file: url is there too; keep one of them",
    );
    assert_eq!(
        problems("", &[]),
        "onced.toml: database.url: missing; give url, url_file or ONCED_DATABASE_URL"
    );
    let wrong = problems("[database]\nurl = 'postgresql://u:hunter2@h:port/db'", &[]);
    assert!(wrong.starts_with("onced.toml:2:1: database.url: "), "{wrong}");
    assert!(!wrong.contains("hunter2"), "{wrong}");
}

#[test]
fn without_principals_callers_are_local() {
    let hash = "name = 'a'\ntoken_sha256 = ['e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855']";
    for listen in ["0.0.0.0:1", "10.0.0.5:1", "[::]:1", "systemd:http"] {
        let http = format!("http.listen = '{listen}'");
        assert_problem(&http, "http.listen: not known to be reachable from this machine only");
        good(&format!("{http}\n[[principals]]\n{hash}"));
        assert_warning(&format!("{http}\nhttp.allow_anonymous = true"), "whoever reaches");
    }
    for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:/a"] {
        good(&format!("http.listen = '{listen}'"));
    }
    assert_problem(
        &format!("http.allow_anonymous = true\n[[principals]]\n{hash}"),
        "http.allow_anonymous: true, while there are [[principals]]",
    );
}

#[test]
fn an_admin_listener_off_this_machine_needs_a_token() {
    for listen in ["0.0.0.0:1", "systemd:admin"] {
        let admin = format!("admin.listen = '{listen}'");
        assert_problem(&admin, "admin.listen: not known to be reachable");
        good(&format!("{admin}\nadmin.token_file = 'admin.token'"));
    }
    assert_problem("admin.listen = '127.0.0.1:8080'", "admin.listen: http.listen is the same");
    assert_problem("admin.token_file = 'sink.secret '", "admin.token_file: ");
}

#[test]
fn the_times_fit_each_other() {
    assert_problem(
        "relay.backoff_min = '2h'",
        "relay.backoff_min: 2h is longer than relay.backoff_max (1h)",
    );
    let sink = "[sink]\nurl = 'https://sink.example'\nsecret_files = ['sink.secret']";
    assert_problem(
        &format!("relay.lease = '19s'\n{sink}"),
        "onced.toml:2:7: relay.lease: 19s is less than twice sink.timeout (10s)",
    );
    assert_problem(
        &format!("{sink}\ntimeout = '16s'"),
        "sink.timeout: 16s is more than half of relay.lease (30s)",
    );
    good(&format!("relay.lease = '20s'\n{sink}"));
    good("relay.lease = '1s'");
    assert_warning(
        "http.wait = '3s'",
        "writers.statement_timeout (5s) is longer than http.wait (3s)",
    );
    assert_warning("writers.lock_timeout = '6s'", "writers.lock_timeout (6s) is longer than");
    assert_warning("shutdown_timeout = '5s'", "shutdown_timeout (5s) is shorter than http.wait");
    assert_warning("retention.records = '2d'", "retention.records (2d) is shorter than");
    assert_warning("retention.dead = '30d'", "retention.dead (30d): ");
    assert_warning("[retention]\nrecords = 'never'\ntombstones = '1d'", "has no effect");
}

#[test]
fn a_sink_is_public_and_signed_unless_it_is_here() {
    let signed = |rest: &str| format!("[sink]\nsecret_files = ['sink.secret']\n{rest}");
    for host in ["127.0.0.1", "localhost", "10.0.0.5", "[::1]", "0x7f000001", "169.254.169.254"] {
        let sink = signed(&format!("url = 'https://{host}/'"));
        assert_problem(&sink, "is not an address of the public Internet");
        good(&format!("{sink}\nallow_private = true"));
    }
    good(&signed("url = 'https://sink.example/'"));
    good(&signed("url = 'https://1.1.1.1/'"));
    assert_problem("[sink]\nurl = 'https://sink.example'", "sink.secret_files: missing");
    assert_problem("[sink]\nsecret_files = ['sink.secret']", "sink.url: missing");
    let here = "[sink]\nurl = 'http://127.0.0.1:8090/'\nallow_private = true";
    assert_warning(here, "events are not signed");
    assert_warning(&signed("url = 'http://sink.example/'"), "in clear text");
    let two = good(
        "[sink]\nurl = 'https://sink.example'\nsecret_files = ['sink.secret', 'second.secret']",
    );
    assert_eq!(two.sink.unwrap().secrets.len(), 2);
}

#[test]
fn principals_and_operations_are_told_apart() {
    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let two = format!(
        "[[principals]]\nname = 'a'\ntoken_sha256 = ['{HASH}']\n[[principals]]\nname = 'b'\n"
    );
    assert_problem(
        &format!("{two}token_sha256 = ['{HASH}']"),
        "principals[1].token_sha256: item 0 is also a token of principals[0]",
    );
    assert_problem(&two, "principals[1].token_sha256: missing");
    assert_problem(
        "[operations.a]\nsql = 'operations/orders.sql'\nroute = '/v1/b'\n\
         [operations.b]\nsql = 'operations/orders.sql'",
        "operations.b.route: /v1/b is also the route of operations.a",
    );
    assert_problem("[operations.a]", "operations.a.sql: missing");
    assert_problem("[operations.a]\nsql = 'operations'", "is not a regular file");
    assert_warning("", "no [operations.NAME]: there is nothing to call");
    let config = good(
        "[operations.z]\nsql = 'operations/orders.sql'\n\
         [operations.a]\nsql = 'operations/orders.sql'\nroute = '/a'\ntimeout = '1s'",
    );
    let names: Vec<&str> = config.operations.iter().map(|known| known.name.as_str()).collect();
    assert_eq!(names, ["z", "a"], "the order of the file");
    assert_eq!(config.operations[0].route, "/v1/z");
    assert_eq!(config.operations[1].timeout, Some(Duration::from_secs(1)));
    assert_eq!(config.operations[0].statement.sql, "SELECT 201 AS status");
}

#[test]
fn a_log_filter_means_what_it_seems_to() {
    for level in ["info", "DEBUG", "off", "info,onced::relay=debug", "onced[{key}]=trace"] {
        good(&format!("log.level = '{level}'"));
    }
    for level in ["", "infoo", "verbose", "info,onced", "onced=loud"] {
        assert_problem(&format!("log.level = '{level}'"), "log.level: ");
    }
}

#[test]
fn the_dump_shows_what_is_in_force_and_no_secret() {
    let text = r#"
        [http]
        wait = "90 s"
        max_body = "1000 KiB"
        [admin]
        token_file = "admin.token"
        [database]
        url = "postgresql://onced:hunter2@db.example/onced"
        [sink]
        url = "https://sink.example/events?token=hunter2"
        secret_files = ["sink.secret"]
        [[principals]]
        name = "billing"
        token_sha256 = ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]
        [operations.orders]
        sql = "operations/orders.sql"
    "#;
    let environment = [("ONCED_LOG_FORMAT", "json"), ("ONCED_RETENTION_RECORDS", "never")];
    let dump = parse(text, &environment).unwrap().to_masked_toml();
    let expected = r#"shutdown_timeout = "30s"

[http]
listen = "127.0.0.1:8080"
threads = 512
max_body = "1000KiB"
read_timeout = "10s"
write_timeout = "10s"
keep_alive = "75s"
wait = "90s"
waiters_per_key = 32
mismatch_status = 409
hosts = []
allow_anonymous = false

[admin]
listen = "127.0.0.1:8081"
threads = 32
token_file = "admin.token"
hosts = []

[database]
url = "***"
schema = "public"
tls = "auto"
connect_timeout = "5s"

[writers]
threads = 4
queue = 1024
batch = 32
statement_timeout = "5s"
lock_timeout = "2s"
max_events = 1000
max_response = "8MiB"

[relay]
threads = 8
batch = 50
lease = "30s"
poll = "1s"
connections = 2
on_dead = "continue"
max_attempts = 100
give_up_after = "3d"
backoff_min = "1s"
backoff_max = "1h"

[sink]
url = "https://sink.example/events?***"
secret_files = ["sink.secret"]
timeout = "10s"
allow_private = false

[retention]
records = "never"
events = "30d"
dead = "never"
tombstones = "off"
every = "1m"
batch = 1000

[log]
level = "info"
format = "json"

[[principals]]
name = "billing"
token_sha256 = ["***"]

[operations.orders]
sql = "operations/orders.sql"
"#;
    assert_eq!(dump, expected);
    let again = dump.replace(
        "token_sha256 = [\"***\"]",
        "token_sha256 = ['e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855']",
    );
    let again = parse(&again, &[("ONCED_DATABASE_URL", "host=a")]).unwrap();
    assert_eq!(again.to_masked_toml(), dump, "a dump is a configuration");
}

#[test]
fn nothing_that_can_be_printed_holds_a_secret() {
    let folder = folder();
    let text = shipped_in_full().replace("onced@127.0.0.1", "onced:hunter2@127.0.0.1");
    let config = parse_in(folder.path(), &text, &[]).unwrap();
    let printed = format!("{config:?}\n{}\n{:?}", config.to_masked_toml(), config.warnings);
    for secret in ["hunter2", "0123456789abcdef", "MfKQ9r8G"] {
        assert!(!printed.contains(secret), "{secret}");
    }
}

#[test]
fn a_reload_takes_secrets_and_principals_and_names_the_rest() {
    let folder = folder();
    let read = |text: &str| parse_in(folder.path(), text, &[]).unwrap();
    let text = shipped_in_full();
    let old = read(&text);
    assert!(old.needs_restart(&old).is_empty());

    let principal = text.replace("name = \"billing\"", "name = \"payments\"");
    assert!(old.needs_restart(&read(&principal)).is_empty());
    fs::write(folder.path().join("admin.token"), "fedcba9876543210").unwrap();
    let secrets = text.replace("[\"sink.secret\"]", "[\"second.secret\"]");
    assert!(old.needs_restart(&read(&secrets)).is_empty());

    let spelling = text.replace("keep_alive = \"75s\"", "keep_alive = \"1m 15s\"");
    assert!(old.needs_restart(&read(&spelling)).is_empty());

    fs::write(folder.path().join("operations/orders.sql"), "SELECT 202 AS status").unwrap();
    let rest = text
        .replace("keep_alive = \"75s\"", "keep_alive = \"80s\"")
        .replace("onced@127.0.0.1", "onced:hunter2@127.0.0.1")
        .replace("sink.example/events", "sink.example/events?x")
        .replace("proxy = ", "#proxy = ");
    assert_eq!(
        old.needs_restart(&read(&rest)),
        ["database.url", "http.keep_alive", "operations.orders.sql", "sink.proxy", "sink.url"]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let folder = folder();
    let missing = folder.path().join("nowhere.toml");
    let problems = Config::load(&missing, &Environment::default()).unwrap_err().to_string();
    assert!(problems.contains("nowhere.toml: cannot be read: No such file"), "{problems}");
    assert_eq!(problems.lines().count(), 1);
}
