"""Events per second from the outbox to a sink, as a ratio to a load tool that posts the same bytes over as many connections."""

import argparse
import re
import statistics
import sys
import time
from contextlib import contextmanager

import bed

NGINX = """
daemon off;
worker_processes 1;
error_log stderr;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 204; }}
    }}
}}
"""
# What a relay does to the database for a batch, and nothing of what is between: both statements are transactions.
ALONE = """
CREATE OR REPLACE PROCEDURE claim_and_settle(batch bigint) LANGUAGE plpgsql AS $procedure$
DECLARE
    ids bigint[];
BEGIN
    LOOP
        EXECUTE $claim$ WITH claimed AS ({claim}) SELECT array_agg(id) FROM claimed $claim$
        INTO ids USING batch, 30000::bigint, NULL::bigint;
        COMMIT;
        EXIT WHEN ids IS NULL;
        EXECUTE $settle$ {settle} $settle$ USING ids;
        COMMIT;
    END LOOP;
END
$procedure$
"""
BATCH, SESSIONS = 200, 2
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
THREADS = [1, 8, 32]


@contextmanager
def sink(cluster):
    """nginx that answers every post with 204; yields its URL."""
    port, folder = bed.free_port(), cluster.folder / "nginx"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    with bed.process(["nginx", "-c", folder / "nginx.conf", "-p", folder], folder / "log"):
        bed.until("nginx answers", lambda: bed.get_status(port, "/") == 204)
        yield f"http://127.0.0.1:{port}/hook"


def fill(cluster, count):
    """Events that are due, of the size that `orders` writes."""
    cluster.sql(
        "relay", "TRUNCATE outbox_events",
        f"""INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
            SELECT '', k, k || ':1', 'order.created', jsonb_build_object(
                'id', n, 'item', 'widget', 'quantity', 2, 'created_at', now(), 'idempotency_key', k)
            FROM (SELECT n, gen_random_uuid()::text AS k FROM generate_series(1, {count}) AS n) AS new""",
        "VACUUM ANALYZE outbox_events", "CHECKPOINT")


def deliver(cluster, url, threads, count):
    """Events per second: from the first quarter to the last tenth, and whether each is recorded as sent."""
    fill(cluster, count)
    secret = cluster.folder / "sink.secret"
    secret.write_text(SECRET)
    daemon = bed.Daemon(cluster, "relay", [
        f"relay.threads = {threads}", f'sink.url = "{url}"', f'sink.secret_files = ["{secret}"]',
        "sink.allow_private = true"])
    marks = []
    with daemon.running():
        cpu = (daemon.cpu(), cluster.cpu())
        for share in [0.0001, 0.5, 1]:
            accepted = lambda: daemon.metric('onced_delivery_attempts_total{result="accepted"}')
            seen = bed.until("events are delivered", lambda: (n := accepted()) >= count * share and n, limit=600)
            marks.append((time.monotonic(), seen))
        cpu = (daemon.cpu() - cpu[0], cluster.cpu() - cpu[1])
        unsent = "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL"
        bed.until("all are recorded", lambda: cluster.number("relay", unsent) == 0)
    first, half, last = marks
    rate = lambda a, b: (b[1] - a[1]) / (b[0] - a[0])
    print(f"{threads:>2} relay threads: {rate(first, half):.0f}/s, then {rate(half, last):.0f}/s; CPU per event: onced "
          f"{cpu[0] / count * 1e6:.0f} µs, PostgreSQL {cpu[1] / count * 1e6:.0f} µs", file=sys.stderr)
    return rate(first, last)


def statement(name):
    """A statement of the daemon, from its source."""
    source = (bed.ROOT / "src/store/events.rs").read_text()
    return re.search(rf'^const {name}: &str = "(.*?)(?<!\\)";', source, re.MULTILINE | re.DOTALL)[1].replace('\\"', '"')


def alone(cluster, count):
    """Events per second that the database claims and settles, without HTTP, over as many sessions as the daemon has."""
    fill(cluster, count)
    script = cluster.folder / "alone.pgbench"
    script.write_text(f"CALL claim_and_settle({BATCH});\n")
    began = time.monotonic()
    bed.pgbench(cluster, "relay", None, clients=SESSIONS, script=script)
    rate = count / (time.monotonic() - began)
    assert cluster.number("relay", "SELECT count(*) FROM outbox_events WHERE sent_at IS NULL") == 0
    print(f"claim and settle alone: {rate:.0f}/s", file=sys.stderr)
    return rate


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench relay")
    parser.add_argument("--events", type=int, default=100_000, metavar="N", help="how many are waiting (100000)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often it is measured (5)")
    arguments = parser.parse_args()
    with bed.cluster() as cluster, sink(cluster) as url:
        cluster.sql("postgres", "CREATE DATABASE relay")
        bed.Daemon(cluster, "relay").migrate()
        cluster.sql("relay", ALONE.format(claim=statement("CLAIM"), settle=statement("SETTLE_SENT")))
        figures, database = {threads: [] for threads in THREADS}, []
        for _ in range(arguments.rounds):
            database.append(alone(cluster, arguments.events))
            for threads in THREADS:
                ceiling = bed.wrk(url, ["event"], threads, 3)["rate"]
                rate = deliver(cluster, url, threads, arguments.events)
                figures[threads].append(rate / ceiling)
                print(f"   the load tool over {threads} connections: {ceiling:.0f}/s", file=sys.stderr)
        print(f"{arguments.events} events waiting; ratio to the load tool, aim >= 0.5\n")
        print("| relay threads | min | median | max |\n| --- | --- | --- | --- |")
        for threads, ratios in figures.items():
            print(f"| {threads} | {min(ratios):.2f} | **{statistics.median(ratios):.2f}** | {max(ratios):.2f} |")
        print(f"\nclaim and settle alone, without HTTP: {statistics.median(database):.0f} events/s "
              f"({min(database):.0f} to {max(database):.0f}), {SESSIONS} sessions, {BATCH} a claim")


main()
