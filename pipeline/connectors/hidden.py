"""Parts of an event for which a broker's message has no field, as JSON in one header, EVENT. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from leasehold.common.nesting import parsed_json

EVENT = "leasehold-event"
"""JSON, in ASCII, of an event's key, operation, null body, and the properties that cannot be headers."""
LEVELS_MAX = 2


def headers_of(
    event: Mapping[str, Any], is_header: Callable[[str, str], bool], columns: tuple[str, ...] = ("key", "operation")
) -> dict[str, str]:
    """event: a row of PUBLISHED_SCHEMA. is_header: whether a property may be one. columns: those without a field of their own."""
    properties: list[tuple[str, str | None]] = event["properties"] or []
    headers = {name: value for name, value in properties if value is not None and is_header(name, value)}
    hidden: dict[str, Any] = {name: event[name] for name in columns if event[name] is not None}
    rest = {name: value for name, value in properties if name not in headers}
    if rest or (event["properties"] is not None and not headers):
        hidden["properties"] = rest
    if event["body"] is None:
        hidden["body"] = None
    return {**headers, EVENT: json.dumps(hidden)} if hidden else headers


def columns_of(headers: Mapping[str, str], is_own: Callable[[str], bool], *, trusts_headers: bool) -> dict[str, Any]:
    """An event's properties; if headers are trusted, also what EVENT has. is_own: whether a header is not a property."""
    hidden = _hidden(headers, is_own) if trusts_headers else None
    return {"properties": _plain(headers, is_own)} if hidden is None else hidden


def _hidden(headers: Mapping[str, str], is_own: Callable[[str], bool]) -> dict[str, Any] | None:
    """The columns in EVENT; None if no sink has written it."""
    try:
        hidden = parsed_json(headers.get(EVENT, ""), LEVELS_MAX)
        rest = hidden.get("properties")
        for text in (hidden.get("key"), hidden.get("operation"), *([] if rest is None else (*rest, *rest.values()))):
            if text is not None:
                text.encode()
    except (ValueError, AttributeError):  # not JSON of that shape, or texts with lone surrogates
        return None
    plain = _plain({name: value for name, value in headers.items() if name != EVENT}, is_own)
    return {
        **({"key": hidden["key"]} if "key" in hidden else {}),
        "operation": hidden.get("operation"),
        "properties": plain if rest is None else [*(plain or ()), *rest.items()],
        **({"body": None} if "body" in hidden else {}),
    }


def _plain(headers: Mapping[str, str], is_own: Callable[[str], bool]) -> list[tuple[str, str]] | None:
    return [pair for pair in headers.items() if not is_own(pair[0])] or None
