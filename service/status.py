"""The group as people see it: leases, hosts, pipelines, recent batches. Values, built from documents that were read; pure.

Whether a lease has expired or a host has died is no fact of the documents: it is what one host has seen on its own clock
(leases.expiry). That host's `Sight` is laid over the documents; a process that has only just looked in has none, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from leases.balance import Key
from leases.bootstrap import Identity
from leases.control import NO_CONTROLS, Control, Controls
from leases.errors import InvalidDocument
from leases.expiry import Mark
from leases.keeper import Scan
from leases.lease import Lease
from leases.membership import HostRecord, mismatched
from service.activity import Activity, BatchStatus, FailureStatus, decode_activity
from service.host import Host

LeaseState = Literal["owned", "available", "handing_over", "expired", "closed"]
"""owned: somebody works on it. available: anybody's. handing_over: somebody asked for it and its owner has not let go yet, or
has, and it waits for the one who asked. expired: its owner has not moved for a lease duration, as this host has seen. closed:
its partition ended, and its children have taken over."""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A lease as it was read. etag: of its document, as the container gave it."""

    lease: Lease
    etag: str
    state: LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """A host as its document tells.

    tick: moved as often as it renews a lease; who sees it move has heard from the host. is_this: the one that answers. is_live:
    None where nobody here has watched for long enough to know. leases: how many it owns. is_contested: another process ran under
    its name. activity: what it last told.
    """

    name: str
    tick: int
    is_this: bool
    is_live: bool | None
    is_draining: bool
    is_contested: bool
    pipelines: tuple[str, ...]
    leases: int
    leases_max: int | None
    lease_duration_s: float
    started_at: str
    activity: Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """leases: how many by state. failures: of partitions that do not go on, from whichever host.

    resting: why nobody works on it, where it is paused; None where it is not. order: what an operator said last, where that can
    be read.
    """

    name: str
    identity: Identity
    leases: Mapping[LeaseState, int]
    failures: tuple[FailureStatus, ...]
    resting: str | None = None
    order: Control | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Everything at one moment. leases: in the order of pipeline and partition. batches: newest first.

    problems: what needs somebody's attention: documents that could not be trusted, partitions that wait for somebody, hosts with
    other settings. unreadable: the leases whose documents could not be trusted, and what is to be done.
    """

    leases: Mapping[Key, LeaseStatus]
    hosts: Mapping[str, HostStatus]
    pipelines: Mapping[str, PipelineStatus]
    batches: tuple[BatchStatus, ...]
    problems: tuple[str, ...]
    unreadable: Mapping[Key, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def failures(self) -> dict[Key, str]:
        """Why partitions do not go on."""
        return {
            (failure.pipeline, failure.partition): failure.error
            for pipeline in self.pipelines.values()
            for failure in pipeline.failures
        }

    @property
    def resting(self) -> dict[Key, str]:
        """Why nobody is to work on leases: those of paused pipelines."""
        return {key: why for key in self.leases if (why := self.pipelines[key[0]].resting) is not None}


@dataclass(frozen=True, slots=True)
class Sight:
    """What one host has seen stand still for a lease duration, and with which mark. None at all: it has not watched."""

    leases: Mapping[Key, Mark]
    hosts: Mapping[str, Mark]


def sight_of(host: Host) -> Sight | None:
    """None until the host's first round is over."""
    if host.scan is None or host.roll is None:
        return None
    roll, marks = host.roll, host.scan.marks
    return Sight(
        leases={key: marks[key] for key in host.expired},
        hosts={name: record.mark for name, record in roll.hosts.items() if name not in roll.live},
    )


