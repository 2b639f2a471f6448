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


class UnreadableMessage(Exception):
    """A message that cannot become an event."""


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
    """EVENT_SCHEMA. Raises UnreadableMessage, FeedError."""
    rows = [_row_of(partition, message, trusts_headers=trusts_headers) for message in messages]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _row_of(partition: str, message: pulsar.Message, *, trusts_headers: bool) -> dict[str, Any]:
    place = place_in(message)
    if is_in_chunks(message):
        raise UnreadableMessage(f"the event at {place} is in chunks, and a restart could lose it")
    if message.encryption_context() is not None:
        raise UnreadableMessage(f"the event at {place} is encrypted, and the feed has no keys")
    try:
        return {
            "partition": partition,
            "sequence": place.sequence,
            "offset": str(place),
            "enqueued_time": time_of(message),
            "key": message.partition_key() or None,
            "body": None if message.has_null_value() else message.data(),
            **hidden.columns_of(message.properties(), _is_own, trusts_headers=trusts_headers),
        }
    except UnicodeDecodeError as error:
        raise UnreadableMessage(
            f"the event at {place} has a key or a property that is not UTF-8 text ({error.reason})"
        ) from None
    except OverflowError:
        raise UnreadableMessage(f"the event at {place} has a time after the year 9999") from None


def _is_own(name: str) -> bool:
    return name.startswith(PREFIX)
