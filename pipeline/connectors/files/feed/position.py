"""The position in a file: how far it was read, and what proves that it is still the same file.

A continuation is one line of JSON. What counts in it is the fingerprint of all bytes that were read. A file that was copied
elsewhere or restored from a backup with equal contents continues from its old position, because nothing can be skipped or
repeated there. Device and inode (`file`) prove nothing, as a volume has another device number on every host that mounts
it; they only show whether a changed file was replaced or edited.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import NoReturn

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import PositionLost
from leasehold.pipeline.limits import JSON_LEVELS_MAX

CONTINUATION_CHARS_MAX = 1024
INTEGER_MAX = 2**63 - 1
_VERSION = 1


class Fingerprint:
    """SHA-256 of a file's beginning. `extended` makes a new one, so an old position keeps its own."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def extended(self, data: bytes) -> Fingerprint:
        longer = Fingerprint()
        longer._hash = self._hash.copy()
        longer._hash.update(data)
        return longer

    @property
    def text(self) -> str:
        """128 bits: it has to detect accidents, not attacks."""
        return self._hash.hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """The position after a record."""

    offset: int
    """Bytes before it."""
    record: int
    """Records before it."""
    line: int
    """The physical line, from 1, on which the next record starts."""
    header: str
    """Fingerprint of what precedes the first record."""
    prefix: str
    """Fingerprint of all bytes before `offset`."""
    file: str
    """Device and inode."""
    unterminated: bool = False
    """The record before it was taken without its line end, at the end of the file."""

    def encode(self) -> str:
        return json.dumps({"v": _VERSION, **asdict(self)}, separators=(",", ":"))


_INTEGERS = ("v", "offset", "record", "line")
_TYPES = dict.fromkeys(_INTEGERS, int) | dict.fromkeys(("header", "prefix", "file"), str) | {"unterminated": bool}


def decode(continuation: str) -> FilePosition:
    """Raises PositionLost if no file feed of this version made it."""
    if len(continuation) > CONTINUATION_CHARS_MAX:
        _refuse(continuation)
    try:
        fields = parsed_json(continuation, JSON_LEVELS_MAX)
    except ValueError:
        _refuse(continuation)
    if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != _TYPES:
        _refuse(continuation)
    if fields.pop("v") != _VERSION or not all(
        0 <= fields[name] <= INTEGER_MAX for name in ("offset", "record", "line")
    ):
        _refuse(continuation)
    return FilePosition(**fields)


def compare(a: str | None, b: str | None) -> int:
    """Compare by records: if a last record was taken without its line end, that moves no position forward later."""
    return _records(a) - _records(b)


def _records(continuation: str | None) -> int:
    return 0 if continuation is None else decode(continuation).record


def _refuse(continuation: str) -> NoReturn:
    raise PositionLost(
        f"{continuation[:100]!r} is not a position in a file, or one of a later version: reset the lease to a new position"
    )
