"""What a write costs as the tables, the body, its events and the way to the database grow."""

import argparse
import base64
import random
import statistics
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Callable

import bed
import plot

ROUNDS = 3
CONNECTIONS = 64
SIZES = {"0.2 KB": 200, "1 KB": 1 << 10, "16 KB": 1 << 14, "256 KB": 1 << 18}
EVENTS = [0, 1, 10]
DELAYS = [0, 1]
# No argument of a program is longer than 128 KiB.
PIECE = 100_000
KEY = ("to_char(:n::bigint, 'FM00000000000000') || '-7000-8000-' || to_char(:client_id::bigint, 'FM00000000000')"
       f", 'v1:{'0' * 64}'")

OPERATION = """
WITH new_order AS (
    INSERT INTO orders (idempotency_key, item, quantity)
    VALUES ($2, $1 ->> 'item', ($1 ->> 'quantity')::integer)
    RETURNING id, idempotency_key, item, quantity, created_at
)
SELECT 201 AS status, to_jsonb(new_order) AS response,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('type', 'order.created', 'payload', to_jsonb(o))), '[]')
        FROM new_order AS o, generate_series(1, {events})) AS events
FROM new_order
"""

# As benches/ceiling.sql, but for the events.
CEILING = """
CREATE FUNCTION ceiling_events(the_key text, the_hash text, request jsonb, events integer, OUT answer text)
LANGUAGE plpgsql AS $$
DECLARE
    new_order orders;
    response jsonb;
BEGIN
    INSERT INTO idempotency_records AS r (scope, key, operation, request_hash, status, http_status)
    VALUES ('', the_key, 'orders', the_hash, 'succeeded', 200);
    INSERT INTO orders (idempotency_key, item, quantity)
    VALUES (the_key, request ->> 'item', (request ->> 'quantity')::integer)
    RETURNING * INTO new_order;
    response := to_jsonb(new_order);
    IF events > 0 THEN
        INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
        SELECT '', the_key, the_key || ':' || n, 'order.created', response FROM generate_series(1, events) AS n;
    END IF;
    UPDATE idempotency_records AS r SET status = 'succeeded', http_status = 201, response_json = response
    WHERE r.scope = '' AND r.key = the_key;
    answer := response::text;
END
$$
"""


@dataclass
class Point:
    """A value of what grows: how to run the daemon and the ceiling with it."""

    label: str
    daemon: bed.Daemon
    ours: Callable
    ceiling: Callable
    database: str = "growth"
    is_emptied: bool = True


