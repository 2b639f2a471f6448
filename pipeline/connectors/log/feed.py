"""The embedded log as a feed. A position is the sequence of the last event read, in decimal."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from socket import gethostname
from typing import TypeVar

import pyarrow as pa

from leasehold.pipeline.connectors.log.partition_file import (
    READ_ONLY,
    UNCHANGING,
    Block,
    LogError,
    LogMissing,
    LogUnavailable,
    events_in,
    file_name,
    has_wal,
    pages_of,
    partitions_in,
    reading_mode,
)
from leasehold.pipeline.connectors.log.store import Log, PartitionLog, ReadableRange, Retention, Version
from leasehold.pipeline.errors import FeedUnavailable, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start, reset_of_a_new_source
from leasehold.pipeline.ranges import EventRange, RangeReader

# `LogReader` reads a log from outside, whether or not hosts run: nothing in its directory is created or changed.
#
#     reader = LogReader("state/letters")
#     for partition in reader.partitions():
#         for found in reader.read(partition, 0):
#             ...  # a table (EVENT_SCHEMA), or Forgotten
#
# It blocks. All methods raise LogUnavailable; LogMissing if the partition does not exist.


EVENTS_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Events that retention has deleted: those with the sequences `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive events (EVENT_SCHEMA), and the blocks that hold them."""

    events: pa.Table
    blocks: list[Block]


class LogReader:
    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        self.path = Path(os.path.abspath(path))
        self._busy_timeout_s = busy_timeout_s

    def partitions(self) -> list[str]:
        """All partitions, in name order; none if the directory does not exist."""
        return partitions_in(self.path, reading_mode)

    def read(self, partition: str, start: int) -> Iterator[pa.Table | Forgotten]:
        """The events from the sequence `start` on that were committed before the iteration began."""
        for found in self.stretches(partition, start):
            yield found.events if isinstance(found, Stretch) else found

    def stretches(self, partition: str, start: int) -> Iterator[Stretch | Forgotten]:
        """As `read`, with the blocks."""
        end = self._settle(partition, PartitionLog.extent).end
        while start < end:
            extent, blocks = self._settle(partition, _blocks_from(start))
            if start < extent.first:
                self._settle(partition, PartitionLog.check_oldest)
                yield Forgotten(start, extent.first - 1)
                start = extent.first
            elif not blocks:  # the log was deleted meanwhile, and a shorter one was created
                return
            else:
                events = events_in(partition, blocks, start).slice(0, end - start)
                start += events.num_rows
                yield Stretch(events, blocks)

    def _settle(self, partition: str, read: Callable[[PartitionLog], T]) -> T:
        """What `read` finds. It is repeated if a writer came or went meanwhile, because it may have found half of a change."""
        path = self.path / file_name(partition)
        while True:
            before = _Look.at(path)
            mode = READ_ONLY if before.has_wal else UNCHANGING
            log = PartitionLog(path, partition, Retention(), self._busy_timeout_s, lambda: datetime.now(UTC), mode)
            try:
                found = read(log)
                if before.holds(_Look.at(path)):
                    return found
            except LogUnavailable:
                if before.holds(_Look.at(path)):
                    raise
            finally:
                log.close()


@dataclass(frozen=True, slots=True)
class _Look:
    """A partition's file from outside. identity: None if it does not exist."""

    has_wal: bool
    identity: tuple[int, int, int] | None

    @classmethod
    def at(cls, path: Path) -> _Look:
        with_wal = has_wal(path)
        try:
            found = os.stat(path)
        except OSError:
            return cls(with_wal, None)
        return cls(with_wal, (found.st_ino, found.st_size, found.st_mtime_ns))

    def holds(self, later: _Look) -> bool:
        """Whether a reading between the two looks counts. With a WAL, SQLite keeps readers and writers apart."""
        return later.has_wal if self.has_wal else later == self


def _blocks_from(start: int) -> Callable[[PartitionLog], tuple[ReadableRange, list[Block]]]:
    return lambda log: log.read(start, events_max=EVENTS_MAX, bytes_max=BYTES_MAX)


