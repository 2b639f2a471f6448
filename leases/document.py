"""Lease <-> JSON text. Strict and bounded, because anyone may write to a lease store.

Nothing is guessed. A document that is truncated, or has wrong types, numbers out of range, duplicate keys or an unknown
version, raises InvalidDocument, which names the document and the field. Unknown top-level fields are kept and written
back, so that newer and older versions can share a container.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from types import MappingProxyType
from typing import NoReturn
from urllib.parse import quote, unquote

from leasehold.common.nesting import NestedTooDeeply, parsed_json
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import SINK_STATE_BYTES_MAX, Child, Lease

VERSION = 1
BODY_BYTES_MAX = 64 * 1024
ID_CHARACTERS_MAX = 255
NAME_BYTES_MAX = 512
CONTINUATION_BYTES_MAX = 32 * 1024
CHILDREN_MAX = 1024
INTEGER_MAX = 2**63 - 1
LEVELS_MAX = 100
"""How deeply JSON from outside may nest; checked before it is parsed."""
UNKNOWN_DEPTH_MAX = 32
"""How deeply unknown fields that are kept may nest: reading, writing and comparing them recurses."""

_UNREADABLE = "unreadable"
_REMEDIES = (": restore it, or delete the document", ": restore it, or delete it")
_LEASE_FIELDS = frozenset(
    (
        *("version", "pipeline", "partition", "owner", "incarnation", "epoch", "generation", "tick"),
        *("scope", "continuation", "sinkState", "handoffTo", "closed", "tombstone", "parents", "children"),
    )
)


def lease_prefix(pipeline: str) -> str:
    """The prefix that lists exactly the leases of one pipeline."""
    return f"{pipeline}/leases/"


def lease_id(pipeline: str, partition: str) -> str:
    """The id of a lease's document. An id that is too long is cut and gets a digest; only such ids have
    ID_CHARACTERS_MAX characters.
    """
    name = quote(partition, safe="").replace("~", "%7E")
    if name in (".", ".."):  # in URLs and paths, these have a meaning
        name = name.replace(".", "%2E")
    whole = lease_prefix(pipeline) + name
    if len(whole) < ID_CHARACTERS_MAX:
        return whole
    digest = sha256(partition.encode()).hexdigest()[:32]
    return f"{whole[: ID_CHARACTERS_MAX - len(digest) - 1]}.{digest}"


def partition_of(id: str) -> str:
    """The partition that a lease's id names (if long, its beginning), for reports about unreadable documents."""
    return unquote(id.rsplit("/", 1)[-1])


def to_json(fields: Mapping[str, object]) -> str:
    """Compact JSON. The encoder is made once, because every write of a lease uses it."""
    return _SHORT.encode(fields)


def encode_lease(lease: Lease) -> str:
    """Raises InvalidDocument if the text could not be read back, because a number, a field or the whole document is too
    large.
    """
    fields: dict[str, object] = {
        **lease.unknown,
        "version": VERSION,
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "owner": lease.owner,
        "incarnation": lease.incarnation,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "tick": lease.tick,
        "continuation": lease.continuation,
        "sinkState": lease.sink_state,
        "handoffTo": lease.handoff_to,
        "closed": lease.closed,
        "parents": list(lease.parents),
        "children": [child_fields(child) for child in lease.children],
        **({"tombstone": True} if lease.tombstone else {}),
        **_scope_field(lease.scope),
    }
    body = to_json(fields)
    stored_under = lease_id(lease.pipeline, lease.partition)
    try:
        if lease.unknown:
            decode_lease(stored_under, body)
        else:  # JSON changes nothing in texts, numbers and flags: they need not be parsed to be checked
            _check_size(stored_under, body, BODY_BYTES_MAX)
            _lease_of(Fields(stored_under, fields))
    except InvalidDocument as error:
        raise InvalidDocument(
            f"the lease was not written, because it could not be read back; the stored document is unchanged ({error})"
        ) from None
    return body


def parsed(name: str, text: str) -> object:
    """Parse JSON from outside, strictly. The caller bounds its size. Raises InvalidDocument."""
    try:
        return parsed_json(text, LEVELS_MAX, _STRICT)
    except NestedTooDeeply as error:
        raise InvalidDocument(f"{name} is {error}: restore it, or delete it") from None
    except ValueError as error:
        raise InvalidDocument(f"{name} is not JSON ({error}): restore it, or delete it") from None


