"""The target of a request: its partition key, its span, and the ranges that answer."""

from __future__ import annotations

import json
from typing import Any

from leasehold_emulators.cosmos.call import Call
from leasehold_emulators.cosmos.container import Container, Partition
from leasehold_emulators.cosmos.ranges import Span
from leasehold_emulators.cosmos.refused import READ_SESSION_NOT_AVAILABLE, Refused, range_gone


def partition_key(call: Call) -> list[Any] | None:
    header = call.header("x-ms-documentdb-partitionkey")
    if header is None:
        return None
    values = json.loads(header)
    return values if isinstance(values, list) else [values]


def span_of(call: Call) -> Span:
    low, high = call.header("x-ms-start-epk"), call.header("x-ms-end-epk")
    return Span(min=low or "", max=high or "FF") if low is not None or high is not None else Span()


def partitions(container: Container, call: Call) -> list[Partition]:
    """The partitions that a request is for: by range id, by partition key, by span, or all. Raises Refused with 410."""
    if (range_id := call.header("x-ms-documentdb-partitionkeyrangeid")) is not None:
        partition = container.partition(range_id.rpartition(",")[2])
        if not partition.range.span.covers(span_of(call)) and call.header("x-ms-start-epk") is not None:
            raise range_gone(range_id)
        return [partition]
    values = partition_key(call)
    paths = container.definition["partitionKey"]["paths"]
    if values and len(values) == len(paths):
        return [container.partition_of(container.epk(values))]
    return container.overlapping(span_of(call))


def session_headers(container: Container, touched: list[Partition]) -> dict[str, str]:
    token = ",".join(f"{p.range.id}:0#{p.lsn}#1=-1" for p in touched)
    if len(touched) != 1:
        return {"x-ms-session-token": token}
    lsn = str(touched[0].lsn)
    more = {"lsn": lsn, "x-ms-global-committed-lsn": lsn, "x-ms-documentdb-partitionkeyrangeid": touched[0].range.id}
    return {"x-ms-session-token": token, **more}


def check_session(call: Call, touched: list[Partition]) -> None:
    """Raises Refused if the client has seen a later LSN of a range than the partition has."""
    lsns = {partition.range.id: partition.lsn for partition in touched}
    for part in (call.header("x-ms-session-token") or "").split(","):
        range_id, _, token = part.partition(":")
        numbers = token.split("#")
        if range_id in lsns and len(numbers) > 1 and numbers[1].isdigit() and int(numbers[1]) > lsns[range_id]:
            raise Refused(
                404, "The read session is not available for the input session token.", READ_SESSION_NOT_AVAILABLE
            )
