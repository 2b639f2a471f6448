"""Reads a log from outside, beside hosts at work or without any: nothing in its directory is created or changed.

    reader = LogReader("state/letters")
    for partition in reader.partitions():
        for found in reader.read(partition, 0):
            ...  # a table (EVENT_SCHEMA), or Forgotten

It blocks. All raise LogUnavailable; of a partition that is not there, LogMissing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from pipeline.connectors.log.partition_file import (
    READ_ONLY,
    UNCHANGING,
    Block,
    LogUnavailable,
    events_in,
    file_name,
    has_wal,
    partitions_in,
    reading_mode,
)
from pipeline.connectors.log.store import Extent, PartitionLog, Retention

T = TypeVar("T")
EVENTS_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Events that retention has dropped: those with the sequences `first` to `last`."""

    first: int
    last: int


class LogReader:
    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 5.0) -> None:
        self.path = Path(os.path.abspath(path))
        self._busy_timeout_s = busy_timeout_s

    def partitions(self) -> list[str]:
        """In name order; a directory that is not there has none."""
        return partitions_in(self.path, reading_mode)

    def read(self, partition: str, start: int) -> Iterator[pa.Table | Forgotten]:
        """What was committed by the first step of the iteration, from the sequence `start` on."""
        end = self._settle(partition, PartitionLog.extent).end
        while start < end:
            extent, blocks = self._settle(partition, _blocks_from(start))
            if start < extent.first:
                self._settle(partition, PartitionLog.check_oldest)
                yield Forgotten(start, extent.first - 1)
                start = extent.first
            elif not blocks:  # the log was deleted meanwhile, and a shorter one is there
                return
            else:
                events = events_in(partition, blocks, start).slice(0, end - start)
                start += events.num_rows
                yield events

    def _settle(self, partition: str, read: Callable[[PartitionLog], T]) -> T:
        """What `read` finds; again if a writer came or went meanwhile, because then it may have found half of a change."""
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
    """A partition's file from outside. identity: None if it is not there."""

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


def _blocks_from(start: int) -> Callable[[PartitionLog], tuple[Extent, list[Block]]]:
    return lambda log: log.read(start, events_max=EVENTS_MAX, bytes_max=BYTES_MAX)
