"""The group as people see it: leases, hosts, pipelines, recent batches. Values, built from documents that were read; pure.

The documents do not show whether a lease has expired or a host has died: a host sees that on its own clock
(leasehold.leases.expiry). What that host saw is combined with the documents. A process that has just started saw nothing, and
reports that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from leasehold.leases.bootstrap import Identity
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Mark
from leasehold.leases.host_record import BLIND, RENOUNCED, SICK, HostRecord
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.pause_orders import NO_CONTROLS, Control, Controls
from leasehold.pipeline.histogram import Histogram
from leasehold.service.group.activity import Activity, decode_activity, position_of
from leasehold.service.group.work import BatchStatus, FailureStatus
from leasehold.service.host import Host
from leasehold.service.stats import AGE_BUCKETS_S
from leasehold.service.texts import counted

SILENT = 8
"""A host that has reported nothing for this many of its durations is silent."""
LeaseState = Literal["owned", "available", "handing_over", "expired", "closed"]
"""The states of a lease:

- `owned`: a host works on it.
- `available`: any host may take it.
- `handing_over`: a host requested it and its owner has not released it yet, or it is reserved for that host.
- `expired`: its owner is dead, or has renounced it, as this host has seen.
- `closed`: its partition ended, and its children have taken over; or an operator closed it.
"""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A lease as it was read. etag: of its document, as the container gave it."""

    lease: Lease
    etag: str
    state: LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """A host, according to its document."""

    name: str
    incarnation: str
    tick: int
    """Raised by each beat; a change is a sign of life."""
    is_this: bool
    """Whether it is the host that answers."""
    is_live: bool | None
    """None if this process has not watched for long enough."""
    is_draining: bool
    pipelines: tuple[str, ...]
    leases: int
    """How many it owns."""
    leases_max: int | None
    lasts_s: float
    """How long it may be silent before others take its leases."""
    unfit: tuple[str, ...]
    """The pipelines that it cannot process now."""
    started_at: str
    activity: Activity
    """Its last report."""
    is_silent: bool = False
    """Whether its last report is old by the wall clocks, which is only a hint without a watch."""

    @property
    def is_heard(self) -> bool:
        """Whether its last report is current, as far as is known."""
        return not self.is_silent if self.is_live is None else self.is_live


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeStatus:
    """How old the group's events of the last minutes were when their output was safe. Estimated from a histogram."""

    events: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """leases: how many are in each state. failures: one for each partition that stands still: its owner's, else the newest.

    resting: why no host works on it, if it is paused; else None. order: an operator's last order, if it is
    readable.
    """

    name: str
    identity: Identity
    leases: Mapping[LeaseState, int]
    failures: tuple[FailureStatus, ...]
    resting: str | None = None
    order: Control | None = None
    event_age: AgeStatus | None = None
    """None if nothing was delivered in the last minutes, or if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """The whole group at one moment."""

    leases: Mapping[LeaseKey, LeaseStatus]
    """Sorted by pipeline and partition."""
    hosts: Mapping[str, HostStatus]
    pipelines: Mapping[str, PipelineStatus]
    batches: tuple[BatchStatus, ...]
    """Newest first."""
    problems: tuple[str, ...]
    """What needs attention: documents that could not be trusted, partitions that wait for a person, hosts with other
    settings."""
    unreadable: Mapping[LeaseKey, str] = field(default_factory=lambda: MappingProxyType({}))
    """The leases whose documents could not be trusted, and what to do."""
    waiting: Mapping[LeaseKey, str] = field(default_factory=lambda: MappingProxyType({}))
    """Partitions that get no lease for now, and why, as hosts report it."""

    @property
    def failures(self) -> dict[LeaseKey, str]:
        """Why partitions stand still."""
        return {key: failure.error for key, failure in failures_of(self).items()}

    @property
    def resting(self) -> dict[LeaseKey, str]:
        """Why no host may work on leases: those of paused pipelines."""
        return {key: why for key in self.leases if (why := self.pipelines[key.pipeline].resting) is not None}


@dataclass(frozen=True, slots=True)
class Unrenewed:
    """The leases that one host has seen expire, and the hosts that it has found dead, each with its mark at that time."""

    leases: Mapping[LeaseKey, Mark]
    hosts: Mapping[str, Mark]


def unrenewed_of(host: Host) -> Unrenewed | None:
    """None until the host's first round is over."""
    scan, host_scan = host.balancer.reader.scan, host.balancer.reader.host_scan
    if scan is None or host_scan is None:
        return None
    return Unrenewed(
        leases={key: scan.seen[key].lease.mark for key in host.balancer.expired if key in scan.seen},
        hosts={name: record.mark for name, record in host_scan.hosts.items() if name not in host_scan.live},
    )


