"""A host's report of its work to the others: the `activity` field of its host document, for people.

Any host answers for the whole group, and this is how it knows what the others did last. Its size is bounded, because the document
is written as often as a lease is renewed. It is untrusted, because anyone may have written it. No decision depends on it.

    host = Host(..., activity=reporter(clock, now=lambda: datetime.now(UTC)))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from heapq import nlargest
from itertools import chain
from typing import Annotated, TypeVar

from pydantic import Field, SkipValidation, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from leasehold.common.clock import Clock
from leasehold.leases.document import Fields
from leasehold.leases.host_record import HostRecord, host_id
from leasehold.leases.lease import LeaseKey
from leasehold.pipeline.feed import KnownLag
from leasehold.service.failures import Failure
from leasehold.service.group.work import (
    ENTRIES_MAX,
    ERROR_BYTES_MAX,
    POSITION_BYTES_MAX,
    BatchStatus,
    Count,
    ExecutorsWaitStatus,
    FailureStatus,
    Moment,
    Totals,
    WaitingStatus,
    fields_of,
)
from leasehold.service.host import Host
from leasehold.service.lag.metered import decoded_lags, encoded_lags
from leasehold.service.stats import Delivery, Stats

ERROR_BYTES_LEAST = 120
"""If so many partitions fail that their errors do not all have room, errors are cut, but to no less than this."""
FAILURE_BYTES = 300
"""What a failure takes in the document in addition to its error, if names and positions are of usual length."""
CUT = "..."
SECTIONS = ("failures", "waiting", "totals", "lags", "batches")
BY_HOST = ("failures", "batches")
T = TypeVar("T")
Reported = Annotated[tuple[T, ...], Field(max_length=ENTRIES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What one host is doing. Newest batches first, newest failures first."""

    batches: Reported[BatchStatus] = ()
    totals: Reported[Totals] = ()
    failures: Reported[FailureStatus] = ()
    waiting: Reported[WaitingStatus] = ()
    failing: Count = 0
    """How many partitions fail, which may be more than `failures` has room for."""
    suspended: Count = 0
    """How many of its leases the host does not trust now."""
    suspensions: Count = 0
    """How often leases were suspended since the host started."""
    executors_wait: ExecutorsWaitStatus | None = None
    """None while no job waits for executors."""
    at: Moment | None = None
    """When the host reported this, by its wall clock; None if it has not yet."""
    lags: SkipValidation[Mapping[LeaseKey, KnownLag]] = field(default_factory=dict)
    """The lags of metered feeds, as far as the host knows them first-hand (`leasehold.service.lag.metered`)."""


_ACTIVITY = TypeAdapter(Activity)


def reporter(clock: Clock, now: Callable[[], datetime]) -> Callable[[Host, int], Mapping[str, object]]:
    """The argument `activity` of a Host. clock: the host's own; now: wall clock, aware."""
    return lambda host, room: activity_document(activity_of(host, now=now(), monotonic_s=clock.monotonic()), room)


def activity_of(host: Host, *, now: datetime, monotonic_s: float) -> Activity:
    """What the host is doing. now (aware) and monotonic_s (the host's clock): one moment on both clocks, to convert times."""

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


def activity_document(activity: Activity, room: int) -> Mapping[str, object]:
    """At most `room` bytes as JSON. Failures get room first, then waiting, totals, lags, and the newest batches."""
    document: dict[str, object] = {
        "failing": activity.failing,
        "suspended": activity.suspended,
        "suspensions": activity.suspensions,
        **({} if activity.at is None else {"at": activity.at.isoformat(timespec="milliseconds")}),
        **({} if activity.executors_wait is None else {"executors_wait": fields_of(activity.executors_wait)}),
    }
    room -= _size({**document, **dict.fromkeys(SECTIONS, ())})
    if room < 0:
        return {}
    error_bytes = min(ERROR_BYTES_MAX, max(ERROR_BYTES_LEAST, room // max(1, len(activity.failures)) - FAILURE_BYTES))
    entries: dict[str, Iterable[dict[str, object]]] = {
        "failures": (
            fields_of(replace(each, error=cut(each.error, error_bytes)), "host")
            for each in activity.failures[:ENTRIES_MAX]
        ),
        "waiting": map(fields_of, activity.waiting[:ENTRIES_MAX]),
        "totals": map(fields_of, activity.totals),
        "lags": encoded_lags(activity.lags),
        "batches": (fields_of(each, "host") for each in activity.batches),
    }
    for name, each in entries.items():
        document[name] = fitting = list(_fitting(each, room))
        room -= sum(map(_size, fitting))
    return document


def decode_activity(record: HostRecord) -> Activity:
    """Raises InvalidDocument. A host that has just announced itself has no activity yet."""
    fields = Fields(host_id(record.name), record.activity)
    by_host = {name: _of_host(record.name, record.activity[name]) for name in BY_HOST if name in record.activity}
    lags = decoded_lags(fields, "lags") if fields.has("lags") else {}
    try:
        return _ACTIVITY.validate_python({**record.activity, **by_host, "lags": lags})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        fields.refuse(".".join(map(str, first["loc"])), f"is not what a host reports ({first['msg']})")


def _of_host(name: str, entries: object) -> object:
    """Entries do not repeat the host, which the document's name shows."""
    if not isinstance(entries, list):
        return entries
    return [{**each, "host": name} if isinstance(each, dict) else each for each in entries]


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
    """A position for `FailureStatus.position`: cut if it is long, and empty for the feed's beginning."""
    return cut(continuation or "", POSITION_BYTES_MAX)


def _waiting(key: LeaseKey, why: str) -> WaitingStatus:
    return WaitingStatus(pipeline=key.pipeline, partition=key.partition, why=cut(why, ERROR_BYTES_MAX))


def cut(text: str, bytes_max: int) -> str:
    """The text as UTF-8 can carry it, shortened if it is long. A lone surrogate would make the document unreadable."""
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
    """In bytes, as a host document holds it, with the comma after it."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) + 1
