//! The operator's page and its API: who may look, who may act, and what is shown.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::daemon::ORDER;
use crate::support::sink::{Reply, Sink};
use crate::support::wait::{until, until_eq};
use crate::support::{Answer, Client, Connection, Daemon, Database, Setup, fresh_key};

const TOKEN: &str = "an-admin-token-of-good-length";

fn with_token(setup: Setup, token: &str) -> Setup {
    setup.write("admin.token", token).set("admin.token_file", "admin.token")
}

fn operator_with(daemon: &Daemon, token: &str) -> Client {
    Client { token: Some(token.to_owned()), ..daemon.operator() }
}

/// Sends an order with exactly these headers besides Host, Content-Length and the token.
fn order_with(operator: &Client, path: &str, headers: &[&str], body: &str) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let headers = [headers, &[length.as_str()]].concat();
    let mut bytes = operator.head(&format!("POST {path} HTTP/1.1"), &headers);
    bytes.extend_from_slice(body.as_bytes());
    let mut connection = Connection::open(operator.address);
    // A refusal may come, and the connection end, before the body was taken.
    drop(connection.send_what_goes(bytes));
    connection.answer()
}

fn order(operator: &Client, path: &str, body: &Value) -> Answer {
    let headers = ["Content-Type: application/json", "X-Onced: 1"];
    order_with(operator, path, &headers, &body.to_string())
}

fn dead_events(database: &Database, count: i32) {
    database.execute(&format!(
        "INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, dead_at, attempts, last_error)
         SELECT '', 'k', gen_random_uuid() || ':' || n, 'type.' || n % 2, '{{}}', now(), 3, 'status 500'
         FROM generate_series(1, {count}) n"
    ));
}

fn count(database: &Database, condition: &str) -> i64 {
    database.value(&format!("SELECT count(*) FROM outbox_events WHERE {condition}"), &[])
}

fn ids(page: &Value) -> Vec<i64> {
    let events = page["events"].as_array().expect("a list");
    events.iter().map(|event| event["event_id"].as_i64().unwrap()).collect()
}

#[test]
fn with_a_token_the_api_is_for_those_who_have_it_and_the_page_holds_nothing_secret() {
    let database = Database::new();
    let daemon = with_token(Setup::on(&database), TOKEN).start();
    dead_events(&database, 1);
    for path in ["/api/status", "/api/outbox", "/api/requests/k", "/api/recent", "/api/nothing"] {
        for operator in [daemon.operator(), operator_with(&daemon, "wrong-admin-token-here")] {
            let refused = operator.get(path);
            assert_eq!(refused.refusal(), (401, "unauthorized".to_owned()), "{path}");
            assert_eq!(refused.header("www-authenticate"), Some("Bearer"), "{path}");
        }
    }
    let retry = json!({ "ids": [1], "who": "alice" });
    assert_eq!(order(&daemon.operator(), "/api/outbox/retry", &retry).status, 401);
    assert_eq!(count(&database, "dead_at IS NOT NULL"), 1);
    for path in ["/", "/page.js", "/page.css", "/healthz", "/readyz", "/metrics"] {
        assert_eq!(daemon.operator().get(path).status, 200, "{path}");
    }
    let operator = operator_with(&daemon, TOKEN);
    assert_eq!(operator.get("/api/status").json()["ready"], true);
    assert_eq!(operator.get("/api/nothing").status, 404);
    // Whoever knows the token is nobody's browser, so the header is not asked for.
    let json_only = ["Content-Type: application/json"];
    let retried = order_with(&operator, "/api/outbox/retry", &json_only, &retry.to_string());
    assert_eq!(retried.json()["changed"], json!([1]), "{retried:?}");
}