def input_error_text(error: InvalidDocument) -> str:
    """The message for a document that a user supplies for import. It does not advise deleting the original, which may
    hold the only position.
    """
    text = str(error)
    for remedy in _REMEDIES:
        text = text.replace(remedy, ": correct it, or leave it out of the input")
    return text


def advised(error: InvalidDocument, pipeline: str, partition: str) -> InvalidDocument:
    """The error with advice for a lease's document: it may hold the only position, which a deletion could lose."""
    text = str(error)
    for remedy in _REMEDIES:
        text = text.removesuffix(remedy)
    return InvalidDocument(
        f"{text}: until you repair it, the partition and its children are not processed. Restore the document, or give"
        f" the partition a position: `leasehold leases reset FILE {pipeline} {partition} --to ... --yes`. (If you delete the"
        " document, the partition starts over, unless a host or its sink knows its position)"
    )


def unreadable(reason: str) -> str:
    """The body that a store with foreign documents returns for one that does not represent a lease."""
    return to_json({_UNREADABLE: reason})


def decode_lease(id: str, body: str) -> Lease:
    """Raises InvalidDocument."""
    return _lease_of(Fields.parse(id, body))


def _lease_of(fields: Fields) -> Lease:
    """Raises InvalidDocument."""
    fields.readable()
    fields.version(VERSION)
    lease = Lease(
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        partition=fields.text("partition", NAME_BYTES_MAX),
        owner=fields.optional_text("owner", NAME_BYTES_MAX),
        incarnation=fields.optional_text("incarnation", NAME_BYTES_MAX),
        epoch=fields.integer("epoch"),
        generation=fields.integer("generation"),
        tick=fields.integer("tick"),
        scope=_scope(fields),
        continuation=fields.optional_text("continuation", CONTINUATION_BYTES_MAX),
        sink_state=fields.text("sinkState", SINK_STATE_BYTES_MAX),
        handoff_to=fields.optional_text("handoffTo", NAME_BYTES_MAX),
        closed=fields.boolean("closed"),
        tombstone=fields.has("tombstone") and fields.boolean("tombstone"),
        parents=fields.texts("parents", NAME_BYTES_MAX, CHILDREN_MAX),
        children=tuple(child_of(child) for child in fields.objects("children", CHILDREN_MAX)),
        unknown=fields.unknown(_LEASE_FIELDS),
    )
    if fields.id != lease_id(lease.pipeline, lease.partition):
        fields.refuse(
            "partition", f"is {lease.partition!r} of pipeline {lease.pipeline!r}, which belongs under another id"
        )
    if (lease.owner is None) != (lease.incarnation is None):
        fields.refuse("incarnation", "and owner are set together or not at all")
    return lease


def _check_size(id: str, body: str, bytes_max: int) -> None:
    if len(body) > bytes_max or len(body.encode("utf-8", "replace")) > bytes_max:
        raise InvalidDocument(f"document '{id}' is larger than {bytes_max} bytes: restore it, or delete it")


def child_of(fields: Fields) -> Child:
    return Child(
        fields.text("partition", NAME_BYTES_MAX),
        fields.optional_text("continuation", CONTINUATION_BYTES_MAX),
        _scope(fields),
        begun=fields.has("begun") and fields.boolean("begun"),
    )


def child_fields(child: Child) -> dict[str, object]:
    begun = {"begun": True} if child.begun else {}
    return {"partition": child.partition, "continuation": child.continuation, **_scope_field(child.scope), **begun}


def _scope(fields: Fields) -> str | None:
    return fields.text("scope", NAME_BYTES_MAX) if fields.has("scope") else None


def _scope_field(scope: str | None) -> dict[str, object]:
    """Most feeds have no scopes; then the field is omitted."""
    return {} if scope is None else {"scope": scope}


