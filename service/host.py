"""START HERE: one host. It shows that it lives, takes its share of the leases, and runs a worker for each one it owns.

    heartbeat    writes the host's document, so that others see that it lives     leasehold.leases.membership
    balance      reads the group and takes leases, round after round              leasehold.service.balancer
    workers      one for each lease: renew, read, transform, deliver, checkpoint  leasehold.service.worker

Hosts share nothing but the lease store. A host that cannot read it continues with its leases as long as it may trust
them, and takes none.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock, retry_after_s
from leasehold.leases.errors import DuplicateHost, LeaseLost, StoreError
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.membership import Membership
from leasehold.leases.session import Session
from leasehold.leases.session_watch import SessionWatch
from leasehold.leases.tenure import OwnedLease
from leasehold.leases.timing import Timing
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.limits import Budget
from leasehold.service.balancer import Balancer
from leasehold.service.checkpoint_blobs import CheckpointWriter
from leasehold.service.failures import Failure, Failures, Reports, Streak
from leasehold.service.hints import HintWatch
from leasehold.service.lag.age import FirstEvents, owned_wait_s, wait_to_report
from leasehold.service.lag.asking import known_lag_of
from leasehold.service.lag.metered import GroupLag, GroupSnapshot
from leasehold.service.lag.reports import encoded_waits
from leasehold.service.pipeline import PipelineParts
from leasehold.service.shutdown import sleep_unless_stopped
from leasehold.service.stats import Stats
from leasehold.service.worker import Worker, WorkerResult, about

T = TypeVar("T")
OUTCOMES_KEPT = 50
HEARTBEATS_SKIPPED = 2
"""How many of three are not written while the session shows that the host lives; what it does is for people alone."""


class Host:
    """Runs workers for this process's share of the leases, until `stop`."""

    def __init__(
        self,
        pipelines: Sequence[PipelineParts],
        *,
        keeper: Keeper,
        membership: Membership,
        clock: Clock,
        timing: Timing,
        rng: random.Random,
        log: Log,
        stop_timeout_s: float = 25.0,
        activity: Callable[[Host], Mapping[str, object]] = lambda host: {},
        stats: Stats | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.name = keeper.host
        self.pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self.workers: dict[LeaseKey, Worker] = {}
        self.stats = stats or Stats(clock)
        self.failures = Failures(clock, self._record_recovery, self.stats.record_failing)
        self.outcomes: deque[tuple[LeaseKey, WorkerResult]] = deque(maxlen=OUTCOMES_KEPT)
        self.budget = budget or Budget()
        self.group_lag = GroupLag(
            {name: pipeline.feed for name, pipeline in self.pipelines.items()},
            clock,
            FirstEvents(clock, self.stats.now),
            self._waited_s,
        )
        self.checkpoint_writers = {
            name: CheckpointWriter(name, pipeline.checkpoint_blobs, clock=clock, log=log, stats=self.stats)
            for name, pipeline in self.pipelines.items()
            if pipeline.checkpoint_blobs is not None
        }
        self._store = keeper.store
        self._membership = membership
        if membership.session is not None:
            membership.session.report = self._report_waits
        self._clock = clock
        self._timing = timing
        self._rng = rng
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._activity = activity
        self._stopping = asyncio.Event()
        self._reports = Reports(clock, log)
        self.balancer = Balancer(
            self.pipelines,
            keeper=keeper,
            membership=membership,
            workers=self.workers,
            employ=self._employ,
            failures=self.failures,
            reports=self._reports,
            stats=self.stats,
            stopping=self._stopping,
            clock=clock,
            timing=timing,
            rng=rng,
            log=log,
        )
        self._tasks: dict[asyncio.Task[None], Worker] = {}

    @property
    def session(self) -> Session | None:
        """None if hosts have no sessions."""
        return self._membership.session

    @property
    def sessions(self) -> SessionWatch:
        """Those of the group, as this host saw them last."""
        return self._membership.sessions

    @property
    def is_draining(self) -> bool:
        return self._stopping.is_set()

    @property
    def waiting(self) -> dict[LeaseKey, str]:
        """Partitions that get no lease for now, and why."""
        return self.balancer.partitions.waiting

    @property
    def stuck(self) -> dict[LeaseKey, str]:
        """What gets no lease until a person helps, and why: partitions, or all of a pipeline's."""
        found = self.balancer.partitions
        return {**found.stuck, **{LeaseKey(name, ""): why for name, why in found.blocked.items()}}

    @property
    def listings(self) -> dict[str, Sequence[FeedPartition]]:
        """The partitions of metered feeds, as this host listed them last."""
        return self.balancer.partitions.listings

    @property
    def own_leases(self) -> dict[LeaseKey, Lease]:
        """Those that this host works on, as it has them."""
        return {key: worker.owned.lease for key, worker in self.workers.items()}

    @property
    def ready(self) -> asyncio.Event:
        """Set once every partition that can have a lease has one."""
        return self.balancer.ready

    def wake(self) -> None:
        """Read the group now, because this process has just changed something."""
        self.balancer.wake()

    def stop(self) -> None:
        """Ask for a graceful stop: finish or drop what is in hand, checkpoint, release, leave. `run` returns then."""
        self._stopping.set()
        self.balancer.wake()

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
            # One of its two documents may still be its own, and the namesake would give way to that.
            await self._attempt("leaving", self._membership.leave())
            raise duplicate from None
        await self._leave()

    # Living

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            heartbeat = group.create_task(self._heartbeat(), name="heartbeat")
            balance = group.create_task(self.balancer.run(group), name="balance")
            beside = (
                []
                if (session := self._membership.session) is None
                else [
                    group.create_task(self._keep_beating(session), name="session"),
                    group.create_task(self.balancer.keep_looking(session.timing), name="look"),
                    group.create_task(session.hints.keep_sending(), name="hints"),
                    group.create_task(self._hint_watch().run(), name="hint watch"),
                ]
            )
            beside += [
                group.create_task(writer.run(), name=f"checkpoint blobs {name}")
                for name, writer in self.checkpoint_writers.items()
            ]
            measuring = group.create_task(self.group_lag.run(self._sight), name="lag") if self.group_lag.feeds else None
            try:
                await self._stopping.wait()
                await self._drain(balance)
                heartbeat.cancel()
                for task in beside:
                    task.cancel()
            finally:
                if measuring is not None:
                    measuring.cancel()
                await self.balancer.partitions.close()

    async def _start(self) -> None:
        """A host that may not work here must not be counted: it announces itself last."""
        for name, bootstrap in self.balancer.partitions.bootstraps.items():
            if await self._persist(f"opening pipeline '{name}'", bootstrap.open):
                self._log.info("transform changed", pipeline=name)
        if (session := self._membership.session) is not None:
            await self._persist("opening this host's session", session.beat)
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
                streak.log_failure(self._log, f"{doing} failed, will try again", error)
                pause = self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))
            else:
                streak.log_end(self._log, f"{doing} recovered")
                return result
            if not await sleep_unless_stopped(self._stopping, pause):
                return None

    async def _keep_beating(self, session: Session) -> None:
        streak, term = Streak(self._clock), session.term

        def beaten() -> None:
            nonlocal term
            streak.log_end(self._log, "heartbeat recovered")
            self._report_namesake(session.record.contested_by)
            if session.term != term:
                term = session.term
                self.wake()
                self._log.warning(
                    "session lapsed", why="no heartbeat was answered in time; leases are won again", term=term
                )

        await session.keep_beating(
            self._rng, lambda error: streak.log_failure(self._log, "heartbeat failed", error), beaten
        )

    async def _heartbeat(self) -> None:
        """Less often once the host is judged by its session, but often enough for people to see that it reports."""
        is_often = (HEARTBEATS_SKIPPED + 1) * self._timing.renew_s < self._timing.duration_s
        skips, skipped = HEARTBEATS_SKIPPED if is_often else 0, 0
        while True:
            await self._clock.sleep(self._timing.renew_s * (1 - 0.1 * self._rng.random()))
            if (session := self._membership.session) is not None and session.is_agreed and skipped < skips:
                skipped += 1
                continue
            skipped = 0
            await self._persist("announcing this host", lambda: self._membership.announce(self._activity(self)))
            self._report_namesake(self._membership.me.contested_by)

    def _hint_watch(self) -> HintWatch:
        return HintWatch(
            self._store,
            host=self.name,
            pipelines=self.pipelines,
            wake=self.wake,
            clock=self._clock,
            rng=self._rng,
            log=self._log,
        )

    def _report_namesake(self, namesake: str | None) -> None:
        if namesake is not None:
            self._reports.report(
                "namesake",
                namesake,
                f"another process (incarnation {namesake}) ran under this host's name and gave way",
            )

    def _waited_s(self, key: LeaseKey) -> float | None:
        """For how long the oldest event has waited that a worker has read; 0 if it has delivered all of those."""
        worker, now = self.workers.get(key), self.stats.now
        if worker is None or now is None or not worker.progress.waiting.has_begun:
            return None
        waiting = worker.progress.waiting
        return 0.0 if waiting.is_empty else owned_wait_s(waiting, now())

    def _report_waits(self) -> Mapping[str, object]:
        """For the others, with each heartbeat."""
        now = self.stats.now
        if now is None:
            return {}
        waits: dict[LeaseKey, float | None] = {}
        for key, worker in self.workers.items():
            feed, waiting = self.pipelines[key.pipeline].feed, worker.progress.waiting
            lease = replace(worker.owned.lease, continuation=waiting.position)
            known = known_lag_of(feed, lease) if feed.is_metered else None
            waits[key] = wait_to_report(waiting, now(), known, is_metered=feed.is_metered)
        return encoded_waits(waits, self.own_leases)

    def _sight(self) -> GroupSnapshot | None:
        """None until the first round has read the group."""
        scan, host_scan = self.balancer.scan, self.balancer.host_scan
        if scan is None or host_scan is None:
            return None
        self.group_lag.hosts = len(host_scan.live)
        return GroupSnapshot(self.name, self.own_leases, scan.leases, host_scan.live_records)

    # Workers

    def _employ(self, owned: OwnedLease, group: asyncio.TaskGroup) -> None:
        """Start a worker for a lease that was just taken."""
        key = owned.lease.key
        worker = self.workers[key] = Worker(
            owned,
            self.pipelines[key.pipeline],
            clock=self._clock,
            timing=self._timing,
            rng=self._rng,
            log=self._log,
            stats=self.stats,
            budget=self.budget,
            failures=self.failures,
            checkpoint_writer=self.checkpoint_writers.get(key.pipeline),
        )
        task = group.create_task(self._work(key, worker), name=f"worker {key.pipeline}/{key.partition}")
        self._tasks[task] = worker
        task.add_done_callback(self._tasks.pop)
        if self._stopping.is_set():  # while it was being taken
            worker.stop()

    async def _work(self, key: LeaseKey, worker: Worker) -> None:
        outcome = WorkerResult("shutdown")
        try:
            outcome = await worker.run()
        finally:
            del self.workers[key]
            self._record_end(key, worker, outcome)

    def _record_end(self, key: LeaseKey, worker: Worker, outcome: WorkerResult) -> None:
        self.outcomes.append((key, outcome))
        taken_by = outcome.error.taken_by if isinstance(outcome.error, LeaseLost) else None
        self.stats.record_release(worker.owned.lease, outcome.reason, taken_by=taken_by)
        if outcome.reason == "failed" and outcome.error is not None:
            self.failures.record_failure(key, outcome.error, worker.owned.lease.continuation)
        else:
            self.failures.forget(key)
        if outcome.reason != "shutdown":
            self.wake()

    def _record_recovery(self, key: LeaseKey, failure: Failure, fields: Mapping[str, object]) -> None:
        self.stats.record_recovery(key, failure.count, self._clock.monotonic() - failure.since)
        worker = self.workers.get(key)
        lease = {"pipeline": key.pipeline, "partition": key.partition} if worker is None else about(worker.owned.lease)
        self._log.info("partition recovered", **lease, **fields)

    # Leaving

    async def _drain(self, balance: asyncio.Task[None]) -> None:
        """Say so first, so that a released lease moves once; then let every worker finish within the stop timeout.

        The round under way is not cancelled: it may be taking a lease, and the result would be lost.
        """
        self._log.info("host draining", leases=len(self.workers))
        if (session := self._membership.session) is not None:
            await self._attempt("announcing the drain", session.beat(draining=True))
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
        await asyncio.gather(*(writer.flush() for writer in self.checkpoint_writers.values()))
        self._log.info("host stopped")

    async def _attempt(self, doing: str, step: Awaitable[None]) -> None:
        try:
            await step
        except (StoreError, DuplicateHost) as error:
            self._log.warning(f"{doing} failed", error=str(error))
