"""Queries over documents, lists of documents, and query plans. Databases and containers are listed in the same way."""

from __future__ import annotations

import json
from typing import Any

from leasehold_emulators.cosmos.call import Call, Reply, listed
from leasehold_emulators.cosmos.container import Container, Partition
from leasehold_emulators.cosmos.query import Row, needs_plan, not_servable, plan, run
from leasehold_emulators.cosmos.refused import bad
from leasehold_emulators.cosmos.sql import parsed
from leasehold_emulators.cosmos.where import check_session, partition_key, partitions, session_headers, span_of


def answer(container: Container, call: Call) -> Reply:
    """Raises Refused."""
    if call.kind == "documents.plan":
        return Reply(content=plan(parsed(_statement(call)[0])))
    text, parameters = _statement(call) if call.kind == "documents.query" else ("SELECT * FROM c", {})
    query = parsed(text)
    touched = partitions(container, call)
    check_session(call, touched)
    is_crossing = len(touched) > 1 and call.kind == "documents.query"
    if is_crossing and not call.is_set("x-ms-documentdb-query-enablecrosspartition"):
        raise bad("Cross partition query is required but disabled. Please set the header to enable it.")
    is_whole = call.header("x-ms-documentdb-partitionkeyrangeid") is None and not partition_key(call)
    if call.kind == "documents.query" and is_whole and needs_plan(query):  # even if the container has one range
        raise not_servable()
    if partition_key(call) == [] and len(container.definition["partitionKey"]["paths"]) > 1:
        raise bad("The partition key has no values.")
    rows = _rows(container, call, touched)
    results = run(query, parameters, rows, call.limit, call.header("x-ms-continuation"))
    headers = session_headers(container, touched) | {"x-ms-item-count": str(len(results.items))}
    if results.continuation:
        headers["x-ms-continuation"] = results.continuation
    range_id = touched[0].range.id if len(touched) == 1 else None
    content = listed("Documents", container.rid, results.items)
    return Reply(content=content, headers=headers, documents=results.rows_read, range_id=range_id)


def _rows(container: Container, call: Call, touched: list[Partition]) -> list[Row]:
    values, span = partition_key(call), span_of(call)
    only = json.dumps(values) if values and len(values) == len(container.definition["partitionKey"]["paths"]) else None
    found = (
        Row(number=change.number, document=change.body)
        for partition in touched
        for change in partition.documents.values()
        if change.body is not None and span.holds(change.epk) and only in (None, change.key.partition_key)
    )
    return sorted(found, key=lambda row: row.number)


def plain_query(call: Call, name: str, rid: str, resources: list[dict[str, Any]]) -> Reply:
    """Databases or containers, listed or queried."""
    text, parameters = _statement(call) if call.method == "POST" else ("SELECT * FROM c", {})
    rows = [Row(number=number, document=resource) for number, resource in enumerate(resources, start=1)]
    results = run(parsed(text), parameters, rows, call.limit, call.header("x-ms-continuation"))
    more = {"x-ms-continuation": results.continuation} if results.continuation else {}
    return Reply(content=listed(name, rid, results.items), headers=more)


def _statement(call: Call) -> tuple[str, dict[str, Any]]:
    body = call.json()
    if not isinstance(body, dict) or not isinstance(body.get("query"), str):
        raise bad("The body must be an object with the text of the query in 'query'.")
    return body["query"], {one["name"]: one["value"] for one in body.get("parameters") or []}
