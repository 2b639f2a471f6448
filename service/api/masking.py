"""What one row of a tap shows: its values, masked and cut. Pure.

A value is masked by the name of its column, its property, or its field at any depth of JSON. Names of secrets are always masked.
If the mask has names, then
- a body or a binary value is withheld unless it is a JSON object or array: it may contain such a field,
- a text that is not a JSON document is withheld if it contains such a name anywhere. This also holds for texts within JSON,
  and for names of fields, except a name that is one of the mask's or has only letters and underscores.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from urllib.parse import unquote

import pyarrow as pa
from pydantic import JsonValue

from leasehold.common.nesting import parsed_json
from leasehold.service.texts import MASK, names_a_secret, redacted

VALUE_BYTES_MAX = 64 * 1024
"""A larger value is not shown, only its size."""
ROW_BYTES_MAX = 128 * 1024
"""Values after this many bytes of a row are not shown."""
COLUMN_BYTES = 32
"""What a column costs in addition to its value: even an empty one takes time."""
TEXT_CHARS_MAX = 2000
LEVELS_MAX = 50
TEXTS_MAX = 3
"""How many levels of JSON texts within JSON texts are parsed. Nothing that is nested deeper, in either way, is parsed."""
COLUMNS_MAX = 100
Document = dict[str, object] | list[object] | str
_PLAIN_NAME = re.compile(r"[^\W\d]+")
"""A name that has only letters and underscores. Others may contain values, as in `{"account=4711": true}`."""
_APART = re.compile(r"""[\s/.$#'"`~()\[\]\u200b\ufeff]+""")
"""What separates the parts of a path, or surrounds a name."""
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")


class Mask:
    """patterns: names, or patterns like `*phone*`; case does not matter."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(pattern.lower() for pattern in patterns)

    @property
    def is_empty(self) -> bool:
        return not self._patterns

    def hides(self, name: str) -> bool:
        """Whether the name is masked. A path, like `/iban` or `$.person.iban`, is masked if one of its parts is."""
        parts = {name.lower(), *_APART.split(name.lower())}
        return names_a_secret(name) or any(fnmatchcase(part, pattern) for part in parts for pattern in self._patterns)

    def lists(self, name: str) -> bool:
        return name.lower() in self._patterns

    def is_named_in(self, text: str) -> bool:
        """Whether the text contains a name of the mask anywhere, or may contain one in nested escapes."""
        if self.is_empty:
            return False
        plain = text.replace("\0", "")
        for _ in range(2):
            plain = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), plain)
        texts = (plain.lower(), unquote(plain).lower())
        is_escaped = _ESCAPED.search(plain) is not None
        return is_escaped or any(fnmatchcase(each, f"*{pattern}*") for each in texts for pattern in self._patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """A copy of what is shown of one row: a reference to its page would keep the whole page in memory.

    - columns: each column's name, and what stands for its value if that is not shown; None if it is.
    - content: the columns that are shown, as an Arrow stream of one row.
    - cost: bytes of names and shown values, and `COLUMN_BYTES` for each column.
    """

    columns: tuple[tuple[str, str | None], ...]
    content: pa.Buffer
    cost: int


def copied(table: pa.Table, place: int, mask: Mask) -> ShownRow:
    """Copy one row. That takes microseconds per column: nothing is parsed, and large or masked values are not even copied."""
    row = table.slice(place, 1)
    names = row.column_names[:COLUMNS_MAX]
    columns: list[tuple[str, str | None]] = []
    cost = sum(map(len, names)) + COLUMN_BYTES * len(names)
    for index, name in enumerate(names):
        instead, size = (MASK, 0) if mask.hides(name) else _instead(row.column(index).nbytes, ROW_BYTES_MAX - cost)
        columns.append((name, instead))
        cost += size
    kept = row.select([index for index, (_, instead) in enumerate(columns) if instead is None])
    if len(names) < row.num_columns:
        columns.append(("...", f"({row.num_columns - len(names)} more columns)"))
    return ShownRow(columns=tuple(columns), content=_stream_of(kept), cost=cost)


def failed(error: Exception) -> ShownRow:
    """Stands for a row that cannot be copied."""
    return ShownRow(columns=(("...", _failed(error)),), content=_stream_of(pa.table({})), cost=COLUMN_BYTES)


def _failed(error: Exception) -> str:
    return f"(cannot be shown: {type(error).__name__})"


def _stream_of(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def _instead(size: int, room: int) -> tuple[str | None, int]:
    """What stands for a value of this size, and how much of the value is copied."""
    return (None, size) if size <= min(VALUE_BYTES_MAX, room) else (f"({size:,} bytes: too large to show)", 0)


def values_of(row: ShownRow, mask: Mask) -> dict[str, JsonValue]:
    with pa.ipc.open_stream(row.content) as stream:
        values = iter(stream.read_all().columns)
    return {name: _column(name, next(values), mask) if instead is None else instead for name, instead in row.columns}


def _column(name: str, column: pa.ChunkedArray, mask: Mask) -> JsonValue:
    try:
        value = column[0].as_py()
        if pa.types.is_map(column.type) and value is not None:
            value = dict(value)
        if name == "body" and isinstance(value, str):
            value = value.encode()
        return _masked_value(value, mask)
    except (ValueError, OverflowError) as error:  # PostgreSQL accepts years after 9999
        return _failed(error)


def _masked_value(value: object, mask: Mask, texts: int = 0) -> JsonValue:
    """texts: how many JSON texts the value is nested in."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return _masked_text(value, mask, texts)
        case bytes():
            return _binary(value, mask)
        case datetime():
            return value.isoformat()
        case Mapping():
            return _masked_fields(value, mask, texts)
        case list():
            if value and all(isinstance(each, tuple) for each in value):  # a map within a column
                return _masked_value(dict(value), mask, texts)
            return [MASK if _names_a_field(value, mask) else _masked_value(each, mask, texts) for each in value]
        case _:
            return _cut(redacted(str(value)))


def _masked_fields(fields: Mapping[object, object], mask: Mask, texts: int) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {}
    times = Counter[str]()
    names_a_field = _names_a_field(fields.values(), mask)
    for key, value in fields.items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        label = _name(name, mask, texts)
        times[label] += 1
        unique = label if times[label] == 1 else f"{label} ({times[label]})"  # cut or withheld names may be equal
        shown[unique] = MASK if names_a_field or mask.hides(name) else _masked_value(value, mask, texts)
    return shown


def _names_a_field(values: Iterable[object], mask: Mask) -> bool:
    """Whether one of the values names a masked field, so that another may be its value: `{"name": "iban", "value": "..."}`.

    A list that contains such a name counts too, as in `{"columns": ["iban"], "rows": [["..."]]}`.
    """
    return any(
        mask.hides(each) if isinstance(each, str) else isinstance(each, list) and _lists_a_field(each, mask)
        for each in values
    )


def _lists_a_field(values: Iterable[object], mask: Mask) -> bool:
    inner = (each.values() if isinstance(each, Mapping) else [each] for each in values)
    return any(_names_a_field(each, mask) for each in inner)


def _name(name: str, mask: Mask, texts: int) -> str:
    return _cut(name) if mask.lists(name) or _PLAIN_NAME.fullmatch(name) else _masked_text(name, mask, texts)


def _masked_text(text: str, mask: Mask, texts: int = 0) -> str:
    """JSON in a text is masked like other JSON. Other texts that name a masked field are withheld: no value is found there."""
    parsed = _parsed(text) if texts < TEXTS_MAX else None
    if parsed is not None:
        return _document(parsed, mask, texts)
    if mask.is_named_in(text):
        return f"({len(text.encode(errors='replace')):,} bytes withheld: names a masked field)"
    return _cut(redacted(text))


def _document(parsed: Document, mask: Mask, texts: int = 0) -> str:
    return _cut(json.dumps(_masked_value(parsed, mask, texts + 1), ensure_ascii=False, separators=(",", ":")))


def _binary(content: bytes, mask: Mask) -> JsonValue:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"0x{content[: TEXT_CHARS_MAX // 2].hex()}" if mask.is_empty else _withheld(len(content), "not text")
    if mask.is_empty:
        return _masked_text(text, mask)
    parsed = _parsed(text)
    if isinstance(parsed, dict | list):
        return _document(parsed, mask)
    return _withheld(len(content), "neither a JSON object nor an array, or nested too deep")


def _withheld(size: int, why: str) -> str:
    return f"({size:,} bytes withheld: {why}, so its fields cannot be masked)"


def _parsed(text: str) -> Document | None:
    """The text's JSON object, array or string; None if it is nothing like that."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return None
    try:
        parsed: Document = parsed_json(text, LEVELS_MAX)
        return parsed
    except ValueError:
        return None


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}... ({len(text):,} characters)"
