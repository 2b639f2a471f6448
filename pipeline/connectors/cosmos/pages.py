"""Records of the change feed as pages of events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from leasehold.pipeline.connectors.cosmos.ranges import position_behind
from leasehold.pipeline.connectors.cosmos.records import SEQUENCE_BITS, ChangeRecord
from leasehold.pipeline.event import EVENT_SCHEMA, Page


def pages_of(
    partition: str, records: Sequence[ChangeRecord], to: str, *, events_max: int, bytes_max: int
) -> list[Page]:
    """Within the limits, but never cut inside a transaction; the last one ends at `to`, the server's own ETag."""
    pages: list[list[ChangeRecord]] = []
    room = 0
    for _, group in groupby(records, attrgetter("lsn")):
        transaction = list(group)
        size = sum(record.bytes for record in transaction)
        if not pages or size > room or len(pages[-1]) + len(transaction) > events_max:
            pages.append([])
            room = bytes_max
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
