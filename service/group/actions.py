"""Operators' actions on leases and pipelines, for the REST API and the command line.

Each reads, calls a pure function, and writes by one compare-and-swap; after a conflict it starts over. Owners
notice at their next write or scan. A reset is `service.group.migration.moved`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leases.errors import StoreConflict
from leases.keeper import Keeper, Seen
from leases.lease import Lease
from leases.pause_orders import Control, order
from service.errors import NotNow
from service.group.status import HostStatus

CONFLICTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Change:
    """A lease before and after, with its ETags. Both are the same where nothing was to be done."""

    before: Seen
    after: Seen

    @property
    def is_change(self) -> bool:
        return self.before is not self.after


async def release_lease(keeper: Keeper, pipeline: str, partition: str) -> Change:
    """Taken from its owner, position kept. Raises NotNow, StoreError, InvalidDocument."""
    return await _change(keeper, pipeline, partition, _revoked)


async def hand_over_lease(
    keeper: Keeper, pipeline: str, partition: str, to: str, hosts: Mapping[str, HostStatus]
) -> Change:
    """Request a lease for a host: the owner finishes its batch, and releases the lease to that host.

    hosts: all known hosts. Raises NotNow, StoreError, InvalidDocument.
    """
    _check_taker(pipeline, to, hosts)
    return await _change(keeper, pipeline, partition, lambda lease: _promised(lease, to))


async def pause_pipeline(keeper: Keeper, pipeline: str, *, by: str, at: str) -> tuple[Control, bool]:
    """The order that holds now, and whether it is new. Raises StoreError."""
    return await order(keeper.store, Control(pipeline=pipeline, paused=True, by=by, at=at))


async def resume_pipeline(keeper: Keeper, pipeline: str, *, by: str, at: str) -> tuple[Control, bool]:
    """As `paused`."""
    return await order(keeper.store, Control(pipeline=pipeline, paused=False, by=by, at=at))


async def _change(keeper: Keeper, pipeline: str, partition: str, wanted: Callable[[Lease], Lease]) -> Change:
    """A busy owner writes all the time: after a conflict the change is tried again, if it is still valid."""
    for attempt in range(CONFLICTS_MAX):
        seen = await keeper.read(pipeline, partition)
        after = wanted(_opened(seen.lease))
        if after == seen.lease:
            return Change(seen, seen)
        try:
            return Change(seen, await keeper.rewrite(seen, after))
        except StoreConflict:
            if attempt == CONFLICTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _opened(lease: Lease) -> Lease:
    if lease.closed and not lease.children:
        raise NotNow(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' is closed, by an operator: a reset opens it again"
        )
    if lease.closed:
        names = ", ".join(f"'{child.partition}'" for child in lease.children)
        raise NotNow(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' has ended, and {names} continue from it"
        )
    return lease


def _revoked(lease: Lease) -> Lease:
    return lease if lease.owner is None else lease.revoked()


def _promised(lease: Lease, to: str) -> Lease:
    return lease if to in (lease.owner, lease.handoff_to) else lease.handoff_requested(to)


def _check_taker(pipeline: str, to: str, hosts: Mapping[str, HostStatus]) -> None:
    """Raises NotNow where the host would never come for the lease."""
    if (host := hosts.get(to)) is None:
        raise NotNow(f"there is no host '{to}'; there are: {', '.join(sorted(hosts)) or 'none'}")
    if host.is_live is False:
        raise NotNow(f"host '{to}' has not moved for a lease duration: name one that is alive")
    if host.is_draining:
        raise NotNow(f"host '{to}' is draining: it gives its leases back, and takes none")
    if pipeline not in host.pipelines:
        raise NotNow(f"host '{to}' does not run pipeline '{pipeline}': name one that does")
