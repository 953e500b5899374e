"""The speed of a write and of a replay, as ratios to the ceiling: pgbench with one function that does the same."""

import argparse
import statistics
import sys
from contextlib import ExitStack

import bed

# What is measured, and the aim; a figure is a ratio unless its name has a unit.
AIMS = {
    "new keys, 16 connections": ">= 1.0",
    "new keys, 64 connections": ">= 1.5",
    "new keys, 256 connections": ">= 1.8",
    "replays over the table, 16 connections": ">= 2.0",
    "replays over the table, 64 connections": ">= 2.0",
    "replays of one key, 16 connections": ">= 4.0",
    "replays of one key, 64 connections": ">= 4.0",
    "Node peer, 64 connections": "",
    "onced to the Node peer, new keys": ">= 3",
    "p99 of new keys at 64, to the Node peer's": "<= 0.5",
    "p99 at half the top rate, 16 connections, to pgbench's": "<= 3",
    "WAL per write, to the ceiling's": "<= 1",
    "CPU of onced per write, to PostgreSQL's": "<= 0.5",
    "a lone write, median, over that of pgbench, ms": "<= 0.3",
    "a lone replay, median, over that of pgbench, ms": "<= 0.3",
    "a lone replay, slowest, ms": "< 40",
    "start to ready, ms": "<= 100",
    "resident memory after all of that, MB": "<= 15",
}
GROWN = {f"{name}, grown tables": ">= 0.9" for name in list(AIMS)[:2]}
# Seconds in which plans are cached, connections are made and the peer's code is compiled.
WARM_UP = 3


class Bench:
    """The databases, the daemons and the peer, and the figures so far by name."""

    def __init__(self, cluster, stack, arguments):
        self.cluster, self.seconds, self.rows, self.quick = cluster, arguments.seconds, arguments.rows, arguments.quick
        self.figures, self.rates, self.dropped, self.last_p99 = {}, [], 0, None
        for database in ["ceiling", "writes", "replays", "peer"]:
            cluster.sql("postgres", f"CREATE DATABASE {database}")
            bed.Daemon(cluster, database).migrate()
        cluster.sql("ceiling", (bed.BENCHES / "ceiling.sql").read_text())
        self.daemon = stack.enter_context(bed.Daemon(cluster, "writes").running())
        if not self.rows:
            # By default 32 may wait beside one key while it is looked for, and the others are told to come again.
            replayer = bed.Daemon(cluster, "replays", ["http.waiters_per_key = 64"])
            self.replayer = stack.enter_context(replayer.running())
            self.seeds = self.seed(20_000 if arguments.quick else 1_000_000)
        self.node = None if arguments.quick or self.rows else stack.enter_context(bed.node_peer(cluster, "peer"))

    def seed(self, count):
        """Records that a replay finds: copies of one that the daemon made."""
        bed.post(self.replayer.url, "seed-0")
        self.cluster.sql(
            "replays",
            f"""INSERT INTO idempotency_records
                SELECT scope, 'seed-' || n, operation, request_hash, status, http_status, response_json, is_problem,
                       created_at
                FROM idempotency_records, generate_series(1, {count}) AS n WHERE key = 'seed-0'""",
            "VACUUM ANALYZE idempotency_records")
        return count

    def grow(self):
        for database in ["ceiling", "writes"]:
            print(f"filling {database} with {self.rows} records and events", file=sys.stderr)
            self.cluster.fill(database, self.rows)

    def note(self, name, value):
        self.figures.setdefault(name, []).append(value)

    def ceiling(self):
        """The ceiling's rate; its WAL per write is kept for the comparison."""
        if not self.rows:
            self.cluster.empty("ceiling")
        before = self.cluster.wal()
        run = bed.pgbench(self.cluster, "ceiling", self.seconds)
        self.ceiling_wal = (self.cluster.wal() - before) / run["requests"]
        return run["rate"]

    def new_keys(self, connections):
        """A run of new keys against the daemon, with a look at what they left."""
        if not self.rows:
            self.cluster.empty("writes")
        wal, ours, theirs = self.cluster.wal(), self.daemon.cpu(), self.cluster.cpu()
        run = bed.wrk(self.daemon.url, ["new"], connections, self.seconds)
        wal, ours, theirs = self.cluster.wal() - wal, self.daemon.cpu() - ours, self.cluster.cpu() - theirs
        if not self.rows:
            records, orders, events = map(int, self.cluster.sql("writes", """
                SELECT (SELECT count(*) FROM idempotency_records), (SELECT count(*) FROM orders),
                       (SELECT count(*) FROM outbox_events)""").split("|"))
            # The tool hangs up when its time is over; the daemon still writes what it was sent.
            assert run["requests"] <= records <= run["requests"] + connections, (run, records)
            assert (orders, events) == (records, 2 * records)
            if connections == 64:
                self.note("WAL per write, to the ceiling's", wal / records / self.ceiling_wal)
                self.note("CPU of onced per write, to PostgreSQL's", ours / theirs)
        return run

    def works(self):
        """By name, what is compared with the ceiling: each returns a rate."""
        def new(connections):
            def run():
                result = self.new_keys(connections)
                if connections == 16:
                    self.rates.append(result["rate"])
                if connections == 64:
                    self.last = result
                return result["rate"]
            return run

        def replays(mode, connections):
            return lambda: bed.wrk(self.replayer.url, mode, connections, self.seconds)["rate"]

        def node():
            self.cluster.empty("peer")
            peer = bed.wrk(self.node, ["new"], 64, self.seconds)
            self.note("onced to the Node peer, new keys", self.last["rate"] / peer["rate"])
            self.note("p99 of new keys at 64, to the Node peer's", self.last["p99"] / peer["p99"])
            return peer["rate"]

        if self.rows:
            return dict(zip(GROWN, [new(16), new(64)]))
        works = {f"new keys, {n} connections": new(n) for n in [16, 64, 256]}
        if self.node:
            works["Node peer, 64 connections"] = node
        for n in [64] if self.quick else [16, 64]:
            works[f"replays over the table, {n} connections"] = replays(["spread", self.seeds], n)
            works[f"replays of one key, {n} connections"] = replays(["hot"], n)
        return works

    def compare(self, rounds):
        """Each work between two runs of the ceiling; where those differ by more than a quarter it does not count."""
        works, before = self.works(), None
        for _ in range(2 * rounds):
            for name, work in works.items():
                if len(self.figures.get(name, [])) >= rounds:
                    continue
                before = before or self.ceiling()
                rate, after = work(), self.ceiling()
                if abs(before - after) > min(before, after) / 4:
                    self.dropped += 1
                else:
                    self.note(name, rate / ((before + after) / 2))
                    print(f"{name:<45} {rate:8.0f}/s  ceiling {before:6.0f} {after:6.0f}", file=sys.stderr)
                before = after

    def paced(self):
        """The daemon and pgbench at half of the daemon's top rate: the ratio of their p99."""
        rate = statistics.median(self.rates) / 2
        self.cluster.empty("ceiling")
        theirs = bed.pgbench(self.cluster, "ceiling", self.seconds, rate=rate, times=True)
        self.cluster.empty("writes")
        # A connection waits so long on average that 16 of them give the rate.
        pause = max(1, 16_000 / rate - theirs["p50"])
        ours = bed.wrk(self.daemon.url, ["paced", pause], 16, self.seconds)
        print(f"paced: wanted {rate:.0f}/s, got {ours['rate']:.0f}/s, p99 {ours['p99']:.2f} ms; "
              f"pgbench {theirs['rate']:.0f}/s, p99 {theirs['p99']:.2f} ms", file=sys.stderr)
        self.note("p99 at half the top rate, 16 connections, to pgbench's", ours["p99"] / theirs["p99"])

    def lone(self):
        """One request at a time. A write waits for the disk, which varies by more than what is looked for; a replay does not."""
        for name, script, url, mode in [
            ("a lone write", "ceiling.pgbench", self.daemon.url, ["new"]),
            ("a lone replay", "replay.pgbench", self.replayer.url, ["hot"]),
        ]:
            theirs = bed.pgbench(self.cluster, "ceiling", self.seconds, clients=1, times=True, script=script)
            ours = bed.wrk(url, mode, 1, self.seconds)
            self.note(f"{name}, median, over that of pgbench, ms", ours["p50"] - theirs["p50"])
        self.note("a lone replay, slowest, ms", ours["max"])

    def starts(self, count):
        for _ in range(count):
            with bed.Daemon(self.cluster, "writes").running() as daemon:
                self.note("start to ready, ms", daemon.start_ms)


