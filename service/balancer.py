"""Takes this host's share of the leases, round after round: read, decide, act.

every balance interval (or when a host rang or died, or each second while leases are being handed over):
    read leases, then host documents          leasehold.leases.keeper, leasehold.leases.membership
    see which hosts are dead                  leasehold.leases.host_watch
    stop the work on paused pipelines         leasehold.leases.pause_orders
    create leases for new partitions          leasehold.service.partitions, leasehold.leases.bootstrap
    plan what to take and what to request     leasehold.leases.balance
    take, request, start workers              leasehold.service.worker
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from types import coroutine
from typing import TypeVar

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import retry_after_s
from leasehold.leases.balance import Kept, Plan, Steps, plan_in_steps
from leasehold.leases.errors import StoreConflict, StoreError
from leasehold.leases.expiry import Intervals, Watch
from leasehold.leases.host_record import Tenant
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.membership import DEAD_AFTER, HostScan, Membership
from leasehold.leases.pause_orders import Controls
from leasehold.leases.session import Session
from leasehold.leases.shares import Shares
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.tenure import OwnedLease, VersionedLease
from leasehold.pipeline.crash_point import crash_point
from leasehold.service.failures import Failures, Streak, verdict
from leasehold.service.fitness import Fitness
from leasehold.service.partitions import Partitions
from leasehold.service.pipeline import PipelineParts
from leasehold.service.reports import Reports
from leasehold.service.runtime import Runtime
from leasehold.service.stopping import sleep_unless_stopped
from leasehold.service.texts import described
from leasehold.service.worker import Worker, about

T = TypeVar("T")
NOTHING = Plan(take=(), ask=(), share=0)
CLOCK_TICK_S = 0.001
"""A shorter sleep may leave the clock where it is, where its numbers are large."""


@dataclass(slots=True)
class RoundOutcome:
    """The results of a round's takes and requests.

    refused: errors of the container. is_outpaced: another host was quicker, so the next round comes soon.
    """

    refused: list[StoreError] = field(default_factory=list)
    is_outpaced: bool = False

    @property
    def are_over(self) -> bool:
        """Whether the container wants to be left alone: the rest comes later."""
        return any(map(retry_after_s, self.refused))


@coroutine
def _take_turns(steps: Steps[T]) -> Steps[T]:
    """Other tasks get a turn between two steps."""
    return (yield from steps)


class Balancer:
    """Reads the group and takes leases. scan, host_scan: as read last; None before the first round.

    - has_met_others: whether another live host was ever seen.
    - expired: leases whose owner is dead or has renounced them, by the last scan.
    - paused: pipelines that rest.
    - ready: set once every partition that can have a lease has one.
    """

    def __init__(
        self,
        pipelines: Mapping[str, PipelineParts],
        *,
        keeper: Keeper,
        membership: Membership,
        workers: Mapping[LeaseKey, Worker],
        employ: Callable[[OwnedLease, asyncio.TaskGroup], None],
        failures: Failures,
        reports: Reports,
        stopping: asyncio.Event,
        runtime: Runtime,
    ) -> None:
        """workers: those that run. employ: starts one for a lease that was taken. stopping: ends `run` after its round."""
        self.scan: Scan | None = None
        self.host_scan: HostScan | None = None
        self.has_met_others = False
        self.expired: frozenset[LeaseKey] = frozenset()
        self.paused: frozenset[str] = frozenset()
        self.ready = asyncio.Event()
        self._pipelines = pipelines
        self._keeper = keeper
        self._membership = membership
        self._workers = workers
        self._employ = employ
        self._failures = failures
        self._reports = reports
        self._stopping = stopping
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._log, self._stats = runtime.log, runtime.stats
        self._wake = asyncio.Event()
        self.partitions = Partitions(
            pipelines,
            keeper,
            runtime=runtime,
            report=reports.report,
            orphaned=self._set_aside,
            wake=self.wake,
        )
        self._tenants: frozenset[Tenant] = frozenset()
        self._others: frozenset[str] = frozenset()
        """The other hosts that live, by the last scan."""
        self._read_at_signature: frozenset[object] = frozenset()
        self._is_woken = False
        self._failed = 0
        self._is_handing_over = False
        self._has_decided = asyncio.Event()
        """Set by a round that has decided whether leases are being handed over."""
        self._is_changing = False
        self._is_unjudged = False
        """Whether owners are dead whose leases were read after the last look that counted."""
        self._read_at = 0.0
        self._hosts_read_at = 0.0
        self._requests: Watch[LeaseKey] = Watch()
        self._outlived: Watch[LeaseKey] = Watch()
        self._rested_on: tuple[object, ...] = ()
        self._shares = Shares()
        self.fitness: Fitness | None = None
        self._refusals = Streak(self._clock)

    @property
    def _session(self) -> Session:
        return self._membership.session

    def wake(self) -> None:
        """Begin a round now."""
        self._is_woken = True
        self._wake.set()

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Rounds until `stopping` is set. group: the tasks that it starts. Raises DuplicateHost."""
        streak = Streak(self._clock)
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause = await self._round(group)
                streak.log_end(self._log, "scan recovered")
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(self._log, "scan failed, retrying", error)
                self._is_woken, self._failed = True, self._failed + 1
                self._is_handing_over = self._is_unjudged = False  # looks leave the container to the next scan
                pause = self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))
                # Whatever wakes it: workers end in numbers while the container is away.
                await sleep_unless_stopped(self._stopping, pause)
                continue
            alarm = asyncio.get_running_loop().call_later(pause, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    async def keep_looking(self) -> None:
        """Looks at the hosts' documents between the rounds, and begins a round as soon as one is dead. Never returns."""
        streak, looked_at = Streak(self._clock), self._clock.monotonic()
        while True:
            watch = self._membership.watch
            await self._sleep_until_look(looked_at)
            if self._membership.watch is not watch:
                continue  # a round has looked meanwhile
            looked_at = self._clock.monotonic()
            try:
                await self._membership.look(self._tenants)
                streak.log_end(self._log, "looking at hosts recovered")
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(self._log, "looking at hosts failed, retrying", error)
                backoff = self._session.timing.beat_backoff
                await self._clock.sleep(backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error)))
            seen = self._membership.watch
            is_moved = seen.signature != self._read_at_signature
            # More is to come: a host that has just joined asks for leases in a moment. But not while the container refuses.
            self._is_changing = is_moved and not self._failed and not streak.count
            if is_moved or seen.expired() - watch.expired():
                self.wake()
            elif self._is_unjudged and self.scan is not None and seen.began >= self.scan.ended:
                self._wake.set()  # leases that were read before can be judged now

    async def _sleep_until_look(self, looked_at: float) -> None:
        """Looks are more frequent while leases are handed over, which a round may begin meanwhile."""
        await self._clock.sleep(self._session.timing.retry_s)
        while True:
            self._has_decided.clear()
            watch, timing = self._membership.watch, self._session.timing
            pause_s = timing.handoff_poll_s / 2 if self._is_changing else timing.look_s
            if self._is_unjudged and self._session.beat_age_s < timing.beat_s:
                pause_s /= 8
            due = max(looked_at, watch.began) + (timing.ring_gap_s if self._is_handing_over else pause_s)
            if looked_at < (expiry := watch.next_expiry()):
                due = min(due, expiry)
            left_s = due - self._clock.monotonic()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(CLOCK_TICK_S, left_s)):
                    await self._has_decided.wait()

    async def _round(self, group: asyncio.TaskGroup) -> float:
        """Read, decide, act; the seconds until the next round."""
        scan, host_scan = await self._read()
        self.has_met_others |= not host_scan.live <= {self._keeper.host}
        self.expired = self._expired_in(scan)
        self._is_unjudged = self._membership.watch.began < scan.ended and bool(self._dead_owners(scan))
        self._notice_hosts(host_scan.live - {self._keeper.host})
        self._notice(scan, host_scan)
        self._rest(host_scan.controls)
        audits = await self.partitions.refresh(scan, group, host_scan.peers)
        wanted = await self._proved(await self._plan(scan, host_scan) if self._may_plan else NOTHING)
        changes = await self._take_all(wanted.take, scan, group)
        await run_side_by_side(wanted.ask, lambda key: self._ask(key, scan, changes), doing="asking for")
        outlived = [LeaseKey(name, each) for name, audit in audits.items() for each in audit.outlived]
        await self._clear_away(host_scan, scan, [key for key in outlived if key in scan.seen])
        is_left = any(audit.left for audit in audits.values())
        if any(audit.created for audit in audits.values()):
            self.wake()  # they are there to be taken
        elif not is_left:
            self.ready.set()
        is_waiting = wanted.ask or (self._may_plan and self._requests.sightings)
        self._is_handing_over = bool(changes.is_outpaced or is_left or is_waiting)
        self._has_decided.set()
        pause = self._pause(scan, is_soon=self._is_handing_over)
        if not changes.refused:
            self._refusals.log_end(self._log, "taking leases recovered")
            return pause
        at_least_s = max(map(retry_after_s, changes.refused))
        backoff_s = self._timing.backoff.pause_s(self._refusals.count, self._rng.random(), at_least_s)
        if await sleep_unless_stopped(self._stopping, backoff_s):
            # Before the next listing, which may cost all that the container has to give by then.
            again = await self._take_all(wanted.take, scan, group)
            if again.refused:
                await sleep_unless_stopped(self._stopping, max(map(retry_after_s, again.refused)))
        return max(0.0, pause - backoff_s)

    async def _read(self) -> tuple[Scan, HostScan]:
        """All leases, and then the hosts; those of the last round, if no host has changed who has which lease since.

        If hosts ring, what changed since the last round is read instead of all leases, whatever their number: it is one
        request, and all leases are at least one.
        """
        if self.scan is not None and self.host_scan is not None and not self._must_read(self.scan):
            self._read_at = self._clock.monotonic()
            if self._read_at - self._hosts_read_at >= self._timing.audit_s:
                self.host_scan = await self._scan_hosts()
            return self.scan, self.host_scan
        since = None if self.scan is None or self._must_list(self.scan) else self.scan
        counting = since is not None and self._is_listing_due(since)
        self._is_woken = False
        signature = self._membership.watch.signature
        scan = await self._keeper.scan(self._pipelines, since, counting=counting)
        self._tenants = scan.tenants
        host_scan = await self._scan_hosts()
        self.scan, self.host_scan, self._read_at_signature = scan, host_scan, signature
        self._read_at, self._failed = scan.ended, 0
        return scan, host_scan

    async def _scan_hosts(self) -> HostScan:
        began = self._clock.monotonic()
        host_scan = await self._membership.scan(self._tenants)
        self._hosts_read_at = began
        return host_scan

    def _must_read(self, scan: Scan) -> bool:
        """Whether the leases may differ from those that were read last, in what a plan depends on.

        Rings only say when to read. No safety rests on them.
        """
        if self._must_list(scan) or self._is_listing_due(scan) or self._is_woken:
            return True
        is_over = self._clock.monotonic() - scan.started >= self._read_after_s(scan)
        is_pending = bool(self._failures.values() or self._is_handing_over or scan.unreadable)
        return is_over or is_pending or self._membership.watch.signature != self._read_at_signature

    def _must_list(self, scan: Scan) -> bool:
        """Whether it is not enough to read what changed and to count, or that has failed twice in a row."""
        return self._failed > 1 or (self._is_listing_due(scan) and not self._may_count(scan))

    def _is_listing_due(self, scan: Scan) -> bool:
        """Whether leases may have been deleted since the last listing or count."""
        return self._clock.monotonic() - scan.listed_at >= self._listed_after_s(scan)

    def _may_count(self, scan: Scan) -> bool:
        """Few leases are listed: that is one request, and counting takes another to read what changed.

        Unreadable documents are distinguished by the partitions that their ids seem to name, which several may share.
        """
        is_large = len(scan.seen) > self._timing.counted_above
        return is_large and scan.token is not None and self._keeper.can_count and not scan.unreadable

    def _read_after_s(self, scan: Scan) -> float:
        """Reading costs a page for each 1,000 leases if the store cannot say what changed."""
        return self._listed_after_s(scan) if scan.token is None else self._timing.audit_s

    def _listed_after_s(self, scan: Scan) -> float:
        return self._timing.listed_after_s(0 if self._may_count(scan) else len(scan.seen))

    @property
    def _may_plan(self) -> bool:
        """A host without trust would lose at once what it takes, and one that has not seen the others would take all."""
        return self._session.is_trusted and self._membership.watch.began > -inf

    async def _proved(self, wanted: Plan) -> Plan:
        """The plan without requests for what this host has not shown that it can process: another host works on that."""
        if not wanted.ask or self.fitness is None:
            return wanted
        return replace(wanted, ask=await self.fitness.requests(wanted.ask))

    def lease_of(self, pipeline: str, turn: int) -> VersionedLease | None:
        """One that is known: another one at each turn, as some may be slow."""
        seen = () if self.scan is None else self.scan.seen.items()
        open_ = [each for key, each in seen if key.pipeline == pipeline and not each.lease.closed]
        return open_[turn % len(open_)] if open_ else None

    def _dead_owners(self, scan: Scan) -> frozenset[Tenant]:
        return self._membership.watch.expired() & scan.tenants

    def _expired_in(self, scan: Scan) -> frozenset[LeaseKey]:
        """Leases whose owner is dead, or has renounced them. They were read before the look at the hosts began."""
        watch = self._membership.watch
        expired = watch.expired_owners(scan.tenants, scan.ended)
        found = frozenset[LeaseKey]().union(*(scan.by_tenant[tenant] for tenant in expired))
        renounced = watch.renounced(scan.ended)
        return found.union(
            key
            for tenant, pipelines in renounced.items()
            for key in scan.by_tenant.get(tenant, ())
            if key.pipeline in pipelines
        )

    async def _plan(self, scan: Scan, host_scan: HostScan) -> Plan:
        """The plan; empty if it was empty and nothing has changed since. The event loop gets a turn after each step."""
        now, peers, paused = self._clock.monotonic(), host_scan.peers, host_scan.controls.paused
        overdue = self._overdue(scan, {kept for peer in peers for kept in peer.keeps})
        benched = self._shares.benched(now)
        passed = self._shares.passed(scan, peers, self.expired, self._keeper.host, now, paused)
        held_off, working = self._failures.held_off, frozenset(self._workers)
        found = (scan.shape, peers, working, self.expired, overdue, held_off, paused, passed, benched)
        if found == self._rested_on:
            return NOTHING
        steps = plan_in_steps(
            scan.leases,
            peers,
            self._keeper.host,
            working,
            self.expired,
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

    def _notice_hosts(self, others: frozenset[str]) -> None:
        self._stats.record_hosts(joined=others - self._others, left=self._others - others)
        self._others = others

    def _notice(self, scan: Scan, host_scan: HostScan) -> None:
        for key, worker in self._workers.items():
            if key in scan.seen:
                worker.owned.notice(scan.seen[key])
            worker.owned.doubt(scan.seen.get(key), scan.started)
        self._judge_failures(scan)
        for key, error in scan.unreadable.items():
            self._reports.report("unreadable lease", key, str(error), key)
        for name, unread in host_scan.invalid.items():
            self._reports.report("unreadable document", name, str(unread))

    def _rest(self, controls: Controls) -> None:
        """A paused pipeline is not worked on: its leases are released, and the plan takes none."""
        paused = controls.paused & self._pipelines.keys()
        for name in sorted(paused - self.paused):
            self._log.info("pipeline paused", pipeline=name, why=controls.why(name))
        for name in sorted(self.paused - paused):
            self._log.info("pipeline resumed", pipeline=name)
        self.paused = paused
        for key, worker in self._workers.items():
            if key.pipeline in paused:
                worker.stop()

    def _set_aside(self, key: LeaseKey, error: Exception, scan: Scan) -> None:
        """Not to be tried in vain: an orphan would fail each time under a higher epoch."""
        lease = scan.seen[key].lease if key in scan.seen and key not in self._workers else None
        if lease is not None and not lease.closed and lease.owner in (None, self._keeper.host):
            self._failures.would_fail(key, error, lease.continuation)

    async def _take_all(self, keys: Sequence[LeaseKey], scan: Scan, group: asyncio.TaskGroup) -> RoundOutcome:
        """Take those that have not changed since the scan."""
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
        except Exception as error:  # its document cannot be written, or its sink state not be claimed
            self._log.error("lease cannot be taken", **about(before), error=described(error))
            self._failures.record_failure(key, error, before.continuation)
            return None
        if owned is None:
            changes.is_outpaced = True
            return None
        self._stats.record_acquisition(owned.lease, before=before, took_s=self._clock.monotonic() - began)
        if self.fitness is not None:
            self.fitness.note_take(key)
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
        except Exception as error:  # its document has no room for our name
            text = f"lease '{key.partition}' of pipeline '{key.pipeline}' cannot be requested: {described(error)}"
            self._reports.report("request", key, text, key)
            return
        if self.fitness is not None:
            self.fitness.note_request(key)
        self._stats.record_lease_request(lease)
        self._log.info("handoff requested", **about(lease), owner=lease.owner)

    def _is_over(self, changes: RoundOutcome) -> bool:
        """Whether this round must take and request nothing more."""
        return self._stopping.is_set() or changes.are_over

    def _refuse(self, changes: RoundOutcome, error: StoreError, event: str, lease: Lease) -> None:
        """One line for all that is refused in a round."""
        if not changes.refused:
            self._refusals.log_failure(self._log, event, str(error), **about(lease))
        changes.refused.append(error)

    def _overdue(self, scan: Scan, kept: Collection[Kept]) -> frozenset[LeaseKey]:
        """The leases that we requested long ago and did not get: the owner lives but does not answer.

        Time in which the container could not be read does not count: the owner could not answer then. Nor does time in which
        the owner keeps them because it cannot read.
        """
        asked = {
            lease.key: (lease.owner, lease.epoch)
            for lease in scan.requested
            if lease.handoff_to == self._keeper.host
            and lease.pipeline not in self.paused
            and (lease.owner, lease.pipeline) not in kept
        }
        rounds = self._timing.rounds(scan.listings)
        self._requests = self._requests.scanned(asked, scan.started, scan.ended, rounds)
        return self._requests.still_for(self._timing.patience_s, scan.started)

    async def _clear_away(self, host_scan: HostScan, scan: Scan, outlived: Sequence[LeaseKey]) -> None:
        """The documents of hosts that are long dead, and of partitions that are long gone.

        Not at once: a host that was stopped may still act on what it read when the children of those had no leases.
        """
        read_at = self._read_at  # the scan may be older: nothing has changed since
        audits = Intervals(1.5 * self._timing.audit_s, self._timing.audit_s, 0.0)
        self._outlived = self._outlived.scanned(dict.fromkeys(outlived, ()), read_at, read_at, audits)
        long_gone = self._outlived.still_for(DEAD_AFTER * self._timing.patience_s, read_at)
        try:
            self.host_scan = replace(host_scan, dead=())  # rounds that read nothing do not try again
            await self._membership.clear_away(host_scan)
            for key in sorted(long_gone):
                await self._keeper.forget(scan.seen[key])
                self._log.info("lease cleared away", **about(scan.seen[key].lease))
        except StoreError as error:
            self._log.debug("clearing away failed", error=str(error))

    def _pause(self, scan: Scan, *, is_soon: bool) -> float:
        """Until the next round: sooner where a lease is handed over, was lost to another, or may be tried again. If a host dies,
        `keep_looking` begins one.

        The duration of the round counts towards the balance interval, which is the longest time between two rounds.
        """
        now = self._clock.monotonic()
        due = [each.until for each in self._failures.values() if each.until > scan.started and not each.is_retried]
        due.append(scan.started + self._read_after_s(scan))
        due.append(scan.listed_at + self._listed_after_s(scan))
        due.append(self._read_at + self._timing.balance_s * (1 - 0.1 * self._rng.random()))
        earliest = min(due) - now
        if is_soon:
            earliest = min(earliest, self._timing.handoff_poll_s)
        return max(earliest, min(self._timing.handoff_poll_s, self._timing.balance_s) / 4)

    def _judge_failures(self, scan: Scan) -> None:
        """Partitions that deliver are reported by their workers; the others show by the scan."""
        me = self._keeper.host
        for key, failure in list(self._failures.items()):
            if failure.at >= scan.started:
                continue  # the scan may be older than the failure
            lease = scan.seen[key].lease if key in scan.seen else None
            now, grace_s = self._clock.monotonic(), self._timing.patience_s
            found = verdict(failure, lease, me, now=now, grace_s=grace_s, is_idle=self._is_idle(key))
            if found == "over":
                self._failures.forget(key)
            elif found == "recovered" and lease is not None:
                self._failures.record_recovery(key, by=None if lease.owner == me else lease.owner)
        for key in self._failures.ended.keys() - self._failures.keys():
            if key not in scan.seen or scan.seen[key].lease.closed:
                self._failures.forget(key)

    def _is_idle(self, key: LeaseKey) -> bool:
        """Whether its worker has had nothing to do for a while. To be idle for a moment is what a worker looks like too that
        has not yet read what it will fail at."""
        worker = self._workers.get(key)
        idle_since = None if worker is None else worker.progress.idle_since
        return idle_since is not None and self._clock.monotonic() - idle_since >= self._timing.balance_s
