"""A container: documents in ranges, each range with a log of all its changes, ordered by its own LSN."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from leasehold_emulators.cosmos import rids
from leasehold_emulators.cosmos.epk import epk_of, key_of
from leasehold_emulators.cosmos.ranges import Range, Span, evenly, halves, middle, union
from leasehold_emulators.cosmos.refused import COMPLETING_SPLIT, Refused, bad, range_gone
from leasehold_emulators.journal import Journal

BY_LSN = attrgetter("lsn")
LEVELS_MAX = 3
"""The most levels of a hierarchical partition key."""


class Key(NamedTuple):
    """The identity of a document in its container."""

    partition_key: str  # its values in JSON
    id: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """One version of a document, or its deletion or expiry (`body` is None). `ts`: in seconds."""

    lsn: int
    key: Key
    epk: str
    operation: str  # create, replace or delete
    ts: float
    number: int  # of the document, in order of creation
    body: dict[str, Any] | None
    previous: Change | None
    is_expired: bool = False

    @property
    def renames(self) -> Key | None:
        """The document's previous key, if this change replaced it under another id."""
        return self.previous.key if self.previous and self.previous.key != self.key else None


def change_fields(change: Change) -> dict[str, Any]:
    """The change for the journal, without what follows from earlier changes: operation and previous version."""
    return {
        "key": change.key,
        "was": change.previous.key if change.previous else None,
        "epk": change.epk,
        "lsn": change.lsn,
        "ts": change.ts,
        "number": change.number,
        "body": change.body,
        "expired": change.is_expired,
    }


@dataclass(slots=True)
class Partition:
    """A physical partition: a range with its content. `log`: ordered by LSN; after a merge, an LSN may occur twice."""

    range: Range
    lsn: int = 0
    log: list[Change] = field(default_factory=list)
    documents: dict[Key, Change] = field(default_factory=dict)

    def commit(self, changes: list[Change]) -> None:
        """Add the changes of one transaction, under one LSN."""
        self.lsn = changes[0].lsn
        for change in changes:
            self.log.append(change)
            noted(self.documents, change)

    def is_latest(self, change: Change) -> bool:
        return self.documents.get(change.key) is change

    def after(self, lsn: int) -> Iterator[Change]:
        for i in range(bisect.bisect_right(self.log, lsn, key=BY_LSN), len(self.log)):
            yield self.log[i]

    def replica(self, lsns: int) -> Partition:
        """The partition as it was `lsns` LSNs ago: the state of a replica that lags that much."""
        lsn = max(0, self.lsn - lsns)
        log = self.log[: bisect.bisect_right(self.log, lsn, key=BY_LSN)]
        documents: dict[Key, Change] = {}
        for change in log:
            noted(documents, change)
        return Partition(self.range, lsn, log, documents)

    def part(self, range: Range) -> Partition:
        """A child after a split: the changes and documents in its range, and LSNs that continue the parent's."""
        return Partition(
            range,
            self.lsn,
            [change for change in self.log if range.span.holds(change.epk)],
            {key: change for key, change in self.documents.items() if range.span.holds(change.epk)},
        )


def noted(documents: dict[Key, Change], change: Change) -> None:
    """Note the latest change of a document."""
    if change.renames:
        documents.pop(change.renames, None)
    if change.body is None:
        documents.pop(change.key, None)
    else:
        documents[change.key] = change


def merged(left: Partition, right: Partition, range: Range) -> Partition:
    """Changes keep their LSNs, so a continuation of either parent remains valid for its span. New LSNs begin after both."""
    log = list(heapq.merge(left.log, right.log, key=BY_LSN))
    return Partition(range, max(left.lsn, right.lsn), log, left.documents | right.documents)


