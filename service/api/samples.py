"""Samples of what a partition reads and delivers, for people: bounded in number and size, and masked.

A value is masked by its name: of a column, of a property, or of a field at any depth of JSON. Names of secrets are always masked.
If the mask has a name, a body or a binary value is withheld unless it is a JSON object or array: it may contain that field.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, JsonValue

from leasehold.common.nesting import parsed_json
from pipeline.event import Page
from pipeline.ranges import RangedBatch
from pipeline.sink import Output
from service.api.schemas import Model, Moment, Position
from service.texts import MASK, names_a_secret, redacted

VALUE_BYTES_MAX = 64 * 1024
"""A larger value is not shown: parsing it would hold up the loop that renews leases."""
TEXT_CHARS_MAX = 2000
LEVELS_MAX = 50
TEXTS_MAX = 3
"""JSON in a text within JSON in a text. Deeper nesting of either kind is not looked into."""
COLUMNS_MAX = 100
SAMPLE_BYTES_MAX = 64 * 1024
POSITION_CHARS_MAX = 200
BYTES_PER_S = 128 * 1024
QUEUED_BYTES_MAX = 512 * 1024
"""How much waits for a client that reads slowly. Later samples are left out."""
Side = Literal["input", "output"]
SIDES: tuple[Side, ...] = ("input", "output")


# What one row shows. Pure.


class Mask:
    """patterns: names, or patterns like `*phone*`; case does not matter."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(pattern.lower() for pattern in patterns)

    @property
    def is_empty(self) -> bool:
        return not self._patterns

    def hides(self, name: str) -> bool:
        return names_a_secret(name) or any(fnmatchcase(name.lower(), pattern) for pattern in self._patterns)


def values_of(row: pa.Table, mask: Mask) -> dict[str, JsonValue]:
    """row: a table of one row."""
    names = row.column_names[:COLUMNS_MAX]
    shown = {name: _column(name, row[name], mask) for name in names}
    if len(names) < row.num_columns:
        shown["..."] = f"({row.num_columns - len(names)} more columns)"
    return shown


def _column(name: str, column: pa.ChunkedArray, mask: Mask) -> JsonValue:
    if mask.hides(name):
        return MASK
    if column.nbytes > VALUE_BYTES_MAX:
        return f"({column.nbytes:,} bytes: too large to show)"
    value = column[0].as_py()
    if pa.types.is_map(column.type) and value is not None:
        value = dict(value)
    if name == "body" and isinstance(value, str):
        value = value.encode()
    try:
        return _shown(value, mask)
    except ValueError as error:
        return f"(cannot be shown: {type(error).__name__})"


def _shown(value: object, mask: Mask, texts: int = 0) -> JsonValue:
    """texts: how many JSON texts it is within."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return _text(value, mask, texts)
        case bytes():
            return _binary(value, mask)
        case datetime():
            return value.isoformat()
        case Mapping():
            fields = ((str(name), each) for name, each in value.items())
            return {name: MASK if mask.hides(name) else _shown(each, mask, texts) for name, each in fields}
        case list():
            if value and all(isinstance(each, tuple) for each in value):  # a map within a column
                return _shown(dict(value), mask, texts)
            return [_shown(each, mask, texts) for each in value]
        case _:
            return _cut(redacted(str(value)))


def _text(text: str, mask: Mask, texts: int = 0) -> str:
    """JSON in a text is masked as JSON elsewhere. What only looks like JSON is withheld if names are masked."""
    if not text.lstrip().startswith(("{", "[")):
        return _cut(redacted(text))
    parsed = _parsed(text) if texts < TEXTS_MAX else None
    if parsed is not None:
        return _cut(json.dumps(_shown(parsed, mask, texts + 1), ensure_ascii=False, separators=(",", ":")))
    return (
        _cut(redacted(text)) if mask.is_empty else _withheld(len(text.encode()), "not valid JSON, or nested too deep")
    )


def _binary(content: bytes, mask: Mask) -> JsonValue:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"0x{content[: TEXT_CHARS_MAX // 2].hex()}" if mask.is_empty else _withheld(len(content), "not text")
    if text.lstrip().startswith(("{", "[")):
        return _text(text, mask)
    return _cut(redacted(text)) if mask.is_empty else _withheld(len(content), "neither a JSON object nor an array")


def _withheld(size: int, why: str) -> str:
    return f"({size:,} bytes withheld: {why}, so its fields cannot be masked)"


def _parsed(text: str) -> Any:
    """None: it is not JSON."""
    try:
        return parsed_json(text, LEVELS_MAX)
    except ValueError:
        return None


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}... ({len(text):,} characters)"


def _position(position: str | None) -> str | None:
    return position if position is None else position[:POSITION_CHARS_MAX]


# What the client receives: events of these names, with these objects as data.


class TapReady(Model):
    """`ready`: what follows is from now on."""

    host: str = Field(description="The owner, which answers.", examples=["pod-1"])
    epoch: int = Field(description="The lease's.", examples=[4])
    rows_per_s: int = Field(description="The limit on samples a second, of input and output each.", examples=[10])
    seconds: float = Field(description="How long this tap lasts at most.", examples=[60])


class TapInput(Model):
    """`input`: an event that the owner has read."""

    at: Moment
    to: Position = Field(description="The position behind the page of this event; cut if it is long.")
    values: dict[str, Any] = Field(description="Its columns, masked and cut.", examples=[{"body": '{"a":1}'}])


class TapOutput(Model):
    """`output`: a row that was delivered, and is safe."""

    at: Moment
    start: Position = Field(serialization_alias="from", description="Where its batch starts; cut if it is long.")
    to: Position = Field(description="Where its batch ends; cut if it is long.")
    values: dict[str, Any] = Field(description="Its columns, masked and cut.", examples=[{"account": MASK}])


class TapCounts(Model):
    """`left_out`: how many rows were not shown until now, because of the limits or because executors had them."""

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
    """JSON has no line breaks in it."""
    assert isinstance(data, TAP_EVENTS[name]), "each event has its own model"
    return f"event: {name}\ndata: {data.model_dump_json(by_alias=True)}\n\n".encode()


# What is sampled: within limits on rows and bytes a second, from each page and batch evenly.


class Allowance:
    """So much a second, and never more than a second's at once."""

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = now

    def left(self, now: float) -> int:
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        return max(0, int(self._left))

    def spend(self, amount: float) -> None:
        self._left -= amount


