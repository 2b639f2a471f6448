"""Reads one file forward, one bounded step at a time.

Everything here blocks or computes, so it runs on the feed's threads. Between two steps, only a `Cursor` is held, which is
immutable. Every step opens the file again by its name, so it sees changes: the file grew, was edited, or was replaced by another.
A file that may be another one is verified from its first byte before it is read further.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from leasehold.pipeline.connectors.files.feed.cursor import WINDOW_BYTES, Cursor, FileStatus, Trail
from leasehold.pipeline.connectors.files.feed.event_table import ROW_BYTES, event_table
from leasehold.pipeline.connectors.files.feed.position import FilePosition, decode
from leasehold.pipeline.connectors.files.feed.records import (
    BOM,
    Content,
    Cut,
    Opening,
    RecordFormat,
    Unreadable,
    check_text,
)
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable, MalformedRecord, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.ranges import EventRange

WINDOW_BYTES_MIN = 4096
VERIFY_BYTES = 16 * 1024 * 1024
COUNT_BYTES = 16 * 1024 * 1024
LASTING = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.EBADMSG),
)
"""Errors that last until a person corrects something, as far as is known."""
OPENING_BYTES = 8
"""In addition to the header: a byte order mark, and the octet that shows that the header is too large."""
WITHIN_QUOTES = "the file ends within quotes"


@dataclass(frozen=True, slots=True)
class ReadStep:
    """then: read on; wait until the file changes; or verify that it is still the file of `cursor.position`.

    held: the unfinished record at the end of the file, as a message. passed: how many records were passed without a page.
    """

    cursor: Cursor
    then: Literal["read", "wait", "verify"]
    page: Page | None = None
    held: str | None = None
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Ahead:
    """The rest after a position: whole records, malformed ones too, and an unfinished record at the end."""

    records: int
    held: str | None = None


LIMIT_MAX = 64 * 1024 * 1024
"""Offsets within a page are 32 bits wide, and escapes make a text six times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files are read. Raises ValueError for limits that cannot work.

    - `accepts_unterminated`: a last record without a line end is accepted when the file ends (if it is continued later, the
      position is lost). Otherwise it is held back until it has one, and reported.
    - `yields_malformed`: for dead letters: a malformed record is a page of its own, as it is, unless its end is in doubt (a
      stray quote, a record too large).
    - `record_bytes_max`: a larger record (with its line end) is malformed.
    """

    accepts_unterminated: bool = False
    yields_malformed: bool = False
    record_bytes_max: int = 1024 * 1024
    page_events_max: int = 10_000
    page_bytes_max: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("record_bytes_max", "page_events_max", "page_bytes_max"):
            if not 1 <= (limit := getattr(self, name)) <= LIMIT_MAX:
                raise ValueError(f"{name} is {limit}: it has to lie between 1 and {LIMIT_MAX}")


@dataclass(frozen=True, slots=True)
class FileReader:
    """One file."""

    path: Path
    partition: str
    format: RecordFormat
    reading: Reading

    def look(self) -> FileStatus:
        with self._file() as (_, seen):
            return seen

    def begin(self, position: FilePosition | None) -> Cursor:
        """The cursor at the file's beginning; or after what precedes the first record, to `verify` up to `position`."""
        with self._file() as (file, seen):
            if position is None:
                return Cursor(seen=seen)
            self._check_size(seen, position)
            try:
                cursor = self._read_opening(Cursor(seen=seen), file)
            except MalformedRecord as error:
                raise self._lost(position, f"what precedes its first record cannot be read now ({error})") from error
        if cursor is None or cursor.header != position.header:
            raise self._lost(position, "its header is another one now")
        return cursor

    def verify(self, cursor: Cursor, position: FilePosition) -> Cursor:
        """Move the cursor towards `position`, by at most VERIFY_BYTES. Once there, the file is the one that was read."""
        with self._file() as (file, _):
            data = os.pread(file, min(VERIFY_BYTES, max(0, position.offset - cursor.offset)), cursor.offset)
        cursor = cursor.moved(data, 0)
        if data and cursor.offset < position.offset:
            return cursor
        if cursor.offset != position.offset or cursor.passed.prefix.text != position.prefix:
            is_same_file = cursor.seen.file == position.file
            raise self._lost(position, "it was edited there" if is_same_file else "another file has taken its place")
        return replace(cursor, record=position.record, line=position.line, position=position)

    def step(self, cursor: Cursor) -> ReadStep:
        """Read the next page. Raises MalformedRecord if the next record is malformed, FeedUnavailable, PositionLost."""
        return self._next(cursor, self._read)

    def skip(self, cursor: Cursor, records_max: int) -> ReadStep:
        """As `step`, but passes at most `records_max` records without parsing them. It does not pass a record without a line
        end, or one that can be seen to be malformed without parsing: `then` is "wait"."""
        return self._next(cursor, partial(self._skip, records_max))

    def _next(self, cursor: Cursor, process: Callable[[Cursor, Opening, bytes], ReadStep]) -> ReadStep:
        with self._file() as (file, seen):
            if not cursor.seen.is_continued_by(seen):
                return ReadStep(cursor, "verify")
            cursor = replace(cursor, seen=seen)
            if cursor.opening is None:
                opened = self._read_opening(cursor, file)
                return ReadStep(opened, "read") if opened else ReadStep(cursor, "wait", held=self._held_opening(file))
            read = os.pread(
                file, len(cursor.passed.overlap) + cursor.window, cursor.offset - len(cursor.passed.overlap)
            )
        if not read.startswith(cursor.passed.overlap):
            return ReadStep(cursor, "verify")
        data = read[len(cursor.passed.overlap) :]
        if cursor.is_unterminated:
            return self._terminated(cursor, data)
        return process(cursor, cursor.opening, data)

    def read_range(self, planned: EventRange) -> Iterator[pa.Table]:
        """Exactly the planned events, in pages. Raises MalformedRecord, FeedUnavailable, PositionLost."""
        to = decode(planned.to)
        with self._file() as (file, seen):
            opened = self._read_opening(Cursor(seen=seen), file)
            opening = None if opened is None else opened.opening
            if opened is None or opening is None or opened.header != to.header:
                raise self._altered(to)
            cursor = opened if planned.start is None else _begun(decode(planned.start), seen, opening)
            while cursor.offset < to.offset:
                data = os.pread(file, min(cursor.window, to.offset - cursor.offset), cursor.offset)
                step = self._read(cursor, opening, data)
                if step.then == "wait":  # the data ends within a record
                    raise self._altered(to)
                cursor = step.cursor
                if step.page is not None:
                    yield step.page.events
        is_whole = (cursor.offset, cursor.record, cursor.line) == (to.offset, to.record, to.line)
        if not is_whole or cursor.passed.prefix.text != planned.check:
            raise self._altered(to)

    def count_ahead(self, position: FilePosition | None) -> Ahead:
        """What follows `position`: records are counted for COUNT_BYTES, and assumed to be as dense after that."""
        with self._file() as (file, seen):
            if position is not None:
                self._check_size(seen, position)
                return self._counted(file, position.offset, position.line, seen.size)
            try:
                opened = self._read_opening(Cursor(seen=seen), file)
            except MalformedRecord:
                return Ahead(1)
            if opened is None:
                return Ahead(0, self._held_opening(file))
            return self._counted(file, opened.offset, opened.line, seen.size)

    def _counted(self, file: int, start: int, line: int, size: int) -> Ahead:
        count, offset, window = 0, start, WINDOW_BYTES
        while offset - start < COUNT_BYTES:
            data = os.pread(file, window, offset)
            is_end = len(data) < window
            cut = self._cut(data, None, is_end=is_end)
            count += len(cut) + (cut.trouble is not None)
            offset += cut.passed
            line += data.count(b"\n", 0, cut.passed)
            if cut.trouble:
                return Ahead(count)
            if is_end:
                return Ahead(count, self._held(data[cut.passed :], line))
            window = WINDOW_BYTES if cut.passed else 2 * window
        return Ahead(max(1, count * (size - start) // (offset - start)))

    def _read_opening(self, cursor: Cursor, file: int) -> Cursor | None:
        """The cursor after what precedes the first record; None if that is not complete yet."""
        data = self._beginning(file)
        try:
            check_text(data)
            opening = self.format.opening(data)
        except Unreadable as trouble:
            raise self._malformed(cursor, trouble) from trouble
        if opening is None:
            if self.reading.accepts_unterminated and self.format.is_within_quotes(data):
                raise self._malformed(cursor, Unreadable(WITHIN_QUOTES, 0))
            return None
        cursor = cursor.moved(data[: opening.bytes], opening.lines)
        return replace(cursor, opening=opening, header=cursor.passed.prefix.text)

    def _beginning(self, file: int) -> bytes:
        return os.pread(file, self.reading.record_bytes_max + OPENING_BYTES, 0)

    def _held_opening(self, file: int) -> str | None:
        """The message about a file that ends before its first record begins."""
        data = self._beginning(file)
        rest = data.removeprefix(BOM).lstrip(b"\r\n")
        return None if self.reading.accepts_unterminated else self._held(rest, 1 + data[: -len(rest)].count(b"\n"))

    def _held(self, rest: bytes, line: int) -> str | None:
        """The message about the end of a file after its last whole record; `line` is where it begins."""
        if rest in (b"", b"\r"):
            return None
        what = "the last line has no line end yet: end it, or accept it as it is with `final_record: accept`"
        if self.format.is_within_quotes(rest):
            what = "a quoted field is not closed: close it in the file, and reading continues from this record"
        return f"file '{self.partition}', line {line}: {what}"

    def _terminated(self, cursor: Cursor, data: bytes) -> ReadStep:
        """Move past the line end of a record that was taken before it had one."""
        if data in (b"", b"\r"):
            return ReadStep(cursor, "wait")
        for line_end in (b"\n", b"\r\n"):
            if data.startswith(line_end):
                return ReadStep(cursor.moved(line_end, 1), "read")
        assert cursor.position is not None, "a record was taken"
        raise self._lost(cursor.position, "its last record, which was taken as it was, has been continued since")

    def _read(self, cursor: Cursor, opening: Opening, data: bytes) -> ReadStep:
        is_end = len(data) < cursor.window
        cut = self._cut(data, opening, is_end=is_end)
        if len(cut):
            return self._page(cursor, opening, data, cut, self._fitting(cut, opening))
        if cut.trouble:
            return self._apart(cursor, data, cut.trouble)
        if cut.passed:
            return ReadStep(cursor.moved(data[: cut.passed], data.count(b"\n", 0, cut.passed)), "read")
        if is_end:
            return ReadStep(cursor, "wait", held=self._held(data, cursor.line))
        return ReadStep(replace(cursor, window=2 * cursor.window), "read")

    def _cut(self, data: bytes, opening: Opening | None, *, is_end: bool) -> Cut:
        """At the end of the file, a record that lacks its line end gets one, if such records are accepted."""
        cut = self.format.cut(data, opening)
        rest = data[cut.passed :]
        if not (is_end and self.reading.accepts_unterminated) or cut.trouble or rest in (b"", b"\r"):
            return cut
        cut = self.format.cut(data + b"\n", opening)
        if cut.passed < len(data) and cut.trouble is None:
            return replace(cut, trouble=Unreadable(WITHIN_QUOTES, data.count(b"\n", 0, cut.passed)))
        return cut

    def _fitting(self, cut: Cut, opening: Opening) -> int:
        """How many of the cut's records make a page."""
        row_bytes = ROW_BYTES + 2 * len(self.partition.encode())
        fitting = np.searchsorted(
            np.cumsum(self.format.sizes(cut, opening) + row_bytes), self.reading.page_bytes_max, side="right"
        )
        return max(1, min(int(fitting), len(cut), self.reading.page_events_max))

    def _skip(self, records_max: int, cursor: Cursor, opening: Opening, data: bytes) -> ReadStep:
        cut = self.format.cut(data, opening)
        if count := min(len(cut), records_max):
            trail = Trail(cursor, data[: int(cut.ends[count - 1])], cut.ends[:count], cut.lines_behind[:count])
            return ReadStep(replace(trail.cursor_behind(count), window=WINDOW_BYTES), "read", passed=count)
        if cut.trouble or (not cut.passed and len(data) < cursor.window):
            return ReadStep(cursor, "wait")
        if cut.passed:
            return ReadStep(cursor.moved(data[: cut.passed], data.count(b"\n", 0, cut.passed)), "read")
        return ReadStep(replace(cursor, window=2 * cursor.window), "read")

    def _page(self, cursor: Cursor, opening: Opening, data: bytes, cut: Cut, count: int) -> ReadStep:
        content = self.format.content(cut, opening, count)
        count = len(content.bodies)
        if content.trouble and not count:
            return self._apart(cursor, data, content.trouble)
        lines = cursor.line + cut.lines[:count]
        events = event_table(self.partition, content, cursor.record, lines, cursor.seen.written_us)
        if events.nbytes > self.reading.page_bytes_max and count > 1:  # escapes make bodies larger than their records
            return self._page(cursor, opening, data, cut, count // 2)
        trail = Trail(cursor, data[: int(cut.ends[count - 1])], cut.ends[:count], cut.lines_behind[:count])
        behind = trail.cursor_behind(count)
        more = 2 if count == len(cut) else 1.1  # what does not fit into a page would be cut in vain
        window = min(max(int(more * len(trail.data)), WINDOW_BYTES_MIN), WINDOW_BYTES)
        return ReadStep(replace(behind, window=window), "read", Page(events, behind.encoded, trail.position_behind))

    def _apart(self, cursor: Cursor, data: bytes, trouble: Unreadable) -> ReadStep:
        """A page with only a malformed record, unchanged. Raises MalformedRecord if no store keeps it, or if it may continue."""
        if trouble.span is None or not self.reading.yields_malformed:
            raise self._malformed(cursor, trouble)
        start, end = trouble.span
        record = data[start:end].removesuffix(b"\n").removesuffix(b"\r")
        content = Content(pa.nulls(1, pa.string()), pa.array([record], pa.binary()))
        lines = np.array([cursor.line + trouble.lines])
        events = event_table(self.partition, content, cursor.record, lines, cursor.seen.written_us)
        trail = Trail(cursor, data[:end], np.array([end]), np.array([(data[:end] + b"\n")[:end].count(b"\n")]))
        page = Page(events, trail.position_behind(1), malformed=str(trouble))
        return ReadStep(trail.cursor_behind(1), "read", page)

    @contextmanager
    def _file(self) -> Iterator[tuple[int, FileStatus]]:
        try:
            file = os.open(
                self.path, os.O_RDONLY | os.O_NONBLOCK
            )  # a FIFO would block the thread until another process writes
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise FeedNotFound(f"file '{self.path}' is not a regular file: put the file back")
                yield file, FileStatus(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise FeedNotFound(
                f"file '{self.path}' does not exist any longer: put it back, and reading continues"
            ) from error
        except PermissionError as error:
            raise FeedError(f"file '{self.path}': permission denied: give this process's user read access") from error
        except OSError as error:
            kind = FeedNotFound if error.errno in LASTING else FeedUnavailable
            raise kind(
                f"file '{self.path}' cannot be read now ({error.strerror}): look at its disk or share, and reading continues"
            ) from error

    def _check_size(self, seen: FileStatus, position: FilePosition) -> None:
        if seen.size < position.offset:
            raise self._lost(position, f"it has only {seen.size} bytes now")

    def _lost(self, position: FilePosition, what: str) -> PositionLost:
        return PositionLost(
            f"file '{self.partition}' was read up to line {position.line} (byte {position.offset}), and {what}: "
            "restore what was read, or reset the lease to a new position"
        )

    def _altered(self, to: FilePosition) -> FeedUnavailable:
        return FeedUnavailable(
            f"file '{self.path}' differs up to line {to.line} (byte {to.offset}) from what its host planned to have read here:"
            " it was changed since, or executors have another file under this path"
        )

    def _malformed(self, cursor: Cursor, trouble: Unreadable) -> MalformedRecord:
        return MalformedRecord(
            f"file '{self.partition}', line {cursor.line + trouble.lines}: {trouble}: "
            "correct the file, and reading continues from this record"
        )


def _begun(start: FilePosition, seen: FileStatus, opening: Opening) -> Cursor:
    """The cursor at the beginning of a range. Its passed bytes begin there too: no executor reads what precedes its range."""
    return Cursor(
        seen=seen, opening=opening, offset=start.offset, record=start.record, line=start.line, header=start.header
    )
