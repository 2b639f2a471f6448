"""A partition: one SQLite file in the log's directory, complete from the moment it is visible.

The file's name is the partition's, percent-encoded; a name too long for a file system is cut and extended by a digest,
and is stored in full inside the file.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.connectors.network import sync_directory
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.publishing_writer import PUBLISHED_SCHEMA
from leasehold.pipeline.staging import halved

# Everything that a log can refuse. Its feed and its sink translate this into leasehold.pipeline.errors.
#
# LogError
# ├── LogUnavailable             certainly not done: locked, full, read-only, damaged; the message tells what to do
# │   └── LogMissing             there is no such partition (yet)
# ├── LogUncertain               a write with an unknown outcome: send the same again, or ask at a higher level
# ├── Outranked                  a claim of this rank or a later one is attached
# ├── OutOfOrder                 not the sequence number that follows, or other events under the last one's number
# └── ProducerEnded              the producer announced its end


class LogError(Exception):
    """Base of all errors of a log."""


class LogUnavailable(LogError):
    """Nothing was changed. The obstacle may pass, or need a person."""


class LogMissing(LogUnavailable):
    """The partition has no file."""


class LogUncertain(LogError):
    """The commit failed on its way to the disk: it may or may not have taken effect."""


class Outranked(LogError):
    """held: generation, series and level of the claim that the log knows; None if it knows none."""

    def __init__(self, message: str, *, held: tuple[int, int, int] | None = None) -> None:
        super().__init__(message)
        self.held = held


class OutOfOrder(LogError):
    """Another process used our numbers, or we lost count."""


class ProducerEnded(LogError):
    """Its partition was split or merged; other producers continue."""


# A block: the events of one append, as compressed Arrow.
#
# Only what the producer sent is stored. The log determines partition, sequence, offset and time, and adds them on reading.


BLOCK_SCHEMA = PUBLISHED_SCHEMA
# Arrow's own threads would cost ten times the work itself for a small block, and half as much again for a large one.
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block on its way to the disk."""

    body: bytes
    events: int
    decoded_bytes: int

    def digest(self, marker: str | None) -> bytes:
        """Tells one batch from another, and a damaged block from a good one."""
        return digest(self.body, marker)


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it was read.

    first: sequence of its first event. enqueued: microseconds since 1970. events: BLOCK_SCHEMA. digest: of what was written.
    """

    first: int
    enqueued: int
    marker: str | None
    events: pa.Table
    digest: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.first, self.enqueued, self.digest)

    def holds(self, sequence: int) -> bool:
        return bool(self.first <= sequence < self.first + self.events.num_rows)


def encoded(events: pa.Table) -> Encoded:
    """`events`: BLOCK_SCHEMA."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, BLOCK_SCHEMA, options=_WRITING) as stream:
        stream.write_table(events.combine_chunks())
    return Encoded(out.getvalue().to_pybytes(), events.num_rows, events.nbytes)


def decoded(body: bytes) -> pa.Table:
    """BLOCK_SCHEMA. Raises pa.ArrowException if the bytes are not a block."""
    return pa.ipc.open_stream(body, options=_READING).read_all()


def digest(body: bytes, marker: str | None) -> bytes:
    hashed = hashlib.blake2b((marker or "").encode(), digest_size=16)
    hashed.update(body)
    return hashed.digest()


def fingerprint(first: int, enqueued: int, checked: bytes) -> str:
    """Identifies a block, and so the log up to it: logs only grow, and no other one has this content at this time."""
    return hashlib.blake2b(f"{first} {enqueued} ".encode() + checked, digest_size=16).hexdigest()


