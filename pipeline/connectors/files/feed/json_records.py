"""JSON lines: every line a JSON object, which becomes an event's body byte for byte.

Strict, since what parsers disagree on would be read in two ways further on: UTF-8, no NaN or Infinity, no key twice in an
object, nested no more than 500 levels deep. Blank lines are skipped. A key is the text of a
string, a number as it is written, or true or false; a record without it, or with null, has a null key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from pipeline.connectors.files.feed.records import (
    BOM,
    LF,
    Content,
    Cut,
    Offsets,
    Opening,
    Unreadable,
    cut_records,
    octets,
    oversized,
)
from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import NestedTooDeeply, check_nesting


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecords:
    """key: the field that holds an event's key. record_bytes_max: the largest record, in bytes."""

    key: str | None = None
    record_bytes_max: int

    def opening(self, data: bytes) -> Opening | None:
        if len(data) < len(BOM) and BOM.startswith(data):
            return None
        return Opening(bytes=len(BOM) if data.startswith(BOM) else 0)

    def cut(self, data: bytes, opening: Opening | None) -> Cut:
        ends = np.flatnonzero(octets(data) == LF) + 1
        return cut_records(data, ends, [*oversized(data, ends, self.record_bytes_max)])

    def is_within_quotes(self, data: bytes) -> bool:
        return False

    def content(self, cut: Cut, opening: Opening, count: int) -> Content:
        bodies: list[bytes] = []
        keys: list[str | None] = []
        trouble = None
        for start, end in zip(cut.starts[:count].tolist(), cut.ends[:count].tolist(), strict=True):
            line = cut.data[start : end - 1].removesuffix(b"\r")
            try:
                keys.append(self._key(_parsed(line)))
            except ValueError as error:
                trouble = Unreadable(str(error), int(cut.lines[len(bodies)]), (start, end))
                break
            bodies.append(line)
        return Content(pa.array(keys, pa.string()), pa.array(bodies, pa.binary()), trouble)

    def sizes(self, cut: Cut, opening: Opening) -> Offsets:
        return (cut.ends - cut.starts) * (1 if self.key is None else 2)

    def _key(self, record: dict[str, Any]) -> str | None:
        """Raises ValueError."""
        value = None if self.key is None else record.get(self.key)
        if value is None or isinstance(value, bool):
            return None if value is None else json.dumps(value)
        if not isinstance(value, str):
            raise ValueError(f"the record's key '{self.key}' is neither a text nor a number")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the record's key '{self.key}' holds half of a surrogate pair") from None
        return value


def _parsed(line: bytes) -> dict[str, Any]:
    """The object, its numbers as texts. Raises ValueError."""
    try:
        text = line.decode().strip(" \t\r")
        check_nesting(text, JSON_LEVELS_MAX)
        record, end = _DECODER.raw_decode(text)
        if end < len(text):
            raise json.JSONDecodeError("More than one value", text, end)
    except UnicodeDecodeError as error:
        raise ValueError(f"the record is not UTF-8 (byte {line[error.start]:#04x})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the record is not JSON ({error.msg}, at character {error.pos + 1})") from None
    except NestedTooDeeply as error:
        raise ValueError(f"the record is {error}") from None
    if not isinstance(record, dict):
        raise ValueError("the record is not a JSON object")
    return record


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("the record holds an object with one key twice")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the record is not JSON ({name} is no number there)")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=_no_constant)
