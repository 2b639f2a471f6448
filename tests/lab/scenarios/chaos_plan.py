"""What will happen: drawn from a seed alone, with no look at what the processes make of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LASTS_S = {
    "host killed": (0, 8),
    "host frozen": (1, 14),
    "host told to stop": (0, 8),
    "host added": (0, 0),
    "Spark killed": (0, 0),
    "PostgreSQL crashed": (0, 8),
    "PostgreSQL restarted": (0, 4),
    "leases locked": (1, 10),
    "host cut off": (1, 12),
    "host's line stalled": (1, 12),
    "leases away": (1, 10),
    "hubs cut off": (1, 10),
    "hubs throttle": (1, 8),
    "batches cut": (1, 4),
    "acks lost": (4, 8),
    "links stolen": (1, 4),
    "broker killed": (0, 8),
    "broker frozen": (1, 10),
    "executor killed": (0, 0),
    "worker killed": (0, 8),
    "master killed": (0, 8),
    "Connect server killed": (0, 8),
    "Connect server frozen": (1, 30),
    "driver cut off": (1, 12),
    "driver's line stalled": (1, 30),
}
"""Kind -> the shortest and the longest it lasts; for a host that is gone, until it is started again, which takes its own time.
Some freezes and locks outlast a lease of `LEASE_S`, others do not."""
OF_HUBS = ("leases away", "hubs cut off", "hubs throttle", "batches cut", "acks lost", "links stolen")
OF_BROKERS = ("broker killed", "broker frozen")
OF_CLUSTERS = ("executor killed", "worker killed", "master killed", "driver cut off", "driver's line stalled")
OF_CONNECT = ("Connect server killed", "Connect server frozen")
OF_SPARK = (*OF_CLUSTERS, *OF_CONNECT)
KILLS = ("executor killed", "worker killed", "master killed", "Connect server killed")
"""Of parts of a cluster. The Spark of a host is its driver."""
KINDS_OF = {
    "log": tuple(kind for kind in LASTS_S if kind not in (*OF_HUBS, *OF_BROKERS, *OF_SPARK)),
    "eventhubs": tuple(kind for kind in LASTS_S if kind not in ("leases locked", *OF_BROKERS, *OF_SPARK)),
    **{broker: tuple(kind for kind in LASTS_S if kind not in (*OF_HUBS, *OF_SPARK)) for broker in ("kafka", "pulsar")},
}
"""What the bank's logs are -> what may happen to it."""
KINDS = KINDS_OF["log"]
KINDS_ON = {
    "cluster": (*OF_CLUSTERS, "Spark killed", "host killed"),
    "connect": (*OF_CLUSTERS, *OF_CONNECT, "host killed"),
}
"""What hosts' Spark is, where it is not their own -> what may happen to it, and to them."""
ROUND_ON = {spark: (*kinds, *(kind for kind in kinds if kind in KILLS)) for spark, kinds in KINDS_ON.items()}
"""The same, with kills of Spark's parts twice: most of what happens to a cluster is that a part of it dies."""
LEASE_S = 6
WAITS = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """pause_s: after the one before, which may last longer. waits: and not before all hosts work, and something was delivered.

    pick: from 0 to 1, which of the hosts that are there by then. coin: what else is to choose.
    """

    kind: str
    lasts_s: float
    pause_s: float
    waits: bool
    pick: float
    coin: float


def planned(seed: int, pause_s: tuple[float, float], kinds: Sequence[str] = KINDS) -> Iterator[Fault]:
    """Without end, in rounds: each has every kind as often as `kinds` lists it. pause_s: the shortest and the longest."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(list(kinds), len(kinds)):
            yield Fault(
                kind=kind,
                lasts_s=rng.uniform(*LASTS_S[kind]),
                pause_s=rng.uniform(*pause_s),
                waits=rng.random() < WAITS,
                pick=rng.random(),
                coin=rng.random(),
            )