def events_in(partition: str, blocks: Sequence[Block], start: int) -> pa.Table:
    """The events of consecutive blocks from the sequence `start` on, EVENT_SCHEMA."""
    stored = pa.concat_tables([block.events for block in blocks]).slice(start - blocks[0].first).combine_chunks()
    count = stored.num_rows
    sequence = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=start - 1)
    ends = pa.array([block.first + block.events.num_rows - start for block in blocks], pa.int32())
    times = pa.array([block.enqueued for block in blocks], EVENT_SCHEMA.field("enqueued_time").type)
    given = {
        "partition": pa.repeat(pa.scalar(partition, pa.string()), count),
        "sequence": sequence,
        "offset": sequence.cast(pa.string()),
        "enqueued_time": pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, times)),
    }
    return pa.table([given[name] if name in given else stored[name] for name in EVENT_SCHEMA.names], EVENT_SCHEMA)


def pages_of(events: pa.Table, events_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """`events` in slices that keep both limits; a slice of one event may be larger in bytes."""
    for at in range(0, events.num_rows, events_max):
        yield from halved(events.slice(at, events_max), bytes_max)


SUFFIX = ".db"
READ_WRITE = "rw"
READ_ONLY = "ro"
UNCHANGING = "ro&immutable=1"
"""For reading a file that no other process has open; check afterwards whether that was true."""
APPLICATION_ID = 0x4C48_4C47
FORMAT = 1
ENCODED_MAX = 150
WAL_BYTES_KEPT = 16 * 1024 * 1024

_SCHEMA = f"""
PRAGMA journal_mode = WAL;
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE log (
  partition TEXT NOT NULL,
  next INTEGER NOT NULL,            -- sequence of the event to come
  enqueued INTEGER NOT NULL,        -- of the last event, microseconds since 1970; never goes back
  bytes INTEGER NOT NULL            -- of the blocks kept
);
CREATE TABLE blocks (
  first INTEGER PRIMARY KEY,        -- sequence of the first event
  events INTEGER NOT NULL,
  enqueued INTEGER NOT NULL,
  bytes INTEGER NOT NULL,           -- once decoded
  digest BLOB NOT NULL,
  marker TEXT,
  body BLOB NOT NULL
);
CREATE INDEX blocks_by_time ON blocks (enqueued, first);
CREATE TABLE producers (            -- leasehold.pipeline.connectors.log.producer_state.LeaseProducer
  lease TEXT PRIMARY KEY,
  generation INTEGER NOT NULL,
  series INTEGER NOT NULL,
  level INTEGER NOT NULL,
  "group" INTEGER NOT NULL,
  number INTEGER NOT NULL,
  batch_number INTEGER,
  batch_first INTEGER,
  batch_digest BLOB,
  marker TEXT,
  ended INTEGER NOT NULL
);
COMMIT;
"""

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process keeps it locked: see whether one was stopped in the middle of a write, and end it",
    sqlite3.SQLITE_PROTOCOL: "other processes kept it locked: try again",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_READONLY: "it is read-only: let this process write to the file and to its directory",
    sqlite3.SQLITE_CANTOPEN: "let this process read and write the file and its directory",
    sqlite3.SQLITE_PERM: "let this process read and write the file and its directory",
    sqlite3.SQLITE_IOERR: "the disk failed: look into the system's log",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is damaged, or it is not a log: restore it from a backup, or move it away",
}

_DAMAGE = ("Could not decode to UTF-8", "unsupported file format")
"""Beginnings of errors about a damaged file for which SQLite has no code."""


def file_name(partition: str) -> str:
    """Raises LogUnavailable for a name that is not text (a lone surrogate)."""
    try:
        name = quote(partition, safe="")
    except UnicodeEncodeError:
        raise LogUnavailable(f"partition {partition!r} cannot be a file name: rename it in its source") from None
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not 0 < len(name) <= ENCODED_MAX:
        name = f"{name[:ENCODED_MAX]}={hashlib.sha256(partition.encode()).hexdigest()[:32]}"
    return name + SUFFIX


def wal_of(path: Path) -> str:
    return f"{path}-wal"


def has_wal(path: Path) -> bool:
    """Whether some process has a partition's file open, or ended without closing it."""
    return os.path.exists(wal_of(path))


