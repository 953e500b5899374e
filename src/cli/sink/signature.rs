//! The consumer's half of Standard Webhooks: is this message from the one who holds the secret, and is it recent?

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How far the sender's clock and the age of a message may be off, in seconds.
const TOLERANCE_SECONDS: u64 = 300;
const PREFIX: &str = "whsec_";

/// A secret as it stands in a file: `whsec_` and base64.
pub(super) struct Key(Vec<u8>);

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("webhook-timestamp is not a number of seconds")]
    NoTimestamp,
    #[error("webhook-timestamp is more than five minutes away from this clock")]
    NotRecent,
    #[error("no signature is that of a known secret")]
    WrongSignature,
}

/// What is signed.
pub(super) struct Message<'a> {
    pub(super) id: &'a str,
    pub(super) timestamp: &'a str,
    pub(super) body: &'a [u8],
}

impl Key {
    /// Reads a secret. White space around it is ignored.
    pub(super) fn parse(text: &str) -> anyhow::Result<Key> {
        let text = text.trim();
        let Some(encoded) = text.strip_prefix(PREFIX) else {
            anyhow::bail!("a secret begins with `{PREFIX}`, and this one does not");
        };
        let Ok(key) = STANDARD.decode(encoded) else {
            anyhow::bail!("what follows `{PREFIX}` is not base64");
        };
        anyhow::ensure!((24..=64).contains(&key.len()), "a secret has 24 to 64 bytes");
        Ok(Key(key))
    }

    fn has_signed(&self, message: &Message, signature: &[u8]) -> bool {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(message.id.as_bytes());
        mac.update(b".");
        mac.update(message.timestamp.as_bytes());
        mac.update(b".");
        mac.update(message.body);
        // In constant time.
        mac.verify_slice(signature).is_ok()
    }
}

/// Checks the timestamp against `now` (seconds since 1970), and that one of the signatures, divided by spaces, is made
/// with one of the keys.
pub(super) fn verify(
    keys: &[Key],
    message: &Message,
    signatures: &str,
    now: u64,
) -> Result<(), Refused> {
    let sent: u64 = message.timestamp.parse().map_err(|_| Refused::NoTimestamp)?;
    if now.abs_diff(sent) > TOLERANCE_SECONDS {
        return Err(Refused::NotRecent);
    }
    let mut given =
        signatures.split(' ').filter_map(|s| STANDARD.decode(s.strip_prefix("v1,")?).ok());
    if given.any(|signature| keys.iter().any(|key| key.has_signed(message, &signature))) {
        Ok(())
    } else {
        Err(Refused::WrongSignature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: u64 = 1_614_265_330;
    const GOOD: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    /// The vector of the standard.
    fn check(body: &str, signatures: &str, now: u64) -> Result<(), Refused> {
        let keys = [Key::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap()];
        let message = Message {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp: "1614265330",
            body: body.as_bytes(),
        };
        verify(&keys, &message, signatures, now)
    }

    #[test]
    fn the_vector_of_the_standard_is_accepted_also_among_others() {
        let body = r#"{"test": 2432232314}"#;
        assert_eq!(check(body, GOOD, SENT), Ok(()));
        assert_eq!(check(body, &format!("v1,AAAA v2,BBBB {GOOD}"), SENT + 300), Ok(()));
    }

    #[test]
    fn another_body_an_old_message_and_a_missing_signature_are_refused() {
        let body = r#"{"test": 2432232314}"#;
        assert_eq!(check(r#"{"test": 2432232315}"#, GOOD, SENT), Err(Refused::WrongSignature));
        assert_eq!(check(body, "", SENT), Err(Refused::WrongSignature));
        assert_eq!(check(body, GOOD, SENT + 301), Err(Refused::NotRecent));
        assert_eq!(check(body, GOOD, SENT - 301), Err(Refused::NotRecent));
    }

    #[test]
    fn a_secret_of_another_form_is_refused() {
        for secret in ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_%", "whsec_AAAA"] {
            assert!(Key::parse(secret).is_err(), "{secret}");
        }
    }
}
