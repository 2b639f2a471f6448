"""A namespace on disk: each change becomes a row of its journal, and at the start the rows become hubs again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from leasehold_emulators.eventhubs.messages import Numbered
from leasehold_emulators.eventhubs.namespace import Namespace
from leasehold_emulators.eventhubs.partition import Partition, Run
from leasehold_emulators.eventhubs.producers import Producer
from leasehold_emulators.journal import Row


def restore(namespace: Namespace, rows: Iterable[Row]) -> None:
    partitions: dict[str, Partition] = {}
    for row in rows:
        fields = row.fields
        match row.kind:
            case "hub":
                created_ms = fields.pop("created_ms")
                hub = namespace.make_hub(**fields | {"groups": set(fields["groups"])})
                hub.created_ms = created_ms
                partitions |= {partition.owner: partition for partition in hub.partitions}
            case "grow":
                hub = namespace.hubs[row.owner]
                hub.grow(fields["partitions"])
                partitions |= {partition.owner: partition for partition in hub.partitions}
            case "issued":
                namespace.producer_ids = itertools.count(fields["last"] + 1)
            case _:
                _change(partitions[row.owner], row.kind, fields, row.body)


def _change(partition: Partition, kind: str, fields: dict[str, Any], body: bytes) -> None:
    match kind:
        case "events":
            _events(partition, fields, body)
        case "run":
            partition.runs.append(Run(fields["start"], fields["end"], Numbered(*fields["first"])))
        case "trim":
            if not partition.messages:
                partition.first = fields["first"]
            partition.trim(fields["first"])
            partition.size_bytes, partition.last_offset = fields["size"], fields["last_offset"]
            partition.last_time_ms = fields["last_time"]
        case _:  # producer/ID
            recent = tuple((first, last) for first, last in fields["recent"])
            partition.producers[fields["id"]] = Producer(**fields | {"recent": recent})


def _events(partition: Partition, fields: dict[str, Any], body: bytes) -> None:
    if not partition.messages:
        partition.first = fields["first"]
    offset, start = fields["offset"], 0
    for size in fields["sizes"]:
        partition.messages.append(body[start : start + size])
        partition.offsets.append(offset)
        partition.last_offset = offset
        start += size
        offset += size
    partition.times_ms.extend([fields["time"]] * len(fields["sizes"]))
    partition.size_bytes, partition.last_time_ms = offset, fields["time"]