class Growth:
    """The databases, and what each of the four tables is made of."""

    def __init__(self, cluster, arguments):
        self.cluster, self.seconds, self.rows = cluster, arguments.seconds, sorted({0, 1_000_000, *arguments.rows})
        self.folder = cluster.folder / "growth"
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self.operations = []
        for events in EVENTS:
            sql = self.folder / f"events-{events}.sql"
            sql.write_text(OPERATION.format(events=events))
            self.operations.append(f'operations.events-{events}.sql = "{sql}"')
        self.create("growth")

    def create(self, database):
        self.cluster.sql("postgres", f"CREATE DATABASE {database}")
        bed.Daemon(self.cluster, database).migrate()
        self.cluster.sql(database, (bed.BENCHES / "ceiling.sql").read_text(), CEILING)

    def daemon(self, stack, database="growth", port=None):
        """A running daemon that has its connections and plans."""
        daemon = stack.enter_context(bed.Daemon(self.cluster, database, self.operations, port).running())
        bed.wrk(daemon.url, ["new"], CONNECTIONS, 1)
        return daemon

    def pgbench(self, database="growth", **options):
        return bed.pgbench(self.cluster, database, self.seconds, **options)

    def wrk(self, url, *body):
        return bed.wrk(url, ["new", *body], CONNECTIONS, self.seconds)

    def script(self, name, call):
        path = self.folder / f"{name}.pgbench"
        path.write_text(f"\\set n :n + 1\nSELECT * FROM {call};\n")
        return path

    def table_size(self, stack):
        for rows in self.rows:
            database = f"growth_{rows}"
            self.create(database)
            if rows:
                print(f"filling {rows} records and events", file=sys.stderr)
                self.cluster.fill(database, rows)
            daemon = self.daemon(stack, database)
            yield Point(f"{rows:,}", daemon, partial(self.wrk, daemon.url), partial(self.pgbench, database), database,
                        is_emptied=not rows)

    def payload(self, stack):
        daemon = self.daemon(stack)
        for label, size in SIZES.items():
            # Text that does not get smaller when PostgreSQL compresses it.
            frame = '{"item": "%s", "quantity": 2}'
            noise = base64.b64encode(random.Random(size).randbytes(size)).decode()
            body = frame % noise[:size - len(frame) + 2]
            file = self.folder / f"body-{size}.json"
            file.write_text(body)
            texts = [body[start:start + PIECE] for start in range(0, size, PIECE)]
            whole = " || ".join(f":text_{number}::text" for number in range(len(texts)))
            script = self.script(f"body-{size}", f"ceiling_order({KEY}, ({whole})::jsonb)")
            yield Point(label, daemon, partial(self.wrk, daemon.url, file),
                        partial(self.pgbench, script=script, texts=texts))

    def events(self, stack):
        daemon = self.daemon(stack)
        for events in EVENTS:
            url = daemon.url.replace("orders", f"events-{events}")
            script = self.script(f"events-{events}", f"ceiling_events({KEY}, '{bed.BODY}', {events})")
            yield Point(str(events), daemon, partial(self.wrk, url), partial(self.pgbench, script=script))

    def round_trip(self, stack):
        direct = self.daemon(stack)
        yield Point("no proxy", direct, partial(self.wrk, direct.url), self.pgbench)
        for delay in DELAYS:
            port = stack.enter_context(self.proxy(delay))
            daemon = self.daemon(stack, port=port)
            yield Point(f"proxy, +{delay} ms", daemon, partial(self.wrk, daemon.url), partial(self.pgbench, port=port))

    @contextmanager
    def proxy(self, delay):
        """Holds back what the database says; yields its port."""
        port = bed.free_port()
        command = [sys.executable, bed.BENCHES / "delay.py", *map(str, [port, self.cluster.port, delay])]
        with bed.process(command, self.cluster.folder / f"proxy-{port}.log"):
            bed.until("the proxy listens", lambda: bed.is_listening(port))
            yield port

    def measure(self, point):
        """A run of the ceiling and one of the daemon: figures by name."""
        ceiling = self.run(point, point.ceiling)
        ours = self.run(point, point.ours)
        print(f"{point.label:<16} {ours['rate']:8.0f}/s  ceiling {ceiling['rate']:6.0f}/s", file=sys.stderr)
        return {"ratio": ours["rate"] / ceiling["rate"], "rate": ours["rate"], "postgres": ours["postgres"],
                "onced": ours["onced"], "wal": ours["wal"], "ceiling_postgres": ceiling["postgres"],
                "ceiling_wal": ceiling["wal"]}

    def run(self, point, work):
        """Its rate, and per write the CPU time in µs of PostgreSQL and of the daemon, and the bytes of WAL."""
        if point.is_emptied:
            self.cluster.empty(point.database)
        count = partial(self.cluster.number, point.database, "SELECT count(*) FROM idempotency_records")
        looks = [count, self.cluster.wal, self.cluster.cpu, point.daemon.cpu]
        before = [look() for look in looks]
        rate = work()["rate"]
        bed.until("what the load tool left under way is written", lambda: self.is_idle(point))
        wal, postgres, onced = (look() - was for look, was in list(zip(looks, before))[1:])
        writes = count() - before[0]
        return {"rate": rate, "postgres": postgres / writes * 1e6, "onced": onced / writes * 1e6, "wal": wal / writes}

    def is_idle(self, point):
        busy = """SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"""
        return not point.daemon.metric("onced_jobs_waiting") and not self.cluster.number(point.database, busy)

    def table(self, points):
        """The medians by label."""
        points = list(points)
        rounds = [[self.measure(point) for point in points] for _ in range(ROUNDS)]
        return {point.label: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
                for point, runs in zip(points, zip(*rounds))}


