"""What the record formats have in common: where records end, what they hold, and why one cannot be read."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.common.nesting import NestedTooDeeply, check_nesting
from leasehold.pipeline.limits import JSON_LEVELS_MAX

Offsets: TypeAlias = npt.NDArray[np.int64]

BOM = b"\xef\xbb\xbf"
CR, LF = 13, 10


class Unreadable(Exception):
    """A record that cannot become an event. lines: line ends between the start of the data and the record.

    span: the record's begin and end in the data, its line end included, if they are beyond doubt.
    """

    def __init__(self, reason: str, lines: int, span: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.lines = lines
        self.span = span


class NotText(Unreadable):
    """The file is of another format, whatever its records are."""


_MARKS = {
    b"\x1f\x8b": "compressed with gzip: decompress it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it",
    b"\xfd7zXZ\x00": "compressed with xz: decompress it",
    b"\x04\x22\x4d\x18": "compressed with lz4: decompress it",
    b"\x1f\x9d": "compressed with compress (.Z): decompress it",
    b"\x1f\xa0": "compressed with pack (.z): decompress it",
    b"LZIP\x01": "compressed with lzip: decompress it",
    b"\xff\x06\x00\x00sNaPpY": "compressed with snappy: decompress it",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    b"PK\x03\x04": "a zip archive or an Excel workbook: unpack it, or export it as CSV in UTF-8",
    b"PK\x05\x06": "an empty zip archive: move it away",
    b"%PDF-": "PDF: export its tables as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel workbook: export it as CSV in UTF-8",
    b"PAR1\x15": "Parquet: convert it to CSV or JSON lines",
    b"Obj\x01": "Avro: convert it to CSV or JSON lines",
    b"ARROW1\x00\x00": "Arrow: convert it to CSV or JSON lines",
    b"SQLite format 3\x00": "a SQLite database: export its tables as CSV or JSON lines",
    b"\xff\xfe\x00\x00": "UTF-32: convert it to UTF-8",
    b"\x00\x00\xfe\xff": "UTF-32: convert it to UTF-8",
    b"\xff\xfe": "UTF-16: convert it to UTF-8",
    b"\xfe\xff": "UTF-16: convert it to UTF-8",
}
"""What files of known formats begin with, longer marks first if one begins with another."""
LOOK_BYTES = 4096
_SHAPES = (
    (rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", "compressed with bzip2: decompress it"),
    (rb"\]\0\0.{9}(?:\xff|\0)\0", "compressed with lzma: decompress it"),
    (rb"[\x50-\x5f]\x2a\x4d\x18", "compressed with zstd: decompress it"),
    (rb"ORC.{,12}?[\0-\x08\x0e-\x1f]", "ORC: convert it to CSV or JSON lines"),
)
_UTF_32 = re.compile(rb"[^\0]\0\0\0|\0\0\0[^\0]")
_UTF_16 = re.compile(rb"[^\0]\0(?:[^\0]\0|[^\0]?\Z)|\0[^\0](?:\0[^\0]|\0?\Z)", re.DOTALL)


def check_text(data: bytes) -> None:
    """data: the first bytes of a file. Raises NotText if they are of a known format that is neither CSV nor JSON lines."""
    found = next((what for mark, what in _MARKS.items() if data.startswith(mark)), None)
    found = found or next((what for shape, what in _SHAPES if re.match(shape, data, re.DOTALL)), None)
    if found is None and _UTF_32.match(data):
        found = "UTF-32: convert it to UTF-8"
    if found is None and (_UTF_16.match(data[:4]) or _is_utf_16(data[:LOOK_BYTES])):
        found = "UTF-16: convert it to UTF-8"
    if found is None and _is_zlib(data[:LOOK_BYTES]):
        found = "compressed with zlib: decompress it"
    if found is not None:
        raise NotText(f"the file is {found}", 0)


def _is_utf_16(data: bytes) -> bool:
    """Whether it cannot be UTF-8, and has lines of readable characters in UTF-16. Latin letters are not needed."""
    if _decoded(data, "utf-8") is not None:
        return False
    texts = (_decoded(data, encoding) for encoding in ("utf-16-le", "utf-16-be"))
    return any(text and re.search(r'[\n,"]', text) and re.sub(r"\s", "", text).isprintable() for text in texts)


def _is_zlib(data: bytes) -> bool:
    """Whether it can be decompressed: the mark is only two bytes, with which a text may begin as well."""
    if data[:1] != b"x" or int.from_bytes(data[:2], "big") % 31 or _decoded(data, "utf-8") is not None:
        return False
    try:
        zlib.decompressobj().decompress(data, LOOK_BYTES)
    except zlib.error:
        return False
    return True


def _decoded(data: bytes, encoding: str) -> str | None:
    """The text; None if the data is not in this encoding. The last character may be incomplete."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return None