class Fields:
    """The fields of one untrusted JSON object. Each getter checks type and bounds, and its error names the field."""

    def __init__(self, id: str, values: Mapping[str, object]) -> None:
        self._id = id
        self._values = values

    @classmethod
    def parse(cls, id: str, body: str, bytes_max: int = BODY_BYTES_MAX) -> Fields:
        _check_size(id, body, bytes_max)
        values = parsed(f"document '{id}'", body)
        if not isinstance(values, dict):
            raise InvalidDocument(f"document '{id}' is not a JSON object: restore it, or delete it")
        return cls(id, values)

    @property
    def id(self) -> str:
        return self._id

    def refuse(self, name: str, why: str) -> NoReturn:
        raise InvalidDocument(f"document '{self._id}': field '{name}' {why}: restore it, or delete the document")

    def readable(self) -> None:
        """Raises InvalidDocument with the reason that the store recorded."""
        if isinstance(reason := self._values.get(_UNREADABLE), str):
            raise InvalidDocument(reason)

    def version(self, newest: int) -> int:
        version = self.integer("version")
        if not 1 <= version <= newest:
            self.refuse("version", f"is {version}, and this version of Leasehold reads up to {newest}")
        return version

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, bytes_max: int) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            self.refuse(name, f"must be a text, not {_kind(value)}")
        if len(value) > bytes_max or not (value.isascii() or len(self._utf8(name, value)) <= bytes_max):
            self.refuse(name, f"is longer than {bytes_max} bytes")
        return value

    def optional_text(self, name: str, bytes_max: int) -> str | None:
        """null is None; a missing field means that the document was truncated."""
        return None if self._is_null(name) else self.text(name, bytes_max)

    def integer(self, name: str, at_most: int = INTEGER_MAX) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, f"must be an integer, not {_kind(value)}")
        if not 0 <= value <= at_most:
            self.refuse(name, f"must lie between 0 and {at_most}")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._is_null(name) else self.integer(name)

    def inner(self, name: str) -> Fields:
        """A nested object."""
        value = self._values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, f"must be an object, not {_kind(value)}")
        return Fields(self._id, value)

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object that is only displayed."""
        value = self._values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, f"must be an object, not {_kind(value)}")
        self._keep(name, value)
        return MappingProxyType(value)

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.refuse(name, f"must be a number, not {_kind(value)}")
        if not 0 <= value <= INTEGER_MAX:
            self.refuse(name, f"must lie between 0 and {INTEGER_MAX}")
        return float(value)

    def optional_numbers(self, name: str, count_max: int) -> tuple[float | None, ...]:
        items = self._items(name, count_max)
        return tuple(None if item is None else Fields(self._id, {name: item}).number(name) for item in items)

    def boolean(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, f"must be true or false, not {_kind(value)}")
        return value

    def texts(self, name: str, bytes_max: int, count_max: int) -> tuple[str, ...]:
        items = self._items(name, count_max)
        return tuple(Fields(self._id, {name: item}).text(name, bytes_max) for item in items)

    def objects(self, name: str, count_max: int) -> tuple[Fields, ...]:
        items = self._items(name, count_max)
        return tuple(
            Fields(self._id, item) if isinstance(item, dict) else self.refuse(name, "must hold objects")
            for item in items
        )

    def unknown(self, known: frozenset[str]) -> Mapping[str, object]:
        """The other fields, which are written back unchanged."""
        rest = {name: value for name, value in self._values.items() if name not in known}
        for name, value in rest.items():
            self._keep(repr(name)[1:-1], [name, value])
        return MappingProxyType(rest)

    def _keep(self, name: str, value: object) -> None:
        """Refuse values that could be read but not written back."""
        if _is_deeper(value, UNKNOWN_DEPTH_MAX):
            self.refuse(name, f"is nested more than {UNKNOWN_DEPTH_MAX} deep")
        self._utf8(name, json.dumps(value, ensure_ascii=False))

    def _utf8(self, name: str, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.refuse(name, "holds a lone surrogate")

    def _is_null(self, name: str) -> bool:
        return name in self._values and self._values[name] is None

    def _items(self, name: str, count_max: int) -> list[object]:
        items = self._values.get(name)
        if not isinstance(items, list):
            self.refuse(name, f"must be a list, not {_kind(items)}")
        if len(items) > count_max:
            self.refuse(name, f"has more than {count_max} entries")
        return items


def _is_deeper(value: object, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


def _kind(value: object) -> str:
    return "missing" if value is None else type(value).__name__


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key appears twice")
    return values


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError("a number is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
_SHORT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
