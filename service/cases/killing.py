"""A case's pipeline in hosts that die: the real host, worker and runner, stopped at every crash point that they reach.

The output must be that of an undisturbed run, whatever happens:

- the events are cut into batches at other places
- a host is killed at a crash point, and another process takes its name
- the sink's answer to a write is lost
- a host is cut off inside a write, another takes its leases, and the write arrives late

Everything is in one process and shares one Spark. A killed host's tasks are cancelled, and nothing that they still send to
the lease store or the sink gets there. What runs in threads of a user's handler ends its call.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, zip_longest
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa
import structlog
from pydantic import SecretStr
from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import LoopClock
from leases.store import Operation, StoreAround
from leases.stores.memory import MemoryStore
from leases.timing import derived_timing
from pipeline.connectors.memory import MemoryDestination, MemorySink
from pipeline.crash_point import watch_points
from pipeline.errors import Ambiguous, EngineUnavailable, PipelineError
from pipeline.imports import imported
from pipeline.sink import Output, Permit, Sink, SinkWriter
from service.cases.compare import Pair, shown, side_by_side
from service.cases.model import Case, PlacedCase
from service.cases.running import (
    GRANTED,
    CaseFeed,
    Cut,
    Delivered,
    NotingSink,
    Prepared,
    Workbench,
    events_of,
    problems_of,
    run_case,
    whole,
)
from service.config.custom import PythonSinkSettings
from service.config.postgres import PostgresSinkSettings
from service.config.settings import Settings
from service.pipeline import Pipeline
from service.processor import Processor

T = TypeVar("T")
TIMING = derived_timing(6.0, session_s=1.0)
"""A second host takes the leases of a silent one within two seconds."""
RUN_S_MAX = 120.0
LOOK_S = 0.2
SPLITS = 3
ROWS_SHOWN = 20

State = Mapping[str, list[str]]
"""What a run leaves behind: name -> rows, as texts."""
Databases = Callable[[], AbstractAsyncContextManager[str]]
"""Creates a database for one run; its DSN."""


class RunFailed(Exception):
    """A run did not end as it should."""


class HostKilled(BaseException):
    """Ends the call of a user's handler that has reached a crash point. No handler should catch it."""


