//! TLS to the database: which mode holds, and the certificates that it trusts.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::chain;
use crate::config::Tls;

/// The mode that holds, from `database.tls` and the connection string's `sslmode`, which may say it once or both the
/// same; `is_local` where every host is loopback or a Unix socket.
pub(super) fn mode(setting: Tls, sslmode: Option<&str>, is_local: bool) -> Result<Tls, String> {
    let said = match sslmode {
        None => None,
        Some("disable") => Some(Tls::Off),
        Some("require") => Some(Tls::Require),
        Some("verify-full") => Some(Tls::VerifyFull),
        Some("verify-ca") => {
            return Err("sslmode=verify-ca would take the certificate of any host that the same \
                        authority knows: use verify-full"
                .to_owned());
        }
        Some("allow" | "prefer") => {
            return Err("sslmode=allow and prefer fall back to clear text without a word: use \
                        disable, require or verify-full"
                .to_owned());
        }
        Some(_) => return Err("sslmode is one of disable, require, verify-full".to_owned()),
    };
    match (setting, said) {
        (Tls::Auto, None) if is_local => Ok(Tls::Off),
        (Tls::Auto, None) => Ok(Tls::VerifyFull),
        (Tls::Auto, Some(said)) => Ok(said),
        (setting, None) => Ok(setting),
        (setting, Some(said)) if setting == said => Ok(said),
        (_, Some(_)) => {
            Err("its sslmode says something else than database.tls: say it in one place".to_owned())
        }
    }
}

/// The connector of a mode; `None` where the connection is in clear text. `direct` where TLS begins with the first
/// byte, which servers know by a protocol name.
pub(super) fn connector(
    mode: Tls,
    ca_file: Option<&Path>,
    direct: bool,
) -> Result<Option<MakeRustlsConnect>, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match mode {
        Tls::Off => return Ok(None),
        Tls::Require => match ca_file {
            None => Arc::new(AnyServer(Arc::clone(&provider))),
            Some(_) => {
                return Err("with tls = \"require\" nobody looks at database.ca_file: use \
                            tls = \"verify-full\", or leave the file out"
                    .to_owned());
            }
        },
        Tls::Auto | Tls::VerifyFull => {
            let roots = ca_file.map(read_certificates).transpose()?.unwrap_or_default();
            let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider))
                .map_err(|error| format!("no certificates to trust: {}", chain(&error)))?;
            Arc::new(verifier)
        }
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| chain(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    if direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Some(MakeRustlsConnect::new(config)))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let problem = |error: &rustls::pki_types::pem::Error| {
        format!("cannot read database.ca_file {}: {error}", path.display())
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| problem(&error))?;
    if certificates.is_empty() {
        return Err(format!("database.ca_file {} has no certificate in it", path.display()));
    }
    Ok(certificates)
}

/// Takes any certificate, as `require` says. The handshake's signature is still checked, so whoever owns the
/// certificate is at the other end.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_said_once_and_never_falls_back_to_clear_text() {
        let table = [
            (Tls::Auto, None, true, Ok(Tls::Off)),
            (Tls::Auto, None, false, Ok(Tls::VerifyFull)),
            (Tls::Auto, Some("disable"), false, Ok(Tls::Off)),
            (Tls::Auto, Some("require"), true, Ok(Tls::Require)),
            (Tls::Auto, Some("verify-full"), true, Ok(Tls::VerifyFull)),
            (Tls::Off, None, false, Ok(Tls::Off)),
            (Tls::Require, Some("require"), false, Ok(Tls::Require)),
            (Tls::VerifyFull, Some("require"), false, Err(())),
            (Tls::Off, Some("verify-full"), false, Err(())),
            (Tls::Auto, Some("prefer"), true, Err(())),
            (Tls::Auto, Some("allow"), true, Err(())),
            (Tls::Auto, Some("verify-ca"), true, Err(())),
            (Tls::Auto, Some("on"), true, Err(())),
        ];
        for (setting, sslmode, is_local, expected) in table {
            let found = mode(setting, sslmode, is_local).map_err(|_| ());
            assert_eq!(found, expected, "{setting:?} {sslmode:?} {is_local}");
        }
    }
}