def reading_mode(path: Path) -> str:
    """How to open a partition's file so that nothing in its directory is created or changed.

    A connection that may only read would create a WAL if there is none, and could not remove it again.
    """
    return READ_ONLY if has_wal(path) else UNCHANGING


def partitions_in(directory: Path, mode_of: Callable[[Path], str] = lambda path: READ_WRITE) -> list[str]:
    """A directory's partitions, in name order; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error
    return sorted(partition for name in names if (partition := _partition_of(directory / name, mode_of)) is not None)


def create(directory: Path, partition: str) -> None:
    """Create the partition's file unless it exists. It is complete once it is visible, also if several create it at once."""
    path = directory / file_name(partition)
    if path.exists():
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=directory) as room:
            made = Path(room) / "log"
            with translated(path), closing(sqlite3.connect(made)) as connection:
                connection.executescript(_SCHEMA)
                connection.execute("INSERT INTO log VALUES (?, 0, 0, 0)", (partition,))
                connection.commit()
            with suppress(FileExistsError):
                os.link(made, path)
        sync_directory(directory)
    except OSError as error:
        raise _unreadable(path, error) from error


def open_connection(path: Path, partition: str, busy_timeout_s: float, mode: str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time."""
    with translated(path):
        connection = _open_file(path, busy_timeout_s, mode)
        try:
            held = _name_in(connection, path)
            if held != partition:
                raise LogUnavailable(
                    f"log file '{path}' holds partition '{held}', not '{partition}': give them names that this file system"
                    " tells apart, or move the file back to its place"
                )
            connection.execute("PRAGMA synchronous = FULL")  # with less, a power cut could undo levels and positions
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's and the codec's errors as LogUnavailable, with the file and what to do about it."""
    try:
        yield
    except sqlite3.Error as error:
        if str(error).startswith(_DAMAGE):
            raise damaged(path, str(error)) from error
        remedy = _REMEDIES.get(primary_code(error))
        if remedy is None:
            raise  # a fault of this package
        raise LogUnavailable(f"log file '{path}' cannot be used ({error}): {remedy}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from error


def primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def missing(path: Path, partition: str, error: OSError) -> LogUnavailable:
    """The error for a partition's file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return LogMissing(f"log '{path.parent}' has no partition '{partition}' yet: start the pipeline that writes it")
    return _unreadable(path, error)


def damaged(path: Path, what: str) -> LogUnavailable:
    return LogUnavailable(f"log file '{path}' is damaged ({what}): restore it from a backup")


def _open_file(path: Path, busy_timeout_s: float, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=busy_timeout_s)


def _name_in(connection: sqlite3.Connection, path: Path) -> str:
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    if application != APPLICATION_ID:
        raise LogUnavailable(
            f"file '{path}' is not a partition of a log, or is damaged: move it out of this directory, or restore it from a"
            " backup"
        )
    if version != FORMAT:
        raise LogUnavailable(f"log file '{path}' has format {version}, and this version of Leasehold reads {FORMAT}")
    rows = connection.execute("SELECT partition, next FROM log").fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], str) or not isinstance(rows[0][1], int):
        raise damaged(path, "its description cannot be read")
    return str(rows[0][0])


def _partition_of(path: Path, mode_of: Callable[[Path], str]) -> str | None:
    """The partition of a file; None if the file is not one of a log."""
    stem = path.name.removesuffix(SUFFIX)
    if "=" in stem:
        with translated(path), closing(_open_file(path, 1.0, mode_of(path))) as connection:
            partition = _name_in(connection, path)
    else:
        partition = unquote(stem)
    return partition if file_name(partition) == path.name else None


def _unreadable(path: Path, error: OSError) -> LogUnavailable:
    return LogUnavailable(
        f"log '{path}' cannot be used ({error.strerror}): check the path, its permissions and its disk"
    )
