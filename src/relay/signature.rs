//! Signing as Standard Webhooks 1.0 has it: HMAC-SHA256 over `id.timestamp.body`. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::Secret;

/// The value of `webhook-signature`: one signature for each secret, divided by spaces, so that a consumer that knows
/// any of them can verify the attempt while secrets rotate. `timestamp` is in seconds since 1970.
pub fn sign(id: &str, timestamp: u64, body: &str, secrets: &[Secret<Vec<u8>>]) -> String {
    let signatures: Vec<String> =
        secrets.iter().map(|secret| sign_once(id, timestamp, body, secret.reveal())).collect();
    signatures.join(" ")
}

fn sign_once(id: &str, timestamp: u64, body: &str, secret: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body.as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(base64: &str) -> Secret<Vec<u8>> {
        Secret::new(STANDARD.decode(base64).unwrap())
    }

    #[test]
    fn the_reference_vector_of_the_standard_holds() {
        let signed = sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
            &[secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_secret_signs_and_each_signature_stands_alone() {
        let (old, new) = (secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), secret("b25jZWQ="));
        let alone = |secret: &Secret<Vec<u8>>| sign("a:1", 7, "{}", std::slice::from_ref(secret));
        let both = sign("a:1", 7, "{}", &[old.clone(), new.clone()]);
        assert_eq!(both, format!("{} {}", alone(&old), alone(&new)));
        assert_ne!(alone(&old), alone(&new));
    }

    #[test]
    fn the_time_and_the_id_are_signed_too() {
        let secrets = [secret("b25jZWQ=")];
        assert_ne!(sign("a", 1, "{}", &secrets), sign("a", 2, "{}", &secrets));
        assert_ne!(sign("a", 1, "{}", &secrets), sign("b", 1, "{}", &secrets));
    }
}
