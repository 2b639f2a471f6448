"""The start of a receiver, parsed from the selector of its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from leasehold_emulators.eventhubs.values import Described

FILTER = "apache.org:selector-filter:string"
SELECTOR = re.compile(r"\s*amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=?)\s*'([^']*)'\s*")
BY: dict[str, Literal["offset", "number", "time"]] = {
    "offset": "offset",
    "sequence-number": "number",
    "enqueued-time": "time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """value: for `time`, in milliseconds; `latest` ignores it."""

    by: Literal["offset", "number", "time", "latest"]
    value: int = 0
    is_inclusive: bool = False


EARLIEST = Position(by="offset", value=-1)
LATEST = Position(by="latest")


def position(selector: str) -> Position:
    """Raises ValueError for anything but a selector of Event Hubs."""
    found = SELECTOR.fullmatch(selector)
    if not found:
        raise ValueError(f"{selector!r} is not a filter on offset, sequence number or enqueued time")
    by, compared, value = found.groups()
    if value == "@latest":
        return LATEST
    return Position(by=BY[by], value=int(value), is_inclusive=compared == ">=")


def begin(filters: Any) -> Position:
    """The position that the filters of a source give, otherwise the earliest. Raises ValueError."""
    for name, described in (filters or {}).items():
        value = described.value if isinstance(described, Described) else described
        if name == FILTER and value is not None:
            return position(value.decode() if isinstance(value, bytes) else value)
    return EARLIEST
