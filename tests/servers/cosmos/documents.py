"""Requests for documents: which range they go to, and what it answers; the change feed among them."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

from servers.cosmos import feed
from servers.cosmos.call import Call, Reply, listed
from servers.cosmos.container import Change, Container, Partition
from servers.cosmos.query import Row, needs_plan, not_servable, plan, run
from servers.cosmos.ranges import Span
from servers.cosmos.refused import READ_SESSION_NOT_AVAILABLE, Refused, bad, range_gone
from servers.cosmos.sql import parsed
from servers.cosmos.writes import Draft, Outcome, Write, apply

PAGE, PAGE_MAX = 100, 1000
VERBS = {
    "document.create": "Create",
    "document.upsert": "Upsert",
    "document.replace": "Replace",
    "document.patch": "Patch",
    "document.delete": "Delete",
    "document.read": "Read",
}


def answer(container: Container, call: Call, id: str | None, now: float) -> Reply:
    """Raises Refused."""
    if call.kind in ("feed.latest", "feed.full"):
        return _feed(container, call)
    if call.kind in ("documents.query", "documents.list"):
        return _query(container, call)
    if call.kind == "documents.plan":
        return Reply(content=plan(parsed(_statement(call)[0])))
    if call.kind == "documents.batch":
        return _batch(container, call, now)
    return _one(container, call, id, now)


# --- where ------------------------------------------------------------------------------------------------------------


def _partition_key(call: Call) -> list[Any] | None:
    header = call.header("x-ms-documentdb-partitionkey")
    if header is None:
        return None
    values = json.loads(header)
    return values if isinstance(values, list) else [values]


def _span(call: Call) -> Span:
    low, high = call.header("x-ms-start-epk"), call.header("x-ms-end-epk")
    return Span(min=low or "", max=high or "FF") if low is not None or high is not None else Span()


def partitions(container: Container, call: Call) -> list[Partition]:
    """Those that a request is for: by range id, by partition key, by span, or all. Raises Refused with 410."""
    if (range_id := call.header("x-ms-documentdb-partitionkeyrangeid")) is not None:
        partition = container.partition(range_id.rpartition(",")[2])
        if not partition.range.span.covers(_span(call)) and call.header("x-ms-start-epk") is not None:
            raise range_gone(range_id)
        return [partition]
    values = _partition_key(call)
    paths = container.definition["partitionKey"]["paths"]
    if values and len(values) == len(paths):
        return [container.partition_of(container.epk(values))]
    return container.overlapping(_span(call))


def session_headers(container: Container, touched: list[Partition]) -> dict[str, str]:
    token = ",".join(f"{p.range.id}:0#{p.lsn}#1=-1" for p in touched)
    if len(touched) != 1:
        return {"x-ms-session-token": token}
    lsn = str(touched[0].lsn)
    more = {"lsn": lsn, "x-ms-global-committed-lsn": lsn, "x-ms-documentdb-partitionkeyrangeid": touched[0].range.id}
    return {"x-ms-session-token": token, **more}


def check_session(call: Call, touched: list[Partition]) -> None:
    """Raises Refused where the client has seen more of a range than there is."""
    lsns = {partition.range.id: partition.lsn for partition in touched}
    for part in (call.header("x-ms-session-token") or "").split(","):
        range_id, _, token = part.partition(":")
        numbers = token.split("#")
        if range_id in lsns and len(numbers) > 1 and numbers[1].isdigit() and int(numbers[1]) > lsns[range_id]:
            raise Refused(
                404, "The read session is not available for the input session token.", READ_SESSION_NOT_AVAILABLE
            )


# --- single documents and batches ---------------------------------------------------------------------------------------


def _one(container: Container, call: Call, id: str | None, now: float) -> Reply:
    if call.kind not in VERBS:
        raise Refused(405, f"{call.method} is not allowed here.")
    body = call.json() if call.method in ("POST", "PUT", "PATCH") else None
    values = _partition_key(call)
    if values is None:
        if not isinstance(body, dict) or call.method == "PATCH":
            raise bad("PartitionKey value must be supplied for this operation.")
        values = container.key_values(body)
    elif not values:
        values = [{}]
    partition = container.partition_of(container.epk(values))
    check_session(call, [partition])
    draft = Draft(container, partition, now)
    write = Write(
        operation=VERBS[call.kind],
        partition_key=values,
        id=_id_of(container, partition, id),
        body=body,
        if_match=call.header("if-match"),
        if_none_match=call.header("if-none-match"),
    )
    outcome = apply(draft, write)
    draft.commit()
    return _written(container, partition, call, outcome)


def _id_of(container: Container, partition: Partition, id: str | None) -> str | None:
    """A document may be addressed by its resource id too."""
    if id and id.endswith("==") and len(id) == 24:
        return next((c.key.id for c in partition.documents.values() if c.body and c.body["_rid"] == id), id)
    return id


def _written(container: Container, partition: Partition, call: Call, outcome: Outcome) -> Reply:
    headers = session_headers(container, [partition])
    if outcome.etag:
        headers["etag"] = outcome.etag
    is_silent = outcome.status == 304 or (call.method != "GET" and "return=minimal" in (call.header("prefer") or ""))
    content = None if is_silent else outcome.document
    return Reply(status=outcome.status, content=content, headers=headers, documents=1, range_id=partition.range.id)


def _batch(container: Container, call: Call, now: float) -> Reply:
    """Atomic: one transaction, one LSN; else every operation stands for itself and names its partition key."""
    operations = call.json()
    is_atomic = call.is_set("x-ms-cosmos-batch-atomic")
    common = _partition_key(call)
    touched = partitions(container, call)
    if len(touched) != 1:
        raise bad("A batch goes to one range.")
    results: list[dict[str, Any]] = []
    draft = Draft(container, touched[0], now)
    for operation in operations:
        outcome = _tried(draft, _write(container, operation, common))
        results.append(outcome)
        if outcome["statusCode"] >= 400 and is_atomic:
            return _failed_batch(container, touched[0], operations, results)
        if not is_atomic:
            draft.commit()
            draft = Draft(container, touched[0], now)
    draft.commit()
    status = 200 if all(result["statusCode"] < 400 for result in results) else 207
    headers = session_headers(container, touched)
    return Reply(status=status, content=results, headers=headers, documents=len(results), range_id=touched[0].range.id)


def _failed_batch(
    container: Container, partition: Partition, operations: list[Any], results: list[dict[str, Any]]
) -> Reply:
    """Every operation failed by the one that did."""
    failed = {"statusCode": 424, "requestCharge": 0}
    answers = [failed] * (len(results) - 1) + [results[-1]] + [failed] * (len(operations) - len(results))
    headers = session_headers(container, [partition])
    return Reply(status=207, content=answers, headers=headers, range_id=partition.range.id)


def _write(container: Container, operation: dict[str, Any], common: list[Any] | None) -> Write:
    body = operation.get("resourceBody")
    own = operation.get("partitionKey")
    values = json.loads(own) if isinstance(own, str) else own if own is not None else common
    if values is None:
        values = container.key_values(body or {})
    return Write(
        operation=operation["operationType"],
        partition_key=values or [{}],
        id=operation.get("id"),
        body=body,
        if_match=operation.get("ifMatch"),
        if_none_match=operation.get("ifNoneMatch"),
    )


def _tried(draft: Draft, write: Write) -> dict[str, Any]:
    try:
        outcome = apply(draft, write)
    except Refused as refused:
        return {"statusCode": refused.status, "requestCharge": 1, **_substatus(refused)}
    result: dict[str, Any] = {"statusCode": outcome.status, "requestCharge": 1}
    return result | ({"eTag": outcome.etag, "resourceBody": outcome.document} if outcome.document else {})


def _substatus(refused: Refused) -> dict[str, Any]:
    return {"subStatusCode": refused.substatus} if refused.substatus else {}


# --- queries ------------------------------------------------------------------------------------------------------------


def _statement(call: Call) -> tuple[str, dict[str, Any]]:
    body = call.json()
    if not isinstance(body, dict) or not isinstance(body.get("query"), str):
        raise bad("A query has a text.")
    return body["query"], {one["name"]: one["value"] for one in body.get("parameters") or []}


def _limit(call: Call) -> int:
    asked = int(call.header("x-ms-max-item-count") or PAGE)
    return min(asked, PAGE_MAX) if asked > 0 else PAGE_MAX


def _query(container: Container, call: Call) -> Reply:
    text, parameters = _statement(call) if call.kind == "documents.query" else ("SELECT * FROM c", {})
    query = parsed(text)
    touched = partitions(container, call)
    check_session(call, touched)
    if len(touched) > 1 and call.kind == "documents.query":
        if not call.is_set("x-ms-documentdb-query-enablecrosspartition"):
            raise bad("Cross partition query is required but disabled. Please set the header to enable it.")
        if needs_plan(query):
            raise not_servable()
    rows = _rows(container, call, touched)
    results = run(query, parameters, rows, _limit(call), call.header("x-ms-continuation"))
    headers = session_headers(container, touched) | {"x-ms-item-count": str(len(results.items))}
    if results.continuation:
        headers["x-ms-continuation"] = results.continuation
    range_id = touched[0].range.id if len(touched) == 1 else None
    content = listed("Documents", container.rid, results.items)
    return Reply(content=content, headers=headers, documents=results.rows_read, range_id=range_id)


def _rows(container: Container, call: Call, touched: list[Partition]) -> list[Row]:
    values, span = _partition_key(call), _span(call)
    only = json.dumps(values) if values and len(values) == len(container.definition["partitionKey"]["paths"]) else None
    found = (
        Row(number=change.number, document=change.body)
        for partition in touched
        for change in partition.documents.values()
        if change.body is not None and span.holds(change.epk) and only in (None, change.key.partition_key)
    )
    return sorted(found, key=lambda row: row.number)


def plain_query(call: Call, name: str, rid: str, resources: list[dict[str, Any]]) -> Reply:
    """Databases or containers, listed or asked for."""
    text, parameters = _statement(call) if call.method == "POST" else ("SELECT * FROM c", {})
    rows = [Row(number=number, document=resource) for number, resource in enumerate(resources, start=1)]
    results = run(parsed(text), parameters, rows, _limit(call), call.header("x-ms-continuation"))
    more = {"x-ms-continuation": results.continuation} if results.continuation else {}
    return Reply(content=listed(name, rid, results.items), headers=more)


# --- change feed --------------------------------------------------------------------------------------------------------


def _feed(container: Container, call: Call) -> Reply:
    touched = partitions(container, call)
    if len(touched) != 1:
        if call.header("x-ms-start-epk") is not None:
            raise range_gone(f"of {_span(call)}")
        raise bad("A change feed is read range by range: a partition key range id or a partition key has to be given.")
    check_session(call, touched)
    partition = touched[0]
    ask, is_first = _ask(container, partition, call)
    page = feed.page(partition, ask)
    headers = session_headers(container, touched) | {"etag": f'"{page.lsn}"'}
    if is_first or not page.changes:
        etag = {"etag": f'"{ask.after}"'} if is_first else {}
        return Reply(status=304, headers=headers | etag, range_id=partition.range.id)
    items = [_item(change, container, ask) for change in page.changes]
    headers["x-ms-item-count"] = str(len(items))
    content = listed("Documents", container.rid, items)
    return Reply(content=content, headers=headers, documents=len(items), range_id=partition.range.id)


def _ask(container: Container, partition: Partition, call: Call) -> tuple[feed.Ask, bool]:
    """And whether it only finds out where to begin, as the service does for a time before it sends anything."""
    known, since = call.header("if-none-match"), _since(call)
    is_full = call.kind == "feed.full"
    if is_full and known is None:
        raise bad("All versions and deletes are read from now on, or from a continuation.")
    is_first = known is None and since is not None
    after = feed.position_at(partition, since) if is_first and since is not None else _lsn(known, partition)
    values = _partition_key(call)
    ask = feed.Ask(
        after=after,
        since=since,
        span=_span(call),
        only_key=json.dumps(values) if values else None,
        limit=_limit(call),
        is_full=is_full,
    )
    return ask, is_first


def _lsn(known: str | None, partition: Partition) -> int:
    if known is None:
        return 0
    if known == "*":
        return partition.lsn
    number = known.removeprefix("W/").strip('"')
    if not number.isdigit():
        raise bad(f"The continuation {known} is none of this feed.")
    return int(number)


def _since(call: Call) -> int | None:
    header = call.header("if-modified-since")
    try:
        return int(parsedate_to_datetime(header).timestamp()) if header else None
    except ValueError:
        raise bad(f"The time {header} cannot be read.") from None


def _item(change: Change, container: Container, ask: feed.Ask) -> dict[str, Any]:
    return feed.full_fidelity(change, container) if ask.is_full else feed.latest_version(change)
