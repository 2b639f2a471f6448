"""Takes this host's share of the leases, round after round: read, decide, act.

every balance interval (or when a host rang or died, or each second while leases are being handed over):
    read leases, then host documents          leasehold.service.looking, leasehold.leases.keeper, leasehold.leases.membership
    see which hosts are dead                  leasehold.leases.host_watch
    stop the work on paused pipelines         leasehold.leases.pause_orders
    create leases for new partitions          leasehold.service.partitions, leasehold.leases.bootstrap
    plan what to take and what to request     leasehold.service.planning, leasehold.leases.balance
    take, request, start workers              leasehold.service.taking, leasehold.service.worker
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import retry_after_s
from leasehold.leases.errors import StoreError
from leasehold.leases.expiry import Intervals, Watch
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import LeaseKey
from leasehold.leases.membership import DEAD_AFTER, HostScan, Membership
from leasehold.leases.pause_orders import Controls
from leasehold.service.failures import Failures, Streak, verdict
from leasehold.service.looking import GroupReader, Lookout
from leasehold.service.partitions import Partitions
from leasehold.service.pipeline import PipelineParts
from leasehold.service.planning import NOTHING, Planner, expired_in
from leasehold.service.reports import Reports
from leasehold.service.runtime import Runtime
from leasehold.service.stopping import sleep_unless_stopped
from leasehold.service.taking import Taker
from leasehold.service.worker import Worker, about


class Balancer:
    """Reads the group and takes leases.

    - has_met_others: whether another live host was ever seen.
    - expired: leases whose owner is dead or has renounced them, as of the last scan.
    - paused: pipelines that are paused, as of the last scan.
    - ready: set once every partition that can have a lease has one.
    """

    def __init__(
        self,
        pipelines: Mapping[str, PipelineParts],
        *,
        keeper: Keeper,
        membership: Membership,
        reader: GroupReader,
        taker: Taker,
        workers: Mapping[LeaseKey, Worker],
        failures: Failures,
        reports: Reports,
        runtime: Runtime,
    ) -> None:
        """workers: the running ones."""
        self.has_met_others = False
        self.expired: frozenset[LeaseKey] = frozenset()
        self.paused: frozenset[str] = frozenset()
        self.ready = asyncio.Event()
        self._pipelines = pipelines
        self._keeper = keeper
        self._membership = membership
        self.reader, self._taker = reader, taker
        self._workers = workers
        self._failures = failures
        self._reports = reports
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._log, self._stats = runtime.log, runtime.stats
        self._wake = asyncio.Event()
        self._others: frozenset[str] = frozenset()
        """The other live hosts, as of the last scan."""
        self._outlived: Watch[LeaseKey] = Watch()
        self.lookout = Lookout(self.reader, membership, wake=self.wake, judge=self._wake.set, runtime=runtime)
        self.partitions = Partitions(
            pipelines,
            keeper,
            runtime=runtime,
            report=reports.report,
            orphaned=self._set_aside,
            wake=self.wake,
        )
        self.planner = Planner(keeper.host, working=workers.keys(), failures=failures, runtime=runtime)

    def wake(self) -> None:
        """Begin a round now."""
        self.reader.outdate()
        self._wake.set()

    async def run(self, group: asyncio.TaskGroup, stopping: asyncio.Event) -> None:
        """Run rounds until `stopping` is set. group: gets the tasks that rounds start. Raises DuplicateHost."""
        streak = Streak(self._clock)
        while not stopping.is_set():
            self._wake.clear()
            try:
                pause = await self._round(group)
                streak.log_end(self._log, "scan recovered")
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(self._log, "scan failed, retrying", error)
                self.reader.note_failure(error)
                # Look less often: leave the container alone until the next scan.
                self.lookout.is_handing_over = self.lookout.is_unjudged = False
                pause = self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))
                # `wake` does not end this pause: many workers end while the container is away.
                await sleep_unless_stopped(stopping, pause)
                continue
            alarm = asyncio.get_running_loop().call_later(pause, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    async def _round(self, group: asyncio.TaskGroup) -> float:
        """Read, decide, act. Returns the seconds until the next round."""
        is_pending = bool(self._failures.values() or self.lookout.is_handing_over)
        scan, host_scan = await self.reader.read(is_pending=is_pending)
        others, watch = host_scan.live - {self._keeper.host}, self._membership.watch
        self.has_met_others |= bool(others)
        self.expired = expired_in(scan, watch)
        self.lookout.is_unjudged = watch.began < scan.ended and bool(watch.expired() & scan.tenants)
        self._notice_hosts(others)
        self._notice(scan, host_scan)
        self._rest(host_scan.controls)
        audits = await self.partitions.refresh(scan, group, host_scan.peers)
        wanted = await self.planner.plan(scan, host_scan, self.expired) if self._may_plan else NOTHING
        wanted = await self._taker.proved(wanted)
        changes = await self._taker.carry_out(wanted, scan, group)
        outlived = [LeaseKey(name, each) for name, audit in audits.items() for each in audit.outlived]
        # The audit of a slow feed is about an earlier scan, and an operator may have reset the lease since.
        closed = [key for key in outlived if key in scan.seen and scan.seen[key].lease.closed]
        await self._clear_away(host_scan, scan, closed)
        is_left = any(audit.left for audit in audits.values())
        if any(audit.created for audit in audits.values()):
            self.wake()  # these leases can be taken now
        elif not is_left:
            self.ready.set()
        is_waiting = wanted.ask or (self._may_plan and self.planner.awaits_leases)
        is_handing_over = bool(changes.is_outpaced or is_left or is_waiting)
        self.lookout.decide(is_handing_over)
        pause = self._pause(scan, is_soon=is_handing_over)
        took_s = await self._taker.take_again(wanted.take, scan, group, changes.refused)
        return max(0.0, pause - took_s)

    @property
    def _may_plan(self) -> bool:
        """Without trust, this host would lose at once what it takes. Before it has seen the others, it would take all leases."""
        return self._membership.session.is_trusted and self._membership.watch.began > -inf

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
        """Stop the workers of paused pipelines, which release their leases. The plan takes none of these leases."""
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
        """Record that an orphan would fail, without trying it: each try would fail, and raise its epoch."""
        lease = scan.seen[key].lease if key in scan.seen and key not in self._workers else None
        if lease is not None and not lease.closed and lease.owner in (None, self._keeper.host):
            self._failures.would_fail(key, error, lease.continuation)

    async def _clear_away(self, host_scan: HostScan, scan: Scan, outlived: Sequence[LeaseKey]) -> None:
        """Delete the documents of hosts that died long ago, and of partitions that ended long ago.

        Not at once: a host that was frozen may still act on what it read when the children of such partitions had no leases.
        """
        read_at = self.reader.read_at  # later than the scan if nothing has changed since
        audits = Intervals(1.5 * self._timing.audit_s, self._timing.audit_s, 0.0)
        self._outlived = self._outlived.scanned(dict.fromkeys(outlived, ()), read_at, read_at, audits)
        long_gone = self._outlived.still_for(DEAD_AFTER * self._timing.patience_s, read_at)
        try:
            self.reader.host_scan = replace(host_scan, dead=())  # so rounds that read nothing do not try again
            await self._membership.clear_away(host_scan)
            for key in sorted(long_gone):
                await self._keeper.forget(scan.seen[key])
                self._log.info("lease cleared away", **about(scan.seen[key].lease))
        except StoreError as error:
            self._log.debug("clearing away failed", error=str(error))

    def _pause(self, scan: Scan, *, is_soon: bool) -> float:
        """Seconds until the next round: fewer if leases are being handed over, were lost to another host, or may be tried again.
        If a host dies, the lookout begins a round."""
        now = self._clock.monotonic()
        due = [each.until for each in self._failures.values() if each.until > scan.started and not each.is_retried]
        earliest = min([*due, self.reader.due_at(scan)]) - now
        if is_soon:
            earliest = min(earliest, self._timing.handoff_poll_s)
        return max(earliest, min(self._timing.handoff_poll_s, self._timing.balance_s) / 4)

    def _judge_failures(self, scan: Scan) -> None:
        """Find recoveries in the scan. Workers here report only partitions that deliver."""
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
        """Whether the lease's worker has had nothing to do for a while. One that has not read yet what it will fail at is idle
        until its feed answers."""
        worker = self._workers.get(key)
        idle_since = None if worker is None else worker.progress.idle_since
        least_s = max(self._timing.balance_s, self._timing.call_timeout_s)
        return idle_since is not None and self._clock.monotonic() - idle_since >= least_s