class Trouble(NamedTuple):
    """record: its index in the data. is_alone: whether its end is beyond doubt, so that the others can be read."""

    record: int
    reason: str
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """What precedes the first record: a byte order mark, and in CSV the header. bytes, lines: how long it is."""

    bytes: int = 0
    lines: int = 0
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The whole records at the beginning of some data, as offsets into it.

    - `starts`, `ends`: of each record, its line end included.
    - `lines`, `lines_behind`: line ends before each record, and before its end.
    """

    data: bytes
    starts: Offsets
    ends: Offsets
    lines: Offsets
    lines_behind: Offsets
    passed: int
    """The offset after the last record and the blank lines that follow it."""
    trouble: Unreadable | None
    """Why the next record can never be read, if that is certain."""
    fields: Offsets | None = None
    """A row for each record, with the end of each of its fields (CSV)."""

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Content:
    """Keys (string) and bodies (binary) of consecutive records. trouble: why the record that follows cannot be read."""

    keys: pa.Array
    bodies: pa.Array
    trouble: Unreadable | None = None


class RecordFormat(Protocol):
    """How a file is cut into records, and what a record becomes. Pure; all of it takes CPU time."""

    def opening(self, data: bytes) -> Opening | None:
        """What precedes the first record, from the file's first bytes; None if they end within it. Raises Unreadable."""
        ...

    def cut(self, data: bytes, opening: Opening | None) -> Cut:
        """Cut data that begins with a record. Without an opening, only checks that need none are made."""
        ...

    def is_within_quotes(self, data: bytes) -> bool:
        """Whether data that begins with a record ends in a quoted field, which may continue over line ends."""
        ...

    def content(self, cut: Cut, opening: Opening, count: int) -> Content:
        """The content of the cut's first `count` records (at least one)."""
        ...

    def sizes(self, cut: Cut, opening: Opening) -> Offsets:
        """The bytes that each record's key and body take, without escapes."""
        ...


def octets(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def starts_of(ends: Offsets) -> Offsets:
    """ends: of consecutive lines, from the beginning of the data."""
    return np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1]))


def are_blank(data: bytes, starts: Offsets, ends: Offsets) -> npt.NDArray[np.bool_]:
    """Whether lines hold nothing but their line end."""
    sizes = ends - starts
    blank: npt.NDArray[np.bool_] = (sizes == 1) | ((sizes == 2) & (octets(data)[starts] == CR))
    return blank


def cut_records(data: bytes, ends: Offsets, troubles: Sequence[Trouble]) -> Cut:
    """The records that end at `ends`, up to the first of `troubles`; if several are about one record, the first one counts."""
    first = min(troubles, key=itemgetter(0), default=Trouble(len(ends), ""))
    count, reason = first.record, first.reason
    newlines = np.flatnonzero(octets(data) == LF)
    starts = starts_of(ends)
    span = (int(starts[count]), int(ends[count])) if first.is_alone else None
    starts, ends = starts[:count], ends[:count]
    passed = int(ends[-1]) if count else 0
    is_record = ~are_blank(data, starts, ends)
    starts, ends = starts[is_record], ends[is_record]
    return Cut(
        data=data,
        starts=starts,
        ends=ends,
        lines=np.searchsorted(newlines, starts),
        lines_behind=np.searchsorted(newlines, ends),
        passed=passed,
        trouble=Unreadable(reason, int(np.searchsorted(newlines, passed)), span) if reason else None,
    )


def oversized(data: bytes, ends: Offsets, bytes_max: int) -> Iterator[Trouble]:
    """The first record that is larger than `bytes_max`, even if it is not whole yet; for `cut_records`."""
    sizes = np.diff(ends, prepend=0, append=len(data))
    if sizes.max() > bytes_max:
        reason = f"the record is larger than {bytes_max} bytes (record_bytes_max)"
        yield Trouble(int(np.argmax(sizes > bytes_max)), reason)


# JSON lines: every line a JSON object, which becomes an event's body byte for byte.
#
# It is strict, because parsers disagree on everything else, and later readers would read it differently: UTF-8, no NaN or
# Infinity, no key twice in an object, nested no more than 500 levels deep. Blank lines are skipped. A key is the text of a
# string, a number as it is written, or true or false; a record without the field, or with null, has a null key.


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
    raise ValueError(f"the record is not JSON ({name} is not a number there)")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=_no_constant)


# CSV records (RFC 4180), cut and checked for a whole block of bytes at once.
#
# A byte lies inside a quoted field when an odd number of quotes precedes it: a doubled quote leaves a field and enters it again.
# So separators and record ends are found without walking through the fields, at known byte offsets, which a parser of text
# would lose. The neighbours of every quote are checked, so nothing passes that another strict parser would read otherwise.
#
# Fields are texts, and stay as they are written: "12.30" is "12.30", an empty field is "", spaces belong to it. Blank lines are
# skipped; in a file of one column an empty field has to be written as "" (as Python's csv module does).


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
    """The marks outside of quoted fields."""
    return marks[np.searchsorted(quotes, marks) % 2 == 0] if quotes.size else marks


def _damages(data: bytes, quotes: Offsets, ends: Offsets) -> Iterator[Trouble]:
    """The records that break the rules of CSV, the first of each kind. What follows a stray quote cannot be trusted."""

    def in_record(offset: int) -> int:
        return int(np.searchsorted(ends, offset, side="right"))

    following = octets(data[1:] + b"\n")  # a byte that is not known yet counts as right
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
    """The first record that does not have `width` fields."""
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
    """Whether any field might hold what JSON has to escape; line ends and quotes around fields do not count."""
    raw = octets(data)
    controls = int(np.count_nonzero(raw < SPACE))
    structural = data.count(b"\n") + data.count(b"\r")
    return b"\\" in data or b'"' in data or controls > structural


def _escaped(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]')).as_py():
        return column
    texts: list[str] = column.to_pylist()
    return pa.array([_to_json(text)[1:-1] for text in texts], pa.string())
