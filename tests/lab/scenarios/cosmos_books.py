"""What the accounts of the bank over Cosmos DB tell in the end: who owned what and when, how far leases are behind. Pure.

The wire server keeps every version of every document, with the time. So it is known for every moment who owned which part of
the container, and not just for those at which somebody looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """A version of a lease's document. at: Unix time. low, high: what it is for, of the space of hashed partition keys."""

    at: float
    partition: str
    low: str
    high: str
    owner: str | None
    incarnation: str | None
    epoch: int
    tick: int
    continuation: str | None
    closed: bool = False
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long nobody who owned what lies between the bounds had written so: it was unowned, or its owner away."""

    low: str
    high: str
    since: float
    lasted_s: float


def writings(versions: Iterable[Mapping[str, Any]], prefix: str) -> list[Writing]:
    """Of one pipeline's leases, in the order of time. versions: as the wire server tells them."""
    found = [
        _writing(version["ts"], version["body"])
        for version in versions
        if version["body"] and version["id"].startswith(prefix + "..")
    ]
    return sorted(found, key=lambda writing: writing.at)


def _writing(at: float, body: Mapping[str, Any]) -> Writing:
    bounds, ours = body["FeedRange"]["Range"], body["leasehold"]
    return Writing(
        at=at,
        partition=body["LeaseToken"],
        low=bounds["min"],
        high=bounds["max"],
        owner=body["Owner"],
        incarnation=ours.get("incarnation"),
        epoch=int(ours["epoch"]),
        tick=int(ours["tick"]),
        continuation=body["ContinuationToken"],
        closed=ours.get("closed", False),
        children=tuple(child["partition"] for child in ours.get("children", ())),
    )


def by_partition(found: Iterable[Writing]) -> dict[str, list[Writing]]:
    parts: dict[str, list[Writing]] = {}
    for writing in found:
        parts.setdefault(writing.partition, []).append(writing)
    return parts


def beginnings(found: Iterable[Writing]) -> dict[str, str | None]:
    """Where the children of split and merged ranges begin: at the position at which the parent's lease was closed."""
    return {child: writing.continuation for writing in found for child in writing.children}


def signs_of_life(found: Sequence[Writing]) -> list[Writing]:
    """What owners have written: taken, renewed, checkpointed, released, closed. A wish of others leaves the tick alone."""
    return [
        after
        for history in by_partition(found).values()
        for before, after in pairwise([None, *history])
        if after is not None
        and (before is None or after.tick != before.tick)
        and (after.owner or (before is not None and before.owner))
    ]


def silences(found: Sequence[Writing], since: float, until: float) -> list[Silence]:
    """The longest one of every part of the container, between two moments of Unix time; the longest of all first."""
    signs = signs_of_life(found)
    bounds = sorted({bound for writing in found for bound in (writing.low, writing.high)})
    worst = []
    for low, high in pairwise(bounds):
        times = sorted(sign.at for sign in signs if sign.low <= low and high <= sign.high)
        known = [since, *(at for at in times if since < at < until), until]
        lasted_s, began = max((after - before, before) for before, after in pairwise(known))
        worst.append(Silence(low=low, high=high, since=began, lasted_s=lasted_s))
    return sorted(worst, key=lambda silence: -silence.lasted_s)


def lag(
    versions: Iterable[Mapping[str, Any]], ranges: Iterable[Any], low: str, high: str, continuation: str | None
) -> int:
    """Of what lies between the bounds, as the estimator of .NET counts: from the first unread transaction to the range's last.

    versions, ranges: of the container that is read, as the wire server tells them. The bounds lie within one of its ranges.
    """
    within = next(one for one in ranges if one.min <= low and high <= one.max)
    position = int(continuation.strip('"')) if continuation else 0
    latest = {version["id"]: version["lsn"] for version in versions if low <= version["epk"] < high}
    unread = [lsn for lsn in latest.values() if lsn > position]
    return int(within.lsn) - min(unread) + 1 if unread else 0
