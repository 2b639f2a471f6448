"""What this host has done since it started: counts that never decrease, and its last batches.

Host and workers record things as they happen, so the end of a worker loses nothing; `leasehold.service.api.metrics` and
`leasehold.service.group.activity` read them. The keys of counts are bounded: pipelines, and words that are listed here; never a
partition, an owner or an error's text. A notifier, if there is one, passes events on to the program that runs the host.
One Stats belongs to one host, and to the store that counts the host's requests:

    stats = Stats(clock, log)
    store = CountingStore(TimedStore(store, timing.call_timeout_s), stats)
    host = Host(..., runtime=Runtime(..., stats=stats))
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.store import LeaseStore, Operation, StoreAround
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, EngineUnavailable, FeedUnavailable, Fenced, SinkUnavailable
from leasehold.pipeline.histogram import Histogram, RecentHistogram
from leasehold.pipeline.pump.progress import TimedEvents, microseconds
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.pipeline.sink import CloseReason
from leasehold.pipeline.tracing import BatchTracer
from leasehold.service.failures import Failure
from leasehold.service.notifications import (
    BatchDelivered,
    HostJoined,
    HostLeft,
    LeaseAcquired,
    LeaseLoss,
    LeaseReleased,
    Notification,
    PartitionFailing,
    PartitionRecovered,
    Released,
    TrustRestored,
    TrustSuspended,
)
from leasehold.service.notifier import NotificationOutcome, Notifier
from leasehold.service.texts import counted, described, readable

T = TypeVar("T")
Stage = Literal["wait", "transform", "queue", "deliver", "checkpoint"]
Move = Literal["acquired", "seized", "released", "lost", "stolen", "gone", "failed"]
Cause = Literal["feed", "engine", "sink", "ambiguous", "fenced", "store", "other"]
RequestOutcome = Literal["ok", "conflict", "missing", "unavailable", "ambiguous", "error"]
OutsideOutcome = Literal["written", "failed"]
Action = Literal["release", "handoff", "reset", "close", "pause", "resume", "export", "import", "tap"]
ActionOutcome = Literal["done", "unchanged", "denied", "refused", "failed"]
STAGES: tuple[Stage, ...] = get_args(Stage)
MOVES: tuple[Move, ...] = get_args(Move)
CAUSES: tuple[Cause, ...] = get_args(Cause)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
REQUEST_OUTCOMES: tuple[RequestOutcome, ...] = get_args(RequestOutcome)
OUTSIDE_OUTCOMES: tuple[OutsideOutcome, ...] = get_args(OutsideOutcome)
ACTIONS: tuple[Action, ...] = get_args(Action)
ACTION_OUTCOMES: tuple[ActionOutcome, ...] = get_args(ActionOutcome)

AGE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
RECENT_PER_PIPELINE = 32
RECENT_AGES_S = 300.0


class Delivery(NamedTuple):
    """A batch, the lease it was delivered under, and when it became safe (Clock seconds)."""

    at: float
    lease: Lease
    batch: DeliveredBatch


class Stats:
    """All counts are since the host started. events, rows (of output), batches, dead_letters, suspensions: by pipeline. retries:
    by (pipeline, cause). requests: by (operation, outcome); request_seconds: by operation. actions: of operators, by (action,
    outcome).

    outside_checkpoints: for readers outside, by (pipeline, outcome).

    log: gets every batch at level debug; may be None. now: wall clock, aware; None: the ages of events are unknown.
    notifier: gets the events that a program can be notified of.
    """

    def __init__(
        self,
        clock: Clock,
        log: Log | None = None,
        *,
        now: Callable[[], datetime] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
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
        self.outside_checkpoints: Counter[tuple[str, OutsideOutcome]] = Counter()
        self.recent: defaultdict[str, deque[Delivery]] = defaultdict(lambda: deque(maxlen=RECENT_PER_PIPELINE))
        self.event_ages: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(AGE_BUCKETS_S))
        """By pipeline: how old each event was when its output was safe, if the host has read it."""
        self.recent_ages: defaultdict[str, RecentHistogram] = defaultdict(
            lambda: RecentHistogram(RECENT_AGES_S, AGE_BUCKETS_S)
        )
        """The same for the last five to ten minutes."""
        self.clock = clock
        self.now = now
        self._log = log
        self._notifier = notifier

    @property
    def notifications(self) -> Counter[NotificationOutcome]:
        return Counter() if self._notifier is None else self._notifier.counts

    @property
    def spans_made(self) -> int:
        """How many spans were made for traces; 0 without traces."""
        return 0

    @property
    def spans_exported(self) -> int:
        """How many of these spans a collector has accepted."""
        return 0

    def tracer(self, lease: Lease, feed: Endpoint, sink: Endpoint) -> BatchTracer | None:
        """The tracer for one run of a partition; None without traces."""
        return None

    def trace_fields(self, lease: Lease) -> dict[str, object]:
        """Log fields with the trace of the lease's newest batch that was delivered or failed."""
        return {}

    def record_lease_request(self, lease: Lease) -> None:
        """This host has requested the lease from its owner. The lease is counted once it is acquired."""

    def record_acquisition(self, lease: Lease, *, before: Lease, took_s: float) -> None:
        """before: the lease as it was found. took_s: the duration of the write alone."""
        was_held = before.owner not in (None, lease.owner)
        self.moves[lease.pipeline, "seized" if was_held else "acquired"] += 1
        self._notify(LeaseAcquired, lease.key, epoch=lease.epoch, continuation=lease.continuation)

    def record_renewal(self, lease: Lease, took_s: float, error: StoreError | None = None) -> None:
        """A renewal was tried. error: why it failed, if it did. Renewals are counted among the requests."""

    def record_handoff_request(self, lease: Lease) -> None:
        """Another host requests the lease. The lease is counted once it is released."""

    def record_release(self, lease: Lease, reason: CloseReason, *, taken_by: str | None = None) -> None:
        """lease: without an owner if the store has confirmed the release. taken_by: the new owner, if another host took it."""
        self.moves[lease.pipeline, "released" if reason == "shutdown" else reason] += 1
        about = {"epoch": lease.epoch}
        if reason in ("lost", "stolen"):
            self._notify(LeaseLoss, lease.key, reason=reason, taken_by=taken_by, **about)
        elif lease.owner is not None:
            self._notify(LeaseLoss, lease.key, reason="unreleased", taken_by=None, **about)
        else:
            to = lease.handoff_to if reason == "shutdown" else None
            fields = {"reason": _release(reason, to), "to": to, "continuation": lease.continuation}
            self._notify(LeaseReleased, lease.key, **about, **fields)

    def record_suspension(self, lease: Lease, *, is_first: bool = True) -> None:
        """is_first: whether the lease was trusted at the check before."""
        self.suspensions[lease.pipeline] += 1
        if is_first:
            self._notify(TrustSuspended, lease.key, epoch=lease.epoch)

    def record_restoration(self, lease: Lease) -> None:
        """The lease is trusted again, after a suspension."""
        self._notify(TrustRestored, lease.key, epoch=lease.epoch)

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
        self._notify(
            BatchDelivered,
            lease.key,
            epoch=lease.epoch,
            start=batch.start,
            to=batch.to,
            events=batch.events,
            rows=batch.rows,
            dead_letters=batch.dead_letters,
        )

    def record_event_ages(self, lease: Lease, delivered: Iterable[TimedEvents]) -> None:
        """An event that seems to be from the future, because clocks differ, counts as 0 seconds old."""
        if self.now is None:
            return
        now_us, ages = microseconds(self.now()), Histogram(AGE_BUCKETS_S)
        for count, times in delivered:
            if len(times) == 1:
                ages.observe(max(0, now_us - int(times[0])) / 1e6, count)
            elif len(times):
                ages.observe_all(np.maximum(0, now_us - times) / 1e6)
        self.event_ages[lease.pipeline].add(ages.counts, ages.sum_s)
        self.recent_ages[lease.pipeline].add(ages.counts, self.clock.monotonic())

    def record_checkpoint(self, lease: Lease, took_s: float) -> None:
        """The position after one or more delivered batches was written into the lease."""
        self.seconds[lease.pipeline, "checkpoint"].observe(took_s)

    def record_outside_checkpoint(self, pipeline: str, outcome: OutsideOutcome) -> None:
        self.outside_checkpoints[pipeline, outcome] += 1

    def record_work_failure(self, lease: Lease, position: str | None, error: Exception) -> None:
        """Work on the lease has failed. It is tried again, from `position` on."""
        self.retries[lease.pipeline, _cause(error)] += 1

    def record_failing(self, key: LeaseKey, failure: Failure) -> None:
        """A partition has failed, for the first time or again."""
        if self._notifier is not None:
            error = readable(described(failure.error))
            self._notify(PartitionFailing, key, error=error, failures=failure.count, is_retried=failure.is_retried)

    def record_recovery(self, key: LeaseKey, failures: int, failing_for_s: float) -> None:
        self._notify(PartitionRecovered, key, failures=failures, failing_for_s=failing_for_s)

    def record_hosts(self, *, joined: Iterable[str], left: Iterable[str]) -> None:
        """joined, left: names of hosts."""
        for kind, names in ((HostJoined, joined), (HostLeft, left)):
            for name in sorted(names):
                self._notify(kind, name=name)

    def record_store_call(self, operation: Operation, outcome: RequestOutcome, took_s: float) -> None:
        self.requests[operation, outcome] += 1
        self.request_seconds[operation].observe(took_s)

    def record_action(self, action: Action, outcome: ActionOutcome) -> None:
        self.actions[action, outcome] += 1

    def _notify(self, kind: type[Notification], key: LeaseKey | None = None, **fields: object) -> None:
        if self._notifier is not None:
            self._notifier.notify(kind, key, **fields)


class CountingStore(StoreAround):
    """Counts every call of a store by its outcome. It wraps the TimedStore, so that timeouts count too."""

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


def _release(reason: CloseReason, to: str | None) -> Released:
    if reason == "shutdown":
        return "stopped" if to is None else "handed_over"
    return "ended" if reason == "gone" else "failed"


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


# What a host has delivered when it ends: as fields for the log, and as a line for each pipeline for people.
#
# If the answer to a batch was lost, the batch counts only if this host delivered it again. Otherwise the sink has it, as a later
# claim found out.


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
    """finished: pipelines that have nothing left to do. is_alone: whether this host has seen no other host."""
    whose = "" if is_alone else "this host: "
    return [f"{whose}{each.pipeline}: {_work(each, is_finished=each.pipeline in finished)}" for each in summaries]


def _work(done: Summary, *, is_finished: bool) -> str:
    if is_finished and not done.events:
        return "nothing to do"
    counts = [counted(done.events, "event") + " in", counted(done.rows, "row") + " out"]
    return ", ".join(counts + [counted(done.dead_letters, "dead letter")] * bool(done.dead_letters))
