use std::path::Path;

use bolero::check;
use onced::config::{Config, Environment};

use crate::spell::{assert_is_fit_to_print, spell};

const WORDS: &[&str] = &[
    "\n",
    "\n[http]\n",
    "\n[admin]\n",
    "\n[database]\n",
    "\n[writers]\n",
    "\n[relay]\n",
    "\n[sink]\n",
    "\n[retention]\n",
    "\n[log]\n",
    "\n[[principals]]\n",
    "\n[operations.orders]\n",
    "\n[operations.requests]\n",
    "\n[operations.\"a b\"]\n",
    "\n[htpp]\n",
    "[",
    "]",
    "[[",
    "=",
    "\"",
    "'",
    "\"\"\"",
    "listen = ",
    "threads = ",
    "max_body = ",
    "read_timeout = ",
    "wait = ",
    "hosts = ",
    "allow_anonymous = ",
    "url = ",
    "url_file = ",
    "token_file = ",
    "secret_files = ",
    "queue = ",
    "batch = ",
    "lease = ",
    "backoff_min = ",
    "backoff_max = ",
    "records = ",
    "tombstones = ",
    "level = ",
    "format = ",
    "name = ",
    "token_sha256 = ",
    "operations = ",
    "sql = ",
    "setup = ",
    "route = ",
    "timeout = ",
    "proxy = ",
    "shutdown_timeout = ",
    "thraeds = ",
    "0",
    "-1",
    "1",
    "8",
    "1e9",
    "99999999999999999999",
    "true",
    "\"5s\"",
    "\"1h 30m\"",
    "\"99999999999999999999d\"",
    "\"0s\"",
    "\"-1s\"",
    "\"1MiB\"",
    "\"1 MoB\"",
    "\"never\"",
    "\"off\"",
    "\"127.0.0.1:8080\"",
    "\"0.0.0.0:0\"",
    "\"unix:/x\"",
    "\"unix:\"",
    "\"systemd:x\"",
    "\"[::1]:80\"",
    "\"localhost:1\"",
    "\"https://sink.example/x\"",
    "\"htp://\"",
    "\"http://u:hunter2@h/\"",
    "\"postgresql://u:hunter2@h/d\"",
    "\"host=h password=hunter2\"",
    "\"info,onced=debug\"",
    "\"/v1/orders\"",
    "\"/v1/requests/x\"",
    "\"//\"",
    "[]",
    "[\"a\"]",
    "[1, \"a\"]",
    "{}",
    "{a = 1}",
    "\"\\u001b[31m\"",
    "\"é\\n\"",
    "1979-05-27",
    "#",
    " ",
    ".",
    ",",
    "[\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"]",
    "\"onced.toml\"",
    "\"/dev/zero\"",
    "\"\"",
];

#[test]
fn configurations() {
    // A folder that is not there: no file of this machine is read by chance.
    let file = Path::new("/nonexistent/onced.toml");
    check!().with_iterations(1500).for_each(|input: &[u8]| {
        let spelled = spell(input, WORDS);
        let text = String::from_utf8_lossy(&spelled);
        match Config::parse(file, &text, &Environment::default()) {
            Ok(config) => assert!(config.warnings.iter().all(|line| !line.contains("hunter2"))),
            Err(problems) => {
                assert!(!problems.0.is_empty());
                for problem in &problems.0 {
                    let line = problem.to_string();
                    assert_is_fit_to_print(&line, 2 * text.len() + 1000);
                    // A password that stands where a time belongs is no secret of ours.
                    let may_hold_secrets =
                        ["", "database.url", "sink.url", "sink.proxy"].contains(&&*problem.key);
                    assert!(!may_hold_secrets || !line.contains("hunter2"), "a secret in {line}");
                }
            }
        }
    });
}
