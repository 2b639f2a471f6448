"""Events -> pages of the event table, within the limits. Pure.

Columns are made of their buffers: pyarrow's way from a list or a scalar imports pandas first, a second for which the first event,
or any command that knows of this connector, would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.connectors.eventhubs.amqp.decode import Event
from pipeline.connectors.eventhubs.position import Position
from pipeline.event import EVENT_SCHEMA, Page

_TIME = EVENT_SCHEMA.field("enqueued_time").type


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
    columns = {
        "partition": repeated(partition, len(events)),
        "sequence": whole_numbers(sequences),
        "offset": octets(offsets).view(pa.string()),
        "enqueued_time": whole_numbers([time_ms * 1000 for time_ms in times_ms]).view(_TIME),
        "key": texts(keys),
        "body": octets(bodies),
        "properties": maps(properties),
        "operation": texts(operations),
    }
    return pa.table([columns[field.name] for field in EVENT_SCHEMA], EVENT_SCHEMA)


def repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])


def whole_numbers(values: Sequence[int]) -> pa.Array:
    """Of 64 bits. Raises OverflowError."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.fromiter(values, np.int64, len(values)))]
    )


def octets(values: Sequence[bytes | None]) -> pa.Array:
    try:
        joined = b"".join(values)  # type: ignore[arg-type]  # a null is told by the error
    except TypeError:
        return _with_nulls(pa.binary(), values, b"", octets)
    return _joined(pa.binary(), map(len, values), len(values), joined)  # type: ignore[arg-type]


def texts(values: Sequence[str | None]) -> pa.Array:
    try:
        joined = "".join(values)  # type: ignore[arg-type]  # a null is told by the error
    except TypeError:
        return _with_nulls(pa.string(), values, "", texts)
    whole: Sequence[str] = values  # type: ignore[assignment]  # or it could not be joined
    lengths = map(len, whole) if joined.isascii() else (len(text.encode()) for text in whole)
    return _joined(pa.string(), lengths, len(whole), joined.encode())


def maps(values: Sequence[Sequence[tuple[str, str | None]]]) -> pa.Array:
    """From texts to texts."""
    pairs = list(chain.from_iterable(values))
    names, items = zip(*pairs, strict=True) if pairs else ((), ())
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, _ends(map(len, values), len(values))])
    return pa.MapArray.from_arrays(ends, texts(names), texts(items))


def _joined(kind: pa.DataType, lengths: Iterable[int], count: int, joined: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, _ends(lengths, count), pa.py_buffer(joined)])


def _with_nulls(
    kind: pa.DataType, values: Sequence[Any], empty: Any, of: Callable[[Sequence[Any]], pa.Array]
) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    filled = of([empty if value is None else value for value in values])
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, *filled.buffers()[1:]])


def _ends(lengths: Iterable[int], count: int) -> pa.Buffer:
    """Where each begins, and the last one ends."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int32, count), out=ends[1:])
    return pa.py_buffer(ends)
