"""Events as messages, and messages as events. Pure.

The body is the payload, the key is the partition key, and properties are properties. The rest is JSON in the property
`hidden.EVENT`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pulsar
import pyarrow as pa

from leasehold.pipeline.connectors import hidden
from leasehold.pipeline.connectors.pulsar.broker import is_in_chunks, place_in
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.markers import PREFIX

MARKER_BYTES = 1000
"""The most bytes that a batch's marker adds, apart from two positions."""
MESSAGE_BYTES = 64
"""The most bytes that a message adds to its payload, key and properties."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ChunkedMessage(Exception):
    """Messages whose chunks overlap would need positions that no client of Python gives."""


class OutgoingMessage(NamedTuple):
    body: bytes | None
    key: str | None
    properties: dict[str, str]


def outgoing_of(row: Mapping[str, Any]) -> OutgoingMessage:
    """row: of PUBLISHED_SCHEMA. Pulsar has no empty keys."""
    columns = ("operation",) if row["key"] else ("key", "operation")
    return OutgoingMessage(
        row["body"], row["key"] or None, hidden.headers_of(row, lambda name, _: not _is_own(name), columns)
    )


def size_of(message: OutgoingMessage) -> int:
    """An estimate in bytes, never too small."""
    pairs = sum(len(name.encode()) + len(value.encode()) + 8 for name, value in message.properties.items())
    return MESSAGE_BYTES + len(message.body or b"") + len((message.key or "").encode()) + pairs


def time_of(message: pulsar.Message) -> datetime:
    return _EPOCH + timedelta(milliseconds=message.publish_timestamp())


def table_of(partition: str, messages: Sequence[pulsar.Message], *, trusts_headers: bool) -> pa.Table:
    """EVENT_SCHEMA. Raises UnicodeDecodeError, ChunkedMessage, FeedError."""
    rows = []
    for message in messages:
        if is_in_chunks(message):
            raise ChunkedMessage(
                "is split into chunks, and a restart would lose it if another message lies between them"
            )
        place = place_in(message)
        rows.append(
            {
                "partition": partition,
                "sequence": place.sequence,
                "offset": str(place),
                "enqueued_time": time_of(message),
                "key": message.partition_key() or None,
                "body": None if message.has_null_value() else message.data(),
                **hidden.columns_of(message.properties(), _is_own, trusts_headers=trusts_headers),
            }
        )
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _is_own(name: str) -> bool:
    return name.startswith(PREFIX)
