"""Why partitions stand still, for people: what `leasehold leases` and `leasehold lag` print beside their tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from leases.balance import Key
from service.activity import FailureStatus
from service.status import Group, HostStatus, LeaseStatus

Kind = Literal["failing", "paused", "waiting", "draining", "silent"]
"""failing: it is tried again after an error. paused: an operator paused its pipeline. waiting: it gets no lease for now.
draining: its host is about to stop. silent: its host has reported nothing for a lease duration."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """why: a clause that follows the partition's name."""

    kind: Kind
    why: str


def standstills(group: Group) -> dict[Key, tuple[Standstill, ...]]:
    """Of all partitions for which there is something to say, in their order."""
    failures = failures_of(group)
    found = {
        key: tuple(_of_lease(status, group, failures.get(key)))
        for key, status in group.leases.items()
        if not status.lease.closed
    }
    found |= {key: (Standstill("waiting", f"waits: {why}"),) for key, why in group.waiting.items()}
    return {key: found[key] for key in sorted(found) if found[key]}


def failures_of(group: Group) -> dict[Key, FailureStatus]:
    return {
        (failure.pipeline, failure.partition): failure
        for pipeline in group.pipelines.values()
        for failure in pipeline.failures
    }


def untold(group: Group) -> list[str]:
    """Hosts on which more partitions fail than their documents have room for."""
    return [
        f"host '{host.name}' reports {host.activity.failing - len(host.activity.failures)} more failing partitions, without"
        " their errors: see its log or GET /api/pipelines there"
        for host in group.hosts.values()
        if host.is_heard and host.activity.failing > len(host.activity.failures)
    ]


def _of_lease(status: LeaseStatus, group: Group, failure: FailureStatus | None) -> Iterator[Standstill]:
    resting = group.pipelines[status.lease.pipeline].resting
    owner = None if status.lease.owner is None else group.hosts.get(status.lease.owner)
    if failure is not None:
        yield Standstill("failing", f"is failing: {_failing(failure)}")
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
    times = f"{failure.failures} failure{'s' * (failure.failures != 1)} in a row"
    since = "" if failure.since is None else f" since {_moment(failure.since)}"
    return f"{error} ({times}{since}; host '{failure.host}' tries again at {_moment(failure.retry_at)})"


def _silent(host: HostStatus) -> str:
    since = "for a lease duration" if host.activity.at is None else f"since {_moment(host.activity.at)}"
    return (
        f"host '{host.name}' has reported nothing {since}. If it is dead, another host takes over once it has seen the lease"
        " expire"
    )


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
