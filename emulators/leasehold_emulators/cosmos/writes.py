"""Writes to documents: each is decided on a draft of one transaction, which is committed under one LSN or not at all."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leasehold_emulators.cosmos.container import Change, Container, Key, Partition, ended
from leasehold_emulators.cosmos.patch import patched
from leasehold_emulators.cosmos.refused import PARTITION_KEY_MISMATCH, Refused, bad, missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One operation: Create, Upsert, Replace, Delete, Patch or Read, as a batch names them."""

    operation: str
    partition_key: list[Any]
    id: str | None = None
    body: dict[str, Any] | None = None
    if_match: str | None = None
    if_none_match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    status: int
    document: dict[str, Any] | None

    @property
    def etag(self) -> str:
        return str(self.document["_etag"]) if self.document else ""


@dataclass(slots=True)
class Draft:
    """What a transaction sees: the present documents, and its own changes so far."""

    container: Container
    partition: Partition
    now: float
    changes: list[Change] = field(default_factory=list)

    def find(self, key: Key) -> Change | None:
        for change in reversed(self.changes):
            if change.key != key and change.renames == key:
                return None
            if change.key == key:
                return change if change.body is not None else None
        return self.partition.documents.get(key)

    def put(self, key: Key, epk: str, body: dict[str, Any], previous: Change | None) -> dict[str, Any]:
        if previous is None:
            self.container.documents_made += 1
        number = previous.number if previous else self.container.documents_made
        stamped = self.container.stamped(body, number, f'"{uuid.uuid4()}"', self.now)
        change = Change(
            lsn=self.partition.lsn + 1,
            key=key,
            epk=epk,
            operation="replace" if previous else "create",
            ts=self.now,
            number=number,
            body=stamped,
            previous=previous,
        )
        self.changes.append(change)
        return stamped

    def end(self, last: Change) -> None:
        self.changes.append(ended(last, self.partition.lsn + 1, self.now))

    def commit(self) -> None:
        if self.changes:
            self.container.commit(self.partition, self.changes)


def apply(draft: Draft, write: Write) -> Outcome:
    """Raises Refused: 400, 404, 409, 412."""
    if write.operation not in OPERATIONS:
        raise bad(f"The operation {write.operation} is not known.")
    epk = draft.container.epk(write.partition_key)
    if draft.container.partition_of(epk) is not draft.partition:
        raise bad("All operations of a batch have one partition key.", PARTITION_KEY_MISMATCH)
    return OPERATIONS[write.operation](draft, write, epk)


def _create(draft: Draft, write: Write, epk: str) -> Outcome:
    key, body = _named(draft.container, write)
    if draft.find(key):
        raise Refused(409, "Entity with the specified id already exists in the system.")
    return Outcome(status=201, document=draft.put(key, epk, body, None))


def _upsert(draft: Draft, write: Write, epk: str) -> Outcome:
    key, body = _named(draft.container, write)
    last = draft.find(key)
    if last:
        _check(write, last)
    return Outcome(status=200 if last else 201, document=draft.put(key, epk, body, last))


def _replace(draft: Draft, write: Write, epk: str) -> Outcome:
    last = _existing(draft, write)
    key, body = _named(draft.container, write)
    if key != last.key and draft.find(key):
        raise Refused(409, "Entity with the specified id already exists in the system.")
    return Outcome(status=200, document=draft.put(key, epk, body, last))


def _patch(draft: Draft, write: Write, epk: str) -> Outcome:
    last = _existing(draft, write)
    assert last.body is not None
    body = patched(last.body, write.body or {})
    if draft.container.key_values(body) != write.partition_key or body.get("id") != last.key.id:
        raise bad("A patch keeps the document's id and partition key.")
    return Outcome(status=200, document=draft.put(last.key, epk, body, last))


def _delete(draft: Draft, write: Write, epk: str) -> Outcome:
    draft.end(_existing(draft, write))
    return Outcome(status=204, document=None)


def _read(draft: Draft, write: Write, epk: str) -> Outcome:
    last = draft.find(_key(write.partition_key, write.id or ""))
    if last is None or last.body is None:
        raise missing(f"document {write.id!r}")
    if write.if_none_match and write.if_none_match in (last.body["_etag"], "*"):
        return Outcome(status=304, document=last.body)
    return Outcome(status=200, document=last.body)


OPERATIONS: dict[str, Callable[[Draft, Write, str], Outcome]] = {
    "Create": _create,
    "Upsert": _upsert,
    "Replace": _replace,
    "Delete": _delete,
    "Patch": _patch,
    "Read": _read,
}


def _key(values: list[Any], id: str) -> Key:
    return Key(json.dumps(values), id)


def _named(container: Container, write: Write) -> tuple[Key, dict[str, Any]]:
    body = write.body or {}
    own = body.get("id")
    if not isinstance(own, str) or not own or any(sign in own for sign in "/\\?#"):
        raise bad("The input content is invalid: 'id' has to be a text without / \\ ? and #.")
    if container.key_values(body) != write.partition_key:
        message = "PartitionKey extracted from document doesn't match the one specified in the header."
        raise bad(message, PARTITION_KEY_MISMATCH)
    return _key(write.partition_key, own), body


def _existing(draft: Draft, write: Write) -> Change:
    last = draft.find(_key(write.partition_key, write.id or ""))
    if last is None:
        raise missing(f"document {write.id!r}")
    _check(write, last)
    return last


def _check(write: Write, last: Change) -> None:
    assert last.body is not None
    if write.if_match and write.if_match not in (last.body["_etag"], "*"):
        raise Refused(412, "Operation cannot be performed because one of the specified precondition is not met.")