COLUMNS = {
    "to the ceiling": lambda f: f"**{f['ratio']:.2f}**",
    "writes/s": lambda f: f"{f['rate']:,.0f}",
    "PostgreSQL, µs": lambda f: f"{f['postgres']:,.0f}",
    "onced, µs": lambda f: f"{f['onced']:,.0f}",
    "ceiling: PostgreSQL, µs": lambda f: f"{f['ceiling_postgres']:,.0f}",
    "WAL, bytes": lambda f: f"{f['wal']:,.0f}",
    "ceiling: WAL, bytes": lambda f: f"{f['ceiling_wal']:,.0f}",
}
PANELS = {
    "writes, to the ceiling's": {"onced": "ratio"},
    "CPU per write, µs": {"onced": "onced", "ceiling's SQL": "ceiling_postgres", "onced's SQL": "postgres"},
    "WAL per write, bytes": {"onced": "wal", "ceiling": "ceiling_wal"},
}

PART = """
## Growth

`scripts/bench growth` wrote this part. The load tool writes new keys over {connections} connections; the ceiling is
`pgbench` with 16 clients. A figure is the median of {rounds} runs of {seconds} s, which alternate with those of the
ceiling. CPU time and WAL are per write, the CPU time that of all of PostgreSQL's processes and that of the daemon.
Tables are emptied before each run, but where they are meant to be large.

{machine}
"""
TEXTS = {
    "table_size": ("Table size", "rows", "Records and sent events that are there already, as many of the one as of the "
                   "other. The operation is `orders`, with two events."),
    "payload": ("Payload", "body", "The size of the request of `orders`, in text that cannot be compressed. It is "
                "stored three times: in the order, in the response and in one of the two events."),
    "events": ("Events", "events", "Events that one request writes, each with the order as its payload."),
    "round_trip": ("Round trip to the database", "way", "A proxy between the database and both the daemon and `pgbench` "
                   "holds back what the database says. What the proxy itself costs is in the line with +0 ms."),
}


def section(name, figures):
    """Markdown: the plot and the table of what grows."""
    title, unit, text = TEXTS[name]
    lines = [f"### {title}", "", text, "", f"![{title}](performance/{name}.svg)", "",
             f"| {unit} | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    lines += [f"| {label} | {' | '.join(show(row) for show in COLUMNS.values())} |" for label, row in figures.items()]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench growth")
    parser.add_argument("--seconds", type=int, default=3, metavar="N", help="how long a run takes (3)")
    parser.add_argument("--rows", type=int, default=[], action="append", metavar="N",
                        help="tables of N rows as well, besides 0 and 1000000; may be given more than once")
    arguments = parser.parse_args()
    part = [PART.format(connections=CONNECTIONS, rounds=ROUNDS, seconds=arguments.seconds, machine=bed.machine())]
    plots = {}
    with bed.cluster() as cluster:
        growth = Growth(cluster, arguments)
        for name in TEXTS:
            with ExitStack() as stack:
                figures = growth.table(getattr(growth, name)(stack))
            part.append(section(name, figures))
            panels = {title: {series: [row[figure] for row in figures.values()] for series, figure in lines.items()}
                      for title, lines in PANELS.items()}
            plots[name] = plot.svg(list(figures), panels)
    folder = bed.PAGE.parent / "performance"
    folder.mkdir(exist_ok=True)
    for name, svg in plots.items():
        (folder / f"{name}.svg").write_text(svg)
    bed.write_part("growth", "\n\n".join(text.strip() for text in part))
    print("\n\n".join(part[1:]))


main()
