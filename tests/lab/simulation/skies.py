"""What becomes of requests in a simulated world: a share of them goes ill, and faults lay outages and snares."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from lab.simulation.group import Running
from lab.simulation.invariants import Onlooker
from lab.simulation.process import OUTSIDE, Process, current
from lab.simulation.quota import Quota
from lab.simulation.setup import Setup
from lab.simulation.weather import Fate, Request, Where

Outage = Literal["refused", "silent"]
LATE_MAX = 1.5
"""Lease durations that a message may be on its way."""
LAGGING = 0.03
"""Of the answers of a source whose replicas lag."""
SLOW = 3
"""One of so many partitions is slow in a slow sink."""
QUICK_S = 2.0
"""What takes longer is told."""


@dataclass(slots=True, eq=False)
class Snare:
    """Laid for a host, or for whoever comes first. steps: kinds of requests, one after another to the same place.

    springs: called right after the last one, with who made it; fate: what becomes of that one, None for what the weather says.
    within: a part of the ids that it is laid for.
    """

    host: str
    steps: list[frozenset[str]]
    springs: Callable[[Running], None]
    fate: Fate | None
    id: str = ""
    within: str = ""

    def is_stepped_into(self, request: Request) -> bool:
        """Whether this is the last step."""
        if not request.host or request.operation not in self.steps[0]:
            return False
        if self.host not in ("", request.host) or self.id not in ("", request.id) or self.within not in request.id:
            return False
        if len(self.steps) == 1:
            return True
        self.host, self.id = request.host, request.id
        self.steps.pop(0)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """What becomes of some requests of a host, or of all hosts. back_s: how long their answers take to come back. arrives_at:
    none of them arrives before that."""

    host: str
    is_meant: Callable[[Request], bool]
    fate: Fate
    back_s: float = 0.0
    arrives_at: float = 0.0

    @property
    def fails_for_all(self) -> bool:
        """Whether no host's request arrives. Then no other cut lets one through: the onlooker counts on that."""
        return self.host == "" and self.fate.ends in ("refused", "ghost")


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A host is stopped just before its next such request goes out, which it does when the host continues."""

    host: str
    is_meant: Callable[[Request], bool]
    for_s: float


class Skies:
    """rng: whom fates are drawn from. running: the host that a process is. outages, slow (to the store), hanging, snares, cuts,
    holds: laid by faults. gray: cuts that last while all else is well. quota: what binds the lease store after the faults."""

    def __init__(
        self,
        setup: Setup,
        *,
        onlooker: Onlooker,
        tell: Callable[[str, str], None],
        running: Callable[[Process | None], Running],
    ) -> None:
        self.rng = random.Random(f"{setup.seed} weather")
        self.is_calm = False
        self.outages: dict[tuple[str, Where], Outage] = {}
        self.hanging: set[str] = set()
        self.slow: set[str] = set()
        self.snares: list[Snare] = []
        self.cuts: list[Cut] = []
        self.holds: list[Hold] = []
        self.gray: list[Cut] = []
        self.quota: Quota | None = None
        self._setup = setup
        self._slow_s: dict[Where, float] = {"store": setup.store_s, "feed": 0.0, "sink": setup.sink_s}
        self._onlooker = onlooker
        self._now = asyncio.get_running_loop().time
        self._tell = tell
        self._running = running
        self._uncertain: dict[str, float] = {}
        self._cut_off: dict[str, float] = {}
        self._arrives_by = 0.0

    @property
    def under_way_s(self) -> float:
        """How long it takes until the last message has arrived that is on its way; what hangs longer than any counts no more."""
        return min(max(QUICK_S, self._arrives_by - self._now()), LATE_MAX * self._setup.timing.patience_s)

    def replica(self, read: int) -> tuple[int, int] | None:
        """From where to where a replica answers that has less than the `read` events; None for one that has all."""
        if self.is_calm or not self._setup.lags or read == 0 or self.rng.random() >= LAGGING:
            return None
        self._onlooker.counts["lagging replicas"] += 1
        to = self.rng.randint(1, read)
        return self.rng.randint(0, to - 1), to

    def sink_s(self, partition: str) -> float:
        """How long a sink reads before it knows where the partition stands."""
        is_slow = self._setup.opens_slowly and crc32(partition.encode()) % SLOW == self._setup.seed % SLOW
        self._onlooker.counts["slow sinks"] += is_slow
        return self._setup.opens_s * is_slow

    def take_hold(self, request: Request) -> Hold | None:
        """The one that the request springs."""
        for hold in self.holds:
            if hold.host == request.host and hold.is_meant(request):
                self.holds.remove(hold)
                return hold
        return None

    def judged(self, request: Request) -> Fate:
        fate = self._drawn_fate(request)
        for snare in [snare for snare in self.snares if snare.is_stepped_into(request)] if self.snares else ():
            self.snares.remove(snare)
            asyncio.get_running_loop().call_soon(snare.springs, self._running(current()), context=OUTSIDE)
            if snare.fate is not None:
                fate = snare.fate
                self._cut_off[request.id] = self._now()
        if fate.ends != "ok" or fate.late_s > QUICK_S:
            self._arrives_by = max(self._arrives_by, self._now() + fate.late_s)
            self._onlooker.counts[fate.ends if fate.ends != "ok" else "slow"] += 1
            self._tell(
                request.host, f"{request.where} {request.operation} {request.id}: {fate.ends}, {fate.late_s:.2f} s"
            )
        return fate

    def _drawn_fate(self, request: Request) -> Fate:
        rng = self.rng
        quick = 0.002 + 0.02 * rng.random()
        if self.is_calm:
            return self._calm_fate(request) or Fate(quick)
        if self.cuts and ("", request.where) not in self.outages:
            meant = [cut for cut in self.cuts if cut.host in ("", request.host) and cut.is_meant(request)]
            if meant:
                cut = next((each for each in meant if each.fails_for_all), meant[0])
                late_s = max(cut.fate.late_s, cut.arrives_at - self._now())
                return cut.fate._replace(late_s=late_s, back_s=cut.back_s * rng.random())
        if (self.outages or self.slow or self.hanging) and (fate := self._laid_fate(request, quick)) is not None:
            return fate
        if request.operation == "publish" and self._cut_off.get(request.id) == self._now():
            return Fate(quick, "ghost")
        if request.operation == "publish" and self._uncertain.get(request.id) == self._now() and rng.random() < 0.7:
            return self._bad(rng, quick)
        if rng.random() >= self._setup.ill:
            slow_s = self._slow_s[request.where]
            return Fate(max(quick, slow_s * rng.random()))
        if request.operation == "publish":
            self._uncertain[request.id] = self._now()
        return self._bad(rng, quick)

    def _calm_fate(self, request: Request) -> Fate | None:
        for cut in self.gray:
            if cut.host in ("", request.host) and cut.is_meant(request):
                return cut.fate._replace(back_s=cut.back_s)
        refused = self.quota.fate(request, self._now()) if self.quota and request.where == "store" else None
        self._onlooker.counts["throttled"] += refused is not None
        return refused

    def _laid_fate(self, request: Request, quick: float) -> Fate | None:
        """What faults have laid for it."""
        timing, rng = self._setup.timing, self.rng
        mode = self.outages.get((request.host, request.where)) or self.outages.get(("", request.where))
        if mode == "refused":
            return Fate(quick, "refused")
        if mode == "silent":
            return Fate(timing.call_timeout_s * (1 + rng.random()), "ghost")
        if request.where == "store" and request.host in self.slow:
            return Fate(timing.call_timeout_s * (0.8 + 0.15 * rng.random()))
        if request.where == "sink" and request.host in self.hanging:
            return Fate((2 + rng.random()) * timing.patience_s)
        return None

    def _bad(self, rng: random.Random, quick: float) -> Fate:
        duration = self._setup.timing.patience_s
        return rng.choice(
            (
                Fate(quick, "refused"),
                Fate(quick, "lost"),
                Fate(quick, "ghost"),
                Fate(rng.random() * duration / 10, "late"),
                Fate(rng.random() * LATE_MAX * duration, "late"),
                self.overtaken(rng),
                Fate(rng.random() * duration / 10),
                Fate(rng.random() * LATE_MAX * duration),
            )
        )

    def overtaken(self, rng: random.Random, by: int | None = None) -> Fate:
        """Its answer is lost, and it arrives among later requests to the same place."""
        return Fate(LATE_MAX * self._setup.timing.patience_s, "late", overtaken_by=by or rng.randint(1, 3))
