"""What a host has read of the group, and when it reads again. Between two rounds it reads only the hosts' documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import retry_after_s
from leasehold.leases.errors import StoreError
from leasehold.leases.host_record import Tenant
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.membership import HostScan, Membership
from leasehold.leases.session import Session
from leasehold.leases.tenure import VersionedLease
from leasehold.service.failures import Streak
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime

CLOCK_TICK_S = 0.001
"""After a shorter sleep, a clock with large numbers may still show the same time."""


class GroupReader:
    """scan, host_scan: what was read last; None before the first round. read_at: when they were last known to be current.

    failed: how many rounds in a row have failed.
    """

    def __init__(
        self, pipelines: Mapping[str, PipelineParts], *, keeper: Keeper, membership: Membership, runtime: Runtime
    ) -> None:
        self.scan: Scan | None = None
        self.host_scan: HostScan | None = None
        self.read_at = 0.0
        self.failed = 0
        self._pipelines = pipelines
        self._keeper, self._membership = keeper, membership
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._tenants: frozenset[Tenant] = frozenset()
        self._signature: frozenset[object] = frozenset()
        self._is_outdated = False
        self._hosts_read_at = 0.0
        self._broken = 0
        """How many rounds in a row have failed without a pause that the container demanded."""
        self._list_at = -inf
        """When to repeat a listing that the container has refused with such a pause."""

    def note_failure(self, error: BaseException) -> None:
        """A round has failed, and the next one must read."""
        self.outdate()
        self.failed += 1
        self._broken += not retry_after_s(error)

    def outdate(self) -> None:
        """Make the next round read, whatever the hosts show."""
        self._is_outdated = True

    @property
    def is_moved(self) -> bool:
        """Whether the hosts' documents show that who has which lease has changed since the last scan."""
        return self._membership.watch.signature != self._signature

    async def read(self, *, is_pending: bool) -> tuple[Scan, HostScan]:
        """Read all leases, and then the hosts. If no host has changed who has which lease, return those of the last round.

        is_pending: whether more changes are expected. If hosts ring, only the leases that changed since the last round are read,
        however many leases there are: that is one request, and a listing of all takes at least one.
        """
        if self.scan is not None and self.host_scan is not None and not self._must_read(self.scan, is_pending):
            self.read_at = self._clock.monotonic()
            if self.read_at - self._hosts_read_at >= self._timing.audit_s:
                self.host_scan = await self._scan_hosts()
            return self.scan, self.host_scan
        since = None if self.scan is None or self._must_list(self.scan) else self.scan
        counting = since is not None and self._is_listing_due(since)
        self._is_outdated = False
        signature = self._membership.watch.signature
        try:
            scan = await self._keeper.scan(self._pipelines, since, counting=counting)
        except StoreError as error:
            if since is None and self.scan is not None and self.scan.token is not None and retry_after_s(error):
                self._postpone_listing(self.scan)
            raise
        self._tenants = scan.tenants
        host_scan = await self._scan_hosts()
        self.scan, self.host_scan, self._signature = scan, host_scan, signature
        self.read_at, self.failed, self._broken = scan.ended, 0, 0
        return scan, host_scan

    def _postpone_listing(self, scan: Scan) -> None:
        """Read only what changed, for a little longer than between two listings in calm times.

        A refused listing may cost as much as what keeps the container throttled, and a reading of changes costs little.
        """
        self._list_at = self._clock.monotonic() + self._listed_after_s(scan) * (1 + 0.5 * self._rng.random())

    async def _scan_hosts(self) -> HostScan:
        began = self._clock.monotonic()
        host_scan = await self._membership.scan(self._tenants)
        self._hosts_read_at = began
        return host_scan

    def _must_read(self, scan: Scan, is_pending: bool) -> bool:
        """Whether leases may have changed since they were read last, in a way that matters to a plan.

        Rings only decide when to read. Safety does not depend on them.
        """
        if self._must_list(scan) or self._is_listing_due(scan) or self._is_outdated:
            return True
        is_over = self._clock.monotonic() - scan.started >= self._read_after_s(scan)
        return is_over or is_pending or bool(scan.unreadable) or self.is_moved

    def _must_list(self, scan: Scan) -> bool:
        """Whether all leases must be listed: reading the changes and counting is not enough, or has failed twice in a row."""
        return self._broken > 1 or (self._is_listing_due(scan) and not self._may_count(scan))

    def _is_listing_due(self, scan: Scan) -> bool:
        """Whether leases may have been deleted since the last listing or count."""
        return self._clock.monotonic() >= self._listing_due_at(scan)

    def _listing_due_at(self, scan: Scan) -> float:
        return max(scan.listed_at + self._listed_after_s(scan), self._list_at, self._keeper.outcomes.quiet_until)

    def _may_count(self, scan: Scan) -> bool:
        """Whether a count may replace a listing. Few leases are listed: that is one request, and a count takes another to read
        the changes.

        Unreadable documents rule out a count: their keys are the partitions that their ids seem to name, which several may share.
        """
        is_large = len(scan.seen) > self._timing.counted_above
        return is_large and scan.token is not None and self._keeper.can_count and not scan.unreadable

    def _read_after_s(self, scan: Scan) -> float:
        """How long after a scan the next one is due. If the store cannot list changes, a scan costs a page per 1,000 leases."""
        return self._listed_after_s(scan) if scan.token is None else self._timing.audit_s

    def _listed_after_s(self, scan: Scan) -> float:
        return self._timing.listed_after_s(0 if self._may_count(scan) else len(scan.seen))

    def due_at(self, scan: Scan) -> float:
        """When the next round begins at the latest.

        The duration of the round counts towards the balance interval, which is the longest time between two rounds.
        """
        balance_s = self._timing.balance_s * (1 - 0.1 * self._rng.random())
        read_at = scan.started + self._read_after_s(scan)
        return min(read_at, self._listing_due_at(scan), self.read_at + balance_s)

    async def look(self) -> None:
        """Read only the hosts' documents."""
        await self._membership.look(self._tenants)

    def lease_of(self, pipeline: str, turn: int) -> VersionedLease | None:
        """A known open lease of the pipeline, or None. Another one for each turn, because some may be slow."""
        seen = () if self.scan is None else self.scan.seen.items()
        open_ = [each for key, each in seen if key.pipeline == pipeline and not each.lease.closed]
        return open_[turn % len(open_)] if open_ else None


