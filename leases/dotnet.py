"""Lease documents of the .NET change feed processor <-> leases: its fields, plus one field of our own. Pure.

.NET's document records who owns which partition, how far it got, and when the owner last wrote. Values for which .NET
has no field (epoch, generation, incarnation, tick ...) are stored in one object, `leasehold`. Fields that neither knows
are kept. Java's processor writes the same document with fewer fields, and the V2 library named the token `PartitionId`;
both are read.

.NET and Java drop `leasehold` when they rewrite a document. The lost values are then derived so that none can decrease:

- tick: from `timestamp`, which they update when they renew.
- epoch: from the time of their write (`_ts`, in milliseconds). No count of owners reaches such a number, so no epoch is
  used twice.
- generation: from `properties`, which .NET keeps. A generation above 0 is also written there.

docs/decisions/0006-cosmos-lease-documents.md has the reasons.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from leasehold.leases.document import (
    CHILDREN_MAX,
    CONTINUATION_BYTES_MAX,
    NAME_BYTES_MAX,
    Fields,
    child_fields,
    child_of,
)
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import SINK_STATE_BYTES_MAX, Lease

FIELD = "leasehold"
"""The field of .NET's document that holds our values."""
FIELD_VERSION = 1
DOCUMENT = "document"
"""In `Lease.unknown`: the rest of the document (`fields`), and the tick that its `timestamp` represents."""
FOREIGN = "foreign"
"""The incarnation of an owner without one: a .NET or Java host, or a name that was written by hand."""
GENERATION = "leaseholdGeneration"
"""The key of the generation in `properties`, if that is not 0."""
INCREMENTAL = "Incremental Feed"
FULL_FIDELITY = "Full-Fidelity Feed"

DOCUMENT_ID_BYTES_MAX = 1023
EXACT_MAX = 2**53
"""Cosmos DB stores numbers as doubles: larger integers are written as texts."""

_RANGES = ("FeedRange", "feedRange")
_SYSTEM = frozenset(("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"))
_MAPPED = frozenset(("id", "LeaseToken", "Owner", "ContinuationToken", FIELD)) | _SYSTEM
_ANEW = _MAPPED | {"version", "PartitionId", "properties", "timestamp", "Mode", *_RANGES}
_INTEGERS = ("version", "epoch", "generation", "tick")
_OURS = frozenset((*_INTEGERS, "incarnation", "sinkState", "handoffTo", "closed", "parents", "children"))
_ELSEWHERE = frozenset(("pipeline", "partition", "owner", "scope", "continuation", DOCUMENT))
_DIGITS = re.compile(r"[0-9]{1,19}")
_BOUNDS = re.compile(r"([0-9A-F]*)-([0-9A-F]+)")
_ABSENT: Mapping[str, object] = MappingProxyType(
    {
        "generation": 0,
        "incarnation": None,
        "sinkState": "",
        "handoffTo": None,
        "closed": False,
        "parents": [],
        "children": [],
    }
)
"""The values of our fields that are omitted, as most of them are."""


def lease_prefix(processor: str, endpoint_host: str, database_rid: str, container_rid: str) -> str:
    """The prefix of the ids of one processor's documents. The rids are those of the container whose changes are read."""
    return f"{processor}{endpoint_host}_{database_rid}_{container_rid}"


def database_rid(container_rid: str) -> str:
    """The rid of a container's database, with which the container's rid begins. Raises ValueError."""
    raw = base64.b64decode(container_rid.replace("-", "/"), validate=True)
    if len(raw) != 8:
        raise ValueError(f"{container_rid!r} is not a container's resource id")
    return base64.b64encode(raw[:4]).decode().replace("/", "-")


def document_id(prefix: str, partition: str) -> str:
    return f"{prefix}..{partition}"


def marker_id(prefix: str) -> str:
    """The id of the document that records that all leases have been created."""
    return f"{prefix}.info"


def bounds_of(text: str) -> tuple[str, str] | None:
    """The range of hashed keys in an EPK lease's token or a lease's scope; None for the id of a physical range."""
    found = _BOUNDS.fullmatch(text)
    return (found[1], found[2]) if found else None


def bound_order(bound: str) -> str:
    """A sort key for bounds of any length, as .NET compares them: "1F" equals "1F00", and "" equals "00"."""
    return bound.rstrip("0")


def is_same_bounds(a: str, b: str) -> bool:
    """Whether two texts `min-max` name the same range."""
    return [*map(bound_order, a.split("-"))] == [*map(bound_order, b.split("-"))]


