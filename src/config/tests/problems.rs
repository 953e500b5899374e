//! What is wrong with a file or a variable, and how it is told.

use super::*;

#[test]
fn every_fault_of_a_file_is_told_at_once_with_its_place() {
    let text = include_str!("faults.toml");
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
    assert_eq!(found.replace(user, "user USER") + "\n", include_str!("faults.txt"));
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
    let by_missing = ("ONCED_DATABASE_URL_FILE", "missing");
    assert_eq!(url(broken, &[by_missing, FROM_ENVIRONMENT]).unwrap(), FROM_ENVIRONMENT.1);
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
fn a_log_filter_means_what_it_seems_to() {
    for level in ["info", "DEBUG", "off", "info,onced::relay=debug", "onced[{key}]=trace"] {
        good(&format!("log.level = '{level}'"));
    }
    for level in ["", "infoo", "verbose", "info,onced", "onced=loud"] {
        assert_problem(&format!("log.level = '{level}'"), "log.level: ");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let folder = folder();
    let missing = folder.path().join("nowhere.toml");
    let problems = Config::load(&missing, &Environment::default()).unwrap_err().to_string();
    assert!(problems.contains("nowhere.toml: cannot be read: No such file"), "{problems}");
    assert_eq!(problems.lines().count(), 1);
}
