"""One run of a case in hosts that die: the real host, worker and runner, cut off or stopped at a crash point.

Everything is in one process and shares one Spark. A killed host's tasks are cancelled, and nothing that they still send to
the lease store or the sink arrives. If a user's handler reaches the crash point in a thread, an exception ends its call. Each
new process imports the modules of a user's handler afresh.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar, cast

import pyarrow as pa
import structlog
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import LoopClock
from leasehold.leases.store import Operation, StoreAround
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.python import HandlerThread
from leasehold.pipeline.crash_point import watch_points
from leasehold.pipeline.errors import Ambiguous
from leasehold.pipeline.sink import Output, Permit, Sink, SinkWriter
from leasehold.service.cases.disturbance import UNDISTURBED, Disturbance
from leasehold.service.cases.ends import CaseFeed, Cut, Delivered, NotingSink, events_of, whole, write_out
from leasehold.service.cases.model import Case
from leasehold.service.cases.modules import HandlerModules
from leasehold.service.cases.running import GRANTED, PreparedPipeline
from leasehold.service.cases.scratch import TIMING, RunFailed, ScratchTables, State
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

T = TypeVar("T")
RUN_S_MAX = 120.0
LOOK_S = 0.2


class HostKilled(BaseException):
    """Ends the call of a user's handler that has reached a crash point. No handler should catch it."""


class Severed(Exception):
    """What a killed host gets instead of an answer."""


class Line:
    """A host's way to the lease store and the sink."""

    def __init__(self) -> None:
        self.is_cut = False
        self._open = asyncio.Event()
        self._open.set()

    def block(self) -> None:
        """Whatever is sent waits until the line is cut."""
        self._open.clear()

    def cut(self) -> None:
        self.is_cut = True
        self._open.set()

    async def wait_until_open(self) -> None:
        """Raises Severed."""
        await self._open.wait()
        if self.is_cut:
            raise Severed("this host was killed")


class StoreBehindLine(StoreAround):
    def __init__(self, store: MemoryStore, line: Line) -> None:
        super().__init__(store)
        self._line = line

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        try:
            await self._line.wait_until_open()
        except BaseException:
            cast(Coroutine[Any, Any, T], answer).close()
            raise
        return await answer


class SinkBehindLine(NotingSink):
    """late: the number of the write inside which the host is cut off. lost: that of the write whose answer is lost."""

    def __init__(
        self, sink: Sink, delivered: Delivered, line: Line, *, late: int, lost: int, keeps_letters: bool
    ) -> None:
        super().__init__(sink, delivered, keeps_letters=keeps_letters)
        self._line = line
        self._late, self._lost = late, lost
        self._numbers = count(1)
        self.has_lost = False
        self.has_stalled, self.may_arrive, self.has_arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def _write(self, writer: SinkWriter, output: Output, permit: Permit) -> None:
        await self._line.wait_until_open()
        number = next(self._numbers)
        if number == self._late:
            permit.check()
            self._line.block()
            self.has_stalled.set()
            try:
                await self.may_arrive.wait()
                await write_out(writer, output, GRANTED)
            finally:
                self.has_arrived.set()
            return
        await write_out(writer, output, permit)
        if number == self._lost:
            self.has_lost = True
            raise Ambiguous("the answer of the sink was lost")

    async def close_writer(self, writer: SinkWriter, reason: Any) -> None:
        """A process that was killed closes nothing."""
        if not self._line.is_cut:
            await writer.close(reason)


