"""A batch's output as events of a hub: encoded, each with the batch's marker and its index in the batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.connectors.eventhubs.amqp.decode import KEY, OPERATION
from leasehold.pipeline.connectors.eventhubs.amqp.encode import (
    ENVELOPE_KEY_BYTES,
    MARKS_BYTES_MAX,
    SECTION_BYTES,
    amqp_map,
    constant_pairs,
    data,
    string_pairs,
    text,
)
from leasehold.pipeline.connectors.eventhubs.amqp.encode import PROPERTIES as SECTION
from leasehold.pipeline.markers import PREFIX, Marker
from leasehold.pipeline.publishing_writer import traced
from leasehold.pipeline.tracing import AZURE_ID, TraceContext

PAIR_BYTES = 10
"""The most bytes that a property takes in addition to its name and value."""
EVENT_BYTES = 110
"""The most bytes that the rest of an event takes: sections and their sizes, its index, the names of key and operation."""


def bodies_of(events: pa.Table, marker: Marker, trace: TraceContext | None = None) -> list[bytes]:
    """events: PUBLISHED_SCHEMA, as many as the marker counts. Encodes as `encode.body_of` does, but column by column."""
    if trace is not None:
        events = traced(events, {})
    constant = marker.properties() | properties_of(trace)
    marked = constant_pairs(constant) + text(PREFIX + "index")
    own = 2 * (len(constant) + 1)
    keys, operations = _pairs(events, "key"), _pairs(events, "operation")
    pairs = zip(events["body"].to_pylist(), events["properties"].to_pylist(), keys, operations, strict=True)
    return [
        SECTION
        + amqp_map(
            b"".join((marked, text(str(index)), key, operation, *string_pairs(properties or ()))),
            own + 2 * (bool(key) + bool(operation) + len(properties or ())),
        )
        + data(body or b"")
        for index, (body, properties, key, operation) in enumerate(pairs)
    ]


def _pairs(events: pa.Table, column: str) -> Sequence[bytes]:
    """The property that a column becomes, for each event; empty if it is null."""
    values = events[column]
    if values.null_count == len(values):
        return [b""] * len(values)
    name = text(KEY if column == "key" else OPERATION)
    return [b"" if value is None else name + text(value) for value in values.to_pylist()]


def properties_of(trace: TraceContext | None) -> dict[str, str]:
    """A trace's properties, under the name that Azure's SDKs read and under the standard ones."""
    return {} if trace is None else {AZURE_ID: trace.parent, **trace.properties}


def size_max(table: pa.Table, marker: Marker, trace: TraceContext | None = None) -> int:
    """The most that the table's events can take in a batch, before anything is encoded."""
    constant = marker.properties() | properties_of(trace)
    marks = sum(len(name) + len(value) + PAIR_BYTES for name, value in constant.items())
    fixed = marks + MARKS_BYTES_MAX + SECTION_BYTES + EVENT_BYTES
    texts: int = sum(_text_bytes(table[name]) for name in ("body", "key", "operation") if name in table.column_names)
    return int(ENVELOPE_KEY_BYTES + table.num_rows * fixed + texts + _map_bytes(table))


def _map_bytes(table: pa.Table) -> int:
    if "properties" not in table.column_names or not pa.types.is_map(table["properties"].type):
        return 0
    return sum(_pairs_bytes(chunk) for chunk in table["properties"].chunks)


def _pairs_bytes(maps: pa.MapArray) -> int:
    """For a slice, only the slice counts."""
    first, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    texts = sum(_text_bytes(pa.chunked_array([side.slice(first, end - first)])) for side in (maps.keys, maps.items))
    return texts + PAIR_BYTES * int(end - first)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """The bytes as UTF-8; for a type that is not published, which is refused separately, the bytes in memory."""
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return int(pc.sum(pc.binary_length(column)).as_py() or 0) if is_text or is_bytes else int(column.nbytes)
