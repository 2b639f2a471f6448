"""Events as messages, and messages as events. Pure.

The body is the payload. Properties are headers, if NATS can carry them as they are. The rest is JSON in one header of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.nats.consumer import StreamMessage
from leasehold.pipeline.event import EVENT_SCHEMA

EVENT = "leasehold-event"
"""JSON, in ASCII, of an event's key, operation, null body, and the properties that cannot be headers."""
HEADER_BYTES_MAX = 65_535
"""What JetStream stores as a message's headers."""
SERVERS = "Nats-"
"""The beginning of headers for the server, and from it."""
LEVELS_MAX = 2
_NAME = re.compile(r"(?!nats-|leasehold-)[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.IGNORECASE)
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def headers_of(event: Mapping[str, Any]) -> dict[str, str]:
    """event: a row of PUBLISHED_SCHEMA."""
    properties: list[tuple[str, str | None]] = event["properties"] or []
    headers = {name: value for name, value in properties if value is not None and _is_header(name, value)}
    hidden: dict[str, Any] = {name: event[name] for name in ("key", "operation") if event[name] is not None}
    rest = {name: value for name, value in properties if name not in headers}
    if rest or (event["properties"] is not None and not headers):
        hidden["properties"] = rest
    if event["body"] is None:
        hidden["body"] = None
    return {**headers, EVENT: json.dumps(hidden)} if hidden else headers


def _is_header(name: str, value: str) -> bool:
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def size_of(headers: Mapping[str, str]) -> int:
    """In bytes, as they are sent. They are ASCII."""
    return 12 + sum(len(name) + len(value) + 4 for name, value in headers.items())


def table_of(partition: str, messages: Sequence[StreamMessage], *, trusts_headers: bool) -> pa.Table:
    """EVENT_SCHEMA. trusts_headers: whether EVENT is read."""
    rows = [
        {
            "partition": partition,
            "sequence": message.sequence,
            "offset": str(message.sequence),
            "enqueued_time": message.time,
            "body": message.body,
            **((_hidden(message.headers) if trusts_headers else None) or _plain(message.headers)),
        }
        for message in messages
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _hidden(headers: Mapping[str, str]) -> dict[str, Any] | None:
    """With what the sink `nats` put into EVENT; None if it put nothing there."""
    try:
        hidden = parsed_json(headers.get(EVENT, ""), LEVELS_MAX)
        rest = hidden.get("properties")
        texts = [hidden.get("key"), hidden.get("operation"), *([] if rest is None else rest.values())]
    except (ValueError, AttributeError):
        return None
    if not all(text is None or isinstance(text, str) for text in texts):
        return None
    plain = _plain({name: value for name, value in headers.items() if name != EVENT})["properties"]
    return {
        "key": hidden.get("key"),
        "operation": hidden.get("operation"),
        "properties": plain if rest is None else [*(plain or ()), *rest.items()],
        **({"body": None} if "body" in hidden else {}),
    }


def _plain(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"properties": [pair for pair in headers.items() if not pair[0].startswith(SERVERS)] or None}
