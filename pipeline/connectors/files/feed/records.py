"""What the record formats have in common: where records end, what they hold, and why one cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets: TypeAlias = npt.NDArray[np.int64]

BOM = b"\xef\xbb\xbf"
CR, LF = 13, 10


class Unreadable(Exception):
    """A record that cannot become an event. lines: line ends between the start of the data and the record.

    span: where in the data it lies, its line end included, where that is beyond doubt.
    """

    def __init__(self, reason: str, lines: int, span: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.lines = lines
        self.span = span


class Trouble(NamedTuple):
    """record: its index in the data. is_alone: whether it is beyond doubt where it ends, so that the others can be read."""

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

    starts, ends: of each record, its line end included. lines, lines_behind: line ends before each record, and before its
    end. passed: behind the last of them and the blank lines that follow it. trouble: why the next record can never be read,
    where that is certain. fields: a row for each record, with the end of each of its fields (CSV).
    """

    data: bytes
    starts: Offsets
    ends: Offsets
    lines: Offsets
    lines_behind: Offsets
    passed: int
    trouble: Unreadable | None
    fields: Offsets | None = None

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Content:
    """Keys (string) and bodies (binary) of consecutive records. trouble: why the record that follows cannot be read."""

    keys: pa.Array
    bodies: pa.Array
    trouble: Unreadable | None = None


class RecordFormat(Protocol):
    """How a file is cut into records, and what a record becomes. Pure; all of it computes."""

    def opening(self, data: bytes) -> Opening | None:
        """From the file's first bytes; None where they end within it. Raises Unreadable."""
        ...

    def cut(self, data: bytes, opening: Opening | None) -> Cut:
        """Data that begins with a record. Without an opening, only what can be told without one is checked."""
        ...

    def is_within_quotes(self, data: bytes) -> bool:
        """Whether data that begins with a record ends in a quoted field, which may go on over line ends."""
        ...

    def content(self, cut: Cut, opening: Opening, count: int) -> Content:
        """Of the cut's first `count` records (at least one)."""
        ...

    def sizes(self, cut: Cut, opening: Opening) -> Offsets:
        """The bytes that each record's key and body take, escapes left aside."""
        ...


def octets(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def starts_of(ends: Offsets) -> Offsets:
    """Of lines that follow one another from the beginning of the data."""
    return np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1]))


def are_blank(data: bytes, starts: Offsets, ends: Offsets) -> npt.NDArray[np.bool_]:
    """Whether lines hold nothing but their line end."""
    sizes = ends - starts
    blank: npt.NDArray[np.bool_] = (sizes == 1) | ((sizes == 2) & (octets(data)[starts] == CR))
    return blank


def cut_records(data: bytes, ends: Offsets, troubles: Sequence[Trouble]) -> Cut:
    """The records that end at `ends`, up to the first of `troubles`; of several with one record, the first one counts."""
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
    """The first record that is larger than `bytes_max`, whole or not yet; for `cut_records`."""
    sizes = np.diff(ends, prepend=0, append=len(data))
    if sizes.max() > bytes_max:
        reason = f"the record is larger than {bytes_max} bytes (record_bytes_max)"
        yield Trouble(int(np.argmax(sizes > bytes_max)), reason)
