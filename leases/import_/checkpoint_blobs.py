"""Blobs of BlobCheckpointStore and of the older EventProcessorHost -> leases to import; and leases -> its blobs. Pure.

    {namespace}/{hub}/{group}/checkpoint/{partition}     metadata `offset`, `sequencenumber`; the name in lower case
    {namespace}/{hub}/{group}/ownership/{partition}      metadata `ownerid`: the owner, empty if it was released
    {prefix}{group}/{partition}                          EventProcessorHost: content {"PartitionId":"0","Offset":"128",...}

They come from a container, or from an export of one (JSON lines, or one JSON array). The input is untrusted: parsing is
strict and bounded, and follows no references. The resulting continuation is that of the feed `eventhubs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from leasehold.leases.document import NAME_BYTES_MAX, Fields, input_error_text, parsed, to_json
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.cosmos_import import Document
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.lease import Lease

Kind = Literal["eventprocessorhost", "checkpointstore"]

CONTENT_BYTES_MAX = 16 * 1024
BLOB_NAME_CHARACTERS_MAX = 1024
_STORED = re.compile(r"(?P<folder>.+)/(?P<what>ownership|checkpoint)/(?P<partition>[^/]+)", re.DOTALL)
_OFFSET = re.compile(r"[0-9A-Za-z:._-]{1,128}", re.ASCII)
_PLACE = re.compile(r"(?P<number>[0-9]{0,18})@(?P<offset>[0-9A-Za-z:._-]{1,128})", re.ASCII)
_NEVER = frozenset(("", "-1", "None", "null"))
"""The values of an offset if nothing was checkpointed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBlob:
    """A blob of another processor."""

    name: str
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    content: str | None = None
    mark: str = ""
    written: datetime | None = None
    is_leased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One processor's blobs."""

    folder: str
    candidates: tuple[Candidate, ...] = ()
    owners: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    busy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    without: tuple[str, ...] = ()


def blobs_of(documents: Iterable[Document]) -> list[CheckpointBlob]:
    """The blobs of an export: a listing with `name` and `metadata` or `content`, or only the contents. Raises
    InvalidDocument.
    """
    return [_exported(number, document) for number, document in enumerate(documents, 1)]


def _exported(number: int, document: Document) -> CheckpointBlob:
    name = document.get("name")
    if not isinstance(name, str):
        return CheckpointBlob(name=f"number {number} of the input", content=to_json(document))
    fields = Fields(name[:BLOB_NAME_CHARACTERS_MAX], document)
    fields.text("name", BLOB_NAME_CHARACTERS_MAX)
    content, metadata, properties = (document.get(key) for key in ("content", "metadata", "properties"))
    given: dict[str, object] = metadata if isinstance(metadata, dict) else {}
    known: dict[str, object] = properties if isinstance(properties, dict) else {}
    lease = known.get("lease")
    return CheckpointBlob(
        name=name,
        metadata={key.lower(): str(value) for key, value in given.items() if value is not None},
        content=content if content is None or isinstance(content, str) else json.dumps(content),
        written=_moment(known.get("lastModified")),
        is_leased=isinstance(lease, dict) and lease.get("state") == "leased",
    )


def host_blob(lease: Lease, folder: str) -> dict[str, object]:
    """The blob from which an EventProcessorHost of .NET continues after the lease's position, as `blobs_of` reads it.

    Its epochs begin above the lease's, so its receivers displace any receiver that still runs here. Raises InvalidDocument if the
    position has no offset.
    """
    place = _PLACE.fullmatch("0@-1" if lease.continuation is None else lease.continuation)
    if place is None:
        raise InvalidDocument(
            f"lease '{lease.partition}': an EventProcessorHost continues by the offset of an event hub, and the position"
            f" '{lease.continuation}' has none: let a host process another event without `executors_read`, and export again"
        )
    content = {
        "Offset": None if lease.continuation is None else place["offset"],
        **({"SequenceNumber": int(place["number"])} if place["number"] else {}),
        "PartitionId": lease.partition,
        "Owner": "",
        "Token": "",
        "Epoch": lease.epoch,
    }
    return {"name": f"{folder}/{lease.partition}", "content": content}


def is_wanted(kind: Kind, name: str) -> bool:
    """Whether a blob of that name may belong to such a processor."""
    return (_STORED.fullmatch(name) is not None) == (kind == "checkpointstore")


def deployments(kind: Kind, blobs: Iterable[CheckpointBlob], *, pipeline: str) -> dict[str, Deployment]:
    """All deployments among the blobs, by folder."""
    found: dict[str, list[CheckpointBlob]] = {}
    for blob in blobs:
        if is_wanted(kind, blob.name) and (kind == "checkpointstore" or blob.content):
            found.setdefault(_folder_of(kind, blob), []).append(blob)
    made = _stored if kind == "checkpointstore" else _hosted
    return {
        folder: made(folder, sorted(group, key=lambda blob: blob.name), pipeline) for folder, group in found.items()
    }


def _folder_of(kind: Kind, blob: CheckpointBlob) -> str:
    stored = _STORED.fullmatch(blob.name)
    return stored["folder"] if kind == "checkpointstore" and stored else blob.name.rpartition("/")[0]