def table(figures, aims):
    """Markdown: a line for each figure that was measured."""
    lines = ["| figure | aim | min | median | max | rounds |", "| --- | --- | --- | --- | --- | --- |"]
    for name, aim in aims.items():
        if values := figures.get(name):
            low, middle, high = (f"{v:.2f}" for v in (min(values), statistics.median(values), max(values)))
            lines.append(f"| {name} | {aim} | {low} | **{middle}** | {high} | {len(values)} |")
    return "\n".join(lines)


PART = """
`scripts/bench` wrote this part. Absolute rates say more of a machine than of a program, so a figure here is a ratio, of
runs that alternate: to the *ceiling*, which is `pgbench` with 16 clients, prepared statements and one function that writes
what the operation `orders` and its record write ([benches/ceiling.sql](../benches/ceiling.sql)). The load, the
daemon and PostgreSQL share the machine; a write is one that has reached the disk. A run takes {seconds} s and stands between two
of the ceiling; where those differ by more than a quarter it is dropped ({dropped} were). Tables are emptied before each run of new keys;
replays meet a table of {seeds} records. The *Node peer* is what one would write by hand: fastify and pg, six
statements in a transaction ([benches/peers/node](../benches/peers/node/server.js)).

{machine}

{table}
"""


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--quick", action="store_true", help="the main figures, in less than a minute")
    parser.add_argument("--rows", type=int, metavar="N", help="with N records and events in the tables")
    arguments = parser.parse_args()
    arguments.seconds = 1 if arguments.quick else 10
    with bed.cluster() as cluster, ExitStack() as stack:
        bench = Bench(cluster, stack, arguments)
        if arguments.rows:
            bench.grow()
        if not arguments.quick:
            bed.pgbench(cluster, "ceiling", WARM_UP)
            for url in filter(None, [bench.daemon.url, bench.node]):
                bed.wrk(url, ["new"], 64, WARM_UP)
        bench.compare(2 if arguments.quick else 5)
        if not arguments.rows:
            for _ in range(1 if arguments.quick else 5):
                bench.paced()
                bench.lone()
            bench.starts(5)
            bench.note("resident memory after all of that, MB", bench.daemon.resident_mb())
        print(table(bench.figures, {**AIMS, **GROWN}))
        print(f"dropped, since the ceiling moved: {bench.dropped}")
        if not arguments.quick and not arguments.rows:
            part = PART.format(seconds=arguments.seconds, dropped=bench.dropped, seeds=bench.seeds,
                               machine=bed.machine("node", "--version"), table=table(bench.figures, AIMS))
            bed.write_part("ratios", part)


main()