#[test]
fn a_reload_exchanges_the_token_and_never_takes_it_away() {
    let database = Database::new();
    let mut daemon = with_token(Setup::on(&database), TOKEN).start();
    let status =
        |daemon: &Daemon, token: &str| operator_with(daemon, token).get("/api/status").status;
    let next = "the-next-admin-token-is-this";
    daemon.change(|setup| with_token(setup, next));
    daemon.signal(Signal::SIGHUP);
    until_eq("the new token is in force", &200, || i32::from(status(&daemon, next)));
    assert_eq!(status(&daemon, TOKEN), 401);

    daemon.change(Setup::without_admin_token);
    daemon.signal(Signal::SIGHUP);
    until("it is told", || {
        let told = daemon.log().contains("admin.token_file");
        told.then_some(()).ok_or_else(|| daemon.log())
    });
    assert_eq!(daemon.operator().get("/api/status").status, 401);
    assert_eq!(status(&daemon, next), 200);
}

#[test]
fn no_other_site_can_look_or_act() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let operator = daemon.operator();
    dead_events(&database, 1);
    let body = r#"{"ids": [1], "who": "mallory"}"#;
    for path in
        ["/api/outbox/retry", "/api/outbox/discard", "/api/relay/pause", "/api/relay/resume"]
    {
        for (headers, status) in [
            (&[][..], 415),
            (&["Content-Type: text/plain", "X-Onced: 1"], 415),
            (&["Content-Type: application/x-www-form-urlencoded"], 415),
            (&["Content-Type: multipart/form-data; boundary=b"], 415),
            (&["Content-Type: application/json"], 403),
            (&["Content-Type: application/json", "X-Onced: 0"], 403),
        ] {
            let refused = order_with(&operator, path, headers, body);
            assert_eq!(refused.status, status, "{path} {headers:?}");
        }
        let preflight = operator.raw(operator.head(
            &format!("OPTIONS {path} HTTP/1.1"),
            &["Origin: http://evil.example", "Access-Control-Request-Method: POST"],
        ));
        assert_eq!(preflight[0].status, 405);
        assert_eq!(preflight[0].header("access-control-allow-origin"), None);
        assert_eq!(operator.get(path).refusal(), (405, "method-not-allowed".to_owned()));
    }
    let forged = format!(
        "POST /api/outbox/discard HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nX-Onced: 1\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(operator.raw(forged)[0].refusal(), (403, "forbidden".to_owned()));
    for path in ["/", "/page.js", "/api/status", "/api/outbox"] {
        let foreign = operator.raw(format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"));
        assert_eq!(foreign[0].refusal(), (403, "forbidden".to_owned()), "{path}");
    }
    for path in ["/", "/page.js", "/api/status", "/api/outbox"] {
        assert_eq!(daemon.client().get(path).status, 404, "{path} on the callers' listener");
    }
    assert_eq!(count(&database, "dead_at IS NOT NULL AND discarded_at IS NULL"), 1);
    assert_eq!(operator.get("/api/status").json()["outbox"]["paused"], false);
}

#[test]
fn the_page_comes_whole_and_under_a_strict_policy() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    for (path, media) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
    ] {
        let file = daemon.operator().get(path);
        assert_eq!((file.status, file.header("content-type")), (200, Some(media)));
        let policy = file.header("content-security-policy").expect("a policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        // Nothing from elsewhere, and no markup made of strings.
        let text = file.text().replace("http://www.w3.org/2000/svg", "");
        for word in [
            "//cdn",
            "http://",
            "https://",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            " style=",
            " onclick=",
        ] {
            assert!(!text.contains(word), "{word} in {path}");
        }
    }
}

