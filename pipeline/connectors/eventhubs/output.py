"""A batch's output as events of a hub: encoded, each with the batch's marker and its place in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.connectors.eventhubs.encoding import PROPERTIES as SECTION
from pipeline.connectors.eventhubs.encoding import amqp_map, constant_pairs, data, string_pairs, text
from pipeline.markers import PREFIX, Marker

KEY, OPERATION = PREFIX + "key", PREFIX + "operation"
"""Where an event's key and operation go: a partition key would route it, and idempotent publishing goes to a partition."""


def bodies_of(events: pa.Table, marker: Marker) -> list[bytes]:
    """events: PUBLISHED_SCHEMA, as many as the marker counts. As `encoding.body_of` does it, column by column."""
    marked = constant_pairs(marker.properties()) + text(PREFIX + "index")
    own = 2 * (len(marker.properties()) + 1)
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
    """The property that a column becomes, for each event; empty where it is null."""
    values = events[column]
    if values.null_count == len(values):
        return [b""] * len(values)
    name = text(KEY if column == "key" else OPERATION)
    return [b"" if value is None else name + text(value) for value in values.to_pylist()]