def group_of(
    scan: Scan,
    records: Iterable[HostRecord],
    problems: Iterable[str],
    *,
    pipelines: Mapping[str, Identity],
    me: str,
    sight: Sight | None,
    mine: Activity | None,
    controls: Controls = NO_CONTROLS,
) -> Group:
    """records, problems: the host documents that could be read, and what is wrong with the others.

    me: the host that answers. mine: what it is doing now, where it is a host; its own document is a little older.
    controls: what operators have ordered.
    """
    known = sorted(records, key=lambda record: record.name)
    heard, invalid = _heard(known)
    if mine is not None:
        heard[me] = mine
    marks = scan.marks
    leases = {
        key: LeaseStatus(seen.lease, seen.etag, state_of(seen.lease, _is_still(sight, key, marks.get(key))))
        for key, seen in sorted(scan.seen.items())
    }
    owned = Counter(status.lease.owner for status in leases.values())
    hosts = {
        record.name: _host(record, owned[record.name], me, sight, heard.get(record.name, Activity()))
        for record in known
    }
    return Group(
        leases=leases,
        hosts=hosts,
        pipelines={name: _pipeline(name, pipelines[name], leases, hosts.values(), controls) for name in pipelines},
        batches=tuple(sorted(_batches(heard.values()), key=lambda batch: batch.at, reverse=True)),
        problems=(
            *map(str, (*scan.invalid, *controls.unreadable.values())),
            *problems,
            *map(str, invalid),
            *_disagreements(known, me),
        ),
        unreadable={key: str(error) for key, error in sorted(scan.unreadable.items())},
    )


def state_of(lease: Lease, is_expired: bool) -> LeaseState:
    if lease.closed:
        return "closed"
    if lease.owner is not None and is_expired:
        return "expired"
    if lease.handoff_to not in (None, lease.owner):
        return "handing_over"
    return "available" if lease.owner is None else "owned"


def _heard(records: Iterable[HostRecord]) -> tuple[dict[str, Activity], list[InvalidDocument]]:
    heard: dict[str, Activity] = {}
    invalid: list[InvalidDocument] = []
    for record in records:
        try:
            heard[record.name] = decode_activity(record)
        except InvalidDocument as error:
            invalid.append(error)
    return heard, invalid


def _is_still(sight: Sight | None, key: Key, mark: Mark | None) -> bool:
    """A lease that has moved since it was seen standing still has an owner after all."""
    return sight is not None and mark is not None and sight.leases.get(key) == mark


def _host(record: HostRecord, leases: int, me: str, sight: Sight | None, activity: Activity) -> HostStatus:
    is_this = record.name == me
    return HostStatus(
        name=record.name,
        tick=record.tick,
        is_this=is_this,
        is_live=None if sight is None else is_this or sight.hosts.get(record.name) != record.mark,
        is_draining=record.draining,
        is_contested=record.contested_by is not None,
        pipelines=record.pipelines,
        leases=leases,
        leases_max=record.leases_max,
        lease_duration_s=record.lease_duration_s,
        started_at=record.started_at,
        activity=activity,
    )


def _pipeline(
    name: str,
    identity: Identity,
    leases: Mapping[Key, LeaseStatus],
    hosts: Iterable[HostStatus],
    controls: Controls,
) -> PipelineStatus:
    failures = (failure for host in hosts if host.is_live is not False for failure in host.activity.failures)
    return PipelineStatus(
        name=name,
        identity=identity,
        leases=Counter(status.state for status in leases.values() if status.lease.pipeline == name),
        failures=tuple(failure for failure in failures if failure.pipeline == name and _is_current(failure, leases)),
        resting=controls.why(name) if name in controls.paused else None,
        order=controls.orders.get(name),
    )


def _is_current(failure: FailureStatus, leases: Mapping[Key, LeaseStatus]) -> bool:
    """A failure is over for everybody once another host works on the lease: that one now tells how it goes."""
    status = leases.get((failure.pipeline, failure.partition))
    return status is not None and not status.lease.closed and status.lease.owner in (None, failure.host)


def _batches(activities: Iterable[Activity]) -> list[BatchStatus]:
    return [batch for activity in activities for batch in activity.batches]


def _disagreements(records: Iterable[HostRecord], me: str) -> list[str]:
    """Hosts whose leases last another time: each would judge the others by its own."""
    by_name = {record.name: record for record in records}
    if me not in by_name:
        return []
    return [
        f"host '{other.name}' runs with leases.duration_s = {other.lease_duration_s:g}, host '{me}' with"
        f" {by_name[me].lease_duration_s:g}: use one value in the whole group"
        for other in mismatched(by_name.values(), by_name[me].lease_duration_s)
    ]
