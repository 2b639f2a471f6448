"""Lease documents of the .NET and Java change feed processors, and of the earlier library -> leases to import. Pure.

They come from an export of a Cosmos DB container (JSON lines, or one JSON array) or from the container itself. Markers
(`.info`), locks (`.lock`) and our own documents are skipped; any other document that is not a lease is refused by name.
The input is untrusted: parsing is strict and bounded, and follows no references.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from leasehold.leases.document import (
    BODY_BYTES_MAX,
    CHILDREN_MAX,
    CONTINUATION_BYTES_MAX,
    NAME_BYTES_MAX,
    Fields,
    input_error_text,
    parsed,
)
from leasehold.leases.dotnet import (
    DOCUMENT_ID_BYTES_MAX,
    FIELD,
    FULL_FIDELITY,
    INCREMENTAL,
    bound_order,
    bounds_of,
    decode,
    document_id,
    is_same_bounds,
)
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.lease import Child, Lease

# The continuation of Java's change feed processor: the server's ETags, packed into base64 of JSON. Pure.
#
# It holds the mode, the start of reading, and one ETag for each part of the lease's range. There are several if a range
# was split and the lease continued with both halves. Java's older leases, for a partition key range, hold the plain ETag.


VERSION = 1
MODES = {"INCREMENTAL": INCREMENTAL, "FULL_FIDELITY": FULL_FIDELITY}
BEGINNING = "BEGINNING"
_HEX = re.compile(r"[0-9A-F]*")


class Part(NamedTuple):
    """One of the parts of the lease's range, from `min` to `max`."""

    min: str
    max: str
    continuation: str | None

    @property
    def name(self) -> str:
        return f"{self.min}-{self.max}"


class Token(NamedTuple):
    """An unpacked continuation."""

    mode: str
    parts: tuple[Part, ...]


def is_packed(continuation: str | None) -> bool:
    """Whether it is base64 of a JSON object; an ETag begins with a quote."""
    return continuation is not None and continuation.startswith("ey")


def unpacked(document: str, continuation: str) -> Token:
    """document: its id, for messages. Raises InvalidDocument."""
    name = f"{document}, ContinuationToken"
    state = Fields.parse(name, _unpacked(name, continuation), CONTINUATION_BYTES_MAX)
    _check_version(state)
    mode = state.text("Mode", NAME_BYTES_MAX)
    if mode not in MODES:
        state.refuse("Mode", f"is {mode!r}, and {' and '.join(MODES)} are known")
    parts = _parts(state.inner("Continuation")) if state.has("Continuation") else ()
    if not parts or any(part.continuation is None for part in parts):
        _check_start(state.inner("StartFrom"))
    return Token(MODES[mode], parts)


