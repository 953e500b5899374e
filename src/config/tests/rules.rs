//! What must hold between keys.

use super::*;

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
