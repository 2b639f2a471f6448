"""One case through its pipeline: the real parsing, transform, isolation of poison and dead-letter policy, into memory.

All cases and pipelines share one Spark. Each partition's events are one batch, if the limits of the pipeline allow it, and the
partitions run side by side, as they do in a host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from leasehold.common.clock import BootClock
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.errors import EngineUnavailable, PipelineError, SinkRejected
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, PartitionEnded, Start
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.runner import DeliveredBatch, Runner
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter, Standing
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.transform import Transform
from leasehold.service.cases.compare import Pair, Table, missing_columns, paired, side_by_side
from leasehold.service.cases.model import LONG_AGO, Case, Event, PlacedCase
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings
from leasehold.service.texts import counted
from leasehold.service.wiring.build import policy_of, transform_of

# A feed of a case's events, and a sink that notes what it takes


Cut = Callable[[str, int], int]
"""(partition, index) -> how many events the batch has that begins there."""


def whole(partition: str, index: int) -> int:
    """A partition is one batch."""
    return 2**31


class Delivered:
    """How many events of each partition the sink of one host has, and the dead letters that it was given."""

    def __init__(self, total: Mapping[str, int], dead: dict[tuple[str, int], str] | None = None) -> None:
        self.dead = {} if dead is None else dead
        """(partition, sequence) -> why."""
        self._total = total
        self._reached = dict.fromkeys(total, 0)
        self._changed = asyncio.Condition()

    async def note(self, partition: str, position: str | None) -> None:
        async with self._changed:
            self._reached[partition] = int(position or 0)
            self._changed.notify_all()

    async def wait_for(self, partition: str, index: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._reached[partition] >= index)

    async def wait_for_all(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._reached == self._total)


class CaseFeed(ChangeFeed):
    """A case's events by partition. A position is the number of events before it.

    A page is read when the sink has all before it, so that the batches are those of `cut`. ends: whether partitions end with
    their last event; otherwise readers wait for more.
    """

    def __init__(self, events: Mapping[str, pa.Table], delivered: Delivered, *, cut: Cut = whole, ends: bool) -> None:
        self._events = events
        self._delivered = delivered
        self._cut = cut
        self._ends = ends

    @property
    def identity(self) -> str:
        return "cases"

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name) for name in sorted(self._events)]

    async def start_of(self, partition: str, start: Start) -> str | None:
        return None

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        table, index = self._events[partition], int(continuation or 0)
        while index < table.num_rows:
            start, size = index, min(self._cut(partition, index), table.num_rows - index)
            index += size
            yield Page(table.slice(start, size), str(index), lambda n, start=start: str(start + n))  # type: ignore[misc]
            await self._delivered.wait_for(partition, index)
        if self._ends:
            raise PartitionEnded(partition, ())
        await asyncio.Event().wait()

    async def latest(self, partition: str) -> str | None:
        return str(self._events[partition].num_rows)

    async def lag(self, partition: str, continuation: str | None) -> int:
        return int(self._events[partition].num_rows) - int(continuation or 0)

    def compare(self, a: str | None, b: str | None) -> int:
        return int(a or 0) - int(b or 0)

    async def close(self) -> None:
        """Nothing is held."""


class NotingSink(Sink):
    """A sink behind another's back: notes positions and dead letters, and checks outputs.

    keeps_letters: whether the sink itself keeps dead letters.
    """

    def __init__(
        self,
        sink: Sink,
        delivered: Delivered,
        *,
        check: Callable[[pa.Table], None] = lambda table: None,
        keeps_letters: bool = False,
    ) -> None:
        self.sink = sink
        self.holds_position = sink.holds_position
        self._delivered = delivered
        self._check = check
        self._keeps_letters = keeps_letters

    @property
    def identity(self) -> str:
        return self.sink.identity

    def claimed(self, state: str) -> str:
        return self.sink.claimed(state)

    async def prepare(self) -> None:
        await self.sink.prepare()

    async def check_columns(self, columns: pa.Schema) -> None:
        await self.sink.check_columns(columns)

    async def open(self, claim: Claim) -> SinkWriter:
        writer = NotingWriter(claim.partition, await self.sink.open(claim), self)
        await self._delivered.note(claim.partition, writer.position)
        return writer

    async def close(self) -> None:
        await self.sink.close()

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        return await self.sink.standing(pipeline, partition)

    async def write(self, writer: SinkWriter, partition: str, output: Output, permit: Permit) -> None:
        self._check(output.table)
        if output.dead is not None and not self._keeps_letters:
            for event in output.dead.to_pylist():
                self._delivered.dead[partition, event["sequence"]] = event["error"]
            output = replace(output, dead=None)
        await self._write(writer, output, permit)
        await self._delivered.note(partition, output.to)

    async def close_writer(self, writer: SinkWriter, reason: CloseReason) -> None:
        await writer.close(reason)

    async def _write(self, writer: SinkWriter, output: Output, permit: Permit) -> None:
        await write_out(writer, output, permit)


async def write_out(writer: SinkWriter, output: Output, permit: Permit) -> None:
    """Until it is delivered, also by a writer that delivers in the background: a disturbance is about one batch."""
    await writer.write(output, permit)
    if writer.is_buffering:
        await writer.flush()


class NotingWriter(SinkWriter):
    position: str | None = None
    state: str = ""
    buried = ()

    def __init__(self, partition: str, writer: SinkWriter, sink: NotingSink) -> None:
        self._partition = partition
        self._writer = writer
        self._sink = sink
        self._read()

    async def write(self, output: Output, permit: Permit) -> None:
        try:
            await self._sink.write(self._writer, self._partition, output, permit)
        finally:
            self._read()

    async def end(self, permit: Permit) -> None:
        await self._writer.end(permit)

    async def close(self, reason: CloseReason) -> None:
        await self._sink.close_writer(self._writer, reason)

    def parts(self, output: Output) -> int:
        return self._writer.parts(output)

    def _read(self) -> None:
        self.position, self.state = self._writer.position, self._writer.state


def events_of(case: Case) -> dict[str, pa.Table]:
    """By partition: EVENT_SCHEMA, numbered from 0."""
    found: dict[str, list[Event]] = {}
    for event in case.events:
        found.setdefault(event.partition, []).append(event)
    return {
        partition: pa.Table.from_pylist([_row(event, n) for n, event in enumerate(events)], schema=EVENT_SCHEMA)
        for partition, events in found.items()
    }


def _row(event: Event, number: int) -> dict[str, Any]:
    return {
        "partition": event.partition,
        "sequence": number,
        "offset": str(number),
        "enqueued_time": event.time,
        "key": event.key,
        "body": event.octets,
        "properties": None if event.properties is None else list(event.properties.items()),
        "operation": event.operation,
    }


def number_of(case: Case, partition: str, sequence: int) -> int:
    """An event's number in its case, from 1."""
    numbers = [n for n, event in enumerate(case.events, 1) if event.partition == partition]
    return numbers[sequence]