def group_of(
    scan: Scan,
    records: Iterable[HostRecord],
    problems: Iterable[str],
    *,
    pipelines: Mapping[str, Identity],
    me: str,
    unrenewed: Unrenewed | None,
    mine: Activity | None,
    controls: Controls = NO_CONTROLS,
    now: datetime | None = None,
) -> GroupStatus:
    """records, problems: the host documents that could be read, and what is wrong with the others.

    - `me`: the host that answers.
    - `unrenewed`: None if this process has not watched.
    - `mine`: what the host that answers is doing now; its own document is a little older. None without a host.
    - `controls`: what operators have ordered.
    - `now`: wall clock, aware; None: no host counts as silent.
    """
    known = sorted(records, key=lambda record: record.name)
    heard, invalid = _heard(known)
    if mine is not None:
        heard[me] = mine
    leases = {
        key: LeaseStatus(seen.lease, seen.etag, state_of(seen.lease, _is_still(unrenewed, key, seen.lease.mark)))
        for key, seen in sorted(scan.seen.items())
    }
    owned = Counter(status.lease.owner for status in leases.values())
    hosts = {
        record.name: _host(record, owned[record.name], me, unrenewed, heard.get(record.name, Activity()), now)
        for record in known
    }
    at_work = {host.name: host.activity for host in hosts.values() if host.is_heard}
    if mine is not None:
        at_work[me] = mine  # it has no record while it starts
    return GroupStatus(
        leases=leases,
        hosts=hosts,
        pipelines={name: _pipeline(name, pipelines[name], leases, hosts.values(), controls) for name in pipelines},
        batches=tuple(sorted(_batches(heard.values()), key=lambda batch: batch.at, reverse=True)),
        problems=(
            *map(str, (*scan.unreadable.values(), *controls.unreadable.values())),
            *problems,
            *map(str, invalid),
            *_executors_waits(at_work),
        ),
        unreadable={key: str(error) for key, error in sorted(scan.unreadable.items())},
        waiting=_waiting(hosts.values(), leases),
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


def _is_still(unrenewed: Unrenewed | None, key: LeaseKey, mark: Mark | None) -> bool:
    """Whether the lease has not moved since it was seen to expire. If it has, it has a live owner after all."""
    return unrenewed is not None and mark is not None and unrenewed.leases.get(key) == mark


def _host(
    record: HostRecord, leases: int, me: str, unrenewed: Unrenewed | None, activity: Activity, now: datetime | None
) -> HostStatus:
    is_this = record.name == me
    silent_s = 0.0 if now is None or activity.at is None else (now - activity.at).total_seconds()
    return HostStatus(
        name=record.name,
        incarnation=record.incarnation,
        tick=record.tick,
        is_this=is_this,
        is_live=None if unrenewed is None else is_this or unrenewed.hosts.get(record.name) != record.mark,
        is_draining=record.draining,
        pipelines=record.pipelines,
        leases=leases,
        leases_max=record.leases_max,
        lasts_s=record.lasts_s,
        unfit=tuple(sorted(record.which_are(SICK, RENOUNCED, BLIND))),
        started_at=record.started_at,
        activity=activity,
        is_silent=not is_this and silent_s > SILENT * record.lasts_s,
    )


def _pipeline(
    name: str,
    identity: Identity,
    leases: Mapping[LeaseKey, LeaseStatus],
    hosts: Collection[HostStatus],
    controls: Controls,
) -> PipelineStatus:
    return PipelineStatus(
        name=name,
        identity=identity,
        leases=Counter(status.state for status in leases.values() if status.lease.pipeline == name),
        failures=_failures(name, hosts, leases),
        resting=controls.why(name) if name in controls.paused else None,
        order=controls.orders.get(name),
        event_age=_age(name, hosts),
    )


def _age(pipeline: str, hosts: Iterable[HostStatus]) -> AgeStatus | None:
    ages = Histogram(AGE_BUCKETS_S)
    for host in hosts:
        for totals in host.activity.totals if host.is_heard else ():
            if totals.pipeline == pipeline and totals.ages:
                ages.add(totals.ages)
    p50_s, p99_s = ages.quantile(0.5), ages.quantile(0.99)
    if p50_s is None or p99_s is None:
        return None
    return AgeStatus(events=sum(ages.counts), p50_s=round(p50_s, 3), p99_s=round(p99_s, 3))


def _failures(
    pipeline: str, hosts: Iterable[HostStatus], leases: Mapping[LeaseKey, LeaseStatus]
) -> tuple[FailureStatus, ...]:
    """One for each partition. If several hosts report one, the owner's counts, else the newest."""
    found: dict[str, FailureStatus] = {}
    for host in hosts:
        for failure in host.activity.failures if host.is_heard else ():
            status = leases.get(LeaseKey(pipeline, failure.partition))
            if failure.pipeline == pipeline and status is not None and _is_current(failure, host, status.lease):
                known = found.get(failure.partition)
                if known is None or _rank(failure, status.lease) > _rank(known, status.lease):
                    found[failure.partition] = failure
    return tuple(found[partition] for partition in sorted(found))


def _rank(failure: FailureStatus, lease: Lease) -> tuple[bool, datetime]:
    return failure.host == lease.owner, failure.at


def _is_current(failure: FailureStatus, host: HostStatus, lease: Lease) -> bool:
    """A host's failure is over once another host has advanced the lease's position.

    Until then, that host may well fail at the same event.
    """
    if lease.closed:
        return False
    if lease.owner == host.name:
        return lease.incarnation in (None, host.incarnation)
    return failure.position == position_of(lease.continuation)


def _executors_waits(activities: Mapping[str, Activity]) -> Iterator[str]:
    """activities: by host."""
    for name, activity in activities.items():
        if (wait := activity.executors_wait) is not None:
            yield f"host '{name}' has waited for executors since {_moment(wait.since)}: {wait.why}"


def _waiting(hosts: Iterable[HostStatus], leases: Mapping[LeaseKey, LeaseStatus]) -> dict[LeaseKey, str]:
    found = {
        LeaseKey(each.pipeline, each.partition): each.why
        for host in hosts
        if host.is_heard
        for each in host.activity.waiting
    }
    return {key: why for key, why in sorted(found.items()) if key not in leases}


def _batches(activities: Iterable[Activity]) -> list[BatchStatus]:
    return [batch for activity in activities for batch in activity.batches]


# Why partitions stand still, for people: what `leasehold leases` and `leasehold lag` print in addition to their tables.


NOTHING: Mapping[LeaseKey, str] = MappingProxyType({})

Kind = Literal["failing", "paused", "waiting", "draining", "silent", "feed_error"]
"""- `failing`: it is tried again after an error.
- `paused`: an operator paused its pipeline.
- `waiting`: it gets no lease for now.
- `draining`: its host is about to stop.
- `silent`: its host has reported nothing for a long time.
- `feed_error`: the feed cannot determine how far behind it is.
"""


@dataclass(frozen=True, slots=True)
class Standstill:
    """why: a clause that follows the partition's name."""

    kind: Kind
    why: str


def standstills(group: GroupStatus, errors: Mapping[LeaseKey, str] = NOTHING) -> dict[LeaseKey, tuple[Standstill, ...]]:
    """The partitions that stand still, sorted. errors: why feeds cannot determine how far behind partitions are."""
    failures = failures_of(group)
    found = {
        key: tuple(_of_lease(status, group, failures.get(key), errors.get(key)))
        for key, status in group.leases.items()
        if not status.lease.closed
    }
    without_lease = {key: why for key, why in errors.items() if key not in group.leases and key not in group.unreadable}
    found |= {key: (Standstill("waiting", f"waits: {why}"),) for key, why in {**without_lease, **group.waiting}.items()}
    return {key: found[key] for key in sorted(found) if found[key]}


def failures_of(group: GroupStatus) -> dict[LeaseKey, FailureStatus]:
    return {
        LeaseKey(failure.pipeline, failure.partition): failure
        for pipeline in group.pipelines.values()
        for failure in pipeline.failures
    }


def unlisted_failures(group: GroupStatus) -> list[str]:
    """A line for each host on which more partitions fail than its document has room for."""
    return [
        f"host '{host.name}' reports {counted(host.activity.failing - len(host.activity.failures), 'more failing partition')}"
        " without errors: see its log or GET /api/pipelines there"
        for host in group.hosts.values()
        if host.is_heard and host.activity.failing > len(host.activity.failures)
    ]


def _of_lease(
    status: LeaseStatus, group: GroupStatus, failure: FailureStatus | None, error: str | None
) -> Iterator[Standstill]:
    resting = group.pipelines[status.lease.pipeline].resting
    owner = None if status.lease.owner is None else group.hosts.get(status.lease.owner)
    if failure is not None:
        yield Standstill("failing", f"is failing: {_failing(failure)}")
    if error is not None and (failure is None or error not in failure.error):
        yield Standstill("feed_error", f"cannot be read: {error}")
    if resting is not None:
        yield Standstill("paused", f"is not worked on: {resting}")
    if owner is not None and not owner.is_heard:
        yield Standstill("silent", f"waits for its owner: {_silent(owner)}")
    elif owner is not None and owner.is_draining:
        yield Standstill(
            "draining", f"moves to another host: host '{owner.name}' is draining and still holds its lease"
        )


def _failing(failure: FailureStatus) -> str:
    error = failure.error.removeprefix(f"partition '{failure.partition}', ")
    times = f"{counted(failure.failures, 'failure')} in a row"
    since = f"since {_moment(failure.since)}"
    return f"{error} ({times} {since}; host '{failure.host}' tries again at {_moment(failure.retry_at)})"


def _silent(host: HostStatus) -> str:
    since = "for a lease duration" if host.activity.at is None else f"since {_moment(host.activity.at)}"
    return (
        f"host '{host.name}' has reported nothing {since}. If it is dead, another host takes over once it has seen the lease"
        " expire"
    )


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
