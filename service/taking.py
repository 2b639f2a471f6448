"""Takes leases, and requests leases of others. If the container refuses takes, the round tries them once more after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leasehold.common.clock import retry_after_s
from leasehold.leases.balance import Plan
from leasehold.leases.errors import StoreConflict, StoreError
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.tenure import OwnedLease
from leasehold.pipeline.crash_point import crash_point
from leasehold.service.failures import Failures, Streak
from leasehold.service.fitness import Fitness
from leasehold.service.pipeline import PipelineParts
from leasehold.service.reports import Reports
from leasehold.service.runtime import Runtime
from leasehold.service.stopping import sleep_unless_stopped
from leasehold.service.texts import described
from leasehold.service.worker import Worker, about


@dataclass(slots=True)
class RoundOutcome:
    """The results of a round's takes and requests.

    refused: errors of the container. is_outpaced: another host was quicker, so the next round comes soon.
    """

    refused: list[StoreError] = field(default_factory=list)
    is_outpaced: bool = False

    @property
    def are_over(self) -> bool:
        """Whether the container demands a pause: the rest of this round is left to later ones."""
        return any(map(retry_after_s, self.refused))


class Taker:
    """workers: the running ones. employ: starts one for a lease that was taken. fitness: knows what the host can process."""

    def __init__(
        self,
        pipelines: Mapping[str, PipelineParts],
        *,
        keeper: Keeper,
        workers: Mapping[LeaseKey, Worker],
        employ: Callable[[OwnedLease, asyncio.TaskGroup], None],
        failures: Failures,
        reports: Reports,
        fitness: Fitness,
        stopping: asyncio.Event,
        runtime: Runtime,
    ) -> None:
        """stopping: once it is set, nothing more is taken or requested."""
        self._pipelines = pipelines
        self._keeper = keeper
        self._workers, self._employ = workers, employ
        self._failures, self._reports, self._fitness = failures, reports, fitness
        self._stopping = stopping
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._log, self._stats = runtime.log, runtime.stats
        self._refusals = Streak(self._clock)

    async def proved(self, wanted: Plan) -> Plan:
        """The plan, with requests only for leases that this host has shown it can process: other hosts work on them."""
        return replace(wanted, ask=await self._fitness.requests(wanted.ask)) if wanted.ask else wanted

    async def carry_out(self, wanted: Plan, scan: Scan, group: asyncio.TaskGroup) -> RoundOutcome:
        changes = await self._take_all(wanted.take, scan, group)
        await run_side_by_side(wanted.ask, lambda key: self._ask(key, scan, changes), doing="asking for")
        return changes

    async def take_again(
        self, keys: Sequence[LeaseKey], scan: Scan, group: asyncio.TaskGroup, refused: Sequence[StoreError]
    ) -> float:
        """Take once more after a pause, if the container has refused something in this round. Returns the pause in seconds."""
        if not refused:
            self._refusals.log_end(self._log, "taking leases recovered")
            return 0.0
        at_least_s = max(map(retry_after_s, refused))
        backoff_s = self._timing.backoff.pause_s(self._refusals.count, self._rng.random(), at_least_s)
        if await sleep_unless_stopped(self._stopping, backoff_s):
            # Before the next listing, which may use up all requests that the container permits by then.
            again = await self._take_all(keys, scan, group)
            if again.refused:
                await sleep_unless_stopped(self._stopping, max(map(retry_after_s, again.refused)))
        return backoff_s

    async def _take_all(self, keys: Sequence[LeaseKey], scan: Scan, group: asyncio.TaskGroup) -> RoundOutcome:
        """Take the leases that have not changed since the scan."""
        changes = RoundOutcome()
        await run_side_by_side(
            keys,
            lambda key: self._take(key, scan, changes),
            doing="taking",
            then=lambda key, owned: None if owned is None else self._employ(owned, group),
        )
        return changes

    async def _take(self, key: LeaseKey, scan: Scan, changes: RoundOutcome) -> OwnedLease | None:
        if self._is_over(changes) or key in self._workers or self._failures.holds_off(key):
            return None
        before, began = scan.seen[key].lease, self._clock.monotonic()
        try:
            owned = await self._keeper.take(scan.seen[key], self._pipelines[key.pipeline].claimed)
        except StoreError as error:
            self._refuse(changes, error, "taking a lease failed", before)
            return None
        except Exception as error:  # its document cannot be written, or its sink state cannot be claimed
            self._log.error("lease cannot be taken", **about(before), error=described(error))
            self._failures.record_failure(key, error, before.continuation)
            return None
        if owned is None:
            changes.is_outpaced = True
            return None
        self._stats.record_acquisition(owned.lease, before=before, took_s=self._clock.monotonic() - began)
        self._fitness.note_take(key)
        crash_point("lease acquired")
        return owned

    async def _ask(self, key: LeaseKey, scan: Scan, changes: RoundOutcome) -> None:
        if self._is_over(changes):
            return
        lease = scan.seen[key].lease
        try:
            await self._keeper.ask(scan.seen[key])
        except StoreConflict:
            return  # the lease has just changed; the next round sees how
        except StoreError as error:
            self._refuse(changes, error, "asking for a lease failed", lease)
            return
        except Exception as error:  # its document has no room for this host's name
            text = f"lease '{key.partition}' of pipeline '{key.pipeline}' cannot be requested: {described(error)}"
            self._reports.report("request", key, text, key)
            return
        self._fitness.note_request(key)
        self._stats.record_lease_request(lease)
        self._log.info("handoff requested", **about(lease), owner=lease.owner)

    def _is_over(self, changes: RoundOutcome) -> bool:
        """Whether this round must take and request nothing more."""
        return self._stopping.is_set() or changes.are_over

    def _refuse(self, changes: RoundOutcome, error: StoreError, event: str, lease: Lease) -> None:
        """Log one line for all refusals of a round."""
        if not changes.refused:
            self._refusals.log_failure(self._log, event, str(error), **about(lease))
        changes.refused.append(error)
