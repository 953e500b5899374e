//! A sink behind TLS, where who vouches for it decides whether it is spoken to; and a sink behind a proxy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onced::config;
use onced::relay::sink::{Delivery, Secrets, Webhook};
use onced::threads::spawn_small;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::outbox::sink_at;

fn authority(file: &Path) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(file, issuer.pem()).unwrap();
    issuer
}

/// Serves 204 to everybody, under a certificate for `localhost`. Returns its port.
fn serve(issuer: &CertifiedIssuer<'static, KeyPair>) -> u16 {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let server = Arc::new(server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    spawn_small("https".to_owned(), 1 << 20, move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&server)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            // A client that does not trust us hangs up here.
            if read_until(&mut stream, "{}").ends_with("{}") {
                let reply = b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n";
                stream.write_all(reply).and_then(|()| stream.flush()).unwrap_or_default();
            }
        }
    })
    .unwrap();
    port
}

/// Reads to these bytes, or to the end.
fn read_until(stream: &mut impl Read, end: &str) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with(end) && stream.read(&mut byte).is_ok_and(|read| read > 0) {
        text.push(char::from(byte[0]));
    }
    text
}

fn deliver(port: u16, host: &str, ca_file: Option<PathBuf>) -> Delivery {
    let sink = config::Sink {
        ca_file,
        timeout: Duration::from_secs(5),
        ..sink_at(&format!("https://{host}:{port}/hook"))
    };
    let webhook = Webhook::new(&sink, Secrets::new(sink.secrets.clone()), 1).unwrap();
    webhook.deliver("u:1", "{}")
}

#[test]
fn a_sink_is_spoken_to_where_the_system_or_the_ca_file_vouches_for_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let [right, wrong] = ["right.pem", "wrong.pem"].map(|name| folder.path().join(name));
    authority(&wrong);
    let port = serve(&authority(&right));
    assert_eq!(deliver(port, "localhost", Some(right.clone())), Delivery::Accepted);
    let refused =
        [("localhost", None), ("localhost", Some(wrong)), ("127.0.0.1", Some(right.clone()))];
    for (host, ca_file) in refused {
        let seen = deliver(port, host, ca_file.clone());
        assert!(matches!(seen, Delivery::Unreachable { .. }), "{host} {ca_file:?}: {seen:?}");
    }
}

#[test]
fn a_ca_file_that_cannot_be_used_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let sink = config::Sink { ca_file: Some(file.clone()), ..sink_at("https://localhost/") };
    let error = || Webhook::new(&sink, Secrets::new(Vec::new()), 1).err().unwrap().to_string();
    assert!(error().contains("ca.pem"), "{}", error());
    fs::write(&file, "nothing").unwrap();
    assert!(error().ends_with("there is no certificate in it"), "{}", error());
}

#[test]
fn a_proxy_that_is_configured_is_used_and_its_own_address_may_be_private() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, asked) = crossbeam_channel::bounded(1);
    spawn_small("proxy".to_owned(), 1 << 20, move || {
        let (mut stream, _) = listener.accept().unwrap();
        told.send(read_until(&mut stream, "\r\n\r\n")).unwrap();
        stream.write_all(b"HTTP/1.1 200 X\r\n\r\n").unwrap();
        read_until(&mut stream, "{}");
        stream.write_all(b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n").unwrap();
    })
    .unwrap();
    let sink = config::Sink {
        proxy: Some(format!("http://127.0.0.1:{port}").parse().unwrap()),
        allow_private: false,
        ..sink_at("http://sink.example/hook")
    };
    let webhook = Webhook::new(&sink, Secrets::new(sink.secrets.clone()), 1).unwrap();
    assert_eq!(webhook.deliver("u:1", "{}"), Delivery::Accepted);
    let asked = asked.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(asked.starts_with("CONNECT sink.example:80 HTTP/1.1\r\n"), "{asked}");
}
