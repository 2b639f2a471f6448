"""Event Hubs: receiving and publishing beside the SDK's clients, the first event, the way through Spark, and memory; one server.

Prints, and writes build/bench/hub.json, from one run on the tests' wire server:
- receive: one process, 4 partitions, bodies of 200 bytes, from hub to event table in Arrow, from the first table on. The SDK's
  consumers have of some prefetches the one that is best for them here. The raw socket is the bound of what is possible: the
  same octets, of which frames are counted and nothing is decoded.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import hub_latency
import hub_memory_watch
from hub_sides import BODY_BYTES, Order, Took, took
from plugins_eventhubs import EventHubs, running
from results import Figure, finish, say

OURS, AIO, SYNC, RAW = "leasehold", "sdk aio", "sdk sync", "raw socket"
HUB, PARTITIONS = "raw-event", 4
PREFETCHES = (300, 1000, 3000)
FILLED = 100_000
"""Events of each partition: what the quickest side receives."""
RECEIVED = {OURS: FILLED, RAW: FILLED, AIO: 10_000, SYNC: 20_000}
TRIED = 4_000
PUBLISHED = {OURS: 200_000, AIO: 50_000, SYNC: 50_000}
BATCH = 500

BOUNDS = {"receive": {AIO: 10.0, SYNC: 7.0, RAW: 0.5}, "publish": {SYNC: 5.0, AIO: 1.1}}
"""The least that ours does, by theirs."""
CPU_US_MAX = {"receive": 4.0, "publish": 2.5}

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
    prefetches = {OURS: 0, RAW: 0, AIO: best_prefetch(clients, AIO), SYNC: best_prefetch(clients, SYNC)}
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


def cpu_us(repetitions: Sequence[Took]) -> float:
    return statistics.median(one.cpu_us for one in repetitions)


def rates(what: str, found: Repetitions) -> Iterator[Figure]:
    others = {side: rate(each) for side, each in found.items() if side != OURS}
    cost = {side: cpu_us(each) for side, each in found.items()}
    for side, bound in BOUNDS[what].items():
        yield Figure(
            name=f"hub {what}",
            unit="events/s",
            ours=rate(found[OURS]),
            others=others,
            beside=side,
            cpu_us=cost,
            bound=bound,
        )
    yield Figure(name=f"hub {what}: CPU", unit="us/event", ours=cost[OURS], bound=CPU_US_MAX[what], is_most=True)


def figures(
    receive: Repetitions,
    publish: Repetitions,
    firsts_s: Sequence[float],
    latency_p50_ms: float,
    memory: Mapping[str, float],
) -> list[Figure]:
    return [
        *rates("receive", receive),
        *rates("publish", publish),
        Figure(name="hub first event", unit="s", ours=statistics.median(firsts_s), bound=0.2, is_most=True),
        Figure(name="hub latency p50", unit="ms", ours=latency_p50_ms, bound=150, is_most=True),
        *(
            Figure(
                name=f"hub memory of a {who}",
                unit="relative to the first quarter of the run",
                ours=growth,
                bound=1.05,
                is_most=True,
            )
            for who, growth in memory.items()
        ),
    ]


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
    repetitions_of = {
        what: {side: [asdict(one) for one in each] for side, each in of_all.items()}
        for what, of_all in (("receive", receive), ("publish", publish))
    }
    return finish(
        "hub", found, settings=settings, repetitions=repetitions_of, firsts_s=firsts_s, latencies_ms=latencies_ms
    )


if __name__ == "__main__":
    sys.exit(main())
