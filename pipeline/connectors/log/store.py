"""The broker: partitions of events, with its side of idempotent publishing.

A batch is accepted whole or not at all, from the producer that attached last, and with the number after its last one. If the
last batch is sent again, it is recognised by its number and its contents, and is not stored twice.

Everything here blocks, and belongs on a thread. Any number of processes may use one directory.
Not guaranteed: a process that is stopped (not killed) inside a write keeps the partition's other writers out, each for
`busy_timeout_s` at a time, until it continues or is killed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from leasehold.pipeline.connectors.log import producer_state as lines
from leasehold.pipeline.connectors.log.partition_file import (
    READ_WRITE,
    Block,
    Encoded,
    LogUnavailable,
    LogUncertain,
    create,
    damaged,
    decoded,
    digest,
    encoded,
    file_name,
    fingerprint,
    missing,
    open_connection,
    partitions_in,
    primary_code,
    translated,
    wal_of,
)
from leasehold.pipeline.connectors.log.producer_state import LeaseProducer, Producer
from leasehold.pipeline.markers import Marker

BLOCKS_DROPPED_MAX = 64
"""How many one append deletes, so that a shortened retention does not stall a writer; the next appends delete the rest."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Version = tuple[int, int]
"""Changes once another connection has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a log deletes at each append, in whole blocks; it always keeps the newest. None: no limit.

    A partition without new events keeps its old ones; it does not grow either.
    """

    age_s: float | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """The events `first <= sequence < end` can be read; those before `first` are deleted."""

    first: int
    end: int
    version: Version