def _unpacked(name: str, continuation: str) -> str:
    try:
        return base64.b64decode(continuation, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidDocument(
            f"document '{name}' is not base64 of a text, as Java writes it: export the document again"
        ) from None


def _check_version(fields: Fields) -> None:
    if (version := fields.integer("V")) != VERSION:
        fields.refuse("V", f"is {version}, and only {VERSION} is known")


def _check_start(start: Fields) -> None:
    """Without an ETag, only the beginning is a position; a time or `now` was one only when Java was started."""
    if (kind := start.text("Type", NAME_BYTES_MAX)) != BEGINNING:
        start.refuse("Type", f"is {kind!r} and nothing was read yet, so there is no position to continue from")


def _parts(continuation: Fields) -> tuple[Part, ...]:
    _check_version(continuation)
    found = sorted(
        map(_part, continuation.objects("Continuation", CHILDREN_MAX)), key=lambda part: bound_order(part.min)
    )
    if not found or any(bound_order(one.max) != bound_order(other.min) for one, other in pairwise(found)):
        continuation.refuse("Continuation", "has ranges with gaps, or none")
    return tuple(found)


def _part(fields: Fields) -> Part:
    bounds = fields.inner("range")
    low, high = (bounds.text(name, NAME_BYTES_MAX).upper() for name in ("min", "max"))
    if not (_HEX.fullmatch(low) and _HEX.fullmatch(high) and bound_order(low) < bound_order(high)):
        bounds.refuse("min", "and max are not bounds of hashed keys")
    token = fields.optional_text("token", CONTINUATION_BYTES_MAX)
    if token is not None and token.startswith(("[", "{")):
        fields.refuse("token", "holds a continuation of an SDK before 4, not an ETag")
    return Part(low, high, token)


Document = Mapping[str, object]

INPUT_BYTES_MAX = 64 * 1024 * 1024
DOCUMENTS_MAX = 10_000
_TOKENS = ("LeaseToken", "PartitionId")
_PASSED_OVER = (".info", ".lock")
_OWN = "leasehold:"
"""The prefix of our own documents' ids in a container of leases."""


def documents_in(text: str) -> list[Document]:
    """The documents in JSON lines or a JSON array. Raises InvalidDocument."""
    if len(text) > INPUT_BYTES_MAX:
        raise InvalidDocument(f"the input is larger than {INPUT_BYTES_MAX} bytes: export only the leases")
    text = text.removeprefix("\ufeff").strip()
    found = parsed("the input", text) if text.startswith("[") else [*_lines(text)]
    assert isinstance(found, list)
    if len(found) > DOCUMENTS_MAX:
        raise InvalidDocument(f"the input holds more than {DOCUMENTS_MAX} documents: export only the leases")
    return [_checked(number, each) for number, each in enumerate(found, 1)]


def _lines(text: str) -> Iterable[object]:
    """Parsing stops at the first invalid line, so that a wrong file leads to one message."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield parsed(f"line {number} of the input", line)


def _checked(number: int, document: object) -> Document:
    if not isinstance(document, dict):
        raise InvalidDocument(
            f"number {number} of the input is not a JSON object: give JSON lines, or one array of documents"
        )
    name = _name(document, f"number {number} of the input")
    Fields(name, {"document": document}).mapping("document")
    if len(json.dumps(document)) > 4 * BODY_BYTES_MAX:
        raise InvalidDocument(f"document '{name}' is larger than a lease can be: leave it out")
    return document


def _name(document: Document, otherwise: str = "without id") -> str:
    name = document.get("id")
    return name[:DOCUMENT_ID_BYTES_MAX] if isinstance(name, str) else otherwise


def leases_among(documents: Sequence[Document], prefix: str | None = None) -> tuple[str | None, list[Document]]:
    """The lease documents whose ids begin with `prefix`, and the prefix. Without a prefix, all of them must have the
    same one.

    Raises InvalidDocument.
    """
    wanted = [each for each in documents if not _is_passed_over(each)]
    if prefix is not None:
        return prefix, [each for each in wanted if str(each.get("id", "")).startswith(document_id(prefix, ""))]
    found = sorted({prefix for each in wanted if (prefix := _prefix_of(each)) is not None})
    if len(found) > 1:
        shown = ", ".join(f"'{each}'" for each in found[:8])
        raise InvalidDocument(
            f"the input holds the leases of {len(found)} processors ({shown}): choose one by --prefix, the beginning of its ids"
        )
    return found[0] if found else None, wanted


def _is_passed_over(document: Document) -> bool:
    if any(name in document for name in _TOKENS):
        return False
    name = document.get("id")
    return isinstance(name, str) and (name.endswith(_PASSED_OVER) or name.startswith(_OWN))


def _prefix_of(document: Document) -> str | None:
    token = next((document[name] for name in _TOKENS if name in document), None)
    name = document.get("id")
    if not isinstance(name, str) or not isinstance(token, str) or not name.endswith(document_id("", token)):
        return None
    return name.removesuffix(document_id("", token))


def candidates(
    documents: Iterable[Document], *, pipeline: str, is_java: bool, prefix: str | None = None, mode: str | None = None
) -> list[Candidate]:
    """One candidate for each document. mode: of the pipeline's feed, in .NET's terms."""
    return [_candidate(each, pipeline, is_java, prefix, mode) for each in documents]


def _candidate(document: Document, pipeline: str, is_java: bool, prefix: str | None, mode: str | None) -> Candidate:
    name = _name(document)
    try:
        if not any(token in document for token in _TOKENS):
            raise InvalidDocument(
                f"document '{name}' is not a lease, because it has no 'LeaseToken': leave it out of the input"
            )
        lease = decode(document, pipeline=pipeline, prefix=prefix, mode=mode)
        brought = Candidate(
            document=name, partition=lease.partition, owner=lease.owner, written_us=_written_us(document, lease)
        )
        lease = replace(lease.given_up(), scope=_scope_of(document, lease.partition))
        return _placed(brought, lease, is_java, mode)
    except InvalidDocument as error:
        return Candidate(
            document=name, partition=str(document.get("LeaseToken") or name), refused=input_error_text(error)
        )


def _written_us(document: Document, lease: Lease) -> int | None:
    """The tick of one of their leases is its timestamp; the tick of ours is only a counter."""
    return None if document.get(FIELD) is not None else lease.tick or None


def _placed(brought: Candidate, lease: Lease, is_java: bool, mode: str | None) -> Candidate:
    text = lease.continuation
    if text is None or not is_packed(text):
        return replace(brought, lease=lease)
    if not is_java:
        raise InvalidDocument(
            f"document '{brought.document}': field 'ContinuationToken' is one of Java's: import it with --from java"
        )
    token = unpacked(brought.document, text)
    _check(brought.document, token, lease, mode)
    places = {part.continuation for part in token.parts}
    if len(places) <= 1:
        return replace(brought, lease=replace(lease, continuation=next(iter(places), None)), packed=text)
    parts = tuple(Child(part.name, part.continuation, part.name) for part in token.parts)
    return replace(brought, lease=replace(lease, continuation=None), packed=text, parts=parts)


def _check(name: str, token: Token, lease: Lease, mode: str | None) -> None:
    fields = Fields(name, {})
    if mode is not None and token.mode != mode:
        fields.refuse("ContinuationToken", f"is of mode {token.mode!r}, and this pipeline reads in mode {mode!r}")
    if not token.parts or lease.scope is None:
        return
    covered = f"{token.parts[0].min}-{token.parts[-1].max}"
    if not is_same_bounds(covered, lease.scope):
        fields.refuse("ContinuationToken", f"covers {covered}, and the lease {lease.scope}")


def _scope_of(document: Document, partition: str) -> str | None:
    """The range of hashed keys: the token's, or else .NET's `FeedRange` or Java's `feedRange`."""
    if bounds_of(partition) is not None:
        return partition
    for name in ("FeedRange", "feedRange"):
        within = document.get(name)
        span = within.get("Range") if isinstance(within, dict) else None
        text = f"{span.get('min')}-{span.get('max')}" if isinstance(span, dict) else ""
        if bounds_of(text) is not None:
            return text
    return None
