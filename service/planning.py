"""Plans what a host takes and requests. It reads and writes nothing."""

from __future__ import annotations

from collections.abc import Collection
from types import coroutine
from typing import TypeVar

from leasehold.leases.balance import Kept, Plan, Steps, plan_in_steps
from leasehold.leases.expiry import Watch
from leasehold.leases.host_watch import HostWatch
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import LeaseKey
from leasehold.leases.membership import HostScan
from leasehold.leases.shares import Shares
from leasehold.service.failures import Failures
from leasehold.service.runtime import Runtime

T = TypeVar("T")
NOTHING = Plan(take=(), ask=(), share=0)


@coroutine
def _take_turns(steps: Steps[T]) -> Steps[T]:
    """Run the steps. Other tasks get a turn between two of them."""
    return (yield from steps)


def expired_in(scan: Scan, watch: HostWatch) -> frozenset[LeaseKey]:
    """Leases that were read before the look at the hosts began, and whose owner is dead or has renounced them."""
    expired = watch.expired_owners(scan.tenants, scan.ended)
    found = frozenset[LeaseKey]().union(*(scan.by_tenant[tenant] for tenant in expired))
    return found.union(
        key
        for tenant, pipelines in watch.renounced(scan.ended).items()
        for key in scan.by_tenant.get(tenant, ())
        if key.pipeline in pipelines
    )


class Planner:
    """Plans for the host `me`, and remembers what it requested and which shares were not taken.

    working: the leases that it works on.
    """

    def __init__(self, me: str, *, working: Collection[LeaseKey], failures: Failures, runtime: Runtime) -> None:
        self._me = me
        self._working = working
        self._failures = failures
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._requests: Watch[LeaseKey] = Watch()
        self._rested_on: tuple[object, ...] = ()
        self._shares = Shares()

    @property
    def awaits_leases(self) -> bool:
        """Whether this host has requested leases that it has not got yet."""
        return bool(self._requests.sightings)

    async def plan(self, scan: Scan, host_scan: HostScan, expired: frozenset[LeaseKey]) -> Plan:
        """The plan; empty if the last one was empty and nothing has changed since. The event loop gets a turn after each step."""
        now, peers, paused = self._clock.monotonic(), host_scan.peers, host_scan.controls.paused
        overdue = self._overdue(scan, {kept for peer in peers for kept in peer.keeps}, host_scan.controls.paused)
        benched = self._shares.benched(now)
        passed = self._shares.passed(scan, peers, expired, self._me, now, paused)
        held_off, working = self._failures.held_off, frozenset(self._working)
        found = (scan.shape, peers, working, expired, overdue, held_off, paused, passed, benched)
        if found == self._rested_on:
            return NOTHING
        steps = plan_in_steps(
            scan.leases,
            peers,
            self._me,
            working,
            expired,
            overdue,
            self._rng,
            last=held_off,
            paused=paused,
            passed=passed,
            benched=benched,
        )
        wanted = await _take_turns(steps)
        if passed:
            self._shares.bench(wanted.lacking, now)
        self._rested_on = () if wanted.take or wanted.ask else found
        return wanted

    def _overdue(self, scan: Scan, kept: Collection[Kept], paused: Collection[str]) -> frozenset[LeaseKey]:
        """The leases that this host requested long ago and did not get: the owner lives but does not answer.

        Time in which the container could not be read does not count: the owner could not answer then. Nor does time in which
        the owner keeps its leases because it cannot read any.
        """
        asked = {
            lease.key: (lease.owner, lease.epoch)
            for lease in scan.requested
            if lease.handoff_to == self._me
            and lease.pipeline not in paused
            and (lease.owner, lease.pipeline) not in kept
        }
        rounds = self._timing.rounds(scan.listings)
        self._requests = self._requests.scanned(asked, scan.started, scan.ended, rounds)
        return self._requests.still_for(self._timing.patience_s, scan.started)
