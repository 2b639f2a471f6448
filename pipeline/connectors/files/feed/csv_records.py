"""CSV records (RFC 4180), cut and checked for a whole block of bytes at once.

A byte lies inside a quoted field when an odd number of quotes precedes it: a doubled quote leaves a field and enters it again.
So separators and record ends are found without walking through the fields, at known byte offsets, which a parser of text
would lose. Every quote is checked for its neighbours, hence nothing passes that another strict parser would read otherwise.

Fields are texts, and stay as they are written: "12.30" is "12.30", an empty field is "", spaces belong to it. Blank lines are
skipped; in a file of one column an empty field has to be written as "" (as Python's csv module does).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.connectors.files.feed.records import (
    BOM,
    CR,
    LF,
    Content,
    Cut,
    Offsets,
    Opening,
    Trouble,
    Unreadable,
    are_blank,
    cut_records,
    octets,
    oversized,
    starts_of,
)

QUOTE, COMMA, SPACE = b'", '
_to_json = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRecords:
    """key: the column that holds an event's key. record_bytes_max: the largest record, in bytes."""

    key: str | None = None
    record_bytes_max: int

    def opening(self, data: bytes) -> Opening | None:
        """The header: names that are neither empty nor repeated."""
        skipped = len(BOM) if data.startswith(BOM) else 0
        cut = self.cut(data[skipped:], None)
        if len(cut):
            line, end = int(cut.lines[0]), int(cut.ends[0])
            header = _header(cut.data[int(cut.starts[0]) : end])
            trouble = _header_trouble(header, self.key)
            if trouble:
                raise Unreadable(trouble, line)
            return Opening(skipped + end, int(cut.lines_behind[0]), header)
        if cut.trouble:
            raise cut.trouble
        return None

    def cut(self, data: bytes, opening: Opening | None) -> Cut:
        raw = octets(data)
        quotes = np.flatnonzero(raw == QUOTE)
        marks = _outside(np.flatnonzero((raw == COMMA) | (raw == LF)), quotes)
        is_end = raw[marks] == LF
        ends = marks[is_end] + 1
        troubles = [*_damages(data, quotes, ends), *oversized(data, ends, self.record_bytes_max)]
        if opening is None:
            return cut_records(data, ends, troubles)
        width = len(opening.header)
        widths = np.diff(np.flatnonzero(is_end), prepend=-1)
        cut = cut_records(data, ends, [*troubles, *_misfits(data, ends, widths, width)])
        last = np.searchsorted(marks, cut.ends - 1)
        return replace(cut, fields=marks[last[:, np.newaxis] + np.arange(1 - width, 1)])

    def is_within_quotes(self, data: bytes) -> bool:
        return data.count(b'"') % 2 == 1

    def content(self, cut: Cut, opening: Opening, count: int) -> Content:
        assert cut.fields is not None, "cut without a header"
        columns = _columns(cut.data, cut.starts[:count], cut.fields[:count])
        keys = pa.nulls(count, pa.string()) if self.key is None else columns[opening.header.index(self.key)]
        if _needs_escapes(cut.data[: int(cut.ends[count - 1])]):
            columns = [_escaped(column) for column in columns]
        parts: list[pa.Array | str] = []
        for name, column in zip(_names(opening), columns, strict=True):
            parts += [name, column]
        bodies = pc.binary_join_element_wise(*parts, '"}', "")
        return Content(keys, bodies.cast(pa.binary()))

    def sizes(self, cut: Cut, opening: Opening) -> Offsets:
        names = sum(len(name.encode()) for name in _names(opening))
        return (cut.ends - cut.starts) * (1 if self.key is None else 2) + names


def _outside(marks: Offsets, quotes: Offsets) -> Offsets:
    """Those that lie outside of quoted fields."""
    return marks[np.searchsorted(quotes, marks) % 2 == 0] if quotes.size else marks


