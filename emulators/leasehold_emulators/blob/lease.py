"""The lease of a blob or a container: its states, its actions, and whether it lets a write pass. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from leasehold_emulators.blob.refused import Refused

FOREVER = -1
NEVER_S = 1e15
DURATIONS_S = range(15, 61)
BREAK_S_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """until: when the lease expires. broken_at: when a break takes effect."""

    id: str = ""
    duration_s: int = 0
    until: float = 0.0
    broken_at: float | None = None

    def state(self, now: float) -> str:
        if not self.id:
            return "available"
        if self.broken_at is not None:
            return "breaking" if now < min(self.broken_at, self.until) else "broken"
        return "leased" if now < self.until else "expired"

    def is_held(self, now: float) -> bool:
        return self.state(now) in ("leased", "breaking")


def check_write(lease: Lease, given: str | None, now: float) -> None:
    """Raises Refused unless a write gives the id of the held lease, or no id if none is held."""
    if not lease.is_held(now):
        if given:
            raise Refused("LeaseLost" if given == lease.id else "LeaseNotPresentWithBlobOperation")
    elif not given:
        raise Refused("LeaseIdMissing")
    elif given.lower() != lease.id:
        raise Refused("LeaseIdMismatchWithBlobOperation")


def after_write(lease: Lease, now: float) -> Lease:
    """The lease once its blob has been written: the service then forgets the id of a lease that has ended."""
    return lease if lease.is_held(now) else Lease()


def check_read(lease: Lease, given: str | None, now: float) -> None:
    """A read needs no id, but an id that is given has to be right."""
    if given:
        check_write(lease, given, now)


def acquired(lease: Lease, id: str, duration_s: int, now: float) -> Lease:
    if duration_s != FOREVER and duration_s not in DURATIONS_S:
        raise Refused("InvalidHeaderValue", "x-ms-lease-duration has to be -1 or from 15 to 60.")
    if lease.state(now) == "breaking":
        raise Refused("LeaseIsBreakingAndCannotBeAcquired" if id == lease.id else "LeaseAlreadyPresent")
    if lease.is_held(now) and id != lease.id:
        raise Refused("LeaseAlreadyPresent")
    return Lease(id=id, duration_s=duration_s, until=_end(duration_s, now))


def renewed(lease: Lease, id: str, now: float) -> Lease:
    """The renewed lease, even if it had expired, unless another id acquired it or the blob was written since."""
    _check_id(lease, id)
    if lease.broken_at is not None:
        raise Refused("LeaseIsBrokenAndCannotBeRenewed")
    return replace(lease, until=_end(lease.duration_s, now))


def changed(lease: Lease, id: str, proposed: str, now: float) -> Lease:
    if not lease.is_held(now):
        raise Refused("LeaseNotPresentWithLeaseOperation")
    if lease.id not in (id, proposed):
        raise Refused("LeaseIdMismatchWithLeaseOperation")
    return replace(lease, id=proposed)


def released(lease: Lease, id: str) -> Lease:
    _check_id(lease, id)
    return Lease()


def broken(lease: Lease, period_s: int | None, now: float) -> tuple[Lease, int]:
    """The lease as the break leaves it, and how many seconds remain until the break takes effect."""
    if not lease.id:
        raise Refused("LeaseNotPresentWithLeaseOperation")
    if period_s is not None and not 0 <= period_s <= BREAK_S_MAX:
        raise Refused("InvalidHeaderValue", "x-ms-lease-break-period has to be from 0 to 60.")
    remaining = max(0.0, lease.until - now) if lease.is_held(now) else 0.0
    wanted = remaining if period_s is None else min(float(period_s), remaining)
    at = now if wanted > BREAK_S_MAX else now + wanted  # an endless lease breaks at once
    if lease.broken_at is not None:
        at = min(at, lease.broken_at)
    return replace(lease, broken_at=at), max(0, math.ceil(at - now))


def _check_id(lease: Lease, id: str) -> None:
    if id != lease.id:
        raise Refused("LeaseIdMismatchWithLeaseOperation")


def _end(duration_s: int, now: float) -> float:
    return NEVER_S if duration_s == FOREVER else now + duration_s
