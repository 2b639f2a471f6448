"""Samples of what a partition reads and delivers, for people: bounded in number and size.

The few rows to show are chosen and copied in the loop. A thread (rendering) parses, masks (masking) and writes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, JsonValue

from leasehold.pipeline.event import Page
from leasehold.pipeline.ranges import RangedBatch
from leasehold.pipeline.sink import Output
from leasehold.service.api.masking import ROW_BYTES_MAX, Mask, ShownRow, copied, failed, values_of
from leasehold.service.api.rendering import Allowance, Renderer
from leasehold.service.api.schemas import Model, Position
from leasehold.service.group.work import Moment
from leasehold.service.texts import MASK

PARSED_BYTES_PER_S = 64 * 1024
"""How much each side of a tap may parse, so that no tap uses up what its host may parse (rendering)."""
SAMPLE_BYTES_MAX = 64 * 1024
POSITION_CHARS_MAX = 200
BYTES_PER_S = 128 * 1024
QUEUED_BYTES_MAX = 512 * 1024
"""How much waits for a client that reads slowly. Later samples are left out."""
Made = Callable[[dict[str, JsonValue]], Model]
Side = Literal["input", "output"]
SIDES: tuple[Side, ...] = ("input", "output")


def _position(position: str | None) -> str | None:
    return position if position is None else position[:POSITION_CHARS_MAX]


# What the client receives: events with these names, and these objects as data.


class TapReady(Model):
    """`ready`: the tap shows only what is read or delivered after this event."""

    host: str = Field(description="The owner, which answers.", examples=["pod-1"])
    epoch: int = Field(description="The lease's epoch.", examples=[4])
    rows_per_s: int = Field(description="The limit on samples a second, of input and output each.", examples=[10])
    seconds: float = Field(description="How long this tap lasts at most.", examples=[60])


class TapInput(Model):
    """`input`: an event that the owner has read."""

    at: Moment
    to: Position = Field(description="The position after the page of this event; cut if it is long.")
    values: dict[str, Any] = Field(description="Its columns, masked and cut.", examples=[{"body": '{"a":1}'}])


class TapOutput(Model):
    """`output`: a row that was delivered, and is safe."""

    at: Moment
    start: Position = Field(serialization_alias="from", description="Where its batch starts; cut if it is long.")
    to: Position = Field(description="Where its batch ends; cut if it is long.")
    values: dict[str, Any] = Field(description="Its columns, masked and cut.", examples=[{"account": MASK}])


class TapCounts(Model):
    """`left_out`: how many rows have not been shown so far, because of the limits or because executors had them."""

    input: int = Field(examples=[9990])
    output: int = Field(examples=[0])


class TapEnd(Model):
    """`end`: the last event."""

    why: str = Field(description="`limit`, `time`, or `lease`: the host gave the lease up.", examples=["limit"])
    shown: int = Field(description="How many rows were shown.", examples=[100])


TAP_EVENTS: Mapping[str, type[Model]] = {
    "ready": TapReady,
    "input": TapInput,
    "output": TapOutput,
    "left_out": TapCounts,
    "end": TapEnd,
}


def event_text(name: str, data: Model) -> bytes:
    """One server-sent event. Its JSON contains no line breaks."""
    assert isinstance(data, TAP_EVENTS[name]), "each event has its own model"
    return f"event: {name}\ndata: {data.model_dump_json(by_alias=True)}\n\n".encode()


# What is sampled: rows evenly from each page and batch, within limits on rows and bytes a second.


def spread(rows: int, most: int) -> Iterator[int]:
    """At most `most` of 0 ... rows - 1, evenly spaced, ascending. Pure."""
    count = min(rows, most)
    return (index * rows // count for index in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    sides: tuple[Side, ...] = SIDES
    rows_per_s: Annotated[int, "of each side"] = 10
    rows_max: int = 1000


class Sampler:
    """Watches a partition for one client (leasehold.pipeline.pump.tap)."""

    def __init__(
        self,
        limits: Limits,
        mask: Mask,
        renderer: Renderer,
        *,
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._limits = limits
        self._mask = mask
        self._renderer = renderer
        self._monotonic = monotonic
        self._now = now
        start = monotonic()
        self._rows = {side: Allowance(limits.rows_per_s, start) for side in limits.sides}
        self._parsed = {side: Allowance(PARSED_BYTES_PER_S, start) for side in limits.sides}
        self._bytes = Allowance(BYTES_PER_S, start)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._rendering = dict.fromkeys(SIDES, 0)
        self._left_out = dict.fromkeys(SIDES, 0)
        self._is_closed = False
        self._ending: Literal["limit", "lease"] | None = None
        self.shown = 0
        self.why_ended: Literal["limit", "lease"] | None = None
        self.changed = asyncio.Event()

    @property
    def left_out(self) -> TapCounts:
        return TapCounts(**self._left_out)

    @property
    def rendering(self) -> int:
        """How many rows are being rendered."""
        return sum(self._rendering.values())

    def see_page(self, page: Page) -> None:
        at, to = self._now(), _position(page.to)
        self._sample("input", page.events, lambda values: TapInput(at=at, to=to, values=values))

    def see_ranges(self, batch: RangedBatch) -> None:
        self._leave_out("input", batch.events)

    def see_output(self, output: Output) -> None:
        at, start, to = self._now(), _position(output.start), _position(output.to)
        self._leave_out("output", output.rows - output.table.num_rows)
        self._sample("output", output.table, lambda values: TapOutput(at=at, start=start, to=to, values=values))

    def see_end(self) -> None:
        self._end("lease")

    def close(self) -> None:
        """End the sampling. Rows that are still being rendered count as left out."""
        self._is_closed = True
        for side, rows in self._rendering.items():
            self._leave_out(side, rows)
        self._rendering = dict.fromkeys(SIDES, 0)

    def take(self) -> bytes:
        """Take everything that waits for the client."""
        taken = b"".join(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self.changed.clear()
        if self.why_ended is not None:
            self.changed.set()
        return taken

    def _sample(self, side: Side, table: pa.Table, made: Made) -> None:
        if side not in self._limits.sides or self._ending is not None or self._is_closed:
            return
        rows = self._choose(side, table)
        self._rows[side].spend(len(rows))
        self._leave_out(side, table.num_rows - len(rows))
        if rows:
            self._rendering[side] += len(rows)
            work = partial(_texts, rows, self._mask, side, made)
            self._renderer.render(work, partial(self._put, side), sum(row.cost for row in rows))

    def _choose(self, side: Side, table: pa.Table) -> list[ShownRow]:
        """Copy rows, evenly from the table, as many as the limits permit."""
        now, parsed = self._monotonic(), self._parsed[side]
        most = min(self._rows[side].left(now), self._limits.rows_max - self.shown - self.rendering)
        if most > 0 and table.num_rows > 0:
            most = min(most, 1 + parsed.left(now) // min(ROW_BYTES_MAX, 1 + table.nbytes // table.num_rows))
        rows = []
        for place in spread(table.num_rows, most):
            if parsed.left(now) == 0 or self._queued_bytes >= QUEUED_BYTES_MAX or not self._renderer.has_room():
                break
            row = _copied(table, place, self._mask)
            parsed.spend(row.cost)
            self._renderer.spend(row.cost)
            rows.append(row)
        return rows

    def _put(self, side: Side, texts: Sequence[bytes]) -> None:
        """Put rendered rows into the client's queue."""
        if self._is_closed:
            return
        self._rendering[side] -= len(texts)
        now = self._monotonic()
        for text in texts:
            if self._bytes.left(now) == 0 or self._queued_bytes >= QUEUED_BYTES_MAX:
                self._leave_out(side, 1)
                continue
            self._queue.append(text)
            self._queued_bytes += len(text)
            self._bytes.spend(len(text))
            self.shown += 1
            self.changed.set()
        if self.shown >= self._limits.rows_max:
            self._end("limit")
        elif self._ending is not None:
            self._end(self._ending)

    def _leave_out(self, side: Side, rows: int) -> None:
        if side in self._limits.sides:
            self._left_out[side] += rows

    def _end(self, why: Literal["limit", "lease"]) -> None:
        """End the tap once no row is being rendered any longer."""
        self._ending = self._ending or why
        if self.rendering == 0:
            self.why_ended = self._ending
            self.changed.set()


def _copied(table: pa.Table, place: int, mask: Mask) -> ShownRow:
    """Copy a row. Raises nothing: whatever is wrong with a row must not stop its partition."""
    try:
        return copied(table, place, mask)
    except Exception as error:
        return failed(error)


def _texts(rows: Sequence[ShownRow], mask: Mask, side: Side, made: Made) -> list[bytes]:
    """Render rows. Raises nothing, like _copied."""
    return [_rendered(row, mask, side, made) for row in rows]


def _rendered(row: ShownRow, mask: Mask, side: Side, made: Made) -> bytes:
    try:
        text = event_text(side, made(values_of(row, mask)))
    except Exception as error:
        text = event_text(side, made({"...": f"(cannot be shown: {type(error).__name__})"}))
    if len(text) > SAMPLE_BYTES_MAX:
        text = event_text(side, made({"...": f"({len(text):,} bytes: too large to show)"}))
    return text
