//! `onced token new`: a bearer token for a principal, and what the configuration keeps of it.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::output::{Style, say, say_json, styled};

/// Marks a token as one of ours, so that scanners for leaked secrets can find it.
const PREFIX: &str = "onced_";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token: give it to the caller, put its hash into the configuration
    #[command(after_help = "Example:\n  onced token new --name billing")]
    New {
        /// The principal's name, for the printed section
        #[arg(long, default_value = "NAME")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Command::New { name, json } = arguments.command;
    let token = new_token()?;
    let hash = hash(&token);
    if json {
        say_json(&json!({ "token": token, "token_sha256": hash }));
        return Ok(());
    }
    say(format_args!("{}", styled(Style::Bold, &token)));
    say("");
    say("This is the only time that the token is shown. The caller sends it as");
    say("  Authorization: Bearer TOKEN");
    say("and the configuration holds its hash:");
    say("");
    say("[[principals]]");
    say(format_args!("name = {name:?}"));
    say(format_args!("token_sha256 = [\"{hash}\"]"));
    Ok(())
}

/// 32 random bytes.
fn new_token() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system gives no random bytes")?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// As the configuration wants it: SHA-256 of the whole token, in hex.
fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_are_long_enough() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert_ne!(one, other);
        assert!(one.starts_with(PREFIX));
        assert_eq!(URL_SAFE_NO_PAD.decode(&one[PREFIX.len()..]).unwrap().len(), 32);
    }

    #[test]
    fn the_hash_is_that_of_the_whole_token() {
        // printf abc | sha256sum
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash("abc"), expected);
    }
}
