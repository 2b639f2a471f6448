"""Why partitions stand still, for people: what `leasehold leases` and `leasehold lag` print beside their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from leases.balance import Key
from service.group.activity import FailureStatus
from service.group.status import Group, HostStatus, LeaseStatus
from service.group.view import View
from service.plurals import counted

NOTHING: Mapping[Key, str] = MappingProxyType({})

Kind = Literal["failing", "paused", "waiting", "draining", "silent", "feed_error"]
"""failing: it is tried again after an error. paused: an operator paused its pipeline. waiting: it gets no lease for now.
draining: its host is about to stop. silent: its host has reported nothing for a lease duration. feed_error: the feed cannot
say how far behind it is."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """why: a clause that follows the partition's name."""

    kind: Kind
    why: str


async def read_standstills(view: View) -> tuple[Group, dict[Key, tuple[Standstill, ...]]]:
    """Ask the feeds only if no host reports what it finds there: a feed may take seconds. Raises StoreUnavailable."""
    group = await view.group()
    has_hosts = any(host.is_heard for host in group.hosts.values())
    return group, standstills(group, NOTHING if has_hosts else (await view.lag()).errors)


def standstills(group: Group, errors: Mapping[Key, str] = NOTHING) -> dict[Key, tuple[Standstill, ...]]:
    """The partitions that stand still, in their order. errors: why feeds cannot say how far behind partitions are."""
    failures = failures_of(group)
    found = {
        key: tuple(_of_lease(status, group, failures.get(key), errors.get(key)))
        for key, status in group.leases.items()
        if not status.lease.closed
    }
    without_lease = {key: why for key, why in errors.items() if key not in group.leases and key not in group.unreadable}
    found |= {key: (Standstill("waiting", f"waits: {why}"),) for key, why in {**without_lease, **group.waiting}.items()}
    return {key: found[key] for key in sorted(found) if found[key]}


def failures_of(group: Group) -> dict[Key, FailureStatus]:
    return {
        (failure.pipeline, failure.partition): failure
        for pipeline in group.pipelines.values()
        for failure in pipeline.failures
    }


def unlisted_failures(group: Group) -> list[str]:
    """A line for each host on which more partitions fail than its document has room for."""
    return [
        f"host '{host.name}' reports {counted(host.activity.failing - len(host.activity.failures), 'more failing partition')}"
        " without errors: see its log or GET /api/pipelines there"
        for host in group.hosts.values()
        if host.is_heard and host.activity.failing > len(host.activity.failures)
    ]


def _of_lease(
    status: LeaseStatus, group: Group, failure: FailureStatus | None, error: str | None
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
