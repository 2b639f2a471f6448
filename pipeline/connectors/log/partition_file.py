"""Where a partition lies: one SQLite file in the log's directory, whole from the moment it can be seen.

The file's name is the partition's, percent-encoded; a name too long for a file system is cut and told apart by a digest,
and stands in full inside the file.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa

from pipeline.connectors.log.errors import LogMissing, LogUnavailable

SUFFIX = ".db"
READ_WRITE = "rw"
READ_ONLY = "ro"
UNCHANGING = "ro&immutable=1"
"""Of a file that no other process has open: whoever reads it so has to look afterwards whether that was true."""
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
CREATE TABLE producers (            -- pipeline.connectors.log.producer_state.Line
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
"""Errors of a damaged file that SQLite gives no code of their own."""


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


def has_wal(path: Path) -> bool:
    """Whether some process has a partition's file open, or ended without closing it."""
    return os.path.exists(f"{path}-wal")


def reading_mode(path: Path) -> str:
    """How to open a partition's file so that nothing in its directory is created or changed.

    A connection that may only read would create a WAL if there is none, and could not remove it again.
    """
    return READ_ONLY if has_wal(path) else UNCHANGING


def partitions_in(directory: Path, mode_of: Callable[[Path], str] = lambda path: READ_WRITE) -> list[str]:
    """In name order. A directory that is not there holds none."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error
    return sorted(partition for name in names if (partition := _partition_of(directory / name, mode_of)) is not None)


def create(directory: Path, partition: str) -> None:
    """Make the partition's file unless it is there. Whoever sees it sees all of it, however many make it at once."""
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
        _synced(directory)
    except OSError as error:
        raise _unreadable(path, error) from error


def connected(path: Path, partition: str, busy_timeout_s: float, mode: str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time."""
    with translated(path):
        connection = _opened(path, busy_timeout_s, mode)
        try:
            held = _name_in(connection, path)
            if held != partition:
                raise LogUnavailable(
                    f"log file '{path}' holds partition '{held}', not '{partition}': give them names that this file system"
                    " tells apart, or move the file back to its place"
                )
            connection.execute("PRAGMA synchronous = FULL")  # less would let a power cut take levels and positions back
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's and the codec's errors as LogUnavailable, with the file and what to do about it."""
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
    """What it means that the partition's file cannot be looked at."""
    if isinstance(error, FileNotFoundError):
        return LogMissing(f"log '{path.parent}' has no partition '{partition}' yet: start the pipeline that writes it")
    return _unreadable(path, error)


def damaged(path: Path, what: str) -> LogUnavailable:
    return LogUnavailable(f"log file '{path}' is damaged ({what}): restore it from a backup")


def _opened(path: Path, busy_timeout_s: float, mode: str) -> sqlite3.Connection:
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
    """The partition whose file this is, None where the file is a stranger's."""
    stem = path.name.removesuffix(SUFFIX)
    if "=" in stem:
        with translated(path), closing(_opened(path, 1.0, mode_of(path))) as connection:
            partition = _name_in(connection, path)
    else:
        partition = unquote(stem)
    return partition if file_name(partition) == path.name else None


def _synced(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unreadable(path: Path, error: OSError) -> LogUnavailable:
    return LogUnavailable(
        f"log '{path}' cannot be used ({error.strerror}): check the path, its permissions and its disk"
    )
