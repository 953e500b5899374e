"""What the benches stand on: a PostgreSQL of their own, the daemon, a peer, and the load tools. Only the standard library."""

import http.client
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHES = ROOT / "benches"
ONCED = ROOT / "target/release/onced"
PG_BIN = Path(os.environ["BENCH_PG_BIN"])
BODY = '{"item": "widget", "quantity": 2}'
TICKS = os.sysconf("SC_CLK_TCK")
# Everything else is PostgreSQL's default: fsync, full_page_writes and synchronous_commit are on.
SETTINGS = {"max_wal_size": "4GB"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, look, limit=60, every=0.01):
    """Waits until `look` is true, and returns what it gave."""
    end = time.monotonic() + limit
    while not (seen := look()):
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain until {what}")
        time.sleep(every)
    return seen


@contextmanager
def process(command, log, **options):
    """A child that ends with the block; its output is in the file `log`."""
    with open(log, "ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **options)
    try:
        yield child
    except BaseException:
        if child.poll() is not None:
            print(f"{command[0]} ended with {child.returncode}:\n{Path(log).read_text()[-2000:]}")
        raise
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()


class Cluster:
    """A PostgreSQL on this machine's disk, with the settings that durability asks for."""

    def __init__(self, folder, process_id, port):
        self.folder, self.pid, self.port = folder, process_id, port

    def url(self, database, port=None):
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def sql(self, database, *statements):
        """Runs statements, each in a transaction of its own, and returns what the last one printed."""
        command = [PG_BIN / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database)]
        for statement in statements:
            command += ["-c", statement]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def number(self, database, query):
        return int(self.sql(database, query))

    def empty(self, database):
        self.sql(database, "TRUNCATE idempotency_records, outbox_events, orders", "CHECKPOINT")

    def fill(self, database, rows):
        """Old records and sent events, as the daemon leaves them; their keys are ordered by time."""
        self.sql(
            database,
            f"""INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status,
                                                 response_json)
                SELECT '', to_char(n, 'FM00000000') || '-0000-7000-8000-000000000000', 'orders',
                       'v1:' || encode(sha256(n::text::bytea), 'hex'), 'succeeded', 201,
                       '{{"id": 1, "item": "widget", "quantity": 2, "created_at": "2026-12-01T09:30:00Z"}}'
                FROM generate_series(1, {rows}) AS n""",
            f"""INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, sent_at, attempts)
                SELECT '', k, k || ':1', 'order.created', '{{"id": 1, "item": "widget", "quantity": 2}}', now(), 1
                FROM generate_series(1, {rows}) AS n,
                     concat(to_char(n, 'FM00000000'), '-0000-7000-8000-000000000000') AS k""",
            "VACUUM ANALYZE", "CHECKPOINT")

    def wal(self):
        return self.number("postgres", "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")

    def cpu(self):
        """CPU seconds of the server and all its processes, the ended ones too."""
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], stdout=subprocess.PIPE, text=True)
        return cpu(self.pid, ended=True) + sum(cpu(int(pid)) for pid in children.stdout.split())


