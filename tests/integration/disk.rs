//! A disk that is full: nobody's fault but the server's, nothing stored, and all well again without a restart.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::support::load::expect_come_again;
use crate::support::server::Server;
use crate::support::sink::Sink;
use crate::support::wait::{until, until_eq};
use crate::support::{Database, Setup, fresh_key};

/// Stores a response that fits in no page that is there already.
const LONG: &str = "
SELECT to_jsonb((SELECT string_agg(md5(n::text || $2), '') FROM generate_series(1, 4000) AS n)) AS response,
       '[{\"type\": \"long.stored\", \"payload\": null}]'::jsonb AS events";

/// A small file system of its own. It ends with this value.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// `None`, with a word, where none can be mounted.
    fn mount() -> Option<Disk> {
        let folder = tempfile::Builder::new().prefix("onced-disk-").tempdir_in("/tmp").unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=128m", "onced-test"]).arg(folder.path());
        if !geteuid().is_root() || !mount.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: a file system can be mounted by root only");
            return None;
        }
        Some(Disk { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves no byte free.
    fn fill(&self) {
        let mut ballast = File::create(self.path().join("ballast")).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while ballast.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.path()).status());
    }
}

#[test]
fn on_a_full_disk_calls_are_told_to_come_again_and_it_recovers_by_itself() {
    let Some(disk) = Disk::mount() else { return };
    let server = Server::start_in(disk.path(), &[("autovacuum", "off")]);
    server.migrate();
    let sink = Sink::start();
    let daemon = Setup::at(&server.url())
        .set("http.wait", "3s")
        .set("writers.statement_timeout", "2s")
        .inline("long", LONG)
        .sink(&sink)
        .start();
    let pid = daemon.pid();
    let (stored, new) = (fresh_key(), fresh_key());
    let first = daemon.post("long", &stored, "1");
    assert_eq!(first.status, 200, "{first:?}");
    sink.wait_for(1);
    disk.fill();

    for _ in 0..3 {
        expect_come_again(&daemon.post("long", &new, "1"));
    }
    let again = daemon.post("long", &stored, "1");
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(daemon.look_up(&new), None);
    assert!(daemon.log().contains("53100"), "{}", daemon.log());

    disk.free();
    let second = daemon.post("long", &new, "1");
    assert_eq!((second.status, second.is_replay()), (200, false));
    let deliveries = sink.wait_for(2);
    assert_eq!(daemon.pid(), pid);
    let mut session = server.session("app");
    until_eq("both are settled, at the first attempt", &(2, 2), || {
        let sql = "SELECT count(sent_at), sum(attempts) FROM outbox_events";
        let row = session.query_one(sql, &[]).unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    });
    assert_eq!(deliveries.len(), 2);
}

#[test]
fn a_delivery_that_cannot_be_written_down_is_no_failed_delivery() {
    let database = Database::new();
    database.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE SQLSTATE '53100' USING MESSAGE = 'No space left on device'; END $$;
         CREATE TRIGGER full_disk BEFORE UPDATE OF sent_at, attempts, last_error ON outbox_events
         FOR EACH ROW WHEN (NEW.claims = OLD.claims) EXECUTE FUNCTION full_disk()",
    );
    let sink = Sink::start();
    let daemon = Setup::on(&database).set("relay.max_attempts", 1).sink(&sink).start();
    daemon.order(&fresh_key());
    sink.wait_for(2);
    let tried = until("the daemon tries to write it down", || {
        let tried = daemon.log().matches("No space left").count();
        if tried > 1 { Ok(tried) } else { Err(daemon.log()) }
    });
    assert!(tried > 1);
    database.execute("DROP TRIGGER full_disk ON outbox_events");
    until_eq("all are settled", &2, || {
        database.value::<i64>("SELECT count(sent_at) FROM outbox_events", &[])
    });
    let attempts =
        "SELECT sum(attempts) FROM outbox_events WHERE dead_at IS NULL AND last_error IS NULL";
    assert_eq!(database.value::<i64>(attempts, &[]), 2);
    assert_eq!(sink.deliveries().len(), 2);
}
