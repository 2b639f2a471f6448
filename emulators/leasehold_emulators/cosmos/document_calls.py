"""Requests for documents: one at a time, or as a batch; queries and change feeds have their own modules."""

from __future__ import annotations

import json
from typing import Any

from leasehold_emulators.cosmos import feed_calls, query_calls
from leasehold_emulators.cosmos.call import Call, Reply
from leasehold_emulators.cosmos.container import Container, Partition
from leasehold_emulators.cosmos.refused import PARTITION_KEY_MISMATCH, Refused, bad
from leasehold_emulators.cosmos.where import check_session, partition_key, partitions, session_headers
from leasehold_emulators.cosmos.writes import Draft, Outcome, Write, apply

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
        return feed_calls.answer(container, call)
    if call.kind in ("documents.query", "documents.list", "documents.plan"):
        return query_calls.answer(container, call)
    if call.kind == "documents.batch":
        return _batch(container, call, now)
    return _one(container, call, id, now)


def _one(container: Container, call: Call, id: str | None, now: float) -> Reply:
    if call.kind not in VERBS:
        raise Refused(405, f"{call.method} is not allowed here.")
    body = call.json() if call.method in ("POST", "PUT", "PATCH") else None
    values = partition_key(call)
    if values is None:
        if not isinstance(body, dict) or call.method == "PATCH":
            raise bad("PartitionKey value must be supplied for this operation.")
        values = container.key_values(body)
    values = _complete(container, values)
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


def _complete(container: Container, values: list[Any]) -> list[Any]:
    """The values of a key; a plain key without any has the undefined value. Raises Refused for an incomplete hierarchical key."""
    count = len(container.definition["partitionKey"]["paths"])
    if not values and count == 1:
        return [{}]
    if len(values) != count:
        raise bad(f"The partition key has {len(values)} of {count} values.", PARTITION_KEY_MISMATCH)
    return values


def _id_of(container: Container, partition: Partition, id: str | None) -> str | None:
    """The document's id: a request may give the resource id instead."""
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
    """An atomic batch is one transaction with one LSN. Otherwise operations are independent, with their own partition keys."""
    operations = call.json()
    is_atomic = call.is_set("x-ms-cosmos-batch-atomic")
    common = partition_key(call)
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
    """The answer if one operation failed: it has its own status, all others have 424."""
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
        partition_key=_complete(container, values),
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