def _stored(folder: str, blobs: Sequence[CheckpointBlob], pipeline: str) -> Deployment:
    """For a BlobCheckpointStore. A partition's document is its ownership blob, which changes while it has an owner."""
    checkpoints, ownerships = (
        {blob.name.rpartition("/")[2]: blob for blob in blobs if blob.name.startswith(f"{folder}/{what}/")}
        for what in ("checkpoint", "ownership")
    )
    found = {name: _checkpointed(each, ownerships.get(name), pipeline) for name, each in checkpoints.items()}
    candidates = tuple(candidate for candidate in found.values() if candidate is not None)
    owners = {
        each.document: (each.owner, f"{ownerships[each.partition].mark} {checkpoints[each.partition].mark}")
        for each in candidates
        if each.owner is not None
    }
    without = sorted({*checkpoints, *ownerships} - {each.partition for each in candidates})
    return Deployment(folder=folder, candidates=candidates, owners=owners, without=tuple(without))


def _checkpointed(checkpoint: CheckpointBlob, ownership: CheckpointBlob | None, pipeline: str) -> Candidate | None:
    """None if there is no position."""
    partition = checkpoint.name.rpartition("/")[2]
    brought = Candidate(
        document=(ownership or checkpoint).name,
        partition=partition,
        owner=(ownership.metadata.get("ownerid") or None) if ownership else None,
        written_us=_microseconds(ownership),
    )
    try:
        place = _continuation(
            checkpoint.name, checkpoint.metadata.get("offset"), checkpoint.metadata.get("sequencenumber")
        )
    except InvalidDocument as error:
        return replace(brought, refused=input_error_text(error))
    if place is None:
        return None
    return replace(brought, lease=Lease(pipeline=pipeline, partition=partition, continuation=place))


def _hosted(folder: str, blobs: Sequence[CheckpointBlob], pipeline: str) -> Deployment:
    """For an EventProcessorHost. Its hosts hold an Azure lease on the blob, which expires 30 s after they end."""
    found = {blob.name: _processed(blob, pipeline) for blob in blobs}
    leased = [found[blob.name] for blob in blobs if blob.is_leased]
    return Deployment(
        folder=folder,
        candidates=tuple(each for each in found.values() if each.lease or each.refused),
        busy={each.document: each.owner or "somebody" for each in leased},
        without=tuple(each.partition for each in found.values() if not (each.lease or each.refused)),
    )


def _processed(blob: CheckpointBlob, pipeline: str) -> Candidate:
    """The candidate, without a lease if there is no position."""
    try:
        content = _content_of(blob)
        fields = Fields(blob.name, content)
        owner = fields.text("owner", NAME_BYTES_MAX) if content.get("owner") else None
        brought = Candidate(document=blob.name, partition=str(content["partitionid"]), owner=owner)
        return replace(brought, lease=_lease_of(fields, content, pipeline))
    except InvalidDocument as error:
        return Candidate(document=blob.name, partition=blob.name.rpartition("/")[2], refused=input_error_text(error))


def _content_of(blob: CheckpointBlob) -> dict[str, object]:
    """The values that are not null, by .NET's names in lower case: .NET writes PartitionId, Java partitionId, Python
    partition_id.
    """
    content = blob.content or ""
    values = parsed(f"blob '{blob.name}'", content) if len(content) <= CONTENT_BYTES_MAX else None
    if not isinstance(values, dict):
        raise InvalidDocument(f"blob '{blob.name}' is not the JSON object of a lease: leave it out of the input")
    found = {str(name).replace("_", "").lower(): value for name, value in values.items() if value is not None}
    fields = Fields(blob.name, found)
    partition = fields.text("partitionid", NAME_BYTES_MAX)
    if "/" in blob.name and blob.name.rpartition("/")[2] != partition:
        fields.refuse("PartitionId", f"is {partition!r}, which belongs under another name")
    return found


def _lease_of(fields: Fields, content: Mapping[str, object], pipeline: str) -> Lease | None:
    """Their receivers use the epoch of their lease. Ours must start above it, or theirs would keep displacing ours."""
    offset, number = content.get("offset"), content.get("sequencenumber")
    place = None if number in (0, None) and _never(offset) else _continuation(fields.id, offset, number)
    epoch = fields.integer("epoch") if "epoch" in content else 0
    if place is None:
        return None
    return Lease(pipeline=pipeline, partition=str(content["partitionid"]), continuation=place, epoch=epoch)


def _continuation(name: str, offset: object, number: object) -> str | None:
    """`<sequence number>@<offset>`, or one of them alone; None if neither is known."""
    at = "" if _never(offset) else str(offset)
    if at and not _OFFSET.fullmatch(at):
        Fields(name, {}).refuse("offset", f"is {at[:40]!r}, which is not an event hub's")
    count = "" if _never(number) else str(number)
    if count and not re.fullmatch("[0-9]{1,18}", count, re.ASCII):
        Fields(name, {}).refuse("sequencenumber", f"is {count[:40]!r}, which is not a sequence number")
    return count + (f"@{at}" if at else "") or None


def _never(value: object) -> bool:
    return value is None or str(value) in _NEVER


def _microseconds(blob: CheckpointBlob | None) -> int | None:
    return None if blob is None or blob.written is None else int(blob.written.timestamp() * 1e6)


def _moment(text: object) -> datetime | None:
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