class _Host:
    """One process, from its start to its end."""

    def __init__(self, run: DisturbedRun, name: str, cut: Cut, disturbance: Disturbance) -> None:
        prepared, total = run.prepared, {name: table.num_rows for name, table in run.events.items()}
        self.line = Line()
        self.delivered = Delivered(total, run.dead)
        self.sink = SinkBehindLine(
            run.scratch.make_sink(),
            self.delivered,
            self.line,
            late=disturbance.nth if disturbance.kind == "late write" else 0,
            lost=disturbance.nth if disturbance.kind == "lost answer" else 0,
            keeps_letters=run.scratch.keeps_letters,
        )
        pipeline = PipelineParts(
            name=prepared.settings.name,
            feed=CaseFeed(run.events, self.delivered, cut=cut, ends=False),
            transform=prepared.transform,
            sink=self.sink,
            letters=prepared.fresh_policy,
            limits=prepared.limits,
            batch_timeout_s=prepared.settings.batch_timeout_s,
            unkept_s=prepared.settings.sink.unkept_s,
        )
        store = StoreBehindLine(run.store, self.line)
        self.processor = ProcessorCore([pipeline], store, host=name, timing=TIMING, clock=LoopClock(), log=silent())
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self) -> None:
        await self.sink.prepare()
        self._task = asyncio.create_task(self.processor.host.run(), name=f"host {self.processor.host.name}")

    async def wait(self, *others: asyncio.Event) -> None:
        """Wait until all is delivered, or one of the events is set. Raises RunFailed."""
        assert self._task is not None, "not started"
        waits = [
            asyncio.create_task(self.delivered.wait_for_all()),
            *(asyncio.create_task(each.wait()) for each in others),
        ]
        try:
            async with asyncio.timeout(RUN_S_MAX):
                while not any(wait.done() for wait in waits):
                    await asyncio.wait([*waits, self._task], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                    if not any(each.is_set() for each in others):
                        self._check()
        except TimeoutError:
            known = "; ".join(str(failure.error) for failure in self.processor.host.failures.values())
            raise RunFailed(f"it has not ended within {RUN_S_MAX:g} s{known and ': '}{known}") from None
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _check(self) -> None:
        """Raises RunFailed."""
        for key, outcome in self.processor.host.outcomes:
            if outcome.reason == "failed":
                raise RunFailed(f"partition '{key.partition}' stops: {outcome.error}")
        if self._task is not None and self._task.done():
            raise RunFailed(f"the host has ended: {self._task.exception()}")

    async def stop(self) -> None:
        """Stop the host in good order."""
        self.processor.host.stop()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._is_over = True
        await self.sink.close()

    async def kill(self) -> None:
        """Kill the host if it still runs."""
        if self._is_over:
            return
        self._is_over = True
        self.line.cut()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=RUN_S_MAX)
            _ = self._task.cancelled() or (self._task.done() and self._task.exception())  # it was severed
        await self.sink.close()


def silent() -> Log:
    return cast(Log, structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger("critical")))


