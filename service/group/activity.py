"""A host's report of its work to the others: the `activity` field of its host document, for people.

Any host answers for the whole group, and this is how it knows what the others did last. Written bounded, since the document is
written as often as a lease is renewed; read as untrusted data, since anyone may have written it. Nothing is decided by it.

    host = Host(..., activity=reporter(clock, now=lambda: datetime.now(UTC)))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from itertools import chain

from leasehold.common.clock import Clock
from leasehold.leases.document import NAME_BYTES_MAX, Fields
from leasehold.leases.host_record import HostRecord, host_id
from leasehold.leases.lease import LeaseKey
from leasehold.pipeline.feed import KnownLag
from leasehold.pipeline.pump.runner import DeliveredBatch
from leasehold.service.failures import Failure
from leasehold.service.host import Host
from leasehold.service.lag.metered import decoded_lags, encoded_lags
from leasehold.service.stats import AGE_BUCKETS_S, Delivery, Stats

ACTIVITY_BYTES_MAX = 16 * 1024
ENTRIES_MAX = 1024
ERROR_BYTES_MAX = 600
ERROR_BYTES_LEAST = 120
"""Errors are cut down to this where so many partitions fail that they would not all have room otherwise."""
FAILURE_BYTES = 300
"""What a failure takes in the document besides its error, if names and positions are of usual length."""
POSITION_BYTES_MAX = 200
MOMENT_BYTES_MAX = 40
CUT = "..."
SECTIONS = ("failures", "waiting", "totals", "lags", "batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus(DeliveredBatch):
    """A delivered batch, as its host reports it. start, to: positions, cut where they are long.

    at: when it became safe, by the wall clock of that host. rows, dead_letters and queued_s are not reported.
    """

    host: str
    pipeline: str
    partition: str
    epoch: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStatus:
    """Why a partition stands still.

    - `since`, `at`: when the first and the last of these failures happened.
    """

    host: str
    pipeline: str
    partition: str
    error: str
    failures: int
    """How many in a row."""
    retry_at: datetime
    """When the host tries again."""
    since: datetime | None = None
    at: datetime | None = None
    position: str | None = None
    """The lease's continuation at the last one, "" for the feed's beginning, cut if it is long. Hosts of an earlier
    version do not report the last three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStatus:
    """Why a partition gets no lease for now."""

    pipeline: str
    partition: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsWaitStatus:
    """Jobs of a host wait for executors of its Spark cluster."""

    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a host has delivered of one pipeline since it started. dead_letters: of these events, those it could not process.

    ages: how old the events of the last minutes were when their output was safe, as the counts of a histogram with the bounds
    `AGE_BUCKETS_S`. Empty if the host does not report them.
    """

    pipeline: str
    events: int
    batches: int
    dead_letters: int
    ages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What one host is doing. Newest batches first, newest failures first."""

    batches: tuple[BatchStatus, ...] = ()
    totals: tuple[Totals, ...] = ()
    failures: tuple[FailureStatus, ...] = ()
    waiting: tuple[WaitingStatus, ...] = ()
    failing: int = 0
    """How many partitions fail, which may be more than `failures` has room for."""
    suspended: int = 0
    """How many of its leases it does not trust now."""
    suspensions: int = 0
    """How often that happened since it started."""
    executors_wait: ExecutorsWaitStatus | None = None
    """None while no job waits for executors."""
    at: datetime | None = None
    """When the host reported this, by its wall clock; None if it is of an earlier version."""
    lags: Mapping[LeaseKey, KnownLag] = field(default_factory=dict)
    """The lags of metered feeds, as far as the host knows them first-hand (`leasehold.service.lag.metered`)."""


def reporter(clock: Clock, now: Callable[[], datetime]) -> Callable[[Host], Mapping[str, object]]:
    """What a Host is given as its `activity`. clock: the host's own; now: wall clock, aware."""
    return lambda host: activity_document(activity_of(host, now=now(), monotonic_s=clock.monotonic()))


def activity_of(host: Host, *, now: datetime, monotonic_s: float) -> Activity:
    """now (aware) and monotonic_s (the host's clock): the same moment on both, to convert one to the other."""

    def wall(clock_s: float) -> datetime:
        return now + timedelta(seconds=clock_s - monotonic_s)

    failures = sorted(host.failures.items(), key=lambda item: item[1].at, reverse=True)
    recent = nlargest(ENTRIES_MAX, chain.from_iterable(host.stats.recent.values()), key=lambda delivery: delivery.at)
    return Activity(
        batches=tuple(_batch(host.name, delivery, wall(delivery.at)) for delivery in recent),
        totals=tuple(_totals(name, host.stats, monotonic_s) for name in sorted(host.pipelines)),
        failures=tuple(_failure(host.name, key, failure, wall) for key, failure in failures),
        waiting=tuple(_waiting(key, why) for key, why in sorted(host.waiting.items())),
        failing=len(failures),
        suspended=sum(not worker.owned.is_trusted for worker in host.workers.values()),
        suspensions=host.stats.suspensions.total(),
        executors_wait=_executors_wait(host, now),
        at=now,
        lags=host.group_lag.first_hand(host.own_leases),
    )


