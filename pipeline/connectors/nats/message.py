"""Events as messages, and messages as events. Pure.

The body is the payload. Properties are headers, if NATS can carry them as they are. The rest is JSON in the header
`hidden.EVENT`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from leasehold.pipeline.connectors import hidden
from leasehold.pipeline.connectors.nats.consumer import StreamMessage
from leasehold.pipeline.event import EVENT_SCHEMA

HEADER_BYTES_MAX = 65_535
"""The most bytes of headers that JetStream stores with a message."""
SERVERS = "Nats-"
"""The beginning of the names of headers that the server reads or adds."""
_NAME = re.compile(r"(?!nats-|leasehold-)[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.IGNORECASE)
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def headers_of(event: Mapping[str, Any]) -> dict[str, str]:
    """event: a row of PUBLISHED_SCHEMA."""
    return hidden.headers_of(event, _is_header)


def _is_header(name: str, value: str) -> bool:
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def size_of(headers: Mapping[str, str]) -> int:
    """The bytes that headers take as they are sent. They are ASCII."""
    return 12 + sum(len(name) + len(value) + 4 for name, value in headers.items())


def table_of(partition: str, messages: Sequence[StreamMessage], *, trusts_headers: bool) -> pa.Table:
    """EVENT_SCHEMA. trusts_headers: whether `hidden.EVENT` is read."""
    rows = [
        {
            "partition": partition,
            "sequence": message.sequence,
            "offset": str(message.sequence),
            "enqueued_time": message.time,
            "body": message.body,
            **hidden.columns_of(message.headers, _is_own, trusts_headers=trusts_headers),
        }
        for message in messages
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _is_own(name: str) -> bool:
    return name.startswith(SERVERS)