@contextmanager
def cluster():
    # /tmp may be in memory, where fsync costs nothing.
    folder = Path(tempfile.mkdtemp(prefix="onced-bench-", dir=os.environ.get("ONCED_BENCH_DIR", "/var/tmp")))
    as_server = []
    if os.getuid() == 0:
        as_server = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    folder.chmod(0o755)
    data, port = folder / "data", free_port()
    command = [*as_server, PG_BIN / "postgres", "-D", data, "-p", str(port), "-k", folder,
               "-c", "listen_addresses=127.0.0.1"]
    for name, value in SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    try:
        subprocess.run([*as_server, PG_BIN / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                        "--locale=C"], check=True, stdout=subprocess.DEVNULL, cwd="/")
        with process(command, folder / "postgres.log", cwd="/"):
            ready = [PG_BIN / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            until("PostgreSQL is ready", lambda: subprocess.run(ready).returncode == 0)
            pid = int((data / "postmaster.pid").read_text().split()[0])
            yield Cluster(folder, pid, port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Daemon:
    """`onced serve` with the shipped configuration, on a database of the cluster. ONCED_… variables override."""

    def __init__(self, cluster, database, lines=(), port=None):
        """With `port` it reaches the database there, which is where a proxy listens."""
        self.http, self.admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}/v1/orders"
        self.log = cluster.folder / f"{database}-{self.http}.log"
        self.config = cluster.folder / f"{database}-{self.http}.toml"
        operations = ROOT / "config/operations"
        text = [f'http.listen = "127.0.0.1:{self.http}"', f'admin.listen = "127.0.0.1:{self.admin}"',
                f'database.url = "{cluster.url(database, port)}"', f'operations.orders.sql = "{operations}/orders.sql"',
                f'operations.orders.setup = "{operations}/orders.setup.sql"', *lines]
        self.config.write_text("\n".join(text) + "\n")

    def migrate(self):
        subprocess.run([ONCED, "migrate", "--config", self.config], check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def running(self):
        began = time.monotonic()
        with process([ONCED, "serve", "--config", self.config], self.log) as child:
            until("the daemon is ready", lambda: get_status(self.admin, "/readyz") == 200, every=0.001)
            self.pid, self.start_ms = child.pid, (time.monotonic() - began) * 1000
            yield self

    def metric(self, series):
        lines = get(self.admin, "/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))

    def cpu(self):
        return cpu(self.pid)

    def resident_mb(self):
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@contextmanager
def node_peer(cluster, database):
    """The hand-written service; yields its URL."""
    place = ROOT / "target/peers/node"
    place.mkdir(parents=True, exist_ok=True)
    for name in ["package.json", "package-lock.json", "server.js"]:
        shutil.copy(BENCHES / "peers/node" / name, place)
    log, port = cluster.folder / "node.log", free_port()
    npm = ["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(npm, check=True, cwd=place, stdout=subprocess.DEVNULL)
    environment = {**os.environ, "NODE_ENV": "production"}
    with process(["node", place / "server.js", str(port), cluster.url(database)], log, env=environment):
        until("the peer answers", lambda: get_status(port, "/") == 404)
        yield f"http://127.0.0.1:{port}/v1/orders"


def wrk(url, mode, connections, seconds):
    """A run of the load tool: `rate`, latencies in ms, `requests`. Ends the bench where an answer was no success."""
    threads = min(2, connections)
    command = ["wrk", "-t", str(threads), "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s",
               "-s", BENCHES / "load.lua", url, "--", *map(str, mode)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    if result["failed"]:
        raise SystemExit(f"{result['failed']} of {result['requests']} requests failed: {' '.join(map(str, command))}")
    return {**result, "rate": result["requests"] / result["seconds"]}


def pgbench(cluster, database, seconds, clients=16, rate=None, times=False, script="ceiling.pgbench", texts=(),
            port=None):
    """A run of a call of the ceiling function: `rate`, and if asked for `times`, the latencies in ms without the wait for a turn.

    Without `seconds` each client runs the script once. The script finds `texts` in the variables text_0, text_1 and so on."""
    command = [PG_BIN / "pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(2, clients)),
               *(["-T", str(seconds)] if seconds else ["-t", "1"]), "-f", BENCHES / script, "-D", f"n={time.time_ns() // 100_000}",
               "-h", "127.0.0.1", "-p", str(port or cluster.port), "-U", "postgres"]
    for number, text in enumerate(texts):
        command += ["-D", f"text_{number}={text}"]
    if rate:
        command += ["--rate", str(round(rate))]
    if times:
        command += ["-l", f"--log-prefix={cluster.folder / 'times'}"]
    output = subprocess.run([*command, database], check=True, stdout=subprocess.PIPE, text=True).stdout
    taken = []
    for log in cluster.folder.glob("times.*"):
        # client, transaction, microseconds, script, second, microsecond, and with a rate how long it was late
        rows = (line.split() for line in log.read_text().splitlines())
        taken += [(int(row[2]) - int(row[6] if rate else 0)) / 1000 for row in rows]
        log.unlink()
    taken.sort()
    figure = lambda name: float(re.search(rf"^{name}\D*([0-9.]+)", output, re.MULTILINE)[1])
    result = {"rate": figure("tps"), "requests": figure("number of transactions actually processed")}
    if taken:
        result |= {"p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100]}
    return result


def cpu(pid, ended=False):
    """CPU seconds that a process has used, with those of its ended children where asked; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0
    return sum(map(int, fields[11:15 if ended else 13])) / TICKS


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get_status(port, path):
    try:
        return get(port, path)[0]
    except OSError:
        return None


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def post(url, key):
    """The status and body of one order."""
    host, path = url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("POST", f"/{path}", BODY, {"Content-Type": "application/json", "Idempotency-Key": key})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def machine(*more):
    """What the figures were measured on, as a list; `more` is a command that tells of another program."""
    def said(*command):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.strip()

    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in cpu_lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    overrides = ", ".join(f"{k}={v}" for k, v in sorted(os.environ.items())
                          if k.startswith("ONCED_") and k not in ("ONCED_PG_BIN", "ONCED_BENCH_DIR"))
    return "\n".join(f"- {line}" for line in [
        f"{os.cpu_count()} × {model}, {memory:.0f} GB of memory, Linux {platform.release()}",
        f"{said(ONCED, '--version')}, commit {said('git', 'rev-parse', '--short', 'HEAD')}, "
        f"settings: {overrides or 'as shipped'}",
        f"{said(PG_BIN / 'postgres', '--version')}, settings: as shipped but "
        + ", ".join(f"{k} = {v}" for k, v in SETTINGS.items()),
        said("wrk", "-v").splitlines()[0].split(" Copyright")[0] + (f", {more[0]} {said(*more)}" if more else ""),
        f"measured on {time.strftime('%Y-%m-%d')}",
    ])


PAGE = ROOT / "docs/performance.md"
PARTS = ["ratios", "growth"]


def write_part(part, text):
    """Puts a part of docs/performance.md in its place, and leaves what is around it."""
    mark = lambda name, end: f"<!-- {name}: {end} -->"
    page = PAGE.read_text() if PAGE.exists() else "# Performance\n"
    for name in PARTS:
        if mark(name, "begin") not in page:
            page += f"\n{mark(name, 'begin')}\n{mark(name, 'end')}\n"
    before, rest = page.split(mark(part, "begin"))
    after = rest.split(mark(part, "end"))[1]
    PAGE.write_text(f"{before}{mark(part, 'begin')}\n{text.strip()}\n{mark(part, 'end')}{after}")
