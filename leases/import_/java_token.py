"""What Java's change feed processor keeps as a continuation: the server's ETags, packed into base64 of JSON. Pure.

It holds the mode, where reading was to begin, and one ETag for each part of the lease's range: there are several where a range
was split and the lease went on with both halves. Java's older leases, those of a partition key range, hold the ETag as it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from itertools import pairwise
from typing import NamedTuple

from leases.document import CHILDREN_MAX, CONTINUATION_BYTES_MAX, NAME_BYTES_MAX, Fields
from leases.dotnet import FULL_FIDELITY, INCREMENTAL, bound_order
from leases.errors import InvalidDocument

VERSION = 1
MODES = {"INCREMENTAL": INCREMENTAL, "FULL_FIDELITY": FULL_FIDELITY}
BEGINNING = "BEGINNING"
_HEX = re.compile(r"[0-9A-F]*")


class Part(NamedTuple):
    """A part of the lease's range, from `min` to `max`, and up to where it was read; None is the feed's beginning."""

    min: str
    max: str
    continuation: str | None

    @property
    def name(self) -> str:
        return f"{self.min}-{self.max}"


class Token(NamedTuple):
    """mode: in .NET's words. parts: by their bounds, one behind the other without a gap; none where nothing was read yet."""

    mode: str
    parts: tuple[Part, ...]


def is_packed(continuation: str | None) -> bool:
    """Whether it is base64 of a JSON object; an ETag begins with a quote."""
    return continuation is not None and continuation.startswith("ey")


def unpacked(document: str, continuation: str) -> Token:
    """document: its id, for messages. Raises InvalidDocument."""
    name = f"{document}, ContinuationToken"
    state = Fields.parse(name, _text(name, continuation), CONTINUATION_BYTES_MAX)
    _check_version(state)
    mode = state.text("Mode", NAME_BYTES_MAX)
    if mode not in MODES:
        state.refuse("Mode", f"is {mode!r}, and {' and '.join(MODES)} are known")
    parts = _parts(state.inner("Continuation")) if state.has("Continuation") else ()
    if not parts or any(part.continuation is None for part in parts):
        _check_start(state.inner("StartFrom"))
    return Token(MODES[mode], parts)


def _text(name: str, continuation: str) -> str:
    try:
        return base64.b64decode(continuation, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidDocument(
            f"document '{name}' is not base64 of a text, as Java writes it: export the document again"
        ) from None


def _check_version(fields: Fields) -> None:
    if (version := fields.integer("V")) != VERSION:
        fields.refuse("V", f"is {version}, and {VERSION} alone is known")


def _check_start(start: Fields) -> None:
    """Without an ETag only the beginning is a position; a time, or `now`, was one when Java was started."""
    if (kind := start.text("Type", NAME_BYTES_MAX)) != BEGINNING:
        start.refuse("Type", f"is {kind!r} and nothing was read yet, so there is no position to go on from")


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
        bounds.refuse("min", "and max are no bounds of hashed keys")
    token = fields.optional_text("token", CONTINUATION_BYTES_MAX)
    if token is not None and token.startswith(("[", "{")):
        fields.refuse("token", "holds a continuation of an SDK before 4, and no ETag")
    return Part(low, high, token)