@dataclass(slots=True, kw_only=True)
class DisturbedRun:
    prepared: PreparedPipeline
    case: Case
    scratch: ScratchTables
    seed: int | None
    """Chooses the places where events are cut into batches; None for one batch per partition."""
    disturbance: Disturbance = UNDISTURBED
    events: Mapping[str, pa.Table] = field(init=False, default_factory=dict)
    store: MemoryStore = field(init=False, default_factory=MemoryStore)
    dead: dict[tuple[str, int], str] = field(init=False, default_factory=dict)
    reached: Counter[str] = field(init=False, default_factory=Counter)
    """How often each crash point was reached."""
    killed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    modules: HandlerModules | None = None
    _hosts: list[_Host] = field(init=False, default_factory=list)
    _others: set[asyncio.Task[Any]] = field(init=False, default_factory=set)
    """The tasks that ran before this run."""

    async def carry_out(self) -> State:
        """Run the case. Returns what it left behind. Raises RunFailed, PipelineError."""
        self.events = events_of(self.case)
        self._others = asyncio.all_tasks()
        loop = asyncio.get_running_loop()
        with watch_points(lambda name: self._reach(name, loop)):
            try:
                await self._work()
            finally:
                for host in self._hosts:
                    await host.kill()
                await self._end_tasks()
        letters = [f"partition {partition}, sequence {sequence}" for partition, sequence in sorted(self.dead)]
        return {**await self.scratch.read(), "dead letters": letters}

    @property
    def is_disturbed(self) -> bool:
        """Whether the disturbance has happened. It need not: how often a point is reached also depends on the time."""
        if self.disturbance.kind == "kill":
            return self.killed.is_set()
        sink = self._hosts[0].sink
        return {"none": False, "lost answer": sink.has_lost, "late write": sink.has_stalled.is_set()}[
            self.disturbance.kind
        ]

    async def _work(self) -> None:
        first = await self._start("first")
        if self.disturbance.kind == "late write":
            await first.wait(first.sink.has_stalled)
            if first.sink.has_stalled.is_set():
                second = await self._start("second")
                await second.wait()
                first.sink.may_arrive.set()
                await first.sink.has_arrived.wait()
                await first.kill()
                await self._end(second)
                return
        await first.wait(self.killed)
        if not self.killed.is_set():
            await self._end(first)
        if self.killed.is_set():
            await first.kill()
            await self._end_tasks()
            again = await self._start("first")
            await again.wait()
            await self._end(again)

    async def _start(self, name: str) -> _Host:
        if self._hosts:
            await start_process(self.modules)
        disturbance = UNDISTURBED if self._hosts else self.disturbance
        host = _Host(self, name, self._cut(), disturbance)
        self._hosts.append(host)
        await host.start()
        return host

    def _cut(self) -> Cut:
        """How events are cut into batches for the next host."""
        again = self.disturbance.again if self._hosts and self.disturbance.kind == "kill" else "random"
        if self.seed is None or again == "whole":
            return whole
        if again == "single events":
            return single
        seed = f"{self.seed} {len(self._hosts)}"
        return random_cut(seed if again == "random" else f"{seed} {again}", self.events)

    async def _end(self, host: _Host) -> None:
        """Stop a host, which may be killed meanwhile."""
        stopping = asyncio.create_task(host.stop())
        killed = asyncio.create_task(self.killed.wait())
        is_first = host is self._hosts[0]
        await asyncio.wait({stopping, killed} if is_first else {stopping}, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if stopping.done() or not is_first:
            await stopping
        else:
            stopping.cancel()
        await asyncio.gather(stopping, killed, return_exceptions=True)

    async def _end_tasks(self) -> None:
        """End the tasks of a killed process, also those of its writers, which are not closed."""
        left = asyncio.all_tasks() - self._others
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=RUN_S_MAX)

    def _reach(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Raises HostKilled, CancelledError."""
        self.reached[name] += 1
        if self.disturbance.kind != "kill" or self.killed.is_set():
            return
        if (name, self.reached[name]) != (self.disturbance.point, self.disturbance.nth):
            return
        self._hosts[0].line.is_cut = True
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread, of a user's handler
            loop.call_soon_threadsafe(self._kill)
            raise HostKilled from None
        self._kill()
        if task is not None:
            task.cancel()
        raise asyncio.CancelledError

    def _kill(self) -> None:
        self._hosts[0].line.cut()
        self.killed.set()


async def start_process(modules: HandlerModules | None) -> None:
    if modules is None:
        return
    thread = HandlerThread("import modules")  # where no event loop runs, as when a host imports them
    try:
        await thread.call(modules.import_afresh)
    finally:
        thread.stop()


def single(partition: str, index: int) -> int:
    """Each event is a batch."""
    return 1


def random_cut(seed: str, events: Mapping[str, pa.Table]) -> Cut:
    """Each batch has between a sixth and half of its partition's events, at least one; the last may have fewer."""

    def size(partition: str, index: int) -> int:
        total = events[partition].num_rows
        rng = random.Random(f"{seed} {partition} {index}")  # noqa: S311 - repeatable, no secret
        return rng.randint(max(1, total // 6), max(1, total // 2))

    return size