def timestamp_of(now: datetime) -> str:
    """The format of .NET: UTC, seven digits, `Z`."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}0Z"


def decode(
    document: Mapping[str, object], *, pipeline: str, prefix: str | None = None, mode: str | None = None
) -> Lease:
    """The lease that a document of .NET's, Java's or ours represents.

    The partition is the lease token, and the continuation is unchanged (Java's is packed). Raises InvalidDocument.

    prefix, mode: if given, the required prefix of the id and the required `Mode`.
    """
    name = document.get("id")
    fields = Fields(name[:DOCUMENT_ID_BYTES_MAX] if isinstance(name, str) else "without id", document)
    fields.text("id", DOCUMENT_ID_BYTES_MAX)
    if "version" in document:
        fields.integer("version", at_most=1)
    partition = fields.text("LeaseToken" if "LeaseToken" in document else "PartitionId", NAME_BYTES_MAX)
    if not partition or (prefix is not None and name != document_id(prefix, partition)):
        fields.refuse("LeaseToken", f"is {partition!r}, which belongs under another id")
    found = INCREMENTAL if document.get("Mode") is None else fields.text("Mode", NAME_BYTES_MAX)
    if mode is not None and found != mode:
        fields.refuse("Mode", f"is {found!r}, and this pipeline reads in mode {mode!r}")
    lease = Lease(
        pipeline=pipeline,
        partition=partition,
        owner=_text_or_none(fields, document, "Owner", NAME_BYTES_MAX),
        scope=_scope(document, partition),
        continuation=_text_or_none(fields, document, "ContinuationToken", CONTINUATION_BYTES_MAX),
    )
    ours = document.get(FIELD)
    lease = _theirs(lease, fields, document) if ours is None else _with_ours(lease, fields, ours)
    rest = dict(fields.unknown(_MAPPED))
    return replace(lease, unknown=MappingProxyType({**lease.unknown, DOCUMENT: {"tick": lease.tick, "fields": rest}}))


def encode(lease: Lease, *, prefix: str, now: datetime, mode: str = INCREMENTAL) -> dict[str, object]:
    """The document to write.

    - now: becomes `timestamp` if the owner has raised its tick since `decode`. Another host's request does not change
      `timestamp`.
    - mode: used for a new lease.

    A scope that is not a range of hashed keys is omitted, because .NET has no field for it.
    """
    rest, tick = _carried(lease)
    document: dict[str, object] = {
        "id": document_id(prefix, lease.partition),
        "version": 1 if bounds_of(lease.partition) else 0,
        "LeaseToken": lease.partition,
        **_feed_range(lease),
        "Owner": lease.owner,
        "ContinuationToken": lease.continuation,
        "properties": {},
        "timestamp": timestamp_of(now),
        **({} if tick is not None else {"Mode": mode}),
    }
    kept = {key: value for key, value in rest.items() if key not in _MAPPED}
    (document if tick == lease.tick else kept).pop("timestamp", None)
    if "FeedRange" in document and _scope(kept, lease.partition) != lease.scope:
        kept.pop("FeedRange", None)
    document |= kept
    if lease.generation and isinstance(properties := document["properties"] or {}, dict):  # null holds nothing either
        document["properties"] = {**properties, GENERATION: str(lease.generation)}
    document[FIELD] = _ours_of(lease)
    return document


def stays(document: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The range, and all unknown fields, of an unreadable document that is about to be rewritten."""
    ranges = [key for key in _RANGES if key in document and _scope({key: document[key]}, "") is not None]
    return {key: document[key] for key in ranges}, {key: document[key] for key in document.keys() - _ANEW}


def _text_or_none(fields: Fields, document: Mapping[str, object], name: str, bytes_max: int) -> str | None:
    """.NET also writes an empty text for none."""
    return None if document.get(name) in (None, "") else fields.text(name, bytes_max)


def _feed_range(lease: Lease) -> dict[str, object]:
    bounds = bounds_of(lease.scope or lease.partition)
    return {"FeedRange": {"Range": {"min": bounds[0], "max": bounds[1]}}} if bounds else {}


def _scope(document: Mapping[str, object], partition: str) -> str | None:
    """`{min}-{max}`, from `FeedRange` (Java's `feedRange`) or from a token of that form; None if there is neither."""
    feed_range = document.get("FeedRange", document.get("feedRange"))
    bounds = feed_range.get("Range") if isinstance(feed_range, dict) else None
    ends = (bounds.get("min"), bounds.get("max")) if isinstance(bounds, dict) else ()
    text = "-".join(end.upper() for end in ends if isinstance(end, str)) if ends else partition
    return text if bounds_of(text) and len(text) <= NAME_BYTES_MAX else None


def _theirs(lease: Lease, fields: Fields, document: Mapping[str, object]) -> Lease:
    """The lease of a document that another program wrote or rewrote."""
    stamped_us = _microseconds(document.get("timestamp"))
    written_s = document.get("_ts")
    if not isinstance(written_s, int) or isinstance(written_s, bool) or not 0 <= written_s < EXACT_MAX // 10**6:
        written_s = None if stamped_us is None else stamped_us // 10**6
    return replace(
        lease,
        incarnation=FOREIGN if lease.owner is not None else None,
        epoch=(written_s or 0) * 1000,
        generation=_kept_generation(fields, document.get("properties")),
        tick=(written_s or 0) * 10**6 if stamped_us is None else stamped_us,
    )


def _with_ours(lease: Lease, fields: Fields, ours: object) -> Lease:
    if not isinstance(ours, dict):
        fields.refuse(FIELD, "must be an object")
    known = Fields(
        f"{fields.id}, {FIELD}", {**_ABSENT, **{key: _whole_number(key, value) for key, value in ours.items()}}
    )
    known.version(FIELD_VERSION)
    if misplaced := sorted(_ELSEWHERE & ours.keys()):
        known.refuse(misplaced[0], "does not belong there")
    incarnation = known.optional_text("incarnation", NAME_BYTES_MAX)
    return replace(
        lease,
        incarnation=None if lease.owner is None else incarnation or FOREIGN,
        epoch=known.integer("epoch"),
        generation=known.integer("generation"),
        tick=known.integer("tick"),
        sink_state=known.text("sinkState", SINK_STATE_BYTES_MAX),
        handoff_to=known.optional_text("handoffTo", NAME_BYTES_MAX),
        closed=known.boolean("closed"),
        parents=known.texts("parents", NAME_BYTES_MAX, CHILDREN_MAX),
        children=tuple(child_of(child) for child in known.objects("children", CHILDREN_MAX)),
        unknown=known.unknown(_OURS),
    )


def _ours_of(lease: Lease) -> dict[str, object]:
    values: dict[str, object] = {
        "version": FIELD_VERSION,
        "epoch": _exact(lease.epoch),
        "tick": _exact(lease.tick),
        "generation": _exact(lease.generation),
        "incarnation": lease.incarnation,
        "sinkState": lease.sink_state,
        "handoffTo": lease.handoff_to,
        "closed": lease.closed,
        "parents": list(lease.parents),
        "children": [child_fields(child) for child in lease.children],
    }
    present = {key: value for key, value in values.items() if key not in _ABSENT or value != _ABSENT[key]}
    return {**{key: value for key, value in lease.unknown.items() if key != DOCUMENT}, **present}


def _carried(lease: Lease) -> tuple[Mapping[str, object], int | None]:
    """The rest of the document as it was read, and the tick that it showed; a new lease has neither."""
    carried = lease.unknown.get(DOCUMENT)
    if carried is None:
        return {}, None
    if isinstance(carried, dict) and isinstance(carried.get("fields"), dict) and isinstance(carried.get("tick"), int):
        return carried["fields"], carried["tick"]
    raise InvalidDocument(f"lease '{lease.partition}': field '{DOCUMENT}' is not what was read: it is not written")


def _exact(number: int) -> int | str:
    return number if number <= EXACT_MAX else str(number)


def _whole_number(key: str, value: object) -> object:
    return int(value) if key in _INTEGERS and isinstance(value, str) and _DIGITS.fullmatch(value) else value


def _kept_generation(fields: Fields, properties: object) -> int:
    if not isinstance(properties, dict) or GENERATION not in properties:
        return 0
    return Fields(
        f"{fields.id}, properties", {GENERATION: _whole_number("generation", properties[GENERATION])}
    ).integer(GENERATION)


def _microseconds(timestamp: object) -> int | None:
    """Microseconds since 1970; None if unreadable. Java appends the name of a zone in brackets."""
    if not isinstance(timestamp, str) or len(timestamp) > 64:
        return None
    try:
        read = datetime.fromisoformat(timestamp.partition("[")[0])
    except ValueError:
        return None
    try:
        since = read.astimezone(UTC) if read.tzinfo is not None else read.replace(tzinfo=UTC)
    except OverflowError:  # the year 1 or 9999, in another zone
        return None
    elapsed = since - datetime(1970, 1, 1, tzinfo=UTC)
    return min(max(0, (elapsed.days * 86_400 + elapsed.seconds) * 10**6 + elapsed.microseconds), EXACT_MAX - 1)