#[test]
fn the_outbox_is_filtered_and_paged() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let operator = daemon.operator();
    dead_events(&database, 7);
    let mut seen = Vec::new();
    let mut path = "/api/outbox?state=dead&limit=3".to_owned();
    loop {
        let page = operator.get(&path).json();
        seen.extend(ids(&page));
        if page["more"] == false {
            assert_eq!(page["before"], Value::Null);
            break;
        }
        path = format!("/api/outbox?state=dead&limit=3&before={}", page["before"]);
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(ids(&operator.get("/api/outbox?type=type.0").json()), [6, 4, 2]);
    assert_eq!(ids(&operator.get("/api/outbox?key=k&since=1h&limit=1").json()), [7]);
    assert_eq!(ids(&operator.get("/api/outbox?state=sent").json()), [] as [i64; 0]);
    for bad in [
        "state=lost",
        "limit=0",
        "limit=201",
        "since=soon",
        "before=x",
        "colour=red",
        "key=%00",
        "key=a&key=b",
    ] {
        let refused = operator.get(&format!("/api/outbox?{bad}"));
        assert_eq!(refused.refusal(), (400, "query-unsupported".to_owned()), "{bad}");
    }
}

#[test]
fn retry_and_discard_act_on_the_named_dead_events_and_are_written_down() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let operator = daemon.operator();
    dead_events(&database, 4);

    let retried =
        order(&operator, "/api/outbox/retry", &json!({ "ids": [1, 4711], "who": "alice" }));
    assert_eq!(retried.json(), json!({ "changed": [1], "unchanged": [4711] }));
    assert_eq!(count(&database, "id = 1 AND dead_at IS NULL AND forgiven = attempts"), 1);
    let discarded =
        order(&operator, "/api/outbox/discard", &json!({ "ids": [1, 2, 3], "who": "bob" }));
    assert_eq!(discarded.json(), json!({ "changed": [2, 3], "unchanged": [1] }));
    assert_eq!(count(&database, "discarded_by = 'bob' AND discarded_at IS NOT NULL"), 2);
    assert_eq!(count(&database, "dead_at IS NOT NULL AND discarded_at IS NULL"), 1);
    let log = daemon.log();
    for words in ["alice", "bob", "2,3"] {
        assert!(log.lines().any(|l| l.contains("an operator acted") && l.contains(words)), "{log}");
    }

    let many = (1..=101).collect::<Vec<_>>();
    for bad in [
        json!({ "ids": [4] }),
        json!({ "ids": [4], "who": " " }),
        json!({ "ids": [4], "who": "a\nb" }),
        json!({ "ids": [], "who": "alice" }),
        json!({ "ids": many, "who": "alice" }),
        json!({ "ids": [4], "who": "alice", "all": true }),
    ] {
        let refused = order(&operator, "/api/outbox/discard", &bad);
        assert_eq!(refused.refusal(), (400, "body-invalid".to_owned()), "{bad}");
    }
    assert_eq!(count(&database, "id = 4 AND discarded_at IS NULL"), 1);
}

#[test]
fn deliveries_are_paused_and_resumed_for_all_daemons() {
    let database = Database::new();
    let sink = Sink::start();
    let daemon = Setup::on(&database).sink(&sink).start();
    let operator = daemon.operator();
    let pause = json!({ "who": "alice", "reason": "the consumer moves house" });
    let paused = order(&operator, "/api/relay/pause", &pause).json();
    assert_eq!((&paused["changed"], &paused["paused"]), (&json!(true), &json!(true)));
    let again = order(&operator, "/api/relay/pause", &json!({ "who": "bob" })).json();
    assert_eq!((&again["changed"], &again["pause"]["by"]), (&json!(false), &json!("alice")));
    let shown = operator.get("/api/status").json()["outbox"]["pause"].clone();
    assert_eq!(shown["reason"], "the consumer moves house");
    let resumed = order(&operator, "/api/relay/resume", &json!({ "who": "bob" })).json();
    assert_eq!((&resumed["changed"], &resumed["paused"]), (&json!(true), &json!(false)));
    daemon.order(&fresh_key());
    sink.wait_for(2);
}

