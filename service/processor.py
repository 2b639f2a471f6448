"""One host in this process, made of feeds, transforms, sinks and a lease store.

processor = ProcessorCore([PipelineParts(name="orders", feed=feed, sink=sink)], store, host="pod-1")
await processor.start()   # leases exist, work has begun
...
await processor.stop()    # batches in hand finished or dropped, leases released with their continuations
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.cancellation import await_shielded
from leasehold.common.clock import BootClock, Clock, retry_after_s
from leasehold.leases.bootstrap import Bootstrap
from leasehold.leases.errors import GroupMismatch, InvalidDocument, StoreError
from leasehold.leases.host_record import HOSTS_PREFIX, HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.membership import Membership
from leasehold.leases.pause_orders import check_not_moved
from leasehold.leases.session import Session
from leasehold.leases.store import LeaseStore, TimedStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.errors import EngineUnavailable, PipelineError, SinkNotFound, SinkUnavailable
from leasehold.pipeline.limits import BYTES_MAX, Budget
from leasehold.service.callback_thread import CallbackThread
from leasehold.service.errors import StartFailed
from leasehold.service.failures import Streak
from leasehold.service.group.activity import activity_document, activity_of
from leasehold.service.group.view import View
from leasehold.service.host import Host
from leasehold.service.lag.backlog import Backlog, wait_until_idle
from leasehold.service.notifications import Notifications, require_notifications
from leasehold.service.notifier import Notifier
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.stats import CountingStore, Stats, Summary, summaries_of
from leasehold.service.telemetry.logs import default_logger
from leasehold.service.telemetry.signals import Exporter
from leasehold.service.telemetry.spans import TracedStats, Traces

START_PAUSES_S = (0.5, 1.0)
"""Pauses between the attempts to reach the lease store, or a sink, before a start counts it as away."""
WAIT_REPORTED_S = 10.0
"""How often the log names what a start waits for."""


class ProcessorCore:
    """One host over some pipelines and a lease store. It owns what it is given: `stop` closes feeds, sinks and store."""

    def __init__(
        self,
        pipelines: Sequence[PipelineParts],
        store: LeaseStore,
        *,
        host: str,
        timing: Timing | None = None,
        leases_max: int | None = None,
        buffer_bytes_max: int = BYTES_MAX,
        stop_timeout_s: float = 25.0,
        clock: Clock | None = None,
        log: Log | None = None,
        traces: Traces | None = None,
        on: Notifications | None = None,
    ) -> None:
        """- `host`: unique among the hosts on these leases.
        - `buffer_bytes_max`: limits what is read and not delivered yet, over all pipelines, and separately what executors return.
        - `traces`: closed with the rest.
        - `log`: by default, the program's configuration of structlog, or if there is none, level `info` to standard error.

        - `on`: an observer of leases, partitions and batches (`leasehold.Notifications`).

        Raises ValueError if the intervals do not fit together, or two pipelines have one name; TypeError if `on` would miss
        events.
        """
        timing = timing or Timing()
        clock = clock or BootClock()
        if problems := timing.problems() + _doubles(pipelines):
            raise ValueError("; ".join(problems))
        incarnation = uuid.uuid4().hex
        self._log = log or default_logger(host)
        self.pipelines = tuple(pipelines)
        self._thread = CallbackThread("notifications")
        self._notifier = None if on is None else self._notifier_of(on, host, clock)
        self.stats = (
            Stats(clock, self._log, now=_now, notifier=self._notifier)
            if traces is None
            else TracedStats(clock, traces, self._log, now=_now, notifier=self._notifier)
        )
        self.store = CountingStore(TimedStore(store, timing.call_timeout_s), self.stats)
        me = HostRecord(
            name=host,
            incarnation=incarnation,
            pipelines=tuple(pipeline.name for pipeline in pipelines),
            leases_max=leases_max,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        session = Session(CountingStore(store, self.stats), me, clock=clock, timing=timing)
        self.keeper = Keeper(
            self.store, host=host, incarnation=incarnation, clock=clock, timing=timing, session=session
        )
        self.membership = Membership(self.store, session, clock=clock)
        self.host = Host(
            pipelines,
            keeper=self.keeper,
            membership=self.membership,
            runtime=Runtime(
                clock=clock,
                timing=timing,
                rng=random.Random(incarnation),  # noqa: S311 - jitter, not secrets
                log=self._log,
                stats=self.stats,
            ),
            stop_timeout_s=stop_timeout_s,
            activity=lambda host, room: activity_document(
                activity_of(host, now=_now(), monotonic_s=clock.monotonic()), room
            ),
            budget=Budget(buffer_bytes_max),
        )
        self.view = View(self.keeper, pipelines, clock=clock, now=_now, host=self.host)
        self._clock = clock
        self._backoff = timing.backoff
        self._rng = random.Random(f"{incarnation} starts")  # noqa: S311 - jitter, not secrets
        self._traces = traces
        self._away: str | None = None
        """Why the start waits for Spark; None if it does not."""
        self._exporters: list[Exporter] = []
        self._running: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[None] | None = None

    def _notifier_of(self, on: Notifications, host: str, clock: Clock) -> Notifier:
        """Raises TypeError if `on` would miss events."""
        run_plain = self._thread.run
        return Notifier(require_notifications(on), host=host, clock=clock, now=_now, log=self._log, run_plain=run_plain)

    def add_exporter(self, exporter: Exporter) -> None:
        """Add an exporter, which starts and ends with this processor."""
        self._exporters.append(exporter)

    async def start(self) -> None:
        """Start, and return once the leases exist and work on the first of them has begun.

        Waits for sinks that are away, and for a Spark master or Connect server. Raises StartFailed if one of them refuses or its
        address leads nowhere, or if a transform or the lease store is not ready; GroupMismatch if the leases belong to another
        feed or sink.
        """
        assert self._running is None, "a processor starts once"
        for exporter in self._exporters:
            exporter.start()
        try:
            await self._prepare()
            self._running = asyncio.create_task(self.host.run(), name="host")
            ready = asyncio.create_task(self.host.ready.wait())
            try:
                await asyncio.wait({self._running, ready}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready.cancel()
            if self._running.done():
                await self._running
        except BaseException as error:
            await self.stop()
            if isinstance(error, asyncio.CancelledError):
                self._log.info("stopped before it was ready")
            raise

    async def wait_until_ended(self) -> None:
        """Wait until the host has ended, by an error or by `stop`. Raises DuplicateHost."""
        assert self._running is not None, "not started"
        await await_shielded(self._running)

    async def idle(self) -> Backlog:
        """Wait until the whole group has nothing left to do. `failed` and `held` of the result name partitions that stand
        still."""
        return await wait_until_idle(self.view.read_backlog, clock=self._clock, report=self._waiting)

    async def stop(self) -> None:
        """Stop gracefully, within the stop timeout. Idempotent. `wait_until_ended` raises the error that ended the host."""
        self.host.stop()
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._close(), name="stop")
        await await_shielded(self._stopped)

    async def _close(self) -> None:
        if self._running is not None:
            await asyncio.wait({self._running})
            for summary in self.summaries:
                self._log.info("pipeline summary", **asdict(summary))
        closing: list[Awaitable[None]] = [
            part.close()
            for p in self.pipelines
            for part in (p.feed, p.transform, p.sink, p.outside_checkpoints)
            if part is not None
        ]
        if self._notifier is not None:  # concurrently with the rest, so that a callback delays nothing
            closing.append(self._notifier.close())
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                self._log.warning("closing failed", error=f"{type(error).__name__}: {error}")
        self._thread.close()
        await self.store.close()
        sending = [exporter.close() for exporter in self._exporters]
        if self._traces is not None:
            sending.append(self._traces.close())
        await asyncio.gather(*sending)

    @property
    def summaries(self) -> list[Summary]:
        """What this host has delivered so far."""
        return summaries_of(self.stats, (pipeline.name for pipeline in self.pipelines))

    def _waiting(self, look: Backlog) -> None:
        self._log.info(
            "not idle yet",
            partitions_behind=len(look.behind),
            partitions_without_lease=len(look.missing),
            unknown=len(look.unknown),
            **({"why_unknown": look.unknown[0]} if look.unknown else {}),
        )

    async def _prepare(self) -> None:
        """Prepare everything concurrently, because Spark takes seconds to start. All problems are reported together.

        What needs no Spark does not wait for it: if the lease store or a sink refuses, the start of Spark is cancelled.
        """
        problems = Problems()
        transforms = asyncio.create_task(self._prepare_transforms(problems), name="transforms")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._check_leases(problems))
                for pipeline in self.pipelines:
                    group.create_task(problems.collect(self._prepare_sink(pipeline, problems)))
            problems.raise_any()
            await transforms
            problems.raise_any()
            async with asyncio.TaskGroup() as group:
                for pipeline in self.pipelines:
                    group.create_task(problems.collect(self._check_columns(pipeline)))
            problems.raise_any()
        finally:
            transforms.cancel()
            await asyncio.gather(transforms, return_exceptions=True)

    async def _check_leases(self, problems: Problems) -> None:
        """Check that the container answers, and that its leases belong to these feeds and sinks. Writes nothing."""
        await problems.collect(self._reach(lambda: self.store.list(HOSTS_PREFIX)))
        async with asyncio.TaskGroup() as group:
            for pipeline in self.pipelines:
                group.create_task(problems.collect(self._check_group(pipeline)))

    async def _check_group(self, pipeline: PipelineParts) -> None:
        """Raises GroupMismatch (or GroupMoved), InvalidDocument."""
        with suppress(StoreError):  # the host repeats this until the store answers
            await check_not_moved(self.store, pipeline.name)
            await Bootstrap(self.keeper, pipeline.name, pipeline.identity).read_recorded()

    async def _prepare_transforms(self, problems: Problems) -> None:
        waiting = asyncio.create_task(self._report_wait(), name="report wait")
        try:
            async with asyncio.TaskGroup() as group:
                for pipeline in self.pipelines:
                    group.create_task(problems.collect(self._prepare_transform(pipeline, problems)))
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _report_wait(self) -> None:
        """Report what this process waits for."""
        waits = ", ".join(sorted({what for each in self.pipelines if (what := each.transform.waits_for)}))
        if not waits:
            return
        self._log.info("getting ready: Spark takes some seconds to start", waits_for=waits)
        began = self._clock.monotonic()
        while True:
            await self._clock.sleep(WAIT_REPORTED_S)
            seconds = round(self._clock.monotonic() - began)
            if self._away is None:
                self._log.info("still getting ready", waits_for=waits, seconds=seconds)
            else:
                self._log.warning("waiting for Spark", waits_for=waits, seconds=seconds, error=self._away)

    async def _prepare_transform(self, pipeline: PipelineParts, problems: Problems) -> None:
        """Prepare the transform. Waits for a Spark master or Connect server that is away, as for sinks. Raises PipelineError."""
        failures = 0
        while True:
            try:
                await pipeline.transform.prepare()
            except EngineUnavailable as error:
                if not error.is_away or problems.are_found:
                    raise
                self._away, failures = str(error), failures + 1
                await self._clock.sleep(self._backoff.pause_s(failures, self._rng.random(), 0.0))
            else:
                self._away = None
                return

    async def _prepare_sink(self, pipeline: PipelineParts, problems: Problems) -> None:
        """Prepare the sink. Waits for one that is away, as a running host does: hosts must be able to start in its outage.

        It does not wait if the address leads nowhere, or something else keeps this host from starting. Raises PipelineError.
        """
        streak = Streak(self._clock)
        while True:
            try:
                await self._reach(pipeline.sink.prepare)
            except SinkNotFound:
                raise
            except SinkUnavailable as error:
                if problems.are_found:
                    raise
                if streak.count_failure():
                    self._log.warning("waiting for a sink", pipeline=pipeline.name, error=str(error))
                jitter = self._rng.random()
                await self._clock.sleep(self._backoff.pause_s(streak.count, jitter, retry_after_s(error)))
            else:
                if (fields := streak.end()) is not None:
                    self._log.info("sink recovered", pipeline=pipeline.name, **fields)
                return

    async def _check_columns(self, pipeline: PipelineParts) -> None:
        """Raises SinkRejected if the sink could not take any output of the transform."""
        with suppress(SinkUnavailable):  # the first batch waits for the sink, which may refuse it then
            await pipeline.check_columns()

    async def _reach(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make a call, and repeat it if the lease store or a sink does not answer for a moment.

        Raises StoreError, PipelineError.
        """
        for pause_s in (*START_PAUSES_S, None):
            try:
                await call()
                return
            except (StoreError, SinkUnavailable):
                if pause_s is None:
                    raise
                await self._clock.sleep(pause_s)


class Problems:
    """The errors that keep a host from starting."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}

    async def collect(self, step: Awaitable[object]) -> None:
        try:
            await step
        except (PipelineError, StoreError, GroupMismatch, InvalidDocument) as error:
            self._found[str(error)] = error

    @property
    def are_found(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        """Raises StartFailed if there are errors; GroupMismatch if that is the only one."""
        if not self._found:
            return
        if len(self._found) == 1 and isinstance(error := next(iter(self._found.values())), GroupMismatch):
            raise error
        count = [f"{len(self._found)} problems"] if len(self._found) > 1 else []
        raise StartFailed("\n  ".join(count + sorted(self._found)))


def _now() -> datetime:
    return datetime.now(UTC)


def _doubles(pipelines: Sequence[PipelineParts]) -> list[str]:
    names = [pipeline.name for pipeline in pipelines]
    return [
        f"two pipelines are named '{name}': every name is used once"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