class Container:
    """`partitions`: by range id. `gone`: how many more requests a split or merged range answers with "completing split"."""

    def __init__(self, rid: str, definition: dict[str, Any], ranges: int, journal: Journal | None = None) -> None:
        self.rid = rid
        self.definition = definition
        self.journal = journal or Journal()
        self.version = 0  # of the division into ranges
        self.partitions = {one.id: Partition(one) for one in evenly(ranges)}
        self.gone: dict[str, int] = {}
        self.documents_made = 0
        self.images = "none"  # previous images in the feed of all versions: none, those of deletes, or all
        self._ids_used = ranges
        self._expiries: list[tuple[float, int, Change]] = []

    @property
    def id(self) -> str:
        return str(self.definition["id"])

    @property
    def ranges(self) -> list[Range]:
        return sorted((p.range for p in self.partitions.values()), key=lambda one: one.span.min)

    def partition(self, range_id: str) -> Partition:
        """Raises Refused with 410 for a range that was split or merged."""
        if found := self.partitions.get(range_id):
            return found
        if self.gone.get(range_id, 0) > 0:
            self.gone[range_id] -= 1
            raise Refused(410, f"Range {range_id} is completing a split.", COMPLETING_SPLIT)
        raise range_gone(range_id)

    def partition_of(self, epk: str) -> Partition:
        return next(p for p in self.partitions.values() if p.range.span.holds(epk))

    def overlapping(self, span: Span) -> list[Partition]:
        return [self.partitions[one.id] for one in self.ranges if one.span.overlaps(span)]

    def epk(self, values: list[Any]) -> str:
        return epk_of(values, self.definition["partitionKey"])

    def key_values(self, body: dict[str, Any]) -> list[Any]:
        return key_of(body, self.definition["partitionKey"]["paths"])

    def stamped(self, body: dict[str, Any], number: int, etag: str, ts: float) -> dict[str, Any]:
        rid = rids.document_rid(self.rid, number)
        own = {k: v for k, v in body.items() if k not in ("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn")}
        link = f"dbs/{rids.encoded(rids.decoded(self.rid)[:4])}/colls/{self.rid}/docs/{rid}/"
        return {**own, "_rid": rid, "_self": link, "_etag": etag, "_attachments": "attachments/", "_ts": int(ts)}

    def define(self, definition: dict[str, Any]) -> None:
        self.definition = definition
        self.journal.add(self.rid, "definition", {"definition": definition})

    def give_images(self, previous: str) -> None:
        self.images = previous
        self.journal.add(self.rid, "images", {"previous": previous})

    def commit(self, partition: Partition, changes: list[Change]) -> None:
        """Commit the changes of one transaction."""
        partition.commit(changes)
        for change in changes:
            self._will_expire(change)
        if self.journal.is_kept:
            self.journal.add(self.rid, "changes", {"changes": [change_fields(change) for change in changes]})

    # --- division ---------------------------------------------------------------------------------------------------

    def split(self, range_id: str, at: str | None = None, completing: int = 0) -> list[Range]:
        """completing: how many requests to the parent are answered with 410/1007 before 410/1002. Raises ValueError, Refused."""
        parent = self.partition(range_id)
        ids = str(self._ids_used), str(self._ids_used + 1)
        children = halves(parent.range, at or middle(parent.range.span), ids, self.version + 1)
        self.version += 1
        self._ids_used += 2
        self._replace([range_id], [parent.part(child) for child in children], completing)
        self.journal.add(self.rid, "split", {"range": range_id, "at": at})
        return list(children)

    def merge(self, left_id: str, right_id: str, completing: int = 0) -> Range:
        left, right = sorted(
            (self.partition(left_id), self.partition(right_id)), key=lambda partition: partition.range.span.min
        )
        child = union(left.range, right.range, str(self._ids_used), self.version + 1)
        self.version += 1
        self._ids_used += 1
        self._replace([left_id, right_id], [merged(left, right, child)], completing)
        self.journal.add(self.rid, "merge", {"left": left_id, "right": right_id})
        return child

    def _replace(self, old: list[str], new: list[Partition], completing: int) -> None:
        for range_id in old:
            del self.partitions[range_id]
            self.gone[range_id] = completing
        self.partitions |= {partition.range.id: partition for partition in new}

    # --- time to live -----------------------------------------------------------------------------------------------

    def _will_expire(self, change: Change) -> None:
        """A document's `ttl` counts only if the container has a `defaultTtl` (-1: none by default)."""
        default = self.definition.get("defaultTtl")
        if change.body is None or default is None:
            return
        ttl = change.body.get("ttl", default)
        if isinstance(ttl, int) and ttl > 0:
            heapq.heappush(self._expiries, (change.ts + ttl, id(change), change))

    def expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            change = heapq.heappop(self._expiries)[2]
            partition = self.partition_of(change.epk)
            if partition.is_latest(change):
                self.commit(partition, [ended(change, partition.lsn + 1, now, is_expired=True)])


def ended(last: Change, lsn: int, ts: float, *, is_expired: bool = False) -> Change:
    return Change(
        lsn=lsn,
        key=last.key,
        epk=last.epk,
        operation="delete",
        ts=ts,
        number=last.number,
        body=None,
        previous=last,
        is_expired=is_expired,
    )


def checked_definition(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition as the service completes it. Raises Refused."""
    if not isinstance(definition.get("id"), str) or not definition["id"]:
        raise bad("The input content is invalid because the required property 'id' is missing.")
    key = dict(definition.get("partitionKey") or {"paths": ["/_partitionKey"], "systemKey": True})
    if not key.get("paths"):
        raise bad("A partition key must have at least one path.")
    if len(key["paths"]) > LEVELS_MAX:
        raise bad(f"Too many partition key paths: {len(key['paths'])}. The maximum is {LEVELS_MAX}.")
    kind = key.get("kind") or ("MultiHash" if len(key["paths"]) > 1 else "Hash")
    complete = {**key, "kind": kind, "version": key.get("version", 1)}
    return {"indexingPolicy": {"indexingMode": "consistent", "automatic": True}, **definition, "partitionKey": complete}
