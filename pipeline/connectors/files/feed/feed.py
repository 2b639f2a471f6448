"""The feed `files`: every file that matches a glob is a partition, every record in it an event.

    FilesChangeFeed("inbox/**/*.csv", key="account")

Files may grow at their end, and new files may appear. What was read must not change: a file that was truncated, edited before
the place that was read, or replaced by another raises PositionLost and never yields an event twice or past a gap. An edit
after that place is allowed: this is how a malformed record is corrected. While a file grows, only the last bytes that were read
are verified again. All of them are verified whenever a partition is opened, and when the file was changed without growing.

Executors may read what waits: the host fingerprints it, finds where records end, and leaves their content to the executors. A
range ends before a malformed record, if cutting the records shows it. Only the executors parse JSON: they refuse a range with a
malformed record, and the host reads that range.

An event's body is the record as a JSON object (the line itself in JSON lines). Its sequence is the number of the record in the
file, from 0, and its properties `file` and `line` name the place where it starts. Its enqueued_time is the file's time of
modification when it is read: the source had the record at that time at the latest, which no clock of ours could show.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePath
from shlex import quote
from types import MappingProxyType
from typing import Literal, ParamSpec, TypeVar

import pyarrow as pa

from leasehold.pipeline.connectors.files.feed.cursor import Cursor
from leasehold.pipeline.connectors.files.feed.pattern import Pattern
from leasehold.pipeline.connectors.files.feed.position import FilePosition, Fingerprint, compare, decode
from leasehold.pipeline.connectors.files.feed.reader import Ahead, FileReader, Reading, ReadStep
from leasehold.pipeline.connectors.files.feed.records import CsvRecords, JsonRecords, NotText, RecordFormat
from leasehold.pipeline.errors import FeedError, FeedNotFound, MalformedRecord
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start
from leasehold.pipeline.ranges import EventRange, RangeReader

P = ParamSpec("P")
T = TypeVar("T")
FormatName = Literal["csv", "jsonl"]

THREADS_MAX = 4
PROBED_MAX = 100
HEADER_NAMES_MAX = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)
_FORMATS: dict[str, FormatName] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class FilesChangeFeed(ChangeFeed):
    """Files as partitions.

    - `path`: a glob; `**` stands for any directories.
    - `format`: by default according to the path's suffix (.csv, .jsonl, .ndjson).
    - `key`: the column or field that holds an event's key.
    - `columns`: those of the schema, each with whether it is NOT NULL. A CSV file whose header lacks one is reported in
      the log, since it is null in all events of the file; `probe` refuses the file if the column is NOT NULL.

    Raises ValueError for settings that cannot work.
    """

    partitions_finish = True

    def __init__(
        self,
        path: str,
        *,
        format: FormatName | None = None,
        key: str | None = None,
        reading: Reading | None = None,
        poll_interval_s: float = 0.5,
        columns: Mapping[str, bool] = MappingProxyType({}),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pipeline: str = "PIPELINE",
    ) -> None:
        """pipeline: its name, for messages that contain a command."""
        if not poll_interval_s > 0:
            raise ValueError(f"poll_interval_s is {poll_interval_s}: it has to be more than 0")
        self._pipeline = pipeline
        self._format = format or _FORMATS.get(PurePath(path).suffix.lower())
        if self._format not in ("csv", "jsonl"):
            raise ValueError(f"the suffix of '{path}' does not show the format: add `format: csv` or `format: jsonl`")
        records = CsvRecords if self._format == "csv" else JsonRecords
        self._pattern = Pattern.parse(path)
        self._reading = reading or Reading()
        self._records = records(key=key, record_bytes_max=self._reading.record_bytes_max)
        self._poll_interval_s = poll_interval_s
        self._sleep = sleep
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="files")
        self._paths: dict[str, Path] = {}
        self._passed_over: dict[str, str] = {}
        self._ends: dict[str, Cursor] = {}
        self._planned: dict[str, Cursor] = {}
        self._reported: dict[str, int] = {}
        self._columns = dict(columns) if self._format == "csv" else {}
        self._compared: set[str] = set()

    @property
    def identity(self) -> str:
        return f"files:{self._format}:{self._pattern}"

    @property
    def no_partitions(self) -> str:
        return f"no file matches '{Path(*self._pattern.segments)}' in {self._pattern.directory} yet"

    async def partitions(self) -> list[FeedPartition]:
        await self._list()
        return [FeedPartition(name) for name in self._paths]

    @property
    def passed_over(self) -> Mapping[str, str]:
        return self._passed_over

    async def _list(self) -> None:
        """Note the files that match. Files in a directory that cannot be listed now still count."""
        found = await self._run(self._pattern.list_files)
        hidden = {
            name: path
            for name, path in (self._paths.items() if found.closed else ())
            if any(path.is_relative_to(directory) for directory in found.closed)
        }
        self._paths, self._passed_over = {**hidden, **found.files}, found.passed_over
        if hidden:
            self._paths = dict(sorted(self._paths.items()))

    async def start_of(self, partition: str, start: Start) -> str | None:
        """Records have no times: a file that was last modified before the time starts at its end, others at their beginning."""
        if start == "earliest":
            return None
        if start == "latest":
            return await self.latest(partition)
        reader = await self._reader_of(partition)
        written_us = (await self._run(reader.look)).written_us
        return None if written_us >= (start - _EPOCH) // timedelta(microseconds=1) else await self.latest(partition)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        reader = await self._reader_of(partition)
        cursor = await self._cursor(reader, _decoded(continuation))
        while True:
            step = await self._run(reader.step, cursor)
            cursor = step.cursor
            self._compare_header(reader, cursor)
            if step.page:
                yield step.page
            if step.then == "verify":
                cursor = await self._cursor(reader, cursor.position)
            if step.then == "wait":
                await self._wait_for_change(reader, step)

    async def _wait_for_change(self, reader: FileReader, step: ReadStep) -> None:
        """Wait until the file changes. Report an unfinished record, unless it is finished at the next look."""
        is_first = True
        while await self._run(reader.look) == step.cursor.seen:
            if step.held and not is_first:
                self._report_held(reader.partition, step.cursor.offset, step.held)
            is_first = False
            await self._sleep(self._poll_interval_s)

    def _report_held(self, partition: str, offset: int, held: str) -> None:
        """Report a record once, however often it is read."""
        if self._reported.get(partition) != offset:
            self._reported[partition] = offset
            _log.warning("%s", held)

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        """Read the planned bytes once. Earlier bytes are verified too, unless an earlier call planned them."""
        reader, position = await self._reader_of(partition), _decoded(continuation)
        if (await self._run(reader.count_ahead, position)).records < range_events:
            return []  # the host is faster, and planning would read everything before once more
        cursor = await self._cursor_from(self._planned.pop(partition, None), reader, position)
        ranges: list[EventRange] = []
        start = continuation
        with suppress(MalformedRecord):  # of the header: `open` raises it too
            while sum(each.events for each in ranges) < events_max:
                cursor, events = await self._skip(reader, _planning(cursor), range_events)
                if not events:
                    break
                assert cursor.passed.planned is not None, "it was begun above"
                ranges.append(EventRange(start, cursor.encoded, events, cursor.passed.planned.text))
                start, self._planned[partition] = cursor.encoded, cursor
        return ranges

    async def _skip(self, reader: FileReader, cursor: Cursor, records_max: int) -> tuple[Cursor, int]:
        """The cursor after the next whole records, and how many these are."""
        behind, passed = cursor, 0
        while passed < records_max:
            step = await self._run(reader.skip, cursor, records_max - passed)
            if step.then != "read":
                break
            cursor, passed = step.cursor, passed + step.passed
            if step.passed:
                behind = cursor
        return behind, passed

    def range_reader(self) -> FilesRanges:
        """For executors that find the files under the same paths."""
        reading = replace(self._reading, accepts_unterminated=False, yields_malformed=False)
        return FilesRanges(str(self._pattern.directory), self._records, reading)

    async def probe(self) -> None:
        """Check the first files, up to their headers. Raises FeedError."""
        if not self._paths:
            await self.partitions()
        if self._passed_over:
            raise FeedError("; ".join(f"'{path}' is passed over: {why}" for path, why in self._passed_over.items()))
        for partition in list(self._paths)[:PROBED_MAX]:
            reader = await self._reader_of(partition)
            try:
                step = await self._run(reader.step, await self._cursor(reader, None))
            except MalformedRecord as error:
                if isinstance(error.__cause__, NotText):
                    raise
                continue
            self._compare_header(reader, step.cursor)
            self._check_header(reader, step.cursor)

    def _check_header(self, reader: FileReader, cursor: Cursor) -> None:
        """Raises FeedError if no event of the file can fit the schema."""
        header = () if cursor.opening is None else cursor.opening.header
        if header and (
            lacking := [name for name, required in self._columns.items() if required and name not in header]
        ):
            raise FeedError(
                f"file '{reader.path}' has no column {_listed(lacking)}, which the schema declares NOT NULL:"
                f" none of its records would fit. Its header has {_listed(header)}"
            )

    def _compare_header(self, reader: FileReader, cursor: Cursor) -> None:
        """Report once for each file what its header lacks."""
        if self._format != "csv" or cursor.opening is None or reader.partition in self._compared:
            return
        self._compared.add(reader.partition)
        header = cursor.opening.header
        if len(header) == 1 and re.search("[;\t|]", header[0]):
            _log.warning(
                "file '%s' has a single column %s: fields must be separated by commas", reader.path, _listed(header)
            )
        elif lacking := [name for name in self._columns if name not in header]:
            _log.warning(
                "file '%s' has no column %s, which the schema names: null in all its events. Its header has %s",
                reader.path,
                _listed(lacking),
                _listed(header),
            )

    async def latest(self, partition: str) -> str | None:
        """Read what was added since the last call, up to a malformed record if there is one."""
        reader = await self._reader_of(partition)
        cursor = self._ends.get(partition) or await self._cursor(reader, None)
        with suppress(MalformedRecord):
            while True:
                step = await self._run(reader.step, cursor)
                cursor = step.cursor if step.then != "verify" else await self._cursor(reader, None)
                self._ends[partition] = cursor
                if step.then == "wait":
                    break
        return cursor.position.encode() if cursor.position else None

    async def lag(self, partition: str, continuation: str | None) -> int:
        """Exact for up to about 16 MiB, estimated for more. Raises PositionLost if the file ends before the position."""
        ahead = await self._ahead(partition, continuation)
        return ahead.records + (ahead.held is not None)

    async def find_held_back(self, partition: str, continuation: str | None) -> str | None:
        return (await self._ahead(partition, continuation)).held

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        """The file's time of modification, which an event has if it is read now. Later appends do not make it younger, because
        callers keep the first answer."""
        reader = await self._reader_of(partition)
        ahead = await self._run(reader.count_ahead, _decoded(continuation))
        if not ahead.records and ahead.held is None:
            return None
        return _EPOCH + timedelta(microseconds=(await self._run(reader.look)).written_us)

    def compare(self, a: str | None, b: str | None) -> int:
        """Raises PositionLost for an invalid position."""
        return compare(a, b)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)  # a step under way is short, and holds nothing

    async def _ahead(self, partition: str, continuation: str | None) -> Ahead:
        reader = await self._reader_of(partition)
        return await self._run(reader.count_ahead, _decoded(continuation))

    async def _cursor(self, reader: FileReader, position: FilePosition | None) -> Cursor:
        """The cursor at `position`, with everything before it verified."""
        return await self._cursor_from(None, reader, position)

    async def _cursor_from(self, known: Cursor | None, reader: FileReader, position: FilePosition | None) -> Cursor:
        """As `_cursor`, from a cursor whose bytes were verified before, if it is not past `position`."""
        is_of_use = known is not None and position is not None and known.offset <= position.offset
        if known is not None and is_of_use and known.seen.is_continued_by(await self._run(reader.look)):
            cursor = known
        else:
            cursor = await self._run(reader.begin, position)
        while position and cursor.position != position:
            cursor = await self._run(reader.verify, cursor, position)
        return cursor

    async def _reader_of(self, partition: str) -> FileReader:
        """The path comes only from the pattern: a partition's name is never used as a path."""
        if partition not in self._paths:
            await self._list()
        if partition not in self._paths:
            raise FeedNotFound(
                f"no file '{partition}' matches '{self._pattern}': put it back, or, if it is done, close its lease:"
                f" `leasehold leases close FILE {quote(self._pipeline)} {quote(partition)}`"
            )
        return FileReader(self._paths[partition], partition, self._records, self._reading)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:HEADER_NAMES_MAX]) + ", ..." * (len(names) > HEADER_NAMES_MAX)


def _planning(cursor: Cursor) -> Cursor:
    """The cursor at the beginning of a range."""
    return replace(cursor, passed=replace(cursor.passed, planned=Fingerprint()))


def _decoded(continuation: str | None) -> FilePosition | None:
    return None if continuation is None else decode(continuation)


@dataclass(frozen=True, slots=True)
class FilesRanges(RangeReader):
    """Reads ranges of files that have the same path on executors. `check` of a range is the fingerprint of its bytes.

    directory: the fixed part of the feed's pattern.
    """

    directory: str
    format: RecordFormat
    reading: Reading

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from FileReader(Path(self.directory, partition), partition, self.format, self.reading).read_range(planned)