def activity_document(activity: Activity) -> Mapping[str, object]:
    """At most ACTIVITY_BYTES_MAX as JSON: room goes to failures, waiting, totals, lags, and the newest batches."""
    document: dict[str, object] = {
        "failing": activity.failing,
        "suspended": activity.suspended,
        "suspensions": activity.suspensions,
        **({} if activity.at is None else {"at": _encoded_moment(activity.at)}),
        **({} if activity.executors_wait is None else {"executorsWait": _encoded_wait(activity.executors_wait)}),
    }
    room = ACTIVITY_BYTES_MAX - _size({**document, **dict.fromkeys(SECTIONS, ())})
    error_bytes = min(ERROR_BYTES_MAX, max(ERROR_BYTES_LEAST, room // max(1, len(activity.failures)) - FAILURE_BYTES))
    entries: dict[str, Iterable[dict[str, object]]] = {
        "failures": (_encoded_failure(each, error_bytes) for each in activity.failures[:ENTRIES_MAX]),
        "waiting": map(_encoded_waiting, activity.waiting[:ENTRIES_MAX]),
        "totals": map(_encoded_totals, activity.totals),
        "lags": encoded_lags(activity.lags),
        "batches": map(_encoded_batch, activity.batches),
    }
    for name, each in entries.items():
        document[name] = fitting = list(_fitting(each, room))
        room -= sum(map(_size, fitting))
    return document


def decode_activity(record: HostRecord) -> Activity:
    """Raises InvalidDocument. A host that has just announced itself has no activity yet."""
    if not record.activity:
        return Activity()
    fields = Fields(host_id(record.name), record.activity)
    return Activity(
        batches=tuple(_decoded_batch(record.name, entry) for entry in fields.objects("batches", ENTRIES_MAX)),
        totals=tuple(_decoded_totals(entry) for entry in _reported(fields, "totals")),
        failures=tuple(_decoded_failure(record.name, entry) for entry in fields.objects("failures", ENTRIES_MAX)),
        waiting=tuple(_decoded_waiting(entry) for entry in _reported(fields, "waiting")),
        failing=fields.integer("failing"),
        suspended=fields.integer("suspended"),
        suspensions=fields.integer("suspensions"),
        executors_wait=_decoded_wait(fields),
        at=_optional_moment(fields, "at"),
        lags=decoded_lags(fields, "lags") if fields.has("lags") else {},
    )


def _reported(fields: Fields, name: str) -> tuple[Fields, ...]:
    """Hosts of an earlier version do not report it."""
    return fields.objects(name, ENTRIES_MAX) if fields.has(name) else ()


def _batch(host: str, delivery: Delivery, at: datetime) -> BatchStatus:
    batch, lease = delivery.batch, delivery.lease
    return BatchStatus(
        host=host,
        pipeline=lease.pipeline,
        partition=lease.partition,
        epoch=lease.epoch,
        start=None if batch.start is None else cut(batch.start, POSITION_BYTES_MAX),
        to=cut(batch.to, POSITION_BYTES_MAX),
        events=batch.events,
        waited_s=round(batch.waited_s, 6),
        transform_s=round(batch.transform_s, 6),
        deliver_s=round(batch.deliver_s, 6),
        at=at,
    )


def _totals(pipeline: str, stats: Stats, now_s: float) -> Totals:
    ages = stats.recent_ages[pipeline].counts(now_s) if pipeline in stats.recent_ages else []
    return Totals(
        pipeline=pipeline,
        events=stats.events[pipeline],
        batches=stats.batches[pipeline],
        dead_letters=stats.dead_letters[pipeline],
        ages=tuple(ages) if any(ages) else (),
    )


def _failure(host: str, key: LeaseKey, failure: Failure, wall: Callable[[float], datetime]) -> FailureStatus:
    return FailureStatus(
        host=host,
        pipeline=key.pipeline,
        partition=key.partition,
        error=cut(str(failure.error) or type(failure.error).__name__, ERROR_BYTES_MAX),
        failures=failure.count,
        retry_at=wall(failure.until),
        since=wall(failure.since),
        at=wall(failure.at),
        position=position_of(failure.position),
    )


def _executors_wait(host: Host, now: datetime) -> ExecutorsWaitStatus | None:
    found = [wait for each in host.pipelines.values() if (wait := each.transform.executors_wait) is not None]
    if not found:
        return None
    longest = max(found, key=lambda wait: wait.for_s)
    since = now - timedelta(seconds=longest.for_s)
    return ExecutorsWaitStatus(since=since, why=cut(longest.why, ERROR_BYTES_MAX))


def position_of(continuation: str | None) -> str:
    """As `FailureStatus.position` has it."""
    return cut(continuation or "", POSITION_BYTES_MAX)


def _waiting(key: LeaseKey, why: str) -> WaitingStatus:
    return WaitingStatus(pipeline=key.pipeline, partition=key.partition, why=cut(why, ERROR_BYTES_MAX))


def cut(text: str, bytes_max: int) -> str:
    """The text as UTF-8 can carry it, shortened where it is long. A lone surrogate would make the document unreadable."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - len(CUT)].decode("utf-8", "ignore") + CUT


def _fitting(entries: Iterable[dict[str, object]], room: int) -> Iterator[dict[str, object]]:
    for entry in entries:
        room -= _size(entry)
        if room < 0:
            return
        yield entry


def _size(value: object) -> int:
    """In bytes, as a host document holds it, with the comma behind it."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) + 1


def _encoded_batch(batch: BatchStatus) -> dict[str, object]:
    return {
        "pipeline": batch.pipeline,
        "partition": batch.partition,
        "epoch": batch.epoch,
        "from": batch.start,
        "to": batch.to,
        "events": batch.events,
        "waitedS": batch.waited_s,
        "transformS": batch.transform_s,
        "deliverS": batch.deliver_s,
        "at": _encoded_moment(batch.at),
    }


def _encoded_failure(failure: FailureStatus, error_bytes: int) -> dict[str, object]:
    found: dict[str, object] = {
        "pipeline": failure.pipeline,
        "partition": failure.partition,
        "error": cut(failure.error, error_bytes),
        "failures": failure.failures,
        "retryAt": _encoded_moment(failure.retry_at),
    }
    for name, moment in (("since", failure.since), ("at", failure.at)):
        if moment is not None:
            found[name] = _encoded_moment(moment)
    if failure.position is not None:
        found["position"] = failure.position
    return found


def _encoded_waiting(waiting: WaitingStatus) -> dict[str, object]:
    return {"pipeline": waiting.pipeline, "partition": waiting.partition, "why": waiting.why}


def _encoded_wait(wait: ExecutorsWaitStatus) -> dict[str, object]:
    return {"since": _encoded_moment(wait.since), "why": wait.why}


def _encoded_moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _encoded_totals(totals: Totals) -> dict[str, object]:
    return {
        "pipeline": totals.pipeline,
        "events": totals.events,
        "batches": totals.batches,
        "deadLetters": totals.dead_letters,
        **({"ages": list(totals.ages)} if totals.ages else {}),
    }


def _decoded_totals(fields: Fields) -> Totals:
    return Totals(
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        events=fields.integer("events"),
        batches=fields.integer("batches"),
        dead_letters=fields.integer("deadLetters"),
        ages=_decoded_ages(fields) if fields.has("ages") else (),
    )


def _decoded_ages(fields: Fields) -> tuple[int, ...]:
    """Empty if a host of another version has other bounds."""
    counts = tuple(int(count or 0) for count in fields.optional_numbers("ages", ENTRIES_MAX))
    return counts if len(counts) == len(AGE_BUCKETS_S) + 1 else ()


def _decoded_batch(host: str, fields: Fields) -> BatchStatus:
    return BatchStatus(
        host=host,
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        partition=fields.text("partition", NAME_BYTES_MAX),
        epoch=fields.integer("epoch"),
        start=fields.optional_text("from", POSITION_BYTES_MAX),
        to=fields.text("to", POSITION_BYTES_MAX),
        events=fields.integer("events"),
        waited_s=fields.number("waitedS"),
        transform_s=fields.number("transformS"),
        deliver_s=fields.number("deliverS"),
        at=_moment(fields, "at"),
    )


def _decoded_failure(host: str, fields: Fields) -> FailureStatus:
    return FailureStatus(
        host=host,
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        partition=fields.text("partition", NAME_BYTES_MAX),
        error=fields.text("error", ERROR_BYTES_MAX),
        failures=fields.integer("failures"),
        retry_at=_moment(fields, "retryAt"),
        since=_optional_moment(fields, "since"),
        at=_optional_moment(fields, "at"),
        position=fields.optional_text("position", POSITION_BYTES_MAX) if fields.has("position") else None,
    )


def _decoded_waiting(fields: Fields) -> WaitingStatus:
    return WaitingStatus(
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        partition=fields.text("partition", NAME_BYTES_MAX),
        why=fields.text("why", ERROR_BYTES_MAX),
    )


def _decoded_wait(fields: Fields) -> ExecutorsWaitStatus | None:
    if not fields.has("executorsWait"):
        return None
    wait = fields.inner("executorsWait")
    return ExecutorsWaitStatus(since=_moment(wait, "since"), why=wait.text("why", ERROR_BYTES_MAX))


def _optional_moment(fields: Fields, name: str) -> datetime | None:
    """Hosts of an earlier version do not report it."""
    return _moment(fields, name) if fields.has(name) else None


def _moment(fields: Fields, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(fields.text(name, MOMENT_BYTES_MAX))
        if moment.tzinfo is None:
            fields.refuse(name, "is a time without its zone")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        fields.refuse(name, "is not a date and time")
