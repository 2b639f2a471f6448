"""Event Hubs: receiving and publishing beside the SDK's clients, the first event, the way through Spark, and memory; one server.

Prints, and adds to build/bench.json, from one run on the tests' wire server:
- receive: one process, 4 partitions, bodies of 200 bytes, from hub to event table in Arrow, from the first table on. The SDK's
  consumers have of some prefetches the one that is best for them here.
- publish: batches of 500 to one partition, from bodies to acknowledgements, from the first batch on.
- first event: from the making of the feed, in a process that has imported everything, to the first table.
- latency: one event at a time, published to an idle, warm pipeline, until it is seen in PostgreSQL behind Spark.
- memory: the resident sets of a receiver and of a producer after 2,000,000 events, by those after 500,000.
The sides take turns, each time in a fresh process. Figures are medians of the repetitions. Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import hub_latency
import hub_memory_watch
from hub_sides import BODY_BYTES, Order, Took, took
from plugins_eventhubs import EventHubs, running
from results import RESULT, Target, add, machine, say

OURS, AIO, SYNC = "leasehold", "sdk aio", "sdk sync"
HUB, PARTITIONS = "raw-event", 4
PREFETCHES = (300, 1000, 3000)
FILLED = 100_000
"""Events of each partition: what the quickest side receives."""
RECEIVED = {OURS: FILLED, AIO: 10_000, SYNC: 20_000}
TRIED = 4_000
PUBLISHED = {OURS: 200_000, AIO: 50_000, SYNC: 50_000}
BATCH = 500

TARGETS = (
    Target("receive, by sdk aio", "", 4, is_at_least=True),
    Target("receive, by sdk sync", "", 2, is_at_least=True),
    Target("publish, by sdk sync", "", 1.3, is_at_least=True),
    Target("publish, by sdk aio", "", 1.1, is_at_least=True),
    Target("first event", "s", 0.2, is_at_least=False),
    Target("latency p50", "ms", 150, is_at_least=False),
    Target("memory of a receiver", "", 1.05, is_at_least=False),
    Target("memory of a producer", "", 1.05, is_at_least=False),
)

Repetitions = dict[str, list[Took]]


@dataclass(frozen=True, slots=True)
class Clients:
    """Both kinds of work on one server, by whichever side."""

    server: EventHubs

    def receives(self, side: str, prefetch: int, events: int, partitions: int = PARTITIONS) -> Took:
        """prefetch: 0 for what is so by default."""
        return took("hub_receive.py", self._order(side, partitions, events, prefetch))

    def publishes(self, side: str) -> Took:
        self.server.control.make_hub("published", 1, events_max=BATCH)
        order = Order(
            side=side,
            connection_string=self.server.connection_string,
            hub="published",
            events=PUBLISHED[side],
            size=BATCH,
        )
        return took("hub_publish.py", order)

    def _order(self, side: str, partitions: int, events: int, size: int) -> Order:
        return Order(
            side=side,
            connection_string=self.server.connection_string,
            hub=HUB,
            partitions=partitions,
            events=events,
            size=size,
        )


def best_prefetch(clients: Clients, side: str) -> int:
    rates = {each: clients.receives(side, each, TRIED).events_per_s for each in PREFETCHES}
    say(f"{side}, by prefetch: " + ", ".join(f"{each}: {rate:,.0f}/s" for each, rate in rates.items()))
    return max(rates, key=lambda each: rates[each])


def received(clients: Clients, repetitions: int) -> Repetitions:
    for partition in range(PARTITIONS):
        clients.server.control.fill(HUB, str(partition), FILLED, BODY_BYTES)
    prefetches = {OURS: 0, AIO: best_prefetch(clients, AIO), SYNC: best_prefetch(clients, SYNC)}
    found: Repetitions = {side: [] for side in RECEIVED}
    for _ in range(repetitions):
        for side, events in RECEIVED.items():
            found[side].append(told("receive", side, clients.receives(side, prefetches[side], events)))
    return found


def published(clients: Clients, repetitions: int) -> Repetitions:
    found: Repetitions = {side: [] for side in PUBLISHED}
    for _ in range(repetitions):
        for side in PUBLISHED:
            found[side].append(told("publish", side, clients.publishes(side)))
    return found


def firsts(clients: Clients, repetitions: int) -> list[float]:
    """Each with a table or more to come after it, so that there is something to measure at all."""
    return [clients.receives(OURS, 0, FILLED // 4, partitions=1).first_s for _ in range(repetitions)]


def told(what: str, side: str, one: Took) -> Took:
    say(
        f"{what:10}{side:12}{one.events_per_s:>12,.0f} events/s{one.cpu_us:>9.1f} us of CPU an event{one.first_s:>9.3f} s"
    )
    return one


def rate(repetitions: Sequence[Took]) -> float:
    return statistics.median(one.events_per_s for one in repetitions)


def figures(
    receive: Repetitions,
    publish: Repetitions,
    firsts_s: Sequence[float],
    latency_p50_ms: float,
    memory: Mapping[str, float],
) -> dict[str, float]:
    ratios = {
        f"{what}, by {side}": rate(found[OURS]) / rate(found[side])
        for what, found in (("receive", receive), ("publish", publish))
        for side in (AIO, SYNC)
    }
    return {
        **ratios,
        "first event": statistics.median(firsts_s),
        "latency p50": latency_p50_ms,
        **{f"memory of a {who}": ratio for who, ratio in memory.items()},
    }


def table(found: Mapping[str, float]) -> str:
    lines = [f"{'Event Hubs':28}{'':>10}{'target':>12}"]
    for target in TARGETS:
        value = found[target.figure]
        verdict = "" if target.is_met(value) else "  missed"
        lines.append(f"{target.figure:28}{value:>10.3f}{target.words + ' ' + target.unit:>12}{verdict}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Event Hubs beside the SDK's own clients.")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side (%(default)s)")
    parser.add_argument("--probes", type=int, default=80, help="single events through Spark (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=250, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--events", type=int, default=2_000_000, help="for the memory of each client (%(default)s)")
    settings = vars(parser.parse_args())
    repetitions, probes, warm_probes = (settings[name] for name in ("repetitions", "probes", "warm_probes"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and no side is left behind
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with running("--hubs", f"{HUB}:{PARTITIONS}") as server:
        clients = Clients(server)
        receive, publish = received(clients, repetitions), published(clients, repetitions)
        firsts_s = firsts(clients, 2 * repetitions - 1)
        server.control.make_hub(HUB, PARTITIONS)  # what was received is no longer needed
        memory = {who: hub_memory_watch.growth(server, who, settings["events"]) for who in ("receiver", "producer")}
        latencies_ms = hub_latency.latencies_ms(server, directory, probes=probes, warm_probes=warm_probes)
    shutil.rmtree(directory, ignore_errors=True)
    found = figures(receive, publish, firsts_s, statistics.median(latencies_ms), memory)
    missed = [target.figure for target in TARGETS if not target.is_met(found[target.figure])]
    result = {
        "settings": settings,
        "machine": machine(),
        "figures": found,
        "targets": {target.figure: f"{target.words} {target.unit}".strip() for target in TARGETS},
        "missed": missed,
        "repetitions": {
            what: {side: [asdict(one) for one in found] for side, found in of_all.items()}
            for what, of_all in (("receive", receive), ("publish", publish))
        },
        "firsts_s": firsts_s,
        "latencies_ms": latencies_ms,
    }
    add("event_hubs", result)
    say(f"\n{table(found)}\n\nwritten to {RESULT}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
