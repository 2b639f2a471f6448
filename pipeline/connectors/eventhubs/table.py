"""Events -> pages of the event table, within the limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.connectors.eventhubs.message import Event
from pipeline.connectors.eventhubs.position import Position
from pipeline.event import EVENT_SCHEMA, Page

_TYPES = {field.name: field.type for field in EVENT_SCHEMA}
_NONE = pa.array([], pa.string())
"""Made with the module: an array that is made of a list imports pandas, a second for which the first event would wait."""


def pages_of(partition: str, events: Sequence[Event], *, events_max: int, bytes_max: int) -> list[Page]:
    """As few as the limits allow; an event larger than a page has one to itself."""
    if not events:
        return []
    table = _table(partition, events)
    return [_page(table.slice(begin, end - begin)) for begin, end in _cuts(events, events_max, bytes_max)]


def _cuts(events: Sequence[Event], events_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    begin = held = 0
    for at, event in enumerate(events):
        size = len(event.body or b"")
        if at > begin and (held + size > bytes_max or at - begin == events_max):
            yield begin, at
            begin, held = at, 0
        held += size
    yield begin, len(events)


def _page(events: pa.Table) -> Page:
    sequences, offsets = events["sequence"], events["offset"]

    def position_after(n: int) -> str:
        return str(Position(sequences[n - 1].as_py(), offsets[n - 1].as_py()))

    return Page(events, position_after(events.num_rows), position_after)


def _table(partition: str, events: Sequence[Event]) -> pa.Table:
    sequences, offsets, times_ms, keys, bodies, properties, operations = zip(*events, strict=True)
    count = len(events)
    columns = {
        "partition": pa.repeat(pa.scalar(partition, _TYPES["partition"]), count),
        "sequence": pa.array(sequences, _TYPES["sequence"]),
        "offset": pa.array(offsets, _TYPES["offset"]),
        "enqueued_time": pc.multiply_checked(pa.array(times_ms, pa.int64()), 1000).cast(_TYPES["enqueued_time"]),
        "key": pa.array(keys, _TYPES["key"]),
        "body": pa.array(bodies, _TYPES["body"]),
        "properties": _properties(properties),
        "operation": pa.array(operations, _TYPES["operation"]),
    }
    return pa.table([columns[field.name] for field in EVENT_SCHEMA], EVENT_SCHEMA)


def _properties(properties: Sequence[object]) -> pa.Array:
    if any(properties):
        return pa.array(properties, _TYPES["properties"])
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(properties) + 1), _NONE, _NONE)
