"""One host with ten busy partitions and a thousand that are mostly idle, beside a host with the ten alone.

Each host is a fresh process over an embedded log, with its leases in SQLite and a sink in memory, without Spark. Both run at the
same time, so that whatever else the machine does delays both. Another process appends events to the busy partitions at a steady
rate. The latency of an event counts from its append to the sink's commit. Before that, both hosts are idle for a while: what that
costs is CPU time.

Spark would add a JVM of its own, and its client in the Python process (docs/sizing.md, Memory). It sees no idle partition, since
nothing is transformed there.

Last, a host plans its share of 1,000 pipelines with 100 leases each, which 100 hosts share, after a change of membership.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import pyarrow as pa
import structlog
from results import Figure, finish, say

from leasehold.leases.balance import Peer, plan_in_steps
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogChangeFeed, append
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.store import Log
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.sink import Claim, Output
from leasehold.service.cli.run import short_collections
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

HOT, IDLE = 10, 1_000
EVENTS_PER_S = 10
"""In each busy partition."""
PROBE_S = 0.01
SETTLING_S = 10.0
DELIVERED_S = 60.0
"""How long the last event may take. One that never comes is a failure, not a short latency."""
PIPELINES, LEASES, HOSTS = 1_000, 100, 100


class Destination(MemoryDestination):
    """Takes output and keeps the latencies of its events alone. Their bodies are the times at which they were appended."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies_s: list[float] = []

    def commit(self, claim: Claim, output: Output) -> None:
        super().commit(claim, output)
        self.commits.clear()
        now = time.monotonic()
        self.latencies_s += [now - float(body) for body in output.table["body"].to_pylist() if body]


def names(count: int, kind: str) -> list[str]:
    return [f"{kind}-{n}" for n in range(count)]


def produce(path: Path, seconds: float) -> None:
    """Events for all busy partitions, in turn and evenly."""
    log = Log(path)
    partitions = [log.partition(name, new=True) for name in names(HOT, "hot")]
    columns = {name: [None] for name in BLOCK_SCHEMA.names}
    began = time.monotonic()
    for n in range(int(seconds * EVENTS_PER_S * HOT)):
        time.sleep(max(0.0, began + n / EVENTS_PER_S / HOT - time.monotonic()))
        body = f"{time.monotonic()}".encode()
        partitions[n % HOT].append(pa.table({**columns, "body": [body]}, BLOCK_SCHEMA))
    log.close()


async def probe(late_s: list[float]) -> None:
    while True:
        began = time.monotonic()
        await asyncio.sleep(PROBE_S)
        late_s.append(time.monotonic() - began - PROBE_S)


async def measured(idle: int, idle_s: float, busy_s: float, state: Path) -> dict[str, float]:
    for name in (*names(HOT, "hot"), *names(idle, "idle")):
        append(state / "log", name, [b""])
    destination, late_s = Destination(), list[float]()
    pipeline = PipelineParts(name="many", feed=LogChangeFeed(state / "log"), sink=MemoryOutputSink(destination))
    processor = ProcessorCore([pipeline], SqliteStore(state / "leases.db"), host="bench")
    began_s = time.process_time()
    await processor.start()
    while processor.stats.events["many"] < HOT + idle:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)
    start_s = time.process_time() - began_s
    await asyncio.sleep(SETTLING_S)
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    before_s = time.process_time()
    await asyncio.sleep(idle_s)
    idle_cpu_s = time.process_time() - before_s
    producer = multiprocessing.get_context("spawn").Process(target=produce, args=(state / "log", busy_s))
    watching = asyncio.create_task(probe(late_s))
    producer.start()
    await asyncio.to_thread(producer.join)
    async with asyncio.timeout(DELIVERED_S):
        while len(destination.latencies_s) < int(busy_s * EVENTS_PER_S * HOT):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
    watching.cancel()
    await processor.stop()
    return {
        "latency_p50_ms": 1000 * median(destination.latencies_s),
        "latency_p99_ms": 1000 * quantiles(destination.latencies_s, n=100)[-1],
        "lag_p99_ms": 1000 * quantiles(late_s, n=100)[-1],
        "lag_max_ms": 1000 * max(late_s),
        "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "start_cpu_s": start_s,
        "idle_cpu_s_per_minute": 60 * idle_cpu_s / idle_s,
        "events": float(len(destination.latencies_s)),
    }