# Running


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """dead: by the number of the event. stopped: by partition."""

    table: Table
    dead: Mapping[int, str]
    stopped: Mapping[str, PipelineError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A pipeline's settings, and its transform, which every case of it uses."""

    settings: Pipeline
    transform: Transform
    policy: DeadLetters | None = None

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(
            events_max=min(
                self.settings.batch_events_max, self.settings.sink.input_events_max or self.settings.batch_events_max
            ),
            bytes_max=min(
                self.settings.batch_bytes_max, self.settings.sink.input_bytes_max or self.settings.batch_bytes_max
            ),
        )

    @property
    def fresh_policy(self) -> DeadLetters | None:
        """Without what an earlier case has counted."""
        return None if self.policy is None else replace(self.policy, guards={})


@dataclass(slots=True)
class Workbench:
    """One Spark for all pipelines of a configuration. A transform is prepared when its first case runs."""

    settings: Settings
    engine: SparkEngine
    _prepared: dict[str, Prepared] = field(default_factory=dict)
    _failed: dict[str, PipelineError] = field(default_factory=dict)

    async def prepare(self, name: str) -> Prepared:
        """Raises PipelineError: each time the same."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._prepared:
            try:
                await self._prepare(name)
            except PipelineError as error:
                self._failed[name] = error
                raise
        return self._prepared[name]

    async def _prepare(self, name: str) -> None:
        (settings,) = (each for each in self.settings.pipelines if each.name == name)
        settings.sink.import_code()
        policy = policy_of(settings, lambda: LONG_AGO)
        transform = transform_of(settings, self.engine, policy)
        self._prepared[name] = Prepared(settings=settings, transform=transform, policy=policy)
        await transform.prepare()

    async def close(self) -> None:
        for each in self._prepared.values():
            await each.transform.close()


@asynccontextmanager
async def open_workbench(settings: Settings, engine: SparkEngine) -> AsyncGenerator[Workbench, None]:
    bench = Workbench(settings, engine)
    try:
        yield bench
    finally:
        await bench.close()


async def run_case(prepared: Prepared, case: Case) -> Result:
    """Raises EngineUnavailable."""
    events = events_of(case)
    delivered = Delivered({name: table.num_rows for name, table in events.items()})
    destination = MemoryDestination()
    sink = NotingSink(MemoryOutputSink(destination), delivered, check=prepared.settings.sink.check_output)
    feed, policy = CaseFeed(events, delivered, ends=True), prepared.fresh_policy
    stopped: dict[str, PipelineError] = {}

    async def run_partition(partition: str) -> None:
        try:
            await _runner(prepared, policy, feed, await sink.open(_claim(case, partition, feed)), partition).run(
                asyncio.Event()
            )
        except EngineUnavailable:
            raise
        except PipelineError as error:
            stopped[partition] = error

    for ended in await asyncio.gather(*map(run_partition, case.partitions), return_exceptions=True):
        if ended is not None:
            raise ended
    tables = [
        commit.output.table
        for name in case.partitions
        for commit in destination.commits
        if commit.claim.partition == name
    ]
    schema = pa.schema([])
    if tables:
        schema = pa.unify_schemas([table.schema for table in tables])
    return Result(
        table=Table(schema, [row for table in tables for row in table.to_pylist()]),
        dead={number_of(case, *place): why for place, why in delivered.dead.items()},
        stopped=stopped,
    )


def _runner(
    prepared: Prepared, policy: DeadLetters | None, feed: ChangeFeed, writer: SinkWriter, partition: str
) -> Runner:
    async def ignore(batch: DeliveredBatch) -> None:
        """There is no lease to keep the position in."""

    return Runner(
        partition=partition,
        epoch=1,
        feed=feed,
        transform=prepared.transform,
        writer=writer,
        permit=GRANTED,
        limits=prepared.limits,
        buffer_bytes_max=prepared.settings.buffer_bytes_max,
        budget=Budget(),
        clock=BootClock(),
        progress=Progress(),
        delivered=ignore,
        letters=policy,
    )


class _Granted:
    def check(self) -> None:
        """There is no lease to lose."""

    async def wait_until_granted(self) -> None:
        """At once."""


GRANTED: Permit = _Granted()


def _claim(case: Case, partition: str, feed: ChangeFeed) -> Claim:
    return Claim(
        pipeline=case.name,
        partition=partition,
        owner="cases",
        epoch=1,
        generation=1,
        continuation=None,
        state="",
        compare=feed.compare,
    )


# Judging


def problems_of(case: Case, result: Result) -> list[str]:
    """What differs from what the case expects, as lines for people; empty if nothing does."""
    return [*_stops(case, result), *_rows(case, result), *_letters(case, result)]


def _stops(case: Case, result: Result) -> list[str]:
    if case.stops is None:
        return [
            f"{'the sink refuses the output of ' if isinstance(error, SinkRejected) else ''}partition '{partition}'"
            f"{':' if isinstance(error, SinkRejected) else ' stops:'} {error}"
            for partition, error in result.stopped.items()
        ]
    if not any(case.stops in str(error) for error in result.stopped.values()):
        found = "; ".join(map(str, result.stopped.values())) or "nothing stopped"
        return [f"a partition should stop with an error that contains '{case.stops}', and: {found}"]
    return []


def _rows(case: Case, result: Result) -> list[str]:
    found = []
    names = result.table.schema.names
    if result.stopped and case.stops is None:
        return []  # the reason of all that is missing
    if case.columns is not None and list(case.columns) != names:
        found += side_by_side(
            [Pair(", ".join(case.columns), ", ".join(names), False)], "expected columns", "actual columns"
        )
    if case.rows is None:
        return found
    if missing := missing_columns(case.rows, result.table.schema) if names else []:
        return [*found, f"the output has no column {', '.join(map(repr, missing))}: it has {', '.join(names)}"]
    pairs = paired(case.rows, result.table, case.order)
    if all(pair.is_same for pair in pairs):
        return found
    how = {"any": "", "partition": ", in the order of each partition", "exact": ", in this order"}[case.order]
    return [*found, f"{counted(len(case.rows), 'row')} expected{how}:", *side_by_side(pairs)]


def _letters(case: Case, result: Result) -> list[str]:
    if result.stopped and case.stops is None:
        return []
    expected: Mapping[int, str] = {each.event: each.reason for each in case.dead_letters}
    pairs = [
        Pair(
            (f"event {n}: ... {expected[n]} ..." if expected[n] else f"event {n}") if n in expected else None,
            f"event {n}: {result.dead[n]}" if n in result.dead else None,
            n in expected and n in result.dead and expected[n] in result.dead[n],
        )
        for n in sorted({*expected, *result.dead})
    ]
    return [] if all(pair.is_same for pair in pairs) else ["dead letters:", *side_by_side(pairs)]


def report(placed: PlacedCase, problems: Sequence[str]) -> str:
    lines = "\n".join(f"    {line}" for problem in problems for line in problem.splitlines())
    return f"{placed.place}: {placed.case.name} (pipeline {placed.pipeline})\n{lines}"
