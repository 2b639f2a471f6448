"""What this host has done since it started: counts that never go back, and its last batches.

Host and workers write it as things happen, so that a worker's end loses nothing; `service.api.metrics` and
`service.group.activity` read it. What it counts by is bounded: pipelines, and words that stand here; never a partition,
an owner or an error's text. One Stats belongs to one host; the store that counts its requests shares it:

    stats = Stats(clock, log)
    store = CountingStore(TimedStore(store, timing.call_timeout_s), stats)
    host = Host(..., stats=stats)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leases.lease import Lease
from leases.store import LeaseStore, Operation, StoreAround
from pipeline.errors import Ambiguous, EngineUnavailable, FeedUnavailable, Fenced, SinkUnavailable
from pipeline.pump.progress import TimedEvents, microseconds
from pipeline.pump.runner import DeliveredBatch
from pipeline.sink import CloseReason
from pipeline.tracing import BatchTracer, Endpoint
from service.texts import counted

T = TypeVar("T")
Stage = Literal["wait", "transform", "queue", "deliver", "checkpoint"]
Move = Literal["acquired", "seized", "released", "lost", "stolen", "gone", "failed"]
Cause = Literal["feed", "engine", "sink", "ambiguous", "fenced", "store", "other"]
RequestOutcome = Literal["ok", "conflict", "missing", "unavailable", "ambiguous", "error"]
BlobOutcome = Literal["written", "failed"]
Action = Literal["release", "handoff", "reset", "close", "pause", "resume", "export", "import", "tap"]
ActionOutcome = Literal["done", "unchanged", "denied", "refused", "failed"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MOVES: tuple[Move, ...] = get_args(Move)
CAUSES: tuple[Cause, ...] = get_args(Cause)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
REQUEST_OUTCOMES: tuple[RequestOutcome, ...] = get_args(RequestOutcome)
BLOB_OUTCOMES: tuple[BlobOutcome, ...] = get_args(BlobOutcome)
ACTIONS: tuple[Action, ...] = get_args(Action)
ACTION_OUTCOMES: tuple[ActionOutcome, ...] = get_args(ActionOutcome)

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
AGE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
RECENT_PER_PIPELINE = 32


class Delivery(NamedTuple):
    """A batch, the lease it was delivered under, and when it became safe (Clock seconds)."""

    at: float
    lease: Lease
    batch: DeliveredBatch


@dataclass(slots=True)
class Histogram:
    """How often something took how long. counts: one for each of the bounds, and one for what took longer."""

    bounds_s: tuple[float, ...] = BUCKETS_S
    counts: list[int] = field(init=False)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += seconds * count

    def observe_all(self, seconds: npt.NDArray[np.float64]) -> None:
        """In some nanoseconds each."""
        found = np.bincount(np.searchsorted(self.bounds_s, seconds), minlength=len(self.counts))
        self.counts = [count + int(more) for count, more in zip(self.counts, found, strict=True)]
        self.sum_s += float(seconds.sum())

    @property
    def cumulative(self) -> list[int]:
        """How many took at most so long, for each of the bounds; the last is all of them."""
        return list(accumulate(self.counts))


class Stats:
    """All counts are since the host started. events, rows (of output), batches, dead_letters, suspensions: by pipeline. retries:
    by (pipeline, cause). requests: by (operation, outcome); request_seconds: by operation. actions: of operators, by (action,
    outcome).

    checkpoint_blobs: written for other readers, by (pipeline, outcome).

    log: gets every batch at level debug; may be None. now: wall clock, aware; None: the ages of events are not known.
    """

    def __init__(self, clock: Clock, log: Log | None = None, *, now: Callable[[], datetime] | None = None) -> None:
        self.events: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.seconds: defaultdict[tuple[str, Stage], Histogram] = defaultdict(Histogram)
        self.processing_seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.retries: Counter[tuple[str, Cause]] = Counter()
        self.moves: Counter[tuple[str, Move]] = Counter()
        self.suspensions: Counter[str] = Counter()
        self.requests: Counter[tuple[Operation, RequestOutcome]] = Counter()
        self.request_seconds: defaultdict[Operation, Histogram] = defaultdict(Histogram)
        self.actions: Counter[tuple[Action, ActionOutcome]] = Counter()
        self.checkpoint_blobs: Counter[tuple[str, BlobOutcome]] = Counter()
        self.recent: defaultdict[str, deque[Delivery]] = defaultdict(lambda: deque(maxlen=RECENT_PER_PIPELINE))
        self.event_ages: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(AGE_BUCKETS_S))
        """By pipeline: how old each event was when its output was safe, if the host has read it."""
        self.clock = clock
        self.now = now
        self._log = log

    @property
    def spans_made(self) -> int:
        """For traces, where there are any."""
        return 0

    @property
    def spans_exported(self) -> int:
        """How many of those a collector has accepted."""
        return 0

    def tracer(self, lease: Lease, feed: Endpoint, sink: Endpoint) -> BatchTracer | None:
        """For one run of a partition."""
        return None

    def trace_fields(self, lease: Lease) -> dict[str, object]:
        """For the log, the trace of the lease's newest batch that was delivered or failed."""
        return {}

    # Leases

    def record_lease_request(self, lease: Lease) -> None:
        """This host has asked its owner for it. Counted once it is acquired."""

    def record_acquisition(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        """before: as it was found; took_s: the write alone."""
        was_held = before.owner not in (None, lease.owner)
        self.moves[lease.pipeline, "seized" if was_held else "acquired"] += 1

    def record_renewal(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        """Refused, with this reason. Counted among the requests."""

    def record_handoff_request(self, lease: Lease) -> None:
        """Another host asks for it. Counted once it is released."""

    def record_release(self, lease: Lease, reason: CloseReason) -> None:
        self.moves[lease.pipeline, "released" if reason == "shutdown" else reason] += 1

    def record_suspension(self, lease: Lease) -> None:
        self.suspensions[lease.pipeline] += 1

    # Work

    def record_batch(self, lease: Lease, batch: DeliveredBatch) -> None:
        name = lease.pipeline
        self.events[name] += batch.events
        self.rows[name] += batch.rows
        self.batches[name] += 1
        self.dead_letters[name] += batch.dead_letters
        self.seconds[name, "wait"].observe(batch.waited_s)
        self.seconds[name, "transform"].observe(batch.transform_s)
        self.seconds[name, "queue"].observe(batch.queued_s)
        self.seconds[name, "deliver"].observe(batch.deliver_s)
        self.processing_seconds[name].observe(batch.transform_s + batch.queued_s + batch.deliver_s)
        self.recent[name].append(Delivery(self.clock.monotonic(), lease, batch))
        if self._log is not None:
            self._log.debug("batch delivered", **_log_fields(lease, batch), **self.trace_fields(lease))

    def record_event_ages(self, lease: Lease, delivered: Iterable[TimedEvents]) -> None:
        """An event that seems to come from the future, because clocks differ, is 0 seconds old."""
        if self.now is None:
            return
        now_us, ages = microseconds(self.now()), self.event_ages[lease.pipeline]
        for count, times in delivered:
            if len(times) == 1:
                ages.observe(max(0, now_us - int(times[0])) / 1e6, count)
            elif len(times):
                ages.observe_all(np.maximum(0, now_us - times) / 1e6)

    def record_checkpoint(self, lease: Lease, took_s: float) -> None:
        """What was delivered is written into the lease: one batch, or several."""
        self.seconds[lease.pipeline, "checkpoint"].observe(took_s)

    def record_checkpoint_blob(self, pipeline: str, outcome: BlobOutcome) -> None:
        self.checkpoint_blobs[pipeline, outcome] += 1

    def record_work_failure(self, lease: Lease, position: str | None, error: Exception) -> None:
        """It is tried again, from `position` on."""
        self.retries[lease.pipeline, _cause(error)] += 1

    # The lease store

    def record_store_call(self, operation: Operation, outcome: RequestOutcome, took_s: float) -> None:
        self.requests[operation, outcome] += 1
        self.request_seconds[operation].observe(took_s)

    # Operators

    def record_action(self, action: Action, outcome: ActionOutcome) -> None:
        self.actions[action, outcome] += 1


class CountingStore(StoreAround):
    """A store whose every call is counted by its outcome. It goes outside the TimedStore, so that timeouts count too."""

    def __init__(self, store: LeaseStore, stats: Stats) -> None:
        super().__init__(store)
        self._stats = stats

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        began = self._stats.clock.monotonic()
        try:
            found = await answer
        except StoreError as error:
            self._answered(operation, _outcome(error), began)
            raise
        self._answered(operation, "ok", began)
        return found

    def _answered(self, operation: Operation, outcome: RequestOutcome, began: float) -> None:
        self._stats.record_store_call(operation, outcome, self._stats.clock.monotonic() - began)


def _outcome(error: StoreError) -> RequestOutcome:
    outcomes: dict[type[StoreError], RequestOutcome] = {
        StoreConflict: "conflict",
        StoreMissing: "missing",
        StoreUnavailable: "unavailable",
        StoreAmbiguous: "ambiguous",
    }
    return next((name for kind, name in outcomes.items() if isinstance(error, kind)), "error")


def _cause(error: Exception) -> Cause:
    causes: dict[type[Exception], Cause] = {
        FeedUnavailable: "feed",
        EngineUnavailable: "engine",
        SinkUnavailable: "sink",
        Ambiguous: "ambiguous",
        Fenced: "fenced",
        StoreError: "store",
    }
    return next((name for kind, name in causes.items() if isinstance(error, kind)), "other")


def _log_fields(lease: Lease, batch: DeliveredBatch) -> dict[str, object]:
    values = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(batch).items()}
    logged = {name: value for name, value in values.items() if name not in ("rows", "queued_s")}
    return {"pipeline": lease.pipeline, "partition": lease.partition, "epoch": lease.epoch, **logged}


# What a host has delivered by the time it ends: for the log as fields, and for people as a line for each pipeline.
#
# A batch whose answer was lost counts only if this host delivered it again: the sink has it, and another claim found out.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What this host has delivered of one pipeline. rows: of output; dead_letters: of the events."""

    pipeline: str
    events: int
    rows: int
    dead_letters: int


def summaries_of(stats: Stats, pipelines: Iterable[str]) -> list[Summary]:
    return [
        Summary(pipeline=name, events=stats.events[name], rows=stats.rows[name], dead_letters=stats.dead_letters[name])
        for name in pipelines
    ]


def summary_lines(summaries: Iterable[Summary], *, finished: Collection[str], is_alone: bool) -> list[str]:
    """finished: pipelines that have nothing left to do. is_alone: whether this host has seen no other one."""
    whose = "" if is_alone else "this host: "
    return [f"{whose}{each.pipeline}: {_work(each, is_finished=each.pipeline in finished)}" for each in summaries]


def _work(done: Summary, *, is_finished: bool) -> str:
    if is_finished and not done.events:
        return "nothing to do"
    counts = [counted(done.events, "event") + " in", counted(done.rows, "row") + " out"]
    return ", ".join(counts + [counted(done.dead_letters, "dead letter")] * bool(done.dead_letters))
