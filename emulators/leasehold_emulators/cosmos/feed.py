"""The change feed of one partition: which changes a page holds, and the continuation after it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold_emulators.cosmos.container import Change, Container, Partition
from leasehold_emulators.cosmos.epk import at_path
from leasehold_emulators.cosmos.ranges import Span

GIVES_PREVIOUS = {"none": (), "deletes": ("delete",), "all": ("delete", "replace")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """after: the LSN that the continuation names. since: whole seconds, exclusive. limit: of changes, at least 1."""

    after: int
    since: int | None = None
    span: Span
    only_key: str | None = None  # of one logical partition
    limit: int
    is_full: bool = False  # all versions and deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """lsn: the continuation. Every change up to it was considered."""

    changes: list[Change]
    lsn: int


def page(partition: Partition, ask: Ask) -> Page:
    """The next page. It never ends within one LSN, a transaction. A replica that is behind `after` answers with its own LSN."""
    changes: list[Change] = []
    for change in partition.after(ask.after):
        if not _is_wanted(partition, change, ask):
            continue
        if len(changes) >= ask.limit and change.lsn != changes[-1].lsn:
            return Page(changes=changes, lsn=changes[-1].lsn)
        changes.append(change)
    return Page(changes=changes, lsn=partition.lsn)


def _is_wanted(partition: Partition, change: Change, ask: Ask) -> bool:
    return (
        (ask.is_full or partition.is_latest(change))
        and ask.span.holds(change.epk)
        and (ask.only_key is None or change.key.partition_key == ask.only_key)
        and (ask.since is None or int(change.ts) > ask.since)
    )


def position_at(partition: Partition, since: int) -> int:
    """The LSN before the first change that is newer than `since`."""
    newer = next((change.lsn for change in partition.log if int(change.ts) > since), partition.lsn + 1)
    return newer - 1


def latest_version(change: Change) -> dict[str, Any]:
    return {**(change.body or {}), "_lsn": change.lsn}


def full_fidelity(change: Change, container: Container) -> dict[str, Any]:
    """A change with the images that the container gives: accounts differ in these. Metadata always name a deleted document."""
    previous = change.previous.body if change.previous else None
    metadata: dict[str, Any] = {"operationType": change.operation, "lsn": change.lsn, "crts": int(change.ts)}
    if change.previous:
        metadata["previousImageLSN"] = change.previous.lsn
    item: dict[str, Any] = {"metadata": metadata}
    if change.body is not None:
        item["current"] = change.body
    else:
        metadata |= {"timeToLiveExpired": change.is_expired, "id": change.key.id}
        metadata["partitionKey"] = _partition_key(previous or {}, container)
        if container.images != "none":
            item["current"] = {}
    if previous and change.operation in GIVES_PREVIOUS[container.images]:
        item["previous"] = previous
    return item


def _partition_key(body: dict[str, Any], container: Container) -> dict[str, Any]:
    paths = container.definition["partitionKey"]["paths"]
    return {path.strip("/"): at_path(body, path) for path in paths}
