"""START HERE: one host. It shows that it lives, scans the leases, takes its share, and runs a worker for each one it owns.

    every balance interval (or when the earliest lease would expire, or each second while leases are being handed over):
        read host documents and leases            leases.membership, leases.keeper
        see whose tick has stood still            leases.expiry
        rest from what an operator has paused     leases.pause_orders
        create leases for new partitions          service.partitions, leases.bootstrap
        plan what to take and what to request     leases.balance
        take, ask, start workers                  service.worker

Hosts share nothing but the lease container. A host that cannot read it continues with its leases as long as it may trust
them, and takes none.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock, retry_after_s
from leases.balance import Plan, plan
from leases.errors import DuplicateHost, StoreConflict, StoreError
from leases.expiry import Watch
from leases.keeper import Keeper, Scan
from leases.lease import Lease, LeaseKey
from leases.membership import DEAD_AFTER, Membership, Roll, mismatched
from leases.pause_orders import Controls
from leases.side_by_side import run_side_by_side
from leases.timing import Timing
from pipeline.crash_point import crash_point
from pipeline.feed import FeedPartition
from pipeline.limits import Budget
from service.failures import Failures, Reports, Streak, verdict
from service.group.metered_lag import GroupLag, Sight
from service.partitions import Partitions
from service.pipeline import Pipeline
from service.shutdown import sleep_unless_stopped
from service.stats import Tally
from service.worker import Outcome, Worker, about

T = TypeVar("T")
OUTCOMES_KEPT = 50
NOTHING = Plan((), (), 0)


@dataclass(slots=True)
class Changes:
    """What became of a round's takes and requests.

    refused: what the container answered. is_outpaced: another host was quicker, so the next round comes soon.
    """

    refused: list[StoreError] = field(default_factory=list)
    is_outpaced: bool = False

    @property
    def are_over(self) -> bool:
        """Whether the container wants to be left alone: the rest comes later."""
        return any(map(retry_after_s, self.refused))


class Host:
    """Runs workers for this process's share of the leases, until `stop`."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        keeper: Keeper,
        membership: Membership,
        clock: Clock,
        timing: Timing,
        rng: random.Random,
        log: Log,
        stop_timeout_s: float = 25.0,
        activity: Callable[[Host], Mapping[str, object]] = lambda host: {},
        tally: Tally | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.name = keeper.host
        self.pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self.workers: dict[LeaseKey, Worker] = {}
        self.failures = Failures(clock, self._log_recovery)
        self.outcomes: deque[tuple[LeaseKey, Outcome]] = deque(maxlen=OUTCOMES_KEPT)
        self.scan: Scan | None = None
        self.roll: Roll | None = None
        self.has_met_others = False
        self.expired: frozenset[LeaseKey] = frozenset()
        self.paused: frozenset[str] = frozenset()
        self.tally = tally or Tally(clock)
        self.budget = budget or Budget()
        self.ready = asyncio.Event()
        self.group_lag = GroupLag({name: pipeline.feed for name, pipeline in self.pipelines.items()}, clock)
        self._keeper = keeper
        self._membership = membership
        self._clock = clock
        self._timing = timing
        self._rng = rng
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._activity = activity
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._partitions = Partitions(
            self.pipelines,
            keeper,
            clock=clock,
            timing=timing,
            log=log,
            rng=rng,
            report=self._report,
            orphaned=self._set_aside,
            wake=self._wake.set,
        )
        self._watch: Watch[LeaseKey] = Watch()
        self._requests: Watch[LeaseKey] = Watch()
        self._outlived: Watch[LeaseKey] = Watch()
        self._rested_on: tuple[object, ...] = ()
        self._reports = Reports(clock)
        self._refusals = Streak(clock)
        self._tasks: dict[asyncio.Task[None], Worker] = {}

    @property
    def is_draining(self) -> bool:
        return self._stopping.is_set()

    @property
    def waiting(self) -> dict[LeaseKey, str]:
        """Partitions that get no lease for now, and why."""
        return self._partitions.waiting

    @property
    def listings(self) -> dict[str, Sequence[FeedPartition]]:
        """The partitions of metered feeds, as this host listed them last."""
        return self._partitions.listings

    @property
    def own_leases(self) -> dict[LeaseKey, Lease]:
        """Those that this host works on, as it has them."""
        return {key: worker.owned.lease for key, worker in self.workers.items()}

    def wake(self) -> None:
        """Begin a round now, because this process has just changed something."""
        self._wake.set()

    def stop(self) -> None:
        """Ask for a graceful stop: finish or drop what is in hand, checkpoint, release, leave. `run` returns then."""
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Raises GroupMismatch or InvalidDocument at the start, DuplicateHost at any time; other failures are contained."""
        await self._start()
        duplicate: BaseException | None = None
        if not self.is_draining:
            try:
                await self._live()
            except* DuplicateHost as errors:
                duplicate = errors.exceptions[0]
        if duplicate is not None:  # raised in there, Python up to 3.11.3 would put it into a group again
            raise duplicate from None
        await self._leave()

    # Living

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            heartbeat = group.create_task(self._heartbeat(), name="heartbeat")
            balance = group.create_task(self._balance(group), name="balance")
            measuring = group.create_task(self.group_lag.run(self._sight), name="lag") if self.group_lag.feeds else None
            try:
                await self._stopping.wait()
                await self._drain(balance)
                heartbeat.cancel()
            finally:
                if measuring is not None:
                    measuring.cancel()
                await self._partitions.close()

    async def _start(self) -> None:
        """A host that may not work here must not be counted: it announces itself last."""
        for name, bootstrap in self._partitions.bootstraps.items():
            if await self._persist(f"opening pipeline '{name}'", bootstrap.open):
                self._log.info("transform changed", pipeline=name)
        await self._persist("announcing this host", lambda: self._membership.announce({}))
        self._log.info("host started", pipelines=sorted(self.pipelines))

    async def _persist(self, doing: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """Do it until the container answers, or we are told to stop. A call under way is not cancelled: it may arrive."""
        streak = Streak(self._clock)
        while True:
            try:
                result = await step()
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                pause = self._record_failure(streak, f"{doing} failed, will try again", error)
            else:
                self._log_end(streak, f"{doing} recovered")
                return result
            if not await sleep_unless_stopped(self._stopping, pause):
                return None

    async def _heartbeat(self) -> None:
        while True:
            await self._clock.sleep(self._timing.renew_s * (1 - 0.1 * self._rng.random()))
            await self._persist("announcing this host", lambda: self._membership.announce(self._activity(self)))
            if (namesake := self._membership.me.contested_by) is not None:
                self._report(
                    "namesake",
                    namesake,
                    f"another process (incarnation {namesake}) ran under this host's name and gave way",
                )

    async def _balance(self, group: asyncio.TaskGroup) -> None:
        streak = Streak(self._clock)
        while not self.is_draining:
            self._wake.clear()
            try:
                pause = await self._round(group)
                self._log_end(streak, "scan recovered")
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                pause = self._record_failure(streak, "scan failed, will try again", error)
                await sleep_unless_stopped(
                    self._stopping, pause
                )  # whatever wakes it: workers end in numbers while the container is away
                continue
            alarm = asyncio.get_running_loop().call_later(pause, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    # One round

    async def _round(self, group: asyncio.TaskGroup) -> float:
        """Read, decide, act; the seconds until the next round."""
        roll = self.roll = await self._membership.scan()
        self.group_lag.hosts = len(roll.live)
        self.has_met_others |= not roll.live <= {self.name}
        scan = self.scan = await self._keeper.scan(self.pipelines)
        self._watch = self._watch.scanned(scan.marks, scan.started, scan.ended, self._timing, scan.listings)
        self.expired = self._watch.expired(scan.started, self._timing)
        self._notice(scan, roll)
        self._rest(roll.controls)
        audits = await self._partitions.refresh(scan, group, roll.peers)
        wanted = self._planned(scan, roll)
        changes = await self._take_all(wanted.take, scan, group)
        await run_side_by_side(wanted.ask, lambda key: self._ask(key, scan, changes), doing="asking for")
        outlived = [LeaseKey(name, each) for name, audit in audits.items() for each in audit.outlived]
        await self._clear_away(roll, scan, [key for key in outlived if key in scan.seen])
        is_left = any(audit.left for audit in audits.values())
        if any(audit.created for audit in audits.values()):
            self._wake.set()  # they are there to be taken
        elif not is_left:
            self.ready.set()
        is_soon = changes.is_outpaced or is_left or wanted.ask or self._requests.sightings
        pause = self._pause(scan, is_soon=bool(is_soon))
        if not changes.refused:
            self._log_end(self._refusals, "taking leases recovered")
            return pause
        at_least_s = max(map(retry_after_s, changes.refused))
        backoff_s = self._timing.backoff.pause_s(self._refusals.count, self._rng.random(), at_least_s)
        if await sleep_unless_stopped(self._stopping, backoff_s):
            # Before the next listing, which may cost all that the container has to give by then.
            await self._take_all(wanted.take, scan, group)
        return max(0.0, pause - backoff_s)

    def _sight(self) -> Sight | None:
        """None until the first round has read the group."""
        if self.scan is None or self.roll is None:
            return None
        live = [self.roll.hosts[name] for name in self.roll.live]
        return Sight(self.name, self.own_leases, self.scan.leases, live)

    def _planned(self, scan: Scan, roll: Roll) -> Plan:
        """The plan; empty if it was empty and nothing has changed since."""
        peers, overdue = roll.peers, self._overdue(scan)
        held_off = self.failures.held_off
        paused = roll.controls.paused
        found = (scan.shape, peers, frozenset(self.workers), self.expired, overdue, held_off, paused)
        if found == self._rested_on:
            return NOTHING
        wanted = plan(
            scan.leases,
            peers,
            self._keeper.host,
            self.workers.keys(),
            self.expired,
            overdue,
            self._rng,
            last=held_off,
            paused=paused,
        )
        self._rested_on = () if wanted.take or wanted.ask else found
        return wanted

    def _notice(self, scan: Scan, roll: Roll) -> None:
        for key, worker in self.workers.items():
            if key in scan.seen:
                worker.owned.notice(scan.seen[key])
        self._judge_failures(scan)
        for key, error in scan.unreadable.items():
            self._report("unreadable lease", key, str(error), key)
        for name, unread in roll.invalid.items():
            self._report("unreadable document", name, str(unread))
        for host in mismatched([roll.hosts[name] for name in roll.live], self._timing.duration_s):
            self._report(
                "duration",
                host.name,
                f"host '{host.name}' runs with leases.duration_s = {host.lease_duration_s:g}, this one with"
                f" {self._timing.duration_s:g}: use one value in the whole group",
            )

    def _rest(self, controls: Controls) -> None:
        """A paused pipeline is not worked on: its leases are released, and the plan takes none."""
        paused = controls.paused & self.pipelines.keys()
        for name in sorted(paused - self.paused):
            self._log.info("pipeline paused", pipeline=name, why=controls.why(name))
        for name in sorted(self.paused - paused):
            self._log.info("pipeline resumed", pipeline=name)
        self.paused = paused
        for key, worker in self.workers.items():
            if key.pipeline in paused:
                worker.stop()

    def _set_aside(self, key: LeaseKey, error: Exception, scan: Scan) -> None:
        """Not to be tried in vain: an orphan would fail each time under a higher epoch."""
        if key not in self.workers and self._is_ours_to_try(key, scan):
            self.failures.would_fail(key, error, scan.seen[key].lease.continuation)

    async def _take_all(self, keys: Sequence[LeaseKey], scan: Scan, group: asyncio.TaskGroup) -> Changes:
        """Take those that have not changed since the scan."""
        changes = Changes()
        await run_side_by_side(
            keys,
            lambda key: self._take(key, scan, changes),
            doing="taking",
            then=lambda key, worker: self._start_worker(key, worker, group),
        )
        return changes

    async def _take(self, key: LeaseKey, scan: Scan, changes: Changes) -> Worker | None:
        if self.is_draining or changes.are_over or key in self.workers or self.failures.holds_off(key):
            return None
        pipeline, before, began = self.pipelines[key.pipeline], scan.seen[key].lease, self._clock.monotonic()
        try:
            owned = await self._keeper.take(scan.seen[key], pipeline.claimed)
        except StoreError as error:
            self._refuse(changes, error, "taking a lease failed", before)
            return None
        except Exception as error:  # its document cannot be written, or its sink state not be claimed
            self._log.error("lease cannot be taken", **about(before), error=_told(error))
            self.failures.record_failure(key, error, before.continuation)
            return None
        if owned is None:
            changes.is_outpaced = True
            return None
        self.tally.lease_acquired(owned.lease, before=before, took_s=self._clock.monotonic() - began)
        crash_point("lease acquired")
        return Worker(
            owned,
            pipeline,
            clock=self._clock,
            timing=self._timing,
            rng=self._rng,
            log=self._log,
            tally=self.tally,
            budget=self.budget,
            failures=self.failures,
        )

    def _start_worker(self, key: LeaseKey, worker: Worker | None, group: asyncio.TaskGroup) -> None:
        if worker is None:
            return
        self.workers[key] = worker
        task = group.create_task(self._work(key, worker), name=f"worker {key.pipeline}/{key.partition}")
        self._tasks[task] = worker
        task.add_done_callback(self._tasks.pop)
        if self._stopping.is_set():  # while it was being taken
            worker.stop()

    async def _ask(self, key: LeaseKey, scan: Scan, changes: Changes) -> None:
        if self.is_draining or changes.are_over:
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
            text = f"lease '{key.partition}' of pipeline '{key.pipeline}' cannot be requested: {_told(error)}"
            self._report("request", key, text, key)
            return
        self.tally.lease_asked_for(lease)
        self._log.info("handoff requested", **about(lease), owner=lease.owner)

    def _refuse(self, changes: Changes, error: StoreError, event: str, lease: Lease) -> None:
        """One line for all that is refused in a round."""
        if not changes.refused and self._refusals.count_failure():
            self._log.warning(event, **about(lease), error=str(error), attempt=self._refusals.count)
        changes.refused.append(error)

    def _overdue(self, scan: Scan) -> frozenset[LeaseKey]:
        """The leases that we requested a lease duration ago and did not get: the owner renews but does not answer.

        Time in which the container could not be read does not count: the owner could not answer then.
        """
        asked = {
            lease.key: (lease.owner, lease.epoch) for lease in scan.leases if lease.handoff_to == self._keeper.host
        }
        self._requests = self._requests.scanned(asked, scan.started, scan.ended, self._timing, scan.listings)
        return self._requests.expired(scan.started, self._timing)

    async def _clear_away(self, roll: Roll, scan: Scan, outlived: Sequence[LeaseKey]) -> None:
        """The documents of hosts that are long dead, and of partitions that are long gone.

        Not at once: a host that was stopped may still act on what it read when the children of those had no leases.
        """
        self._outlived = self._outlived.scanned(
            dict.fromkeys(outlived, ()), scan.started, scan.ended, self._timing, scan.listings
        )
        long_gone = self._outlived.still_for(DEAD_AFTER * self._timing.duration_s, scan.started)
        try:
            await self._membership.clear_away(roll)
            for key in sorted(long_gone):
                await self._keeper.forget(scan.seen[key])
                self._log.info("lease cleared away", **about(scan.seen[key].lease))
        except StoreError as error:
            self._log.debug("clearing away failed", error=str(error))

    def _pause(self, scan: Scan, *, is_soon: bool) -> float:
        """Until the next round: sooner where a lease may expire, is handed over, was lost to another, or may be tried again.

        The duration of the round counts towards the balance interval, which is the longest time between two rounds.
        """
        now = self._clock.monotonic()
        due = [each.until for each in self.failures.values() if each.until > scan.started and not each.is_retried]
        due += [self._watch.next_expiry(scan.started, self._timing), self._membership.next_expiry]
        due.append(scan.ended + self._timing.balance_s * (1 - 0.1 * self._rng.random()))
        earliest = min(due) - now
        if is_soon:
            earliest = min(earliest, self._timing.handoff_poll_s)
        return max(earliest, min(self._timing.handoff_poll_s, self._timing.balance_s) / 4)

    # Workers

    async def _work(self, key: LeaseKey, worker: Worker) -> None:
        outcome = Outcome("shutdown")
        try:
            outcome = await worker.run()
        finally:
            del self.workers[key]
            self._record_end(key, worker, outcome)

    def _record_end(self, key: LeaseKey, worker: Worker, outcome: Outcome) -> None:
        self.outcomes.append((key, outcome))
        self.tally.lease_let_go(worker.owned.lease, outcome.reason)
        if outcome.reason == "failed" and outcome.error is not None:
            self.failures.record_failure(key, outcome.error, worker.owned.lease.continuation)
        else:
            self.failures.forget(key)
        if outcome.reason != "shutdown":
            self._wake.set()

    def _is_ours_to_try(self, key: LeaseKey, scan: Scan) -> bool:
        """Whether no other host has taken a partition that failed here."""
        return key in scan.seen and scan.seen[key].lease.owner in (None, self.name) and not scan.seen[key].lease.closed

    def _judge_failures(self, scan: Scan) -> None:
        """Partitions that deliver are reported by their workers; the others show by the scan."""
        for key, failure in list(self.failures.items()):
            if failure.at >= scan.started:
                continue  # the scan may be older than the failure
            lease = scan.seen[key].lease if key in scan.seen else None
            now, grace_s = self._clock.monotonic(), self._timing.duration_s
            found = verdict(failure, lease, self.name, now=now, grace_s=grace_s, is_idle=self._is_idle(key))
            if found == "over":
                self.failures.forget(key)
            elif found == "recovered" and lease is not None:
                self.failures.record_recovery(key, **({} if lease.owner == self.name else {"by": lease.owner}))

    def _is_idle(self, key: LeaseKey) -> bool:
        """Whether its worker has had nothing to do for a while. To be idle for a moment is what a worker looks like too that
        has not yet read what it will fail at."""
        worker = self.workers.get(key)
        idle_since = None if worker is None else worker.progress.idle_since
        return idle_since is not None and self._clock.monotonic() - idle_since >= self._timing.balance_s

    def _log_recovery(self, key: LeaseKey, fields: Mapping[str, object]) -> None:
        worker = self.workers.get(key)
        lease = {"pipeline": key.pipeline, "partition": key.partition} if worker is None else about(worker.owned.lease)
        self._log.info("partition recovered", **lease, **fields)

    def _record_failure(self, streak: Streak, event: str, error: BaseException) -> float:
        """Report it, unless that was done a moment ago; how long to wait before the next attempt."""
        if streak.count_failure():
            self._log.warning(event, error=_told(error), attempt=streak.count)
        return self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))

    def _log_end(self, streak: Streak, event: str) -> None:
        if (fields := streak.end()) is not None:
            self._log.info(event, **fields)

    # Leaving

    async def _drain(self, balance: asyncio.Task[None]) -> None:
        """Say so first, so that a released lease moves once; then let every worker finish within the stop timeout.

        The round under way is not cancelled: it may be taking a lease, and the result would be lost.
        """
        self._log.info("host draining", leases=len(self.workers))
        await self._attempt("announcing the drain", self._membership.announce(self._activity(self), draining=True))
        for worker in self.workers.values():
            worker.stop()
        await asyncio.wait({balance})
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._stop_timeout_s)
            for task in late:
                lease = self._tasks[task].owned.lease
                self._log.warning("worker did not stop in time, cancelling it", **about(lease))
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _leave(self) -> None:
        await self._attempt("leaving", self._membership.leave())
        self._log.info("host stopped")

    async def _attempt(self, doing: str, step: Awaitable[None]) -> None:
        try:
            await step
        except (StoreError, DuplicateHost) as error:
            self._log.warning(f"{doing} failed", error=str(error))

    def _report(self, kind: str, subject: Hashable, text: str, key: LeaseKey | None = None) -> None:
        """A condition that lasts is reported once. key: of the partition that it is about, whose lease may not be readable."""
        if self._reports.is_due(kind, subject, text):
            fields = {} if key is None else {"pipeline": key.pipeline, "partition": key.partition}
            self._log.warning("needs attention", what=text, **fields)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