def spread(rows: int, most: int) -> Iterator[int]:
    """At most `most` of 0 ... rows - 1, evenly apart, in their order. Pure."""
    count = min(rows, most)
    return (index * rows // count for index in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    sides: tuple[Side, ...] = SIDES
    rows_per_s: Annotated[int, "of each side"] = 10
    rows_max: int = 1000


class Sampler:
    """One client's watcher (pipeline.pump.tap). It renders at once: a reference would keep a whole page in memory."""

    def __init__(
        self, limits: Limits, mask: Mask, *, monotonic: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._limits = limits
        self._mask = mask
        self._monotonic = monotonic
        self._now = now
        start = monotonic()
        self._rows = {side: Allowance(limits.rows_per_s, start) for side in limits.sides}
        self._bytes = Allowance(BYTES_PER_S, start)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._left_out = dict.fromkeys(SIDES, 0)
        self.shown = 0
        self.why_ended: Literal["limit", "lease"] | None = None
        self.changed = asyncio.Event()

    @property
    def left_out(self) -> TapCounts:
        return TapCounts(**self._left_out)

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

    def take(self) -> bytes:
        """All that waits."""
        taken = b"".join(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self.changed.clear()
        if self.why_ended is not None:
            self.changed.set()
        return taken

    def _sample(self, side: Side, table: pa.Table, made: Callable[[dict[str, JsonValue]], Model]) -> None:
        if side not in self._limits.sides or self.why_ended is not None:
            return
        shown = 0
        now = self._monotonic()
        most = min(self._rows[side].left(now), self._limits.rows_max - self.shown)
        for place in spread(table.num_rows, most):
            if self._bytes.left(now) == 0 or self._queued_bytes >= QUEUED_BYTES_MAX:
                break
            self._put(side, table.slice(place, 1), made)
            shown += 1
        self._rows[side].spend(shown)
        self._leave_out(side, table.num_rows - shown)
        if self.shown >= self._limits.rows_max:
            self._end("limit")

    def _put(self, side: Side, row: pa.Table, made: Callable[[dict[str, JsonValue]], Model]) -> None:
        try:
            text = event_text(side, made(values_of(row, self._mask)))
        except Exception as error:  # whatever is wrong with a row must not stop its partition
            text = event_text(side, made({"...": f"(cannot be shown: {type(error).__name__})"}))
        if len(text) > SAMPLE_BYTES_MAX:
            text = event_text(side, made({"...": f"({len(text):,} bytes: too large to show)"}))
        self._queue.append(text)
        self._queued_bytes += len(text)
        self._bytes.spend(len(text))
        self.shown += 1
        self.changed.set()

    def _leave_out(self, side: Side, rows: int) -> None:
        if side in self._limits.sides:
            self._left_out[side] += rows

    def _end(self, why: Literal["limit", "lease"]) -> None:
        self.why_ended = self.why_ended or why
        self.changed.set()
