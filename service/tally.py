"""What this host has done since it started: counts that never go back, and its last batches.

Host and workers write it as things happen, so that a worker's end loses nothing; `service.metrics` and `service.activity` read
it. One tally belongs to one host; the store that counts its requests shares it:

    tally = Tally(clock)
    store = CountingStore(TimedStore(store, timing.call_timeout_s), tally)
    host = Host(..., tally=tally)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeVar

from leases.clock import Clock
from leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leases.lease import Lease
from leases.store import LeaseStore, Stored
from pipeline.runner import Delivered
from pipeline.sink import CloseReason

T = TypeVar("T")
Stage = Literal["wait", "transform", "deliver"]
Move = Literal["acquired", "released", "lost", "stolen", "gone", "failed"]

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
RECENT_PER_PIPELINE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentBatch:
    """A delivered batch without its data. at: when it became safe (Clock seconds). The rest as in pipeline.runner.Delivered."""

    pipeline: str
    partition: str
    epoch: int
    start: str | None
    to: str
    events: int
    waited_s: float
    transform_s: float
    deliver_s: float
    at: float


@dataclass(slots=True)
class Histogram:
    """How often something took how long. counts: one for each of BUCKETS_S, and one for what took longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def cumulative(self) -> list[int]:
        """How many took at most so long, for each of BUCKETS_S; the last is all of them."""
        return list(accumulate(self.counts))


class Tally:
    """All counts are since the host started. events, batches, dead_letters, suspensions: by pipeline. requests: by (operation,
    outcome)."""

    def __init__(self, clock: Clock) -> None:
        self.events: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.seconds: defaultdict[tuple[str, Stage], Histogram] = defaultdict(Histogram)
        self.moves: Counter[tuple[str, Move]] = Counter()
        self.suspensions: Counter[str] = Counter()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.recent: defaultdict[str, deque[RecentBatch]] = defaultdict(lambda: deque(maxlen=RECENT_PER_PIPELINE))
        self._clock = clock

    def batch_delivered(self, lease: Lease, delivered: Delivered) -> None:
        name, output = lease.pipeline, delivered.output
        self.events[name] += output.events
        self.batches[name] += 1
        self.dead_letters[name] += 0 if output.dead is None else output.dead.num_rows
        self.seconds[name, "wait"].observe(delivered.waited_s)
        self.seconds[name, "transform"].observe(delivered.transform_s)
        self.seconds[name, "deliver"].observe(delivered.deliver_s)
        self.recent[name].append(
            RecentBatch(
                pipeline=name,
                partition=lease.partition,
                epoch=lease.epoch,
                start=output.start,
                to=output.to,
                events=output.events,
                waited_s=delivered.waited_s,
                transform_s=delivered.transform_s,
                deliver_s=delivered.deliver_s,
                at=self._clock.monotonic(),
            )
        )

    def lease_acquired(self, pipeline: str) -> None:
        self.moves[pipeline, "acquired"] += 1

    def lease_let_go(self, pipeline: str, reason: CloseReason) -> None:
        self.moves[pipeline, "released" if reason == "shutdown" else reason] += 1

    def trust_suspended(self, pipeline: str) -> None:
        self.suspensions[pipeline] += 1


class CountingStore:
    """A store whose every call is counted by its outcome. It goes outside the TimedStore, so that timeouts count too."""

    def __init__(self, store: LeaseStore, tally: Tally) -> None:
        self._store = store
        self._requests = tally.requests

    async def list(self, prefix: str) -> list[Stored]:
        return await self._counted("list", self._store.list(prefix))

    async def read(self, id: str) -> Stored:
        return await self._counted("read", self._store.read(id))

    async def create(self, id: str, body: str) -> str:
        return await self._counted("create", self._store.create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._counted("replace", self._store.replace(id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._counted("delete", self._store.delete(id, etag))

    async def close(self) -> None:
        await self._store.close()

    async def _counted(self, operation: str, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except StoreError as error:
            self._requests[operation, _outcome(error)] += 1
            raise
        self._requests[operation, "ok"] += 1
        return answer


def _outcome(error: StoreError) -> str:
    outcomes = {
        StoreConflict: "conflict",
        StoreMissing: "missing",
        StoreUnavailable: "unavailable",
        StoreAmbiguous: "ambiguous",
    }
    return next((name for kind, name in outcomes.items() if isinstance(error, kind)), "error")
