"""A partition with dead letters beside its sink, its owners one after the other, in this process: for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from patience import PATIENCE_S

from leasehold.common.clock import LoopClock
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.files.sink import Directory, FileLetters, FilesOutputSink
from leasehold.pipeline.connectors.files.sink.formats import Format
from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink, MemoryWriter
from leasehold.pipeline.dead_letters import DeadLetters, LetterBox, StoredLetter, beside
from leasehold.pipeline.dead_letters.box import read_kept
from leasehold.pipeline.dead_letters.merged_feed import MergedLetters
from leasehold.pipeline.dead_letters.refusals import Refusals
from leasehold.pipeline.errors import FailsTogether, OutputSuspected, Poison, PoisonEvent
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, FailingEvents, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.sink import Claim, Output, Permit, Sink
from leasehold.pipeline.transform import Transform

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Picky(Transform):
    """Passes events on; fails on bodies with a `!`, on each of them for as long as it holds one, and tells some at once."""

    description = "picky"
    yields_events = True

    def __init__(self) -> None:
        self.applied: list[list[bytes]] = []
        self.mended: set[bytes] = set()
        self.told_at_once = 1
        self.together: set[bytes] = set()
        self.is_misfit = False

    async def prepare(self) -> None: ...

    async def apply(self, batch: Batch) -> pa.Table:
        bodies = batch.table["body"].to_pylist()
        self.applied.append(bodies)
        bad = [n for n, body in enumerate(bodies) if b"!" in body and body not in self.mended][: self.told_at_once]
        if bad:
            found = [
                Poison(index=n, reason=f"no {bodies[n].decode(errors='replace')}", is_misfit=self.is_misfit)
                for n in bad
            ]
            raise PoisonEvent("poison", before=bad[0], sequence=0, found=found)
        if self.together and self.together <= set(bodies):
            raise FailsTogether("not these", before=0, sequence=0, events=len(bodies), cut=len(bodies) // 2)
        return batch.table

    async def close(self) -> None: ...


class Renaming(Picky):
    """Calls another column `sequence`. number: its value, by an event's own and the number of events in the batch."""

    yields_events = False

    def __init__(self, number: Callable[[int, int], int]) -> None:
        super().__init__()
        self._number = number

    async def apply(self, batch: Batch) -> pa.Table:
        events = await super().apply(batch)
        numbers = [self._number(each, events.num_rows) for each in events["sequence"].to_pylist()]
        return events.set_column(events.schema.get_field_index("sequence"), "sequence", pa.array(numbers, pa.int64()))


class Trust:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


class Breaking(MemoryOutputSink):
    """Fails on a write, before or after it was applied, as often as it is told to."""

    def __init__(self, destination: MemoryDestination) -> None:
        super().__init__(destination)
        self.failures: list[Exception] = []

    async def open(self, claim: Claim) -> MemoryWriter:
        writer = await super().open(claim)
        write = writer.write

        async def broken(output: Output, permit: Permit) -> None:
            if self.failures:
                raise self.failures.pop()
            await write(output, permit)

        writer.write = broken  # type: ignore[method-assign]
        return writer


def log_box(path: Path) -> LetterBox:
    return LetterBox(feed=LogChangeFeed(path), sink=LogOutputSink(path))


def files_box(path: Path, format: Format = "parquet") -> LetterBox:
    sink = FilesOutputSink(Directory(path), format=format)
    return LetterBox(feed=MergedLetters(FileLetters(Directory(path), "pipe")), sink=sink, rows=lambda rows: rows)


def lines_box(path: Path) -> LetterBox:
    return files_box(path, "jsonl")


@dataclass
class Group:
    """A partition, its owners one after the other, and where everything goes."""

    path: Path
    events_max: int = 100
    feed: Any = field(default_factory=lambda: MemoryChangeFeed("a"))
    destination: MemoryDestination = field(default_factory=MemoryDestination)
    transform: Picky = field(default_factory=Picky)
    policy: DeadLetters = field(default_factory=lambda: DeadLetters(now=lambda: NOW, share_max=1.0))
    refusals: Refusals | None = None
    epoch: int = 0
    state: str = ""
    continuation: str | None = None
    generation: int = 0
    counted: int = 0
    """Dead letters of the batches that became safe."""
    pipeline: str = "pipe"
    partition: str = "a"
    failures: list[Exception] = field(default_factory=list)
    sink: Sink | None = None
    box_of: Callable[[Path], LetterBox] = log_box

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.policy.attempts, self.feed.compare)
        if self.sink is None:
            self.sink = Breaking(self.destination)
            self.sink.failures = self.failures
        self.box = self.box_of(self.path / "letters")
        self.beside = beside(self.sink, self.box, self.policy)

    async def run(self, events: int) -> None:
        """As the next owner, until the sink stands behind so many events, or an error ends it."""
        await self.run_to(str(events))

    async def run_to(self, end: str) -> None:
        self.epoch += 1
        self.state = self.beside.claimed(self.state)
        await self.beside.prepare()
        writer = await self.beside.open(self.claim(self.continuation))
        self.continuation, self.state = writer.position, writer.state  # as a worker does, before anything is sent
        done = asyncio.Event()

        async def told(one: DeliveredBatch) -> None:
            self.continuation, self.state = writer.position, writer.state
            self.counted += one.dead_letters
            if writer.position == end:
                done.set()

        runner = Runner(
            source=Source(self.feed, self.partition, self.epoch),
            transform=self.transform,
            writer=writer,
            permit=Trust(),
            read_ahead=ReadAhead(limits=BatchLimits(events_max=self.events_max), bytes_max=1 << 20, budget=Budget()),
            clock=LoopClock(),
            reporting=Reporting(progress=Progress()),
            delivered=told,
            failing=FailingEvents(letters=self.policy, refusals=self.refusals),
        )
        if writer.position == end:
            done.set()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await runner.run(done)
        finally:
            await writer.close("lost")

    def claim(self, continuation: str | None) -> Claim:
        return Claim(
            pipeline=self.pipeline,
            partition=self.partition,
            owner=f"host-{self.epoch}",
            epoch=self.epoch,
            generation=self.generation,
            continuation=continuation,
            state=self.state,
            compare=self.feed.compare,
        )

    async def run_on(self, events: int) -> int:
        """As a worker does: again, for as long as the sink refuses output and nobody knows whose. How often."""
        runs = 1
        while True:
            try:
                await self.run(events)
            except OutputSuspected:
                runs += 1
            else:
                return runs

    @property
    def delivered(self) -> list[bytes]:
        return [row["body"] for row in self.destination.rows(self.partition)]

    async def letters(self) -> list[StoredLetter]:
        return [kept async for kept in read_kept(self.box, "pipe")]

    async def buried(self) -> list[bytes | None]:
        return [kept.letter.body for kept in await self.letters()]


def bodies(text: str) -> list[bytes]:
    return [word.encode() for word in text.split()]
