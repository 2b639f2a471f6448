"""What a seed draws before it begins: how many hosts and leases, which sink, how ill the weather, how many faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

from leasehold.leases.timing import LASTS_S, Timing, derived_timing
from leasehold.pipeline.limits import JOB_SHARE, ParallelLimits, RangeLimits

SinkKind = Literal["memory", "log", "python", "files", "postgres", "async", "eventhubs", "kafka"]
SINKS: tuple[SinkKind, ...] = get_args(SinkKind)
PLAIN, RARE = SINKS[:3], SINKS[3:7]
RESTORED: tuple[SinkKind, ...] = ("files", "postgres")
"""Those whose output and positions can be put back to an earlier state."""
Operator = Literal["away", "resets", "tampers"]
PIPELINES = ("bank", "till")
BATCH_TIMEOUT = 1.5
"""How long a batch may take, in patiences of a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    name: str
    hosts: int
    leases: int
    minutes: int
    shrinks: tuple[float, ...]
    """How long hosts may be silent, as shares of the default."""
    appends_every_s: float
    """On average, in each partition."""
    hints: bool = False
    """Whether the lease store is like PostgreSQL: a listing is of one moment, and hosts watch hints."""


SMALL = Size(name="small", hosts=3, leases=4, minutes=7, shrinks=(1.0,), appends_every_s=30.0)
TIGHT = Size(name="tight", hosts=3, leases=4, minutes=7, shrinks=(1 / 3, 1 / 2), appends_every_s=20.0)
"""More lives of hosts in the same minutes: dearer, and each seed finds more."""
LARGE = Size(name="large", hosts=20, leases=100, minutes=19, shrinks=(1.0,), appends_every_s=60.0)
HINTED = replace(SMALL, name="hinted", hints=True)
SIZES = {size.name: size for size in (SMALL, TIGHT, LARGE, HINTED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a seed draws before it begins.

    ill: the share of requests that do not go well; skew: how clock rates differ. transform_s, store_s, sink_s: how long
    each takes. has_quota: whether the lease store has little to give when faults stop. opens_slowly: whether sinks take
    longer than `batch_timeout_s` now and then, to open and to say where they stand. tears: whether listings of leases are read
    in pages, between which they change. lags: whether replicas of the source answer that have less than was read before.
    pipelines: of every host, each with its part of the partitions. leases_max: of hosts with an odd number. document_faults: how
    many befall documents that are no leases. ranges: when executors read, None for never.
    parallel: how the handler of a sink `python` is called side by side; None: batch by batch. manual: at how many events without
    a checkpoint by hand reading pauses, batch by batch; None: the handler does not checkpoint by hand.
    """

    seed: int
    size: Size
    sink: SinkKind
    operator: Operator
    splits: bool
    timing: Timing
    ill: float
    skew: float
    transform_s: float
    store_s: float
    sink_s: float
    batch_events_max: int
    filters: bool
    faults: int
    has_quota: bool
    opens_slowly: bool
    tears: bool
    lags: bool
    pipelines: tuple[str, ...]
    leases_max: int | None
    document_faults: int
    restores: bool
    ranges: RangeLimits | None
    parallel: ParallelLimits | None
    manual: int | None

    @property
    def holds_position(self) -> bool:
        """Whether the sink does."""
        return self.sink not in ("python", "async")

    def pipeline_of(self, partition: str) -> str:
        """Children and merged partitions are called after their parents."""
        return self.pipelines[int(partition[1:3]) % len(self.pipelines)]

    def leases_max_of(self, host: str) -> int | None:
        number = host.removeprefix("host-")
        return self.leases_max if number.isdecimal() and int(number) % 2 else None

    @property
    def succession_s(self) -> float:
        """How long a dead owner's leases wait at most. Two hosts may try for one first."""
        timing = self.timing
        return timing.duration_s + timing.look_s + 2 * timing.handoff_poll_s

    @property
    def batch_timeout_s(self) -> float:
        return BATCH_TIMEOUT * self.timing.patience_s

    @property
    def opens_s(self) -> float:
        """What a slow sink takes."""
        return 1.5 * self.batch_timeout_s if self.opens_slowly else 0.0

    @classmethod
    def drawn(cls, seed: int, size: Size) -> Setup:
        rng = random.Random(f"{seed} setup {size.name}")
        hardships = random.Random(
            f"{seed} hardships {size.name}"
        )  # another, so that seeds without them stay as they are
        sinks = random.Random(f"{seed} sink {size.name}")
        shrink = rng.choice(size.shrinks)
        counting = random.Random(f"{seed} rollout {size.name}")
        timing = replace(derived_timing(LASTS_S * shrink), counted_above=counting.choice((0, 1000)))
        plain = rng.choice(PLAIN)
        sink = sinks.choice(RARE) if sinks.random() < 0.5 else plain
        if sink == "memory" and random.Random(f"{seed} kafka {size.name}").random() >= 0.5:
            sink = "kafka"
        operator: Operator = rng.choice(("away", "resets", "tampers"))
        restores = sink in RESTORED and operator != "tampers" and sinks.random() < 0.6
        return cls(
            seed=seed,
            size=size,
            sink=sink,
            operator=operator,
            splits=rng.random() < 0.4 and not restores,
            timing=timing,
            ill=rng.choice((0.0, 0.005, 0.02, 0.05)),
            skew=rng.choice((0.0, 0.01, 0.03)),
            transform_s=rng.choice((0.0, 0.02, 0.5, 3.0)),
            store_s=rng.choice((0.0, 0.0, 0.8)) * timing.call_timeout_s,
            sink_s=rng.choice((0.0, 0.0, 1.5)),
            batch_events_max=rng.choice((3, 10, 50)),
            filters=rng.random() < 0.3,
            faults=rng.choice((3, 8, 15)) * (1 if size.hosts < 10 else 4),
            has_quota=hardships.random() < 0.2,
            opens_slowly=hardships.random() < 0.2,
            tears=hardships.random() < 0.3 and not size.hints,
            lags=hardships.random() < 0.2,
            pipelines=PIPELINES if hardships.random() < 0.3 else PIPELINES[:1],
            leases_max=hardships.randint(1, size.leases // size.hosts + 1) if hardships.random() < 0.2 else None,
            document_faults=hardships.choice((0, 0, 2, 5)) * (1 if size.hosts < 10 else 4),
            restores=restores,
            ranges=_ranges(random.Random(f"{seed} ranges {size.name}"), BATCH_TIMEOUT * timing.patience_s),
            parallel=_parallel(random.Random(f"{seed} parallel {size.name}"), timing) if sink == "python" else None,
            manual=_manual(random.Random(f"{seed} manual {size.name}")) if sink == "python" else None,
        )


def _manual(rng: random.Random) -> int | None:
    return None if rng.random() < 0.5 else rng.choice((20, 60, 200))


def _parallel(rng: random.Random, timing: Timing) -> ParallelLimits | None:
    if rng.random() < 0.5:
        return None
    several = rng.choice((None, 1, 4))
    return ParallelLimits(
        max=rng.choice((1, 2, 8)),
        events_max=several,
        manual_ack=several is not None and rng.random() < 0.5,
        window=rng.choice((8, 20, 200)),
        timeout_s=timing.patience_s / 6,
        attempts=1_000_000,  # there are no dead letters
        backoff_s=rng.choice((0.1, 1.0)),
    )


def _ranges(rng: random.Random, batch_timeout_s: float) -> RangeLimits | None:
    if rng.random() < 0.6:
        return None
    return RangeLimits(
        from_events=rng.choice((1, 4, 10)),
        events_max=rng.choice((8, 40, 200)),
        range_events=rng.choice((1, 3, 10)),
        job_s_max=rng.choice((0.2, JOB_SHARE)) * batch_timeout_s,
    )
