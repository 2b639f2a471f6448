"""No share is reserved for ever: what a host did not take in time, any host may take. Pure, except for what it remembers.

A lease has been let pass if it could be taken for longer than the duration of every host that may have been meant, and no
other host took a lease of its pipeline meanwhile. For a while, which doubles each time, plans then assign no more of the
leases that can be taken to hosts that have less than their share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from leasehold.common.clock import Backoff
from leasehold.leases.balance import Peer
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey

BENCH = Backoff(first_s=60.0, max_s=1800.0)


class Shares:
    """What one host remembers about leases that can be taken, and about hosts that let them pass."""

    def __init__(self) -> None:
        self._waiting: dict[LeaseKey, float] = {}
        """Lease -> since when it can be taken and no other host has taken one of its pipeline (Clock seconds)."""
        self._owners: dict[LeaseKey, str | None] = {}
        self._benched: dict[str, tuple[int, float]] = {}
        """Host -> how often it let leases pass, and until when plans assign it no more (Clock seconds)."""

    def passed(
        self,
        scan: Scan,
        peers: Collection[Peer],
        expired: Collection[LeaseKey],
        me: str,
        at: float,
        paused: Collection[str] = (),
    ) -> frozenset[LeaseKey]:
        """The leases that have been let pass as of `at` (Clock seconds). Those of paused pipelines cannot be taken."""
        takes = {
            lease.pipeline
            for lease in scan.leases
            if lease.owner not in (None, me) and self._owners.get(lease.key, lease.owner) != lease.owner
        }
        self._owners = {lease.key: lease.owner for lease in scan.leases}
        names = {peer.name: peer for peer in peers}
        open_ = [
            lease
            for lease in scan.leases
            if not lease.closed
            and lease.pipeline not in paused
            and (lease.owner is None or lease.key in expired)
            and lease.owner != me
        ]
        self._waiting = {
            lease.key: at if lease.pipeline in takes else self._waiting.get(lease.key, at) for lease in open_
        }
        return frozenset(lease.key for lease in open_ if at - self._waiting[lease.key] > _lasts_s(lease, names))

    def bench(self, names: Iterable[str], now: float) -> None:
        for name in names:
            times, until = self._benched.get(name, (0, now))
            if now >= until:
                self._benched[name] = times + 1, now + BENCH.pause_s(times + 1, 0.0)

    def benched(self, now: float) -> frozenset[str]:
        """The hosts to which plans assign no more of the leases that can be taken."""
        return frozenset(name for name, (_, until) in self._benched.items() if now < until)


def _lasts_s(lease: Lease, peers: dict[str, Peer]) -> float:
    """The longest duration among the intended hosts: the one that has the promise, or else all of the pipeline."""
    meant = peers.get(lease.handoff_to or "")
    serving = [meant] if meant is not None else [peer for peer in peers.values() if peer.serves(lease.pipeline)]
    return max((peer.lasts_s for peer in serving), default=0.0)