class Lookout:
    """Looks at the hosts' documents between the rounds.

    - is_handing_over: whether the last round has found that leases are being handed over.
    - is_unjudged: whether leases of dead owners were read after the beginning of the last look that counted.
    """

    def __init__(
        self,
        reader: GroupReader,
        membership: Membership,
        *,
        wake: Callable[[], None],
        judge: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        """wake: begins a round that reads. judge: begins a round."""
        self.is_handing_over = False
        self.is_unjudged = False
        self._reader, self._membership = reader, membership
        self._wake, self._judge = wake, judge
        self._clock, self._rng, self._log = runtime.clock, runtime.rng, runtime.log
        self._has_decided = asyncio.Event()
        """Set by a round that has decided whether leases are being handed over."""
        self._is_changing = False
        self._read: Scan | None = None
        self._moved_at: float | None = None
        """When a look first showed that leases have moved since the scan `_read`."""

    @property
    def _session(self) -> Session:
        return self._membership.session

    def decide(self, is_handing_over: bool) -> None:
        """Called by each round at its end."""
        self.is_handing_over = is_handing_over
        self._has_decided.set()

    async def run(self) -> None:
        """Begin a round as soon as a host is dead, or leases have moved. Never returns."""
        streak, looked_at = Streak(self._clock), self._clock.monotonic()
        while True:
            watch = self._membership.watch
            await self._sleep_until_look(looked_at)
            if self._membership.watch is not watch:
                continue  # a round has looked meanwhile
            looked_at = self._clock.monotonic()
            try:
                await self._reader.look()
                streak.log_end(self._log, "looking at hosts recovered")
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(self._log, "looking at hosts failed, retrying", error)
                backoff = self._session.timing.beat_backoff
                await self._clock.sleep(backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error)))
            seen, scan, is_moved = self._membership.watch, self._reader.scan, self._reader.is_moved
            self._note_moves(seen.began, is_refused=bool(self._reader.failed or streak.count))
            if is_moved or seen.expired() - watch.expired():
                self._wake()
            elif self.is_unjudged and scan is not None and seen.began >= scan.ended:
                self._judge()  # leases that were read before this look can be judged now

    def _note_moves(self, began: float, *, is_refused: bool) -> None:
        """Expect more changes after one: a host that has just joined requests leases soon. But not for long, nor while the
        container refuses: then the next reading is late. began: of the look.
        """
        is_moved = self._reader.is_moved
        if not is_moved or self._moved_at is None or self._reader.scan is not self._read:
            self._read, self._moved_at = self._reader.scan, began if is_moved else None
        is_recent = self._moved_at is not None and began - self._moved_at < self._session.timing.look_s
        self._is_changing = is_recent and not is_refused

    async def _sleep_until_look(self, looked_at: float) -> None:
        """Looks are more frequent while leases are being handed over. A round may find that during this sleep."""
        await self._clock.sleep(self._session.timing.retry_s)
        while True:
            self._has_decided.clear()
            watch, timing = self._membership.watch, self._session.timing
            pause_s = timing.handoff_poll_s / 2 if self._is_changing else timing.look_s
            if self.is_unjudged and self._session.beat_age_s < timing.beat_s:
                pause_s /= 8
            due = max(looked_at, watch.began) + (timing.ring_gap_s if self.is_handing_over else pause_s)
            if looked_at < (expiry := watch.next_expiry()):
                due = min(due, expiry)
            left_s = due - self._clock.monotonic()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(CLOCK_TICK_S, left_s)):
                    await self._has_decided.wait()
