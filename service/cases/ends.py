"""The ends of a case's pipeline: a feed of its events, and a sink that notes what it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, PartitionEnded, Start
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.service.cases.model import Case, CaseEvent

Cut = Callable[[str, int], int]
"""(partition, index) -> how many events the batch that begins there has."""


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
        """There is nothing to close."""


class NotingSink(Sink):
    """A sink around another one: notes positions and dead letters, and checks outputs.

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
    """Wait until the output is delivered, even by a writer that delivers in the background: a disturbance is about one batch."""
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
    found: dict[str, list[CaseEvent]] = {}
    for event in case.events:
        found.setdefault(event.partition, []).append(event)
    return {
        partition: pa.Table.from_pylist([_row(event, n) for n, event in enumerate(events)], schema=EVENT_SCHEMA)
        for partition, events in found.items()
    }


def _row(event: CaseEvent, number: int) -> dict[str, Any]:
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