class Severed(Exception):
    """What a killed host gets for an answer."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    kind: Literal["none", "kill", "lost answer", "late write"]
    point: str = ""
    nth: int = 1

    def __str__(self) -> str:
        nth = f" (number {self.nth})" if self.nth > 1 else ""
        return {
            "none": "undisturbed",
            "kill": f"killed at '{self.point}'{nth}, and started again",
            "lost answer": f"the answer to a write is lost{nth}",
            "late write": f"a second host takes the leases, and then a write of the first arrives{nth}",
        }[self.kind]


UNDISTURBED = Disturbance("none")


# Where the output of one run goes


class Scratch:
    """In memory, with positions."""

    keeps_letters = False

    def __init__(self, ignore: Collection[str] = ()) -> None:
        """ignore: columns that are not compared."""
        self._ignore = ignore
        self._destination = MemoryDestination()

    def make_sink(self) -> Sink:
        return MemorySink(self._destination)

    async def read(self) -> State:
        found: dict[str, list[str]] = {}
        for commit in self._destination.commits:
            rows = found.setdefault(f"partition {commit.claim.partition}", [])
            table = commit.output.table
            rows += map(shown, table.drop_columns([n for n in table.column_names if n in self._ignore]).to_pylist())
        return {name: rows if _is_ordered(self._destination) else sorted(rows) for name, rows in found.items()}


def _is_ordered(destination: MemoryDestination) -> bool:
    return all("sequence" in commit.output.table.schema.names for commit in destination.commits)


class PostgresScratch(Scratch):
    keeps_letters = True

    def __init__(self, settings: PostgresSinkSettings, dsn: str, case: Case, *, letters: bool) -> None:
        own = {"dsn": SecretStr(dsn), "identity": None, "executors_env": None}
        self._settings = settings.model_copy(update=own)
        self._dsn = dsn
        self._query, self._ignore = case.query, case.ignore
        self._letters = letters

    def make_sink(self) -> Sink:
        return self._settings.make(TIMING, letters=self._letters)

    async def read(self) -> State:
        from pipeline.connectors.postgres.scratch import read_query, read_tables

        if self._query is not None:
            return {"the rows of `query`": await read_query(self._dsn, self._query)}
        return await read_tables(self._dsn, self._ignore)


class HandlerScratch(Scratch):
    def __init__(self, settings: PythonSinkSettings, state: str) -> None:
        self._settings = settings
        self._state = state

    def make_sink(self) -> Sink:
        return self._settings.make(TIMING)

    async def read(self) -> State:
        found = await call(self._state)
        rows = found if isinstance(found, list | tuple) else [found]
        return {f"`{self._state}`": [shown(row) for row in rows]}


async def call(path: str) -> object:
    """A user's function. Raises NotImportable, RunFailed."""
    function = cast(Callable[[], object], imported(path))
    try:
        found = function()
        return await found if inspect.isawaitable(found) else found
    except Exception as error:
        raise RunFailed(f"'{path}' fails with {type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_scratch(prepared: Prepared, case: Case, databases: Databases) -> AsyncGenerator[Scratch, None]:
    """For one run. Raises SinkRejected, NotImportable, RunFailed."""
    sink = prepared.settings.sink
    if isinstance(sink, PostgresSinkSettings):
        async with databases() as dsn:
            yield PostgresScratch(sink, dsn, case, letters=prepared.policy is not None)
    elif isinstance(sink, PythonSinkSettings):
        assert case.state is not None, "checked before"
        assert case.reset is not None, "checked before"
        await call(case.reset)
        yield HandlerScratch(sink, case.state)
    else:
        yield Scratch(case.ignore)


# A host that can be killed, and cut off


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
    """late: the number of the write inside which the host is cut off. lost: of the one whose answer is lost."""

    def __init__(
        self, sink: Sink, delivered: Delivered, line: Line, *, late: int, lost: int, keeps_letters: bool
    ) -> None:
        super().__init__(sink, delivered, keeps_letters=keeps_letters)
        self._line = line
        self._late, self._lost = late, lost
        self._numbers = count(1)
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
                await writer.write(output, GRANTED)
            finally:
                self.has_arrived.set()
            return
        await writer.write(output, permit)
        if number == self._lost:
            raise Ambiguous("the answer of the sink was lost")

    async def close_writer(self, writer: SinkWriter, reason: Any) -> None:
        """A process that was killed closes nothing."""
        if not self._line.is_cut:
            await writer.close(reason)


class _Host:
    """One process, from its start to its end."""

    def __init__(self, run: _Run, name: str, cut: Cut, disturbance: Disturbance) -> None:
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
        pipeline = Pipeline(
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
        self.processor = Processor([pipeline], store, host=name, timing=TIMING, clock=LoopClock(), log=silent())
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    async def start(self) -> None:
        await self.sink.prepare()
        self._task = asyncio.create_task(self.processor.host.run(), name=f"host {self.processor.host.name}")

    async def wait(self, *others: asyncio.Event) -> None:
        """Until all is delivered, or one of the events is set. Raises RunFailed."""
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
        """In good order."""
        self.processor.host.stop()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._is_over = True
        await self.sink.close()

    async def kill(self) -> None:
        """If it still runs."""
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


# One run


@dataclass(slots=True, kw_only=True)
class _Run:
    prepared: Prepared
    case: Case
    scratch: Scratch
    seed: int | None
    """Chooses the places where events are cut into batches; None for one batch a partition."""
    disturbance: Disturbance = UNDISTURBED
    events: Mapping[str, pa.Table] = field(default_factory=dict)
    store: MemoryStore = field(default_factory=MemoryStore)
    dead: dict[tuple[str, int], str] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    """How often each crash point was reached."""
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    _hosts: list[_Host] = field(default_factory=list)

    async def carry_out(self) -> State:
        """Raises RunFailed, PipelineError."""
        self.events = events_of(self.case)
        loop = asyncio.get_running_loop()
        with watch_points(lambda name: self._reach(name, loop)):
            try:
                await self._work()
            finally:
                for host in self._hosts:
                    await host.kill()
        letters = [f"partition {partition}, sequence {sequence}" for partition, sequence in sorted(self.dead)]
        return {**await self.scratch.read(), "dead letters": letters}

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
            again = await self._start("first")
            await again.wait()
            await self._end(again)

    async def _start(self, name: str) -> _Host:
        cut = whole if self.seed is None else random_cut(f"{self.seed} {len(self._hosts)}", self.events)
        disturbance = UNDISTURBED if self._hosts else self.disturbance
        host = _Host(self, name, cut, disturbance)
        self._hosts.append(host)
        await host.start()
        return host

    async def _end(self, host: _Host) -> None:
        """A stop, within which the host may be killed."""
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


def random_cut(seed: str, events: Mapping[str, pa.Table]) -> Cut:
    """Up to six batches a partition, at least two of several events."""

    def size(partition: str, index: int) -> int:
        total = events[partition].num_rows
        rng = random.Random(f"{seed} {partition} {index}")  # noqa: S311 - repeatable, no secret
        return rng.randint(max(1, total // 6), max(1, total // 2))

    return size


# All runs of a case


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """How cases are killed. report: called with what each run does."""

    databases: Databases
    seed: int = 1
    report: Callable[[str], None] = lambda text: None


async def check_case(bench: Workbench, placed: PlacedCase, kills: Kills | None = None) -> list[str]:
    """What is wrong with a case, as lines for people; empty if nothing is. kills: None for no kills.

    Raises EngineUnavailable, StartFailed.
    """
    case = placed.case
    try:
        prepared = await bench.prepare(placed.pipeline)
    except EngineUnavailable:
        raise
    except PipelineError as error:
        return [str(error)]
    problems = problems_of(case, await run_case(prepared, case))
    if problems or kills is None or not case.kill or case.stops is not None:
        return problems
    return await kill_case(prepared, case, kills)


def unobservable(cases: Sequence[PlacedCase], settings: Settings) -> Iterator[str]:
    """Why cases cannot be killed."""
    sinks = {each.name: each.sink for each in settings.pipelines}
    for each in cases:
        is_handler = isinstance(sinks[each.pipeline], PythonSinkSettings)
        if is_handler and each.case.kill and each.case.state is None:
            yield (
                f"{each.place}: to see what the handler of '{each.pipeline}' has done, `--kill` needs `state` and `reset`:"
                " add them, or set `kill: false`"
            )


async def kill_case(prepared: Prepared, case: Case, kills: Kills) -> list[str]:
    """What differs between runs, as lines for people; empty if nothing does. Raises EngineUnavailable."""
    try:
        return await _kill_case(prepared, case, kills)
    except EngineUnavailable:
        raise
    except (RunFailed, PipelineError) as error:
        return [str(error)]


async def _kill_case(prepared: Prepared, case: Case, kills: Kills) -> list[str]:
    async def carry_out(seed: int | None, disturbance: Disturbance = UNDISTURBED) -> tuple[State, Counter[str]]:
        kills.report(
            str(disturbance) if seed is None or disturbance != UNDISTURBED else f"batches are cut (seed {seed})"
        )
        try:
            async with open_scratch(prepared, case, kills.databases) as scratch:
                run = _Run(prepared=prepared, case=case, scratch=scratch, seed=seed, disturbance=disturbance)
                return await run.carry_out(), run.reached
        except RunFailed as error:
            raise RunFailed(f"{disturbance}: {error}") from error

    expected, reached = await carry_out(None)
    again, _ = await carry_out(None)
    if differences := _differences(expected, again, "first run", "second run"):
        why = "it depends on which partition is written first, or on the time, or it has serial numbers"
        return [
            f"two undisturbed runs have different output: {why}. Leave out columns with `ignore`, or see `query` and `state`",
            *differences,
        ]
    seed = None
    if case.batches == "any":
        for seed in range(kills.seed, kills.seed + SPLITS):
            found, reached = await carry_out(seed)
            if differences := _differences(expected, found, "one batch", "several batches"):
                what = f"the output depends on how events are cut into batches (seed {seed})"
                return [f"{what}; if it may, set `batches: one`", *differences]
    for disturbance in disturbances(reached, kills.seed):
        found, _ = await carry_out(seed, disturbance)
        if differences := _differences(expected, found, "undisturbed", "disturbed"):
            return [f"{disturbance}: the output differs", *differences]
    return []


def disturbances(reached: Mapping[str, int], seed: int) -> Iterator[Disturbance]:
    """reached: crash points, and how often an undisturbed run reaches each."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
    for point, times in reached.items():
        yield Disturbance("kill", point, rng.randint(1, times))
    writes = reached.get("before write", 0)
    if writes:
        yield Disturbance("lost answer", nth=rng.randint(1, writes))
        yield Disturbance("late write", nth=rng.randint(1, writes))


def _differences(expected: State, found: State, left: str, right: str) -> list[str]:
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        one, other = expected.get(name, []), found.get(name, [])
        if one == other:
            continue
        missing, extra = (
            list((Counter(one) - Counter(other)).elements()),
            list((Counter(other) - Counter(one)).elements()),
        )
        if not (missing or extra):
            missing, extra = one, other  # another order
        pairs = [Pair(a, b, a == b) for a, b in zip_longest(missing, extra)]
        lines += [f"{name}:", *side_by_side(pairs[:ROWS_SHOWN], left, right)]
        if len(pairs) > ROWS_SHOWN:
            lines.append(f"... and {len(pairs) - ROWS_SHOWN} more")
    return lines
