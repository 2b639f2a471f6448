"""Events as messages: the body is the payload, the rest a header of ours. Others' headers are read as properties. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from leasehold import EVENT_SCHEMA
from leasehold.pipeline.connectors.nats.consumer import Message

EVENT = "Leasehold-Event"
"""JSON of key, operation and properties: names and values of headers could not be anything."""
LEVELS_MAX = 2
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def parsed(text: str) -> Any:
    """JSON of ours, which nests at most twice: Python's parser would follow any depth. Raises ValueError."""
    plain = _STRING.sub("", text)
    if plain.count("{") + plain.count("[") > LEVELS_MAX:
        raise ValueError(f"nested more than {LEVELS_MAX} levels deep")
    return json.loads(text)


def headers_of(event: Mapping[str, Any]) -> dict[str, str]:
    """event: a row of leasehold.PUBLISHED_SCHEMA."""
    told = {name: event[name] for name in ("key", "operation") if event[name] is not None}
    if event["properties"] is not None:
        told["properties"] = dict(event["properties"])
    return {EVENT: json.dumps(told)} if told else {}


def table_of(partition: str, messages: Sequence[Message]) -> pa.Table:
    rows = [
        {
            "partition": partition,
            "sequence": message.sequence,
            "offset": str(message.sequence),
            "enqueued_time": message.time,
            "body": message.body,
            **_told(message.headers),
        }
        for message in messages
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def _told(headers: Mapping[str, str]) -> dict[str, Any]:
    """What a sink of ours says of an event; of any other message its headers."""
    try:
        told = parsed(headers.get(EVENT, ""))
        properties = told.get("properties")
        texts = [told.get("key"), told.get("operation"), *([] if properties is None else properties.values())]
    except (ValueError, AttributeError):
        return _plain(headers)
    if not all(text is None or isinstance(text, str) for text in texts):
        return _plain(headers)
    return {
        "key": told.get("key"),
        "operation": told.get("operation"),
        "properties": None if properties is None else list(properties.items()),
    }


def _plain(headers: Mapping[str, str]) -> dict[str, Any]:
    """Without those that speak to the server."""
    return {"properties": [pair for pair in headers.items() if not pair[0].startswith("Nats-")] or None}
