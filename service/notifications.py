"""What a program can be notified of: events about leases, partitions, batches, trust and hosts, and the class that receives them.

    class Pager(Notifications):
        async def on_lease_lost(self, event: LeaseLoss) -> None: ...

    ProcessorCore(..., on=Pager())

`leasehold.service.notifier` delivers the events concurrently, without delaying the host's work.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from leasehold.pipeline.imports import is_generator, takes

Released = Literal["stopped", "handed_over", "failed", "ended"]
Lost = Literal["stolen", "lost", "unreleased"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The fields of all events.

    host: this host's name. at: the time by its wall clock, with a time zone.
    """

    host: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNotification(Notification):
    """The fields of all events about one partition."""

    pipeline: str
    partition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired(PartitionNotification):
    """This host owns the lease, under this epoch. Work begins now.

    continuation: the position in the lease. A sink that holds positions may be further on.
    """

    epoch: int
    continuation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(PartitionNotification):
    """This host has given the lease back: in the lease store, it is available, or closed.

    - reason: `stopped` by a stop of the host or a pause of the pipeline, or `handed_over` to a host that requested it.
      `failed` if the partition cannot be processed here now, and `ended` if it was split or merged.
    - to: the host that requested the lease.
    - continuation: the position up to which everything is delivered.
    """

    epoch: int
    reason: Released
    to: str | None
    continuation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLoss(PartitionNotification):
    """This host no longer works on the lease, and has not given it back.

    - reason: `stolen` by another owner; `lost` to an operator, or because its document was deleted. `unreleased` if the
      lease store did not confirm the release: the lease may have to expire first.
    - taken_by: the new owner, if it is known.
    """

    epoch: int
    reason: Lost
    taken_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailing(PartitionNotification):
    """An attempt to work on the partition has failed.

    - error: its class and its text, without secrets.
    - failures: how many there were in a row, including this one. 1: the partition worked until now.
    - is_retried: whether this host keeps the lease and tries again. Otherwise the lease is released.
    """

    error: str
    failures: int
    is_retried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecovered(PartitionNotification):
    """A partition that failed on this host works again, here or on another host.

    failures: how many there were in a row. failing_for_s: seconds since the first of them.
    """

    failures: int
    failing_for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDelivered(PartitionNotification):
    """The output of a batch is safe.

    start, to: positions before and after the batch. rows: how many rows of output. dead_letters: how many events became one.
    """

    epoch: int
    start: str | None
    to: str
    events: int
    rows: int
    dead_letters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustSuspended(PartitionNotification):
    """There is output to send, but no heartbeat arrived in time: nothing is sent until the lease is won again."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRestored(PartitionNotification):
    """The lease is won again after `TrustSuspended`, and output is sent again."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoined(Notification):
    """Another host works on these leases: it has started, or was already running when this host started."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeft(Notification):
    """Another host has stopped, or has given no sign of life for so long that it counts as dead."""

    name: str


Answer = Awaitable[None] | None
"""Each method may be `def` or `async def`."""


class Notifications:
    """Receives what happens on a host: override the methods that you need, each as `def` or `async def`.

    `async def` runs on an event loop (of the program for `Processor(on=...)`, otherwise of the host), so it must not block. `def`
    runs in a thread, which all plain methods share. Events are delivered one at a time, in the order in which they arise.
    """

    def on_lease_acquired(self, event: LeaseAcquired) -> Answer:
        return None

    def on_lease_released(self, event: LeaseReleased) -> Answer:
        return None

    def on_lease_lost(self, event: LeaseLoss) -> Answer:
        return None

    def on_partition_failing(self, event: PartitionFailing) -> Answer:
        return None

    def on_partition_recovered(self, event: PartitionRecovered) -> Answer:
        return None

    def on_batch_delivered(self, event: BatchDelivered) -> Answer:
        return None

    def on_trust_suspended(self, event: TrustSuspended) -> Answer:
        return None

    def on_trust_restored(self, event: TrustRestored) -> Answer:
        return None

    def on_host_joined(self, event: HostJoined) -> Answer:
        return None

    def on_host_left(self, event: HostLeft) -> Answer:
        return None


METHODS: Mapping[type[Notification], str] = {
    LeaseAcquired: "on_lease_acquired",
    LeaseReleased: "on_lease_released",
    LeaseLoss: "on_lease_lost",
    PartitionFailing: "on_partition_failing",
    PartitionRecovered: "on_partition_recovered",
    BatchDelivered: "on_batch_delivered",
    TrustSuspended: "on_trust_suspended",
    TrustRestored: "on_trust_restored",
    HostJoined: "on_host_joined",
    HostLeft: "on_host_left",
}
"""Event -> the method that receives it."""


def require_notifications(on: object) -> Notifications:
    """Return the object. Raises TypeError, with all problems, if it would miss events."""
    if problems := [*problems_of(on)]:
        raise TypeError("; ".join(problems))
    assert isinstance(on, Notifications)
    return on


def problems_of(on: object) -> Iterator[str]:
    """Reasons why `on` would miss events."""
    if isinstance(on, type) and issubclass(on, Notifications):
        yield f"{on.__qualname__} is a class: pass an object of it, {on.__qualname__}()"
    elif not isinstance(on, Notifications):
        what = f"the class {on.__qualname__}" if isinstance(on, type) else f"of type {type(on).__qualname__}"
        yield f"it is {what}, which does not derive from leasehold.Notifications: derive a class from it, and pass an object"
    else:
        yield from _problems_of_methods(on)


def wanted_by(on: Notifications) -> frozenset[type[Notification]]:
    """The events whose methods `on` overrides."""
    return frozenset(
        kind
        for kind, name in METHODS.items()
        if getattr(getattr(on, name), "__func__", None) is not vars(Notifications)[name]
    )


def _problems_of_methods(on: Notifications) -> Iterator[str]:
    names, where = set(METHODS.values()), type(on).__qualname__
    for name in sorted(name for name in dir(on) if name.startswith("on_") or f"on_{name}" in names):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(names))}"
            yield f"`{where}.{name}` is never called: {hint}"
        elif not callable(method := getattr(on, name)):
            yield f"`{where}.{name}` is of type {type(method).__name__}, not a method: define it with `def` or `async def`"
        elif is_generator(method):
            yield f"`{where}.{name}` is a generator function, so calling it runs nothing: remove `yield` from it"
        elif not takes(method, 1):
            yield f"`{where}.{name}` does not take what it is called with: (event)"