T = TypeVar("T")
POSITION_DIGITS_MAX = 18
READING_THREADS = 4


class LogChangeFeed(ChangeFeed):
    """A partition exists once its writer has created it; until then, FeedUnavailable is raised.

    None, the beginning, is the position before event 0: if retention has deleted that event, it is lost like any other
    position. `start_of(partition, "earliest")` is the position before the first event that still exists.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        page_events_max: int = 10_000,
        page_bytes_max: int = 4 * 1024 * 1024,
        poll_interval_s: float = 0.002,
        busy_timeout_s: float = 5.0,
    ) -> None:
        self._log = Log(path, busy_timeout_s=busy_timeout_s)
        self._page_events_max = page_events_max
        self._page_bytes_max = page_bytes_max
        self._threads = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="log-feed")
        self._watch = LogWatch(poll_interval_s)

    @property
    def identity(self) -> str:
        return f"log:{self._log.path}"

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name) for name in await self._call(self._log.partitions)]

    async def start_of(self, partition: str, start: Start) -> str | None:
        if start == "earliest":
            return _position((await self._extent(partition)).first - 1)
        if start == "latest":
            return await self.latest(partition)
        return _position(await self._call(lambda: self._log.partition(partition).first_at(start)) - 1)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        first = _sequence_in(continuation) + 1
        log = await self._call(lambda: self._log.partition(partition))
        while True:
            extent, pages = await self._call(partial(self._read, log, first))
            if not pages:
                await self._watch.wait_for_change(partial(_has_changed, log, extent.version), log.mark)
            while pages:  # keep no page while this loop or its reader waits
                first += pages[0].num_rows
                yield _page(pages.pop(0), first)

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        extent = await self._extent(partition)
        first = _sequence_in(continuation) + 1
        end = min(extent.end, first + events_max)
        if not extent.first <= first < end:
            return []  # `open` waits, or raises PositionLost
        starts = range(first, end, range_events)
        ends = [*starts[1:], end]
        edges = [edge for a, b in zip(starts, ends, strict=True) for edge in (a, b - 1)]
        found = await self._call(lambda: self._log.partition(partition).fingerprints(edges))
        if found is None:  # retention has deleted the first events meanwhile
            return []
        return [
            EventRange(_position(a - 1), str(b - 1), b - a, f"{begin} {last}")
            for a, b, begin, last in zip(starts, ends, found[::2], found[1::2], strict=True)
        ]

    def range_reader(self) -> RangeReader:
        """For executors on this machine: SQLite's files are not for network file systems."""
        return LogRanges(str(self._log.path))

    async def latest(self, partition: str) -> str | None:
        return _position((await self._extent(partition)).end - 1)

    async def lag(self, partition: str, continuation: str | None) -> int:
        """Exact. Events that retention has deleted do not count."""
        first = _sequence_in(continuation) + 1
        extent = await self._extent(partition)
        self._check_end(partition, first, extent)
        return extent.end - max(first, extent.first)

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        """The time of the event after the position. If retention has deleted it, that of the first event that is left."""
        first = _sequence_in(continuation) + 1
        return await self._call(lambda: self._log.partition(partition).time_of(first))

    def compare(self, a: str | None, b: str | None) -> int:
        return _sequence_in(a) - _sequence_in(b)

    async def close(self) -> None:
        await self._call(self._watch.close)
        await self._call(self._log.close)
        self._threads.shutdown(wait=False)

    def _read(self, log: PartitionLog, first: int) -> tuple[ReadableRange, list[pa.Table]]:
        """Pages from the sequence `first` on; none at the end. Raises PositionLost."""
        extent, blocks = log.read(first, events_max=self._page_events_max, bytes_max=self._page_bytes_max)
        self._check_end(log.name, first, extent)
        if first < extent.first:
            raise PositionLost(
                f"log '{self._log.path}', partition '{log.name}': retention has deleted the events {first} to"
                f" {extent.first - 1} before they were read; the first available is {extent.first}. To continue without them,"
                f" set the lease's position to {_position(extent.first - 1)!r}"
            )
        if not blocks:
            return extent, []
        events = events_in(log.name, blocks, first)
        return extent, list(pages_of(events, self._page_events_max, self._page_bytes_max))

    def _check_end(self, partition: str, first: int, extent: ReadableRange) -> None:
        if first > extent.end:
            raise PositionLost(
                f"log '{self._log.path}', partition '{partition}' ends at {extent.end - 1}, before the position '{first - 1}':"
                f" it was deleted or restored. {reset_of_a_new_source(partition)}"
            )

    async def _extent(self, partition: str) -> ReadableRange:
        return await self._call(lambda: self._log.partition(partition).extent())

    async def _call(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except LogError as error:
            raise FeedUnavailable(str(error)) from error


@dataclass(frozen=True, slots=True)
class LogRanges(RangeReader):
    """Reads ranges of a log that has the same path on executors.

    A range's `check` has the fingerprints of the blocks with its first and its last event. Executors may have another log at
    this path, such as one on a volume of their own, and that log may have as many events.
    """

    path: str

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        """The log numbers its events without gaps, and LogReader reports those that are gone."""
        first, end = _sequence_in(planned.start) + 1, _sequence_in(planned.to) + 1
        try:
            for found in LogReader(self.path).stretches(partition, first):
                if isinstance(found, Forgotten):
                    raise PositionLost(f"log '{self.path}', partition '{partition}': retention has deleted {first}")
                self._check(partition, planned, found.blocks)
                events = found.events.slice(0, end - first)
                first += events.num_rows
                yield events
                if first >= end:
                    return
        except LogMissing as error:
            raise self._other(partition, "does not exist there") from error
        except LogError as error:
            raise FeedUnavailable(str(error)) from error
        raise self._other(partition, f"ends at {first - 1}, before {end - 1}")

    def _check(self, partition: str, planned: EventRange, blocks: Sequence[Block]) -> None:
        begin, _, last = planned.check.partition(" ")
        for sequence, expected in ((_sequence_in(planned.start) + 1, begin), (_sequence_in(planned.to), last)):
            if any(block.holds(sequence) and block.fingerprint != expected for block in blocks):
                raise self._other(partition, f"has other events at {sequence}")

    def _other(self, partition: str, what: str) -> FeedUnavailable:
        return FeedUnavailable(
            f"an executor on '{gethostname()}' finds another log than its host: '{self.path}', partition '{partition}', {what};"
            " run executors on the host's machine with the same volume at this path, or set `executors_read: false`"
        )


def _page(events: pa.Table, end: int) -> Page:
    """`end`: the sequence of the next event after them."""
    first = end - events.num_rows
    return Page(events, str(end - 1), lambda n: str(first + n - 1))


def _has_changed(log: PartitionLog, seen: Version) -> bool:
    try:
        return log.version() != seen
    except Exception:
        return True  # the reader looks next, meets the same error, and raises it


def _position(last: int) -> str | None:
    return str(last) if last >= 0 else None


def _sequence_in(position: str | None) -> int:
    """The sequence of the last event read; -1 if none was. Raises PositionLost."""
    if position is None:
        return -1
    if not (position.isascii() and position.isdecimal() and len(position) <= POSITION_DIGITS_MAX):
        raise PositionLost(
            f"{position[:100]!r} is not a position of a log: set the lease's position to a sequence number"
        )
    return int(position)


LOOKS_PER_S_MAX = 10_000
FRESH_S = 2.0
"""How long a log stays fresh after its file has changed. Times of a file system may be as coarse as this."""
FRESH_LOOK_S = 0.001
"""How often the watch checks fresh logs."""
IDLE_LOOK_S = 5.0
"""How often the watch checks an idle log although its file has not changed."""


@dataclass(slots=True)
class _Waiter:
    """What a reader waits for. mark_of: a cheap call, whose result changes when the log's file is written."""

    has_changed: Callable[[], bool]
    mark_of: Callable[[], object]
    mark: object = None
    due_at: float = 0.0
    """When a fresh log may become idle, or when an idle one is checked in any case."""

    def is_stirred(self) -> bool:
        """Whether its file was written since the last call."""
        before, self.mark = self.mark, self.mark_of()
        return self.mark != before


_Waiting = dict[asyncio.Future[None], _Waiter]


class LogWatch:
    """One thread that checks all logs for which tasks wait, and wakes the tasks whose logs have changed.

    `wait_for_change` may be awaited on any event loop; the checks run on the watch's own thread. A check costs some
    microseconds and holds nothing. If many tasks wait, each log is checked less often, so that a thousand idle partitions cost no
    more than a hundred. For an idle log, the watch reads only the WAL's status, which costs a quarter of a check. A log is fresh
    until its file has not been written for `FRESH_S`. Fresh logs are checked separately: idle ones do not delay their events.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._fresh: _Waiting = {}
        self._idle: _Waiting = {}
        self._news = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    async def wait_for_change(self, has_changed: Callable[[], bool], mark_of: Callable[[], object]) -> None:
        """Returns within `interval_s` after `has_changed` is true, or later if many wait. Both arguments are called on the
        watch's thread and must not raise."""
        future = asyncio.get_running_loop().create_future()
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
                self._thread.start()
            self._fresh[future] = _Waiter(has_changed, mark_of)
            self._news.notify()
        try:
            await future
        finally:
            with self._news:
                self._fresh.pop(future, None)
                self._idle.pop(future, None)

    def close(self) -> None:
        """Blocks until the thread has ended. Tasks that still wait are not woken."""
        with self._news:
            self._is_closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        fresh_at = idle_at = -inf
        while not self._is_closed:
            with self._news:
                now = time.monotonic()
                left_s = min(fresh_at if self._fresh else inf, idle_at if self._idle else inf) - now
                if left_s > 0 and not self._is_closed:
                    self._news.wait(min(left_s, threading.TIMEOUT_MAX))
                    continue
                fresh = list(self._fresh.items()) if now >= fresh_at else []
                idle = list(self._idle.items()) if now >= idle_at else []
            if fresh:
                self._look_at_fresh(fresh, now)
                fresh_at = time.monotonic() + pause_s(min(self._interval_s, FRESH_LOOK_S), len(fresh))
            if idle:
                self._look_at_idle(idle, now)
                idle_at = time.monotonic() + pause_s(self._interval_s, len(idle))

    def _look_at_fresh(self, waiting: Iterable[tuple[asyncio.Future[None], _Waiter]], now: float) -> None:
        for future, waiter in waiting:
            if now >= waiter.due_at:
                is_stirred = waiter.is_stirred()
                waiter.due_at = now + (FRESH_S if is_stirred else IDLE_LOOK_S)
                if not is_stirred:
                    self._move(future, self._fresh, self._idle)
            if waiter.has_changed():  # after the look at its file: a write in between shows there next time
                _wake_from_thread(future)

    def _look_at_idle(self, waiting: Iterable[tuple[asyncio.Future[None], _Waiter]], now: float) -> None:
        for future, waiter in waiting:
            is_stirred = waiter.is_stirred()
            if is_stirred:  # what was written may be committed in a moment
                self._move(future, self._idle, self._fresh)
            elif now < waiter.due_at:
                continue
            waiter.due_at = now + (FRESH_S if is_stirred else IDLE_LOOK_S)
            if waiter.has_changed():
                _wake_from_thread(future)

    def _move(self, future: asyncio.Future[None], origin: _Waiting, target: _Waiting) -> None:
        with self._news:
            if (waiter := origin.pop(future, None)) is not None:  # otherwise it waits no longer
                target[future] = waiter


def pause_s(interval_s: float, waiting: int) -> float:
    """The pause between two rounds of checks. waiting: how many tasks wait."""
    return max(interval_s, waiting / LOOKS_PER_S_MAX)


def _wake_from_thread(future: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # its loop was closed, so no task waits
        future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