def _damages(data: bytes, quotes: Offsets, ends: Offsets) -> Iterator[Trouble]:
    """The records that break the rules of CSV, the first of each kind. What follows a stray quote is not to be believed."""

    def in_record(offset: int) -> int:
        return int(np.searchsorted(ends, offset, side="right"))

    following = octets(data[1:] + b"\n")  # what is not known yet may turn out well
    opening, closing = quotes[0::2], quotes[1::2]
    strays = (
        *opening[(opening > 0) & ~np.isin(octets(data)[opening - 1], (COMMA, LF, QUOTE))][:1],
        *closing[~np.isin(following[closing], (COMMA, CR, LF, QUOTE))][:1],
    )
    for stray in strays:
        yield Trouble(in_record(stray), "a quote within a field has to be doubled, and the whole field quoted")
    returns = _outside(np.flatnonzero(octets(data) == CR), quotes)
    for alone in returns[following[returns] != LF][:1]:
        yield Trouble(in_record(alone), "a carriage return without a line feed has to be within quotes")
    if (nul := data.find(b"\0")) >= 0:
        yield Trouble(in_record(nul), "the record holds a NUL byte; the file has to be UTF-8")
    try:
        data[: int(ends[-1]) if ends.size else 0].decode()
    except UnicodeDecodeError as error:
        yield Trouble(in_record(error.start), f"the record is not UTF-8 (byte {data[error.start]:#04x})", is_alone=True)


def _misfits(data: bytes, ends: Offsets, widths: Offsets, width: int) -> Iterator[Trouble]:
    """The first record that has not `width` fields."""
    for index in np.flatnonzero((widths != width) & ~are_blank(data, starts_of(ends), ends))[:1]:
        reason = f"the record has {_counted(int(widths[index]))}, and the header {_counted(width)}"
        yield Trouble(int(index), reason, is_alone=True)


def _counted(fields: int) -> str:
    return f"{fields} field" if fields == 1 else f"{fields} fields"


def _columns(data: bytes, starts: Offsets, fields: Offsets) -> list[pa.Array]:
    """The texts of the fields, column by column (string).

    One Arrow array is laid over the bytes as they are: field, gap, field, gap. Every other value of it is a field.
    """
    raw = octets(data)
    begins = np.column_stack((starts, fields[:, :-1] + 1))
    ends = fields.copy()
    ends[:, -1] -= raw[ends[:, -1] - 1] == CR
    is_quoted = raw[begins] == QUOTE
    offsets = np.stack((begins + is_quoted, ends - is_quoted), axis=-1).astype(np.int32).ravel()
    texts = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    width = fields.shape[1]
    columns = [texts.take(pa.array(np.arange(2 * column, len(offsets), 2 * width))) for column in range(width)]
    return [pc.replace_substring(column, '""', '"') for column in columns] if b'""' in data else columns


def _header(record: bytes) -> tuple[str, ...]:
    raw = octets(record)
    marks = _outside(np.flatnonzero((raw == COMMA) | (raw == LF)), np.flatnonzero(raw == QUOTE))
    return tuple(column[0].as_py() for column in _columns(record, np.zeros(1, np.int64), marks[np.newaxis, :]))


def _header_trouble(header: tuple[str, ...], key: str | None) -> str | None:
    name, count = Counter(header).most_common(1)[0]
    if "" in header:
        return f"column {header.index('') + 1} of the header has no name"
    if count > 1:
        return f"the header names '{name}' {count} times"
    if key is not None and key not in header:
        return f"the header has no column '{key}', which `key` names"
    return None


def _names(opening: Opening) -> list[str]:
    """What precedes each value in a body."""
    names = [_to_json(name) + ':"' for name in opening.header]
    return ["{" + names[0], *('",' + name for name in names[1:])]


def _needs_escapes(data: bytes) -> bool:
    """Whether any field might hold what JSON wants escaped; line ends and quotes around fields do not count."""
    raw = octets(data)
    controls = int(np.count_nonzero(raw < SPACE))
    structural = data.count(b"\n") + data.count(b"\r")
    return b"\\" in data or b'"' in data or controls > structural


def _escaped(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]')).as_py():
        return column
    texts: list[str] = column.to_pylist()
    return pa.array([_to_json(text)[1:-1] for text in texts], pa.string())
