//! What `onced dev` tells about what is running, and what to try.

use super::state::Addresses;
use crate::cli::output::{Style, say, styled};
use crate::config::Config;
use crate::store;
use crate::store::records::find_record;

/// Keys that are looked at for one that is still new.
const KEYS_MAX: u32 = 999;

pub(super) fn tell(addresses: Addresses, config: &Config, dsn: &str) -> anyhow::Result<()> {
    let key = new_key(config)?;
    let Addresses { http, admin, sink } = addresses;
    let file = config.file.display();
    say(format_args!("\n{}\n", styled(Style::Good, "onced is running. Ctrl-C stops all of it.")));
    say(format_args!("  calls     http://{http}/v1/orders"));
    say(format_args!("  operator  http://{admin}"));
    say(format_args!("  events    http://{sink}/events"));
    say(format_args!("  database  psql '{dsn}'"));
    say(format_args!("  files     {file}\n"));
    say("Try, in another terminal:\n");
    let order = |quantity: u32| {
        format!(
            "curl -i http://{http}/v1/orders -H 'Idempotency-Key: {key}' \\\n       --json '{{\"item\": \"widget\", \
             \"quantity\": {quantity}}}'"
        )
    };
    for (words, command) in [
        ("A write. It takes effect, and two events are on their way:", order(2)),
        (
            "The retry of a caller who never saw the answer: send it again. The same answer, one order:",
            order(2),
        ),
        ("The same key for something else: refused, and nothing is written:", order(3)),
        ("What became of the key?", format!("curl -s http://{http}/v1/requests/{key}")),
        ("The events, as the consumer got them:", format!("curl -s http://{sink}/events")),
        ("All promises, one by one:", format!("{} verify --config {file}", program())),
    ] {
        say(format_args!("  {}", styled(Style::Dim, format_args!("# {words}"))));
        say(format_args!("  {command}\n"));
    }
    Ok(())
}

/// How this program was called, so that what is shown can be typed.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "onced".to_owned())
}

/// A key that was not used yet, so that the first call is one.
fn new_key(config: &Config) -> anyhow::Result<String> {
    let mut client = store::connect(&config.database)?;
    let named = |number: u32| format!("demo-{number:03}");
    for key in (1..KEYS_MAX).map(named) {
        if find_record(&mut client, "", &key)?.is_none() {
            return Ok(key);
        }
    }
    Ok(named(KEYS_MAX))
}
