"""Events -> pages of the event table, within the limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.connectors.eventhubs.amqp.decode import Event
from pipeline.connectors.eventhubs.feed.arrow_columns import maps, octets, repeated, texts, whole_numbers
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