def side_by_side(arguments: argparse.Namespace) -> dict[int, dict[str, float]]:
    """By number of idle partitions, what a host with so many has found."""
    options = ["--idle-s", str(arguments.idle_s), "--busy-s", str(arguments.busy_s)]
    hosts = {
        idle: subprocess.Popen(
            [sys.executable, __file__, "--idle", str(idle), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for idle in (0, IDLE)
    }
    for host in hosts.values():
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n", "a host ended before it was ready: see above"
    for host in hosts.values():
        assert host.stdin is not None
        host.stdin.write("\n")
        host.stdin.flush()
    return {idle: json.loads(host.communicate()[0]) for idle, host in hosts.items()}


def planned(situation: str) -> tuple[float, float]:
    """Seconds of CPU for a plan, and for its longest step."""
    pipelines, hosts = frozenset(names(PIPELINES, "p")), names(HOSTS, "h")
    peers = [Peer(name=name, pipelines=pipelines) for name in hosts]
    leases = [
        Lease(pipeline=pipeline, partition=str(n), owner=hosts[n % HOSTS], incarnation="1")
        for pipeline in pipelines
        for n in range(LEASES)
    ]
    me, expired = hosts[0], frozenset[tuple[str, str]]()
    if situation == "a host has joined":
        me = "joined"
        peers.append(replace(peers[0], name=me))
    elif situation == "a host is dead":
        expired = frozenset(lease.key for lease in leases if lease.owner == peers[-1].name)
        peers.pop()
    working = frozenset(lease.key for lease in leases if lease.owner == me)
    gc.collect()  # or the first long plan has that, which no host's plan has more often than its other work
    steps = plan_in_steps(leases, peers, me, working, expired, (), random.Random(1))
    took_s, ends = list[float](), False
    while not ends:
        began = time.process_time()
        ends = next(steps, StopIteration) is StopIteration
        took_s.append(time.process_time() - began)
    return sum(took_s), max(took_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--idle", type=int, help="measure one host, with so many idle partitions, and print what it found"
    )
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--busy-s", type=float, default=30.0)
    arguments = parser.parse_args()
    if arguments.idle is not None:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
        with tempfile.TemporaryDirectory() as state:
            with short_collections(time.monotonic):  # as `leasehold run` does
                result = asyncio.run(measured(arguments.idle, arguments.idle_s, arguments.busy_s, Path(state)))
            say(json.dumps(result))
        return 0
    found: dict[int, list[dict[str, float]]] = {0: [], IDLE: []}
    for _ in range(arguments.runs):
        for idle, result in side_by_side(arguments).items():
            found[idle].append(result)
            say(f"{idle:5} idle: " + ", ".join(f"{name} {value:.1f}" for name, value in result.items()))
    with short_collections(time.monotonic):
        plans = {each: planned(each) for each in ("nothing has changed", "a host has joined", "a host is dead")}
    for situation, (whole_s, step_s) in plans.items():
        say(f"plan if {situation}: {1000 * whole_s:.0f} ms, longest step {1000 * step_s:.0f} ms")

    def middle(idle: int, name: str) -> float:
        return median(each[name] for each in found[idle])

    alone = "ten busy alone"
    figures = [
        Figure(name="resident set", unit="MiB", ours=middle(IDLE, "resident_mib"), bound=1024, is_most=True),
        Figure(
            name="busy partitions, p99 latency",
            unit="ms",
            ours=middle(IDLE, "latency_p99_ms"),
            others={alone: middle(0, "latency_p99_ms")},
            beside=alone,
            bound=2,
            is_most=True,
        ),
        Figure(
            name="event loop lag, p99",
            unit="ms",
            ours=middle(IDLE, "lag_p99_ms"),
            others={alone: middle(0, "lag_p99_ms")},
            bound=50,
            is_most=True,
        ),
        Figure(
            name="CPU of an idle host",
            unit="s/minute",
            ours=middle(IDLE, "idle_cpu_s_per_minute"),
            others={alone: middle(0, "idle_cpu_s_per_minute")},
        ),
        Figure(
            name="plan for 100,000 leases and 100 hosts",
            unit="ms",
            ours=1000 * max(whole_s for whole_s, _ in plans.values()),
            bound=300,
            is_most=True,
        ),
        Figure(
            name="longest step of that plan",
            unit="ms",
            ours=1000 * max(step_s for _, step_s in plans.values()),
            bound=50,
            is_most=True,
        ),
    ]
    return finish("partitions", figures, runs=found, plans=plans)


if __name__ == "__main__":
    sys.exit(main())