class Log:
    """A directory of partitions."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        busy_timeout_s: float = 5.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._retention = retention or Retention()
        self._busy_timeout_s = busy_timeout_s
        self._now = now
        self._partitions: dict[str, PartitionLog] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogUnavailable(f"log '{self.path}' cannot be created ({error.strerror}): check its path") from error

    def partitions(self) -> list[str]:
        """All partitions, in name order; none if the directory does not exist."""
        return partitions_in(self.path)

    def partition(self, name: str, *, new: bool = False) -> PartitionLog:
        """new: create it if it is missing. Otherwise its use raises LogMissing until it is created."""
        if new:
            create(self.path, name)
        with self._lock:
            if name not in self._partitions:
                path = self.path / file_name(name)
                self._partitions[name] = PartitionLog(path, name, self._retention, self._busy_timeout_s, self._now)
            return self._partitions[name]

    def close(self) -> None:
        with self._lock:
            for partition in self._partitions.values():
                partition.close()
            self._partitions.clear()


class PartitionLog:
    """One partition. Several threads may use it; they take turns."""

    def __init__(
        self,
        path: Path,
        name: str,
        retention: Retention,
        busy_timeout_s: float,
        now: Callable[[], datetime],
        mode: str = READ_WRITE,
    ) -> None:
        self.path = path
        self._wal = wal_of(path)
        self._mode = mode
        self.name = name
        self._retention = retention
        self._busy_timeout_s = busy_timeout_s
        self._now = now
        self._lock = threading.Lock()
        self._open: tuple[sqlite3.Connection, int] | None = None
        self._openings = 0

    def append(self, events: pa.Table) -> int:
        """Store a batch (BLOCK_SCHEMA) that is never sent again. Returns the sequence of its first event."""
        if not events.num_rows:
            return self.extent().end
        batch = encoded(events)
        with self._writing() as connection:
            return self._store(connection, batch, batch.digest(None), None)

    def attach(self, producer: Producer, number: int = 0) -> tuple[LeaseProducer, int]:
        """Close every earlier claim of the lease. Returns its line, which begins after `number`, and the next event's sequence.

        Raises Outranked.
        """
        with self._writing() as connection:
            line = lines.attached(lines.load(connection, producer.lease), producer, number)
            lines.save(connection, line)
            return line, _end(connection)

    def line(self, lease: str) -> LeaseProducer | None:
        """The lease's line, as its last claim left it. Raises LogMissing."""
        with self._reading() as connection:
            return lines.load(connection, lease)

    def publish(
        self, producer: Producer, number: int, batch: Encoded, marker: Marker | None, send: Callable[[], None]
    ) -> int:
        """Store a batch whose first event has the number `number`. Returns the sequence of that event in the log.

        `send` is called at the last moment before the commit; if it raises, nothing has happened. If the last batch is sent
        again, the answer is the same as the first time. Raises Outranked, OutOfOrder, ProducerEnded, LogUncertain.
        """
        text = None if marker is None else json.dumps(marker.properties(), separators=(",", ":"))
        checked = batch.digest(text)
        with self._writing() as connection:
            line = lines.admitted(lines.load(connection, producer.lease), producer)
            first = line.repeated(number, checked)
            if first is None:
                first = _end(connection)
                lines.save(connection, line.published(number, batch.events, first, checked, text))
                self._store(connection, batch, checked, text)
                send()
            return first

    def end(self, producer: Producer, send: Callable[[], None]) -> None:
        """Take nothing more from this lease in this generation. `send`, as in `publish`. Raises Outranked."""
        with self._writing() as connection:
            line = lines.admitted(lines.load(connection, producer.lease), producer)
            lines.save(connection, line.closed())
            send()

    def _store(self, connection: sqlite3.Connection, batch: Encoded, checked: bytes, marker: str | None) -> int:
        ((first, enqueued, kept),) = connection.execute("SELECT next, enqueued, bytes FROM log").fetchall()
        now = max(_microseconds(self._now()), enqueued)  # clocks go back, time in a log does not
        connection.execute(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)",
            (first, batch.events, now, batch.decoded_bytes, checked, marker, batch.body),
        )
        kept += len(batch.body)
        kept -= self._forget(connection, first, now, kept)
        connection.execute("UPDATE log SET next = ?, enqueued = ?, bytes = ?", (first + batch.events, now, kept))
        return int(first)

    def _forget(self, connection: sqlite3.Connection, newest: int, now: int, kept: int) -> int:
        """Delete the blocks that retention gives up. Returns the bytes that they took."""
        if self._retention == Retention():
            return 0
        oldest = connection.execute(
            "SELECT first, enqueued, length(body) FROM blocks WHERE first < ? ORDER BY first LIMIT ?",
            (newest, BLOCKS_DROPPED_MAX),
        ).fetchall()
        dropped, last = 0, -1
        for first, enqueued, size in oldest:
            if not self._is_given_up(now - enqueued, kept - dropped):
                break
            dropped, last = dropped + size, first
        connection.execute("DELETE FROM blocks WHERE first <= ?", (last,))
        return dropped

    def _is_given_up(self, age: int, kept: int) -> bool:
        age_s, bytes_max = self._retention.age_s, self._retention.bytes_max
        return (age_s is not None and age > age_s * 1_000_000) or (bytes_max is not None and kept > bytes_max)

    def extent(self) -> ReadableRange:
        with self._reading() as connection:
            return self._extent(connection)

    def check_oldest(self) -> None:
        """Check that retention deleted what is missing before the oldest block. Raises LogUnavailable if it was damage."""
        with self._reading() as connection:
            ((kept, found),) = connection.execute(
                "SELECT bytes, (SELECT coalesce(sum(length(body)), 0) FROM blocks) FROM log"
            ).fetchall()
        if found != kept:
            raise damaged(self.path, "events are missing")

    def version(self) -> Version:
        with self._reading() as connection:
            return self._version(connection)

    def mark(self) -> object:
        """Changes with each write, also with one that is not committed. It looks only at the file, and never raises.

        Two writes within the resolution of the file system's time may leave the same mark.
        """
        try:
            found = os.stat(self._wal)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def first_at(self, time: datetime) -> int:
        """The sequence of the first event enqueued at or after `time`; of the next event if there is none."""
        with self._reading() as connection:
            ((first,),) = connection.execute(
                "SELECT min(first) FROM blocks WHERE enqueued >= ?", (_microseconds(time),)
            ).fetchall()
            return _end(connection) if first is None else int(first)

    def time_of(self, sequence: int) -> datetime | None:
        """When the first event that can be read from `sequence` on was enqueued; None if there is none yet."""
        with self._reading() as connection, _snapshot(connection):
            extent = self._extent(connection)
            if sequence >= extent.end:
                return None
            ((enqueued,),) = connection.execute(
                "SELECT enqueued FROM blocks WHERE first <= ? ORDER BY first DESC LIMIT 1",
                (max(sequence, extent.first),),
            ).fetchall()
            return _EPOCH + timedelta(microseconds=enqueued)

    def fingerprints(self, sequences: Sequence[int]) -> list[str] | None:
        """The fingerprints of the blocks that hold these sequences (at least one). None if one of them cannot be read."""
        with self._reading() as connection, _snapshot(connection):
            extent = self._extent(connection)
            if not extent.first <= min(sequences) <= max(sequences) < extent.end:
                return None
            return [self._fingerprint_at(connection, sequence) for sequence in sequences]

    def _fingerprint_at(self, connection: sqlite3.Connection, sequence: int) -> str:
        ((first, enqueued, checked),) = connection.execute(
            "SELECT first, enqueued, digest FROM blocks WHERE first <= ? ORDER BY first DESC LIMIT 1", (sequence,)
        ).fetchall()
        if not isinstance(checked, bytes):
            raise damaged(self.path, f"the block at {first} is not what was written")
        return fingerprint(first, enqueued, checked)

    def read(self, start: int, *, events_max: int, bytes_max: int) -> tuple[ReadableRange, list[Block]]:
        """Blocks from the one that holds the sequence `start` on: one if there is any, and more within the limits.

        The extent is that of the same moment; if `start` is outside of it, there are no blocks.
        """
        with self._reading() as connection, _snapshot(connection):
            extent = self._extent(connection)
            rows = []
            if extent.first <= start < extent.end:
                rows = connection.execute(
                    "SELECT first, enqueued, marker, digest, body FROM blocks WHERE first BETWEEN ? AND ? ORDER BY first",
                    _fitting(connection, start, events_max, bytes_max),
                ).fetchall()
        blocks = [self._block(*row) for row in rows]
        ends = [block.first + block.events.num_rows for block in blocks]
        if ends and (ends[0] <= start or ends[:-1] != [block.first for block in blocks[1:]]):
            raise damaged(self.path, "events are missing")
        return extent, blocks

    def _block(self, first: int, enqueued: Any, marker: Any, checked: bytes, body: Any) -> Block:
        has_types = isinstance(enqueued, int) and isinstance(marker, str | None) and isinstance(body, bytes)
        if not has_types or digest(body, marker) != checked:
            raise damaged(self.path, f"the block at {first} is not what was written")
        with translated(self.path):
            return Block(first, enqueued, marker, decoded(body), checked)

    def _extent(self, connection: sqlite3.Connection) -> ReadableRange:
        version = self._version(connection)  # before the query, so that a change after it is noticed
        ((first, newest_end, end),) = connection.execute(
            "SELECT (SELECT min(first) FROM blocks), (SELECT first + events FROM blocks ORDER BY first DESC LIMIT 1), next"
            " FROM log"
        ).fetchall()
        if end is None or newest_end != (end or None):  # retention always keeps the newest block
            raise damaged(self.path, "its newest events are missing")
        return ReadableRange(first or 0, end, version)

    def _version(self, connection: sqlite3.Connection) -> Version:
        ((version,),) = connection.execute("PRAGMA data_version").fetchall()
        return self._openings, version

    def close(self) -> None:
        with self._lock:
            self._close_file()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self.path):
            yield self._connection()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. It cannot be interrupted inside: nothing here awaits, and a caller's `send` only checks."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):  # the first error is the one to report
                        connection.execute("ROLLBACK")
                raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                # What reached the disk may be found there after a crash, though no reader sees it now.
                raise LogUncertain(f"log file '{self.path}': the commit failed ({error})") from error
            raise

    def _connection(self) -> sqlite3.Connection:
        """Opened again if the file is no longer the one that was opened: what is written to a deleted file is lost."""
        try:
            inode = os.stat(self.path).st_ino
        except OSError as error:
            self._close_file()
            raise missing(self.path, self.name, error) from error
        if self._open is None or self._open[1] != inode:
            self._close_file()
            self._open = open_connection(self.path, self.name, self._busy_timeout_s, self._mode), inode
            self._openings += 1
        return self._open[0]

    def _close_file(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # a failing disk may have ended it
            connection.execute("ROLLBACK")


def _end(connection: sqlite3.Connection) -> int:
    ((end,),) = connection.execute("SELECT next FROM log").fetchall()
    return int(end)


def _fitting(connection: sqlite3.Connection, start: int, events_max: int, bytes_max: int) -> tuple[int, int]:
    """The first sequences of the first and the last block to read from `start` on."""
    headers = connection.execute(
        "SELECT first, CAST(coalesce(events, 0) AS INTEGER), CAST(coalesce(bytes, 0) AS INTEGER) FROM blocks"
        " WHERE first >= (SELECT max(first) FROM blocks WHERE first <= ?) ORDER BY first",
        (start,),
    )
    first, events, size = headers.fetchone()
    last = first
    for at, more, larger in headers:
        events, size = events + more, size + larger
        if events > events_max or size > bytes_max:
            break
        last = at
    headers.close()
    return first, last


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
