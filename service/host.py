"""START HERE: one host. It shows that it lives, takes its share of the leases, and runs a worker for each one it owns.

    beats        of the host's document, so that others see that it lives         leasehold.leases.session
    balance      reads the group and takes leases, round after round              leasehold.service.balancer
    workers      one for each lease: win, read, transform, deliver, checkpoint  leasehold.service.worker

Hosts share nothing but the lease store. A host that cannot read it continues with its leases as long as it may trust
them, and takes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import retry_after_s
from leasehold.leases.errors import DuplicateHost, OwnershipLost, StoreError
from leasehold.leases.host_record import HostRecord
from leasehold.leases.host_watch import HostWatch
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.membership import Membership
from leasehold.leases.session import Session
from leasehold.leases.tenure import OwnedLease
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.limits import Budget
from leasehold.service.balancer import Balancer
from leasehold.service.failures import Failure, Failures, Streak
from leasehold.service.fitness import Fitness
from leasehold.service.hints import HintWatch
from leasehold.service.lag.age import FirstEvents, owned_wait_s, wait_to_report
from leasehold.service.lag.asking import known_lag_of
from leasehold.service.lag.metered import GroupLag, GroupSnapshot
from leasehold.service.lag.reports import encoded_waits
from leasehold.service.looking import GroupReader
from leasehold.service.outside_checkpoints import CheckpointWriter
from leasehold.service.pipeline import PipelineParts
from leasehold.service.reports import Reports
from leasehold.service.runtime import Runtime
from leasehold.service.stopping import sleep_unless_stopped
from leasehold.service.taking import Taker
from leasehold.service.worker import Worker, WorkerResult, about

T = TypeVar("T")
OUTCOMES_KEPT = 50


class Host:
    """Runs workers for this process's share of the leases, until `stop`."""

    def __init__(
        self,
        pipelines: Sequence[PipelineParts],
        *,
        keeper: Keeper,
        membership: Membership,
        runtime: Runtime,
        stop_timeout_s: float = 25.0,
        activity: Callable[[Host, int], Mapping[str, object]] = lambda host, room: {},
        budget: Budget | None = None,
    ) -> None:
        self.name = keeper.host
        self.pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self.workers: dict[LeaseKey, Worker] = {}
        clock, self.stats = runtime.clock, runtime.stats
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
            name: CheckpointWriter(name, pipeline.outside_checkpoints, clock=clock, log=runtime.log, stats=self.stats)
            for name, pipeline in self.pipelines.items()
            if pipeline.outside_checkpoints is not None
        }
        self._store = keeper.store
        self._membership = membership
        self.session.report = self._report_waits
        self.session.describe = lambda room: activity(self, room)
        self._runtime = runtime
        self._clock, self._timing, self._rng, self._log = clock, runtime.timing, runtime.rng, runtime.log
        self._stop_timeout_s = stop_timeout_s
        self._stopping = asyncio.Event()
        self._reports = Reports(clock, runtime.log)
        reader = GroupReader(self.pipelines, keeper=keeper, membership=membership, runtime=runtime)
        self.fitness = Fitness(
            self.pipelines,
            keeper=keeper,
            session=self.session,
            workers=self.workers,
            failures=self.failures,
            others=self._live_others,
            lease_of=reader.lease_of,
            changed=self.wake,
            runtime=runtime,
        )
        taker = Taker(
            self.pipelines,
            keeper=keeper,
            workers=self.workers,
            employ=self._employ,
            failures=self.failures,
            reports=self._reports,
            fitness=self.fitness,
            stopping=self._stopping,
            runtime=runtime,
        )
        self.balancer = Balancer(
            self.pipelines,
            keeper=keeper,
            membership=membership,
            reader=reader,
            taker=taker,
            workers=self.workers,
            failures=self.failures,
            reports=self._reports,
            runtime=runtime,
        )
        self._tasks: dict[asyncio.Task[None], Worker] = {}
        self._unreleased: set[LeaseKey] = set()
        """The leases whose last worker here ended without a release."""

    @property
    def session(self) -> Session:
        return self._membership.session

    @property
    def watch(self) -> HostWatch:
        """The hosts of the group, as this host saw them last."""
        return self._membership.watch

    @property
    def is_draining(self) -> bool:
        return self._stopping.is_set()

    @property
    def waiting(self) -> dict[LeaseKey, str]:
        """Partitions that get no lease for now, and why."""
        return self.balancer.partitions.waiting

    @property
    def stuck(self) -> dict[LeaseKey, str]:
        """Partitions that get no lease until a person helps, and why. The partition '' means all of a pipeline."""
        found = self.balancer.partitions
        return {**found.stuck, **{LeaseKey(name, ""): why for name, why in found.blocked.items()}}

    @property
    def listings(self) -> dict[str, Sequence[FeedPartition]]:
        """The partitions of metered feeds, as this host listed them last."""
        return self.balancer.partitions.listings

    @property
    def own_leases(self) -> dict[LeaseKey, Lease]:
        """The leases that this host works on, as it knows them."""
        return {key: worker.owned.lease for key, worker in self.workers.items()}

    @property
    def ready(self) -> asyncio.Event:
        """Set once every partition that can have a lease has one."""
        return self.balancer.ready

    def wake(self) -> None:
        """Read the group now, because this process has just changed something."""
        self.balancer.wake()

    def stop(self) -> None:
        """Request a graceful stop: finish or drop what is in hand, checkpoint, release, leave. Then `run` returns."""
        self._stopping.set()
        self.balancer.wake()

    async def run(self) -> None:
        """Run until `stop`. Raises GroupMismatch or InvalidDocument at the start, DuplicateHost at any time. No other failure
        ends the host."""
        await self._start()
        duplicate: BaseException | None = None
        if not self.is_draining:
            try:
                await self._live()
            except* DuplicateHost as errors:
                duplicate = errors.exceptions[0]
        if duplicate is not None:  # raised inside `except*`, Python up to 3.11.3 would group it again
            raise duplicate from None
        await self._leave()

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            balance = group.create_task(self.balancer.run(group, self._stopping), name="balance")
            beside = [
                group.create_task(self._keep_beating(), name="beats"),
                group.create_task(self.balancer.lookout.run(), name="look"),
                group.create_task(self.session.hints.keep_sending(), name="hints"),
                group.create_task(self._hint_watch().run(), name="hint watch"),
                group.create_task(self.fitness.run(), name="fitness"),
            ]
            beside += [
                group.create_task(writer.run(), name=f"checkpoint blobs {name}")
                for name, writer in self.checkpoint_writers.items()
            ]
            measuring = group.create_task(self.group_lag.run(self._sight), name="lag") if self.group_lag.feeds else None
            try:
                await self._stopping.wait()
                await self._drain(balance)
                for task in beside:
                    task.cancel()
            finally:
                if measuring is not None:
                    measuring.cancel()
                await self.balancer.partitions.close()

    async def _start(self) -> None:
        """Announce this host last: others must not count a host that is refused here."""
        for name, bootstrap in self.balancer.partitions.bootstraps.items():
            if await self._persist(f"opening pipeline '{name}'", bootstrap.open):
                self._log.info("transform changed", pipeline=name)
        await self._persist("announcing this host", self.session.open)
        self._log.info("host started", pipelines=sorted(self.pipelines))

    async def _persist(self, doing: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat the step until the container answers, or a stop is requested. A call under way is not cancelled: it may still
        reach the store."""
        streak = Streak(self._clock)
        while True:
            try:
                result = await step()
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(self._log, f"{doing} failed, retrying", error)
                pause = self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))
            else:
                streak.log_end(self._log, f"{doing} recovered")
                return result
            if not await sleep_unless_stopped(self._stopping, pause):
                return None

    async def _keep_beating(self) -> None:
        session, streak = self.session, Streak(self._clock)
        term, lapses, lasts_s = session.term, session.lapses, session.timing.duration_s

        def beaten() -> None:
            nonlocal term, lapses, lasts_s
            streak.log_end(self._log, "heartbeat recovered")
            if session.timing.duration_s != lasts_s:
                lasts_s = session.timing.duration_s
                self._log.warning("others wait longer or shorter for this host", lasts_s=lasts_s)
            if session.term not in (0, term):
                term = session.term
                self.wake()
                if session.lapses > lapses:
                    lapses = session.lapses
                    self._log.warning(
                        "trust lapsed",
                        why="no heartbeat arrived in time; leases are won again",
                        term=term,
                        lasted_s=round(self._clock.monotonic() - session.lapsed_at, 3),
                    )

        await session.keep_beating(
            self._rng, lambda error: streak.log_failure(self._log, "heartbeat failed", error), beaten
        )

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

    def _live_others(self) -> list[HostRecord]:
        return [each for name, each in self.watch.live().items() if name != self.name]

    def _waited_s(self, key: LeaseKey) -> float | None:
        """How long the oldest event that a worker has read and not delivered has waited; 0 if it has delivered all."""
        worker, now = self.workers.get(key), self.stats.now
        if worker is None or now is None or not worker.progress.waiting.has_begun:
            return None
        waiting = worker.progress.waiting
        return 0.0 if waiting.is_empty else owned_wait_s(waiting, now())

    def _report_waits(self) -> Mapping[str, object]:
        """What each heartbeat reports to the others: how long events of each lease have waited."""
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
        """What this host last read of the group; None until its first round."""
        scan, host_scan = self.balancer.reader.scan, self.balancer.reader.host_scan
        if scan is None or host_scan is None:
            return None
        self.group_lag.hosts = len(host_scan.live)
        return GroupSnapshot(self.name, self.own_leases, scan.leases, host_scan.live_records)

    def _employ(self, owned: OwnedLease, group: asyncio.TaskGroup) -> None:
        """Start a worker for a lease that was just taken."""
        key = owned.lease.key
        self._unreleased.discard(key)
        worker = self.workers[key] = Worker(
            owned,
            self.pipelines[key.pipeline],
            runtime=self._runtime,
            budget=self.budget,
            failures=self.failures,
            checkpoint_writer=self.checkpoint_writers.get(key.pipeline),
            delivered=self.fitness.note_delivery,
        )
        task = group.create_task(self._work(key, worker), name=f"worker {key.pipeline}/{key.partition}")
        self._tasks[task] = worker
        task.add_done_callback(self._tasks.pop)
        if self._stopping.is_set() or self.fitness.gives_up(key.pipeline):  # while the lease was being taken
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
        taken_by = outcome.error.taken_by if isinstance(outcome.error, OwnershipLost) else None
        self.stats.record_release(worker.owned.lease, outcome.reason, taken_by=taken_by)
        if outcome.reason in ("shutdown", "failed") and worker.owned.lease.owner is not None:
            self._unreleased.add(key)
        if outcome.reason == "failed" and outcome.error is not None:
            self.failures.record_failure(key, outcome.error, worker.owned.lease.continuation)
        elif worker.owned.lease.handoff_to is None and not self.fitness.gives_up(key.pipeline):
            self.failures.forget(key)  # otherwise another host gets the lease, and may fail as well: rounds judge that
        if outcome.reason != "shutdown":
            self.wake()

    def _record_recovery(self, key: LeaseKey, failure: Failure, fields: Mapping[str, object]) -> None:
        self.stats.record_recovery(key, failure.count, self._clock.monotonic() - failure.since)
        worker = self.workers.get(key)
        lease = {"pipeline": key.pipeline, "partition": key.partition} if worker is None else about(worker.owned.lease)
        self._log.info("partition recovered", **lease, **fields)

    async def _drain(self, balance: asyncio.Task[None]) -> None:
        """Announce the drain first, so that a released lease moves only once; then let workers finish within the stop timeout.

        The round under way is not cancelled: it may be taking a lease, and the result would be lost.
        """
        self._log.info("host draining", leases=len(self.workers))
        await self._attempt("announcing the drain", self.session.beat(draining=True))
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
        """Remove the host's document, unless a lease was not released: others wait longer for an owner without one (S4)."""
        if not self._unreleased:
            await self._attempt("leaving", self.session.end())
        await asyncio.gather(*(writer.flush() for writer in self.checkpoint_writers.values()))
        self._log.info("host stopped")

    async def _attempt(self, doing: str, step: Awaitable[None]) -> None:
        try:
            await step
        except (StoreError, DuplicateHost) as error:
            self._log.warning(f"{doing} failed", error=str(error))
