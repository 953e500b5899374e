use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use onced::cli::dev::cluster::{Cluster, Options};
use onced::config::{self, Tls};
use onced::store;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use crate::testbed::database_at;

/// The name in the server's certificate.
const NAME: &str = "db.onced.test";

/// A PostgreSQL that takes TCP over TLS only, under a certificate for [`NAME`].
struct Secured {
    // In this order: the server stops before its folder goes.
    _cluster: Cluster,
    folder: TempDir,
    address: Ipv4Addr,
}

/// Makes an authority, and writes its certificate to `ca_file`.
fn authority(ca_file: &Path) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(ca_file, issuer.pem()).unwrap();
    issuer
}

/// Hands a file to the user who runs the server where we are root.
fn give(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    if nix::unistd::geteuid().is_root() {
        let user = nix::unistd::User::from_name("postgres").unwrap().unwrap();
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
}

impl Secured {
    fn start() -> Secured {
        let folder = tempfile::Builder::new().prefix("onced-tls-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = |name: &str| folder.path().join(name);
        authority(&file("wrong-ca.pem"));
        let issuer = authority(&file("ca.pem"));
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([NAME.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(file("server.pem"), certificate.pem()).unwrap();
        fs::write(file("server.key"), key.serialize_pem()).unwrap();
        let hba = "local all all trust\n\
                   hostssl all postgres 127.0.0.0/8 scram-sha-256\n\
                   hostnossl all clear 127.0.0.0/8 scram-sha-256\n";
        fs::write(file("hba.conf"), hba).unwrap();
        ["server.pem", "server.key", "hba.conf"].into_iter().for_each(|name| give(&file(name)));
        // An address of this test's own, because the port is everybody's.
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 77, high, low);
        let path = |name: &str| file(name).display().to_string();
        let settings = [
            ("listen_addresses", address.to_string()),
            ("ssl", "on".to_owned()),
            ("ssl_cert_file", path("server.pem")),
            ("ssl_key_file", path("server.key")),
            ("hba_file", path("hba.conf")),
            ("fsync", "off".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let options = Options { settings, ..Options::default() };
        let cluster = Cluster::start(&file("cluster"), &options).unwrap();
        let roles =
            "ALTER ROLE postgres PASSWORD 'hunter2'; CREATE ROLE clear LOGIN PASSWORD 'hunter2'";
        let mut session = postgres::Client::connect(&cluster.dsn(), postgres::NoTls).unwrap();
        session.batch_execute(roles).unwrap();
        Secured { _cluster: cluster, folder, address }
    }

    /// Connects under a host name; returns whether the session is encrypted.
    fn connect(
        &self,
        name: &str,
        with: impl FnOnce(&mut config::Database),
    ) -> Result<bool, String> {
        self.connect_as("user=postgres password=hunter2", name, with)
    }

    fn connect_as(
        &self,
        user: &str,
        name: &str,
        with: impl FnOnce(&mut config::Database),
    ) -> Result<bool, String> {
        let address = self.address;
        let dsn = format!("host={name} hostaddr={address} port=5432 {user} dbname=postgres");
        let mut database = database_at(&dsn);
        with(&mut database);
        let mut client = store::connect(&database).map_err(|error| error.to_string())?;
        let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(client.query_one(encrypted, &[]).unwrap().get(0))
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.path().join(name))
    }
}

#[test]
fn the_right_certificate_is_taken_and_a_wrong_authority_or_name_is_refused() {
    let server = Secured::start();
    let verify = |ca_file: &str| {
        let ca_file = server.file(ca_file);
        |database: &mut config::Database| {
            database.tls = Tls::VerifyFull;
            database.ca_file = ca_file;
        }
    };
    assert_eq!(server.connect(NAME, verify("ca.pem")), Ok(true));
    let refused = server.connect(NAME, verify("wrong-ca.pem")).unwrap_err();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
    let refused = server.connect("other.onced.test", verify("ca.pem")).unwrap_err();
    assert!(refused.contains("not valid for name"), "{refused}");
    let refused = server.connect(NAME, verify("nothing.pem")).unwrap_err();
    assert!(refused.contains("database.ca_file") && refused.contains("nothing.pem"), "{refused}");
    let refused = server.connect(NAME, verify("server.key")).unwrap_err();
    assert!(refused.contains("no certificate"), "{refused}");

    let require = |database: &mut config::Database| database.tls = Tls::Require;
    assert_eq!(server.connect("anything", require), Ok(true));
    let refused = server.connect(NAME, |_| {}).unwrap_err();
    assert!(refused.contains("no encryption"), "in clear text on loopback: {refused}");
    assert_eq!(server.connect_as("user=clear password=hunter2", NAME, |_| {}), Ok(false));
    let refused = server.connect_as("user=clear password=hunter3", NAME, |_| {}).unwrap_err();
    assert!(refused.contains("28P01") && !refused.contains("hunter3"), "{refused}");
    let bound = "user=postgres password=hunter2 channel_binding=require";
    assert_eq!(server.connect_as(bound, NAME, verify("ca.pem")), Ok(true));
}

#[test]
fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let proxy = crate::testbed::Proxy::start();
    let database = crate::testbed::TestDatabase::create("plain");
    let mut settings = database_at(&format!("{} sslmode=require", proxy.dsn(&database)));
    let refused = store::connect(&settings).err().unwrap().to_string();
    assert!(refused.contains("does not offer TLS"), "{refused}");
    settings.tls = Tls::Off;
    let refused = store::connect(&settings).err().unwrap().to_string();
    assert!(refused.contains("sslmode"), "{refused}");
}