#[test]
fn a_key_is_shown_with_its_answer_its_events_and_their_last_error() {
    let database = Database::new();
    let sink = Sink::answering(|_, _| Reply::status(500));
    let daemon = Setup::on(&database)
        .sink(&sink)
        .set("relay.max_attempts", 1)
        .principal("shop", "shop-token")
        .start();
    let key = "<script>alert(1)</script>/%";
    let quoted = format!("\"{key}\"");
    let answer = daemon.client_with("shop-token").post("orders", &quoted, ORDER);
    assert_eq!(answer.status, 201);
    until_eq("both are dead", &2, || count(&database, "dead_at IS NOT NULL"));

    let path = "/api/requests/%3Cscript%3Ealert(1)%3C%2Fscript%3E%2F%25";
    assert_eq!(daemon.operator().get(path).refusal(), (404, "not-found".to_owned()));
    let story = daemon.operator().get(&format!("{path}?scope=shop"));
    assert_eq!(story.header("content-type"), Some("application/json"));
    let story = story.json();
    assert_eq!(
        (&story["record"]["key"], &story["record"]["response"]),
        (&json!(key), &answer.json())
    );
    assert_eq!(ids(&story).len(), 2);
    for event in story["events"].as_array().unwrap() {
        assert_eq!((&event["state"], &event["attempts"]), (&json!("dead"), &json!(1)));
        assert!(event["last_error"].as_str().unwrap().contains("500"), "{event}");
    }
}

#[test]
fn the_last_requests_and_the_last_hour_are_shown() {
    let database = Database::new();
    let daemon = Daemon::start(&database);
    let key = fresh_key();
    daemon.order(&key);
    daemon.order(&key);
    daemon.post("orders", &key, r#"{"item": "gadget", "quantity": 1}"#);
    daemon.post("orders", "broken", "{");
    for number in 0..200 {
        daemon.client().post_with("orders", &["Content-Type: text/plain"], number.to_string());
    }
    daemon.order(&key);

    let recent = daemon.operator().get("/api/recent").json();
    let requests = recent["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 200, "there is an end to it");
    let last = &requests[0];
    assert_eq!((&last["key"], &last["outcome"]), (&json!(key), &json!("replayed")));
    assert_eq!((&last["status"], &last["operation"]), (&json!(201), &json!("orders")));
    assert!(last["request_id"].is_string() && last["ms"].is_u64(), "{last}");
    assert_eq!((&requests[1]["key"], &requests[1]["status"]), (&Value::Null, &json!(400)));

    let history = daemon.operator().get("/api/history").json();
    let minutes = history["minutes"].as_array().unwrap();
    assert_eq!(minutes.len(), 60);
    let sum = |outcome: &str| -> u64 {
        minutes.iter().map(|minute| minute[outcome].as_u64().unwrap()).sum()
    };
    let sums = ["executed", "replayed", "reused", "invalid", "failed"].map(sum);
    assert_eq!(sums, [1, 2, 1, 201, 0]);
    let status = daemon.operator().get("/api/status").json();
    assert_eq!(
        (&status["requests"]["replayed"], &status["writers"]["threads"]),
        (&json!(2), &json!(2))
    );
    // Keys are the callers' data: the page shows them, metrics and log do not.
    assert!(!daemon.operator().get("/metrics").text().contains(&key));
    assert!(!daemon.log().contains(&key));
}

#[test]
fn without_the_database_the_status_says_why_and_the_rest_is_soon_refused() {
    let database = Database::new();
    let proxy = crate::support::proxy::Proxy::to(&database);
    let daemon = Setup::at(&database.url_through(proxy.address())).start();
    proxy.set(crate::support::proxy::Mode::Cut);
    let status = until("it is known", || {
        let status = daemon.operator().get("/api/status").json();
        if status["ready"] == false { Ok(status) } else { Err(status.to_string()) }
    });
    assert!(status["reason"].as_str().unwrap().contains("database"), "{status}");
    assert_eq!(status["outbox"]["paused"], Value::Null);
    let refused = daemon.operator().get("/api/outbox");
    assert_eq!(refused.refusal(), (503, "unavailable".to_owned()));
    assert_eq!(daemon.operator().get("/api/recent").status, 200);
    assert_eq!(daemon.operator().get("/api/history").status, 200);
}
