"""A page of the change feed as it came over the wire -> event tables. No waiting, no SDK.

Every document stays as the server wrote it, byte for byte: it is found in the page, not parsed and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from leasehold.common.nesting import NestedTooDeeply, check_nesting
from leasehold.pipeline.connectors.cosmos.json_text import members_of, place_of_value, value_text
from leasehold.pipeline.connectors.cosmos.key_paths import fields_of, value_at
from leasehold.pipeline.connectors.cosmos.ranges import position_behind
from leasehold.pipeline.errors import FeedUnavailable, MalformedRecord
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.limits import JSON_LEVELS_MAX

SEQUENCE_BITS = 20
"""A sequence is LSN * 2**20 + the document's place in its transaction: it grows strictly, and keeps room for 8e12 LSNs."""
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """time_s: when it was written, seconds since 1970. body: None for a deleted document."""

    lsn: int
    time_s: int
    key: str | None
    body: bytes | None
    operation: str
    properties: tuple[tuple[str, str], ...]

    @property
    def bytes(self) -> int:
        return len(self.body or b"") + sum(len(value) for _, value in self.properties)


def records_of(answer: bytes, key_paths: Sequence[str], *, all_versions: bool) -> list[ChangeRecord]:
    """Raises FeedUnavailable if the answer was cut off, and MalformedRecord."""
    try:
        text = answer.decode()
        check_nesting(text, JSON_LEVELS_MAX)
        items = list(members_of(text, place_of_value(text, "Documents")))
    except NestedTooDeeply as error:
        raise MalformedRecord(f"the change feed's answer is {error}, and Cosmos DB's documents are not") from None
    except ValueError as error:
        raise FeedUnavailable(f"the change feed's answer cannot be read ({error}): it was cut off on its way") from None
    record = _version if all_versions else _latest
    return [record(text, start, item, key_paths) for start, item in items]


def _latest(text: str, start: tuple[int, int], item: Any, key_paths: Sequence[str]) -> ChangeRecord:
    lsn, time_s = _numbers(item, "_lsn", "_ts")
    properties = (("id", _whole(str(item.get("id", "")))),)
    return ChangeRecord(lsn, time_s, _key(item, key_paths), text[slice(*start)].encode(), "upsert", properties)


def _version(text: str, start: tuple[int, int], item: Any, key_paths: Sequence[str]) -> ChangeRecord:
    """An item of the all-versions-and-deletes mode: `current`, `metadata`, and `previous` if the container keeps it."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    lsn, time_s = _numbers(metadata, "lsn", "crts")
    assert isinstance(metadata, dict)
    operation = _whole(str(metadata.get("operationType", "replace")))
    current = item.get("current")
    known = current or item.get("previous") or _deleted(metadata)
    properties = [("id", _whole(str(known.get("id", ""))))]
    if metadata.get("timeToLiveExpired") is True:
        properties.append(("timeToLiveExpired", "true"))
    if item.get("previous"):
        properties.append(("previous", value_text(text, start[0], "previous")))
    body = value_text(text, start[0], "current").encode() if current and operation != "delete" else None
    return ChangeRecord(lsn, time_s, _key(known, key_paths), body, operation, tuple(properties))


def _deleted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a delete contains of its document: its id, and the partition key by path."""
    keys = metadata.get("partitionKey")
    document: dict[str, Any] = {"id": metadata.get("id", "")}
    for path, value in keys.items() if isinstance(keys, dict) else ():
        inner = document
        *parents, name = fields_of(str(path)) or ("",)
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return document


def _numbers(item: Any, lsn: str, time: str) -> tuple[int, int]:
    found = [item.get(name) if isinstance(item, dict) else None for name in (lsn, time)]
    if not all(isinstance(number, int) and 0 <= number < 2**43 for number in found):
        raise MalformedRecord(f"a change without `{lsn}` and `{time}` came from the change feed: {str(item)[:200]}")
    return int(found[0] or 0), int(found[1] or 0)


def _key(document: Mapping[str, Any], paths: Sequence[str]) -> str | None:
    """The partition key: a text as it is, anything else as JSON, several as a list."""
    values = [value_at(document, path) for path in paths]
    value = values[0] if len(values) == 1 else values
    if value is None:
        return None
    return _whole(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _whole(text: str) -> str:
    """A text without lone surrogates, which JSON may escape and Arrow's texts cannot hold. The body keeps them as written."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """The limits of one page. A transaction is never cut, and may exceed them."""

    items_max: int = 1000
    bytes_max: int = 4 * 1024 * 1024


def pages_of(partition: str, records: Sequence[ChangeRecord], to: str, limits: PageLimits) -> list[Page]:
    """Within the limits, but never cut inside a transaction; the last one ends at `to`, the server's own ETag."""
    pages: list[list[ChangeRecord]] = []
    room = 0
    for _, group in groupby(records, attrgetter("lsn")):
        transaction = list(group)
        size = sum(record.bytes for record in transaction)
        if not pages or size > room or len(pages[-1]) + len(transaction) > limits.items_max:
            pages.append([])
            room = limits.bytes_max
        pages[-1] += transaction
        room -= size
    return [
        _page(partition, page, to if number == len(pages) else position_behind(page[-1].lsn))
        for number, page in enumerate(pages, 1)
    ]


def _page(partition: str, records: Sequence[ChangeRecord], to: str) -> Page:
    lsns = [record.lsn for record in records]

    def position_after(n: int) -> str | None:
        return position_behind(lsns[n - 1]) if lsns[n - 1] != lsns[n] else None

    return Page(_table(partition, records), to, position_after)


def _table(partition: str, records: Sequence[ChangeRecord]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "partition": [partition] * len(records),
        "sequence": [
            (lsn << SEQUENCE_BITS) + place
            for lsn, group in groupby(records, attrgetter("lsn"))
            for place, _ in enumerate(group)
        ],
        "offset": [str(record.lsn) for record in records],
        "enqueued_time": [record.time_s * 1_000_000 for record in records],
        "key": [record.key for record in records],
        "body": [record.body for record in records],
        "properties": [record.properties for record in records],
        "operation": [record.operation for record in records],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in EVENT_SCHEMA], EVENT_SCHEMA)
