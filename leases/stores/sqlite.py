"""A lease store in one SQLite file, shared by several processes on one machine: the embedded default."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.pause_orders import GROUP_PREFIX
from leasehold.leases.store import ChangedDocuments, LeaseStore, Stored

T = TypeVar("T")

WAL_ATTEMPTS = 10
QUEUED_MAX = 4
"""How many calls about leases the thread has at a time: a thousand partitions that start together make a thousand calls."""
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
POLL_S = 0.005
"""The time between two tries to write while another connection is writing."""
SLOW_S, PAUSE_S = 0.05, 0.01
"""After a write that took longer than the first, a thread pauses for the second, so that others can write first."""

_REMEDIES = {
    sqlite3.SQLITE_PERM: "make the file and its directory readable and writable for this user",
    sqlite3.SQLITE_READONLY: "make the file and its directory writable for this user",
    sqlite3.SQLITE_CANTOPEN: "make sure that it is a file, and its directory writable for this user",
    sqlite3.SQLITE_FULL: "free some space on its file system",
    sqlite3.SQLITE_IOERR: "look at its file system and disk",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a copy, or move it away",
    sqlite3.SQLITE_NOTADB: "it is not a lease file; name another path, or move it away",
}


class SqliteStore(LeaseStore):
    """Every write is one SQL statement in its own transaction, synced to disk before it is answered.

    busy_timeout_s: how long a call waits for another process's write. Keep it well below the usual timeout of callers:
    calls take turns on a thread, and one that waits blocks the others. A call that is cancelled while it runs continues to
    its end in that thread, so its write may still happen. A call that is cancelled before that never happens.

    Documents of the group (hosts, orders) have connections of their own, one for writes and one for reads. So a beat waits only
    for the write of a lease that is being synced: after a slow write of a lease, others can write before the next one.

    Not guaranteed:

    - A process that is stopped (SIGSTOP, a debugger) inside a write blocks every other writer until it continues or is
      killed; no timeout helps. A write is one statement, so it lasts no longer than a sync of the disk.
    - The file must be on a local disk: write-ahead logging needs memory that all processes share.
    - If an older copy of the file replaces it, ETags are repeated. A running process notices at its next call that the
      file was removed or replaced.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 2.0, creates: bool = True) -> None:
        """creates: whether a missing file is created. Otherwise calls raise StoreMissing until another process has
        created it.
        """
        place = Path(path).absolute()
        self._leases = _ConnectionThread(place, busy_timeout_s, creates, pauses=True)
        self._beats = _ConnectionThread(place, busy_timeout_s, creates)
        self._looks = _ConnectionThread(place, busy_timeout_s, creates)
        self._turns = asyncio.Semaphore(QUEUED_MAX)

    async def list(self, prefix: str) -> list[Stored]:
        return await self._run(prefix, lambda connection: _list(connection, prefix))

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """One write is carried out at a time and takes the next number, so a number covers all writes that have lower ones."""
        return await self._run("", lambda connection: _changes(connection, prefix, since, self._leases.opening))

    async def count(self, prefix: str) -> int | None:
        return await self._run(prefix, lambda connection: _count(connection, prefix))

    async def read(self, id: str) -> Stored:
        return await self._run(id, lambda connection: _read(connection, id))

    async def create(self, id: str, body: str) -> str:
        return await self._run(id, lambda connection: _create(connection, id, body), is_write=True)

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._run(id, lambda connection: _replace(connection, id, body, etag), is_write=True)

    async def delete(self, id: str, etag: str) -> None:
        await self._run(id, lambda connection: _delete(connection, id, etag), is_write=True)

    async def close(self) -> None:
        """Waits for the calls in progress, each of which ends within `busy_timeout_s`."""
        await asyncio.shield(asyncio.gather(*(line.close() for line in (self._leases, self._beats, self._looks))))

    async def _run(self, id: str, action: Callable[[sqlite3.Connection], T], *, is_write: bool = False) -> T:
        """id: of the document, or the prefix of several."""
        if id.startswith(GROUP_PREFIX):
            return await (self._beats if is_write else self._looks).run(action, is_write)
        async with self._turns:
            return await self._leases.run(action, is_write)


class _ConnectionThread:
    """A thread with a connection: calls take turns. pauses: whether it lets others write first after a slow write."""

    def __init__(self, path: Path, busy_timeout_s: float, creates: bool, *, pauses: bool = False) -> None:
        self.opening = ""
        """Names this opening of the file in tokens: another file may have the same inode."""
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._creates = creates
        self._pauses = pauses
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease-store")
        self._connection: sqlite3.Connection | None = None  # only the thread uses this and the next one
        self._opened: tuple[int, int] | None = None

    async def run(self, action: Callable[[sqlite3.Connection], T], is_write: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._act, action, is_write)

    async def close(self) -> None:
        closing = self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    def _act(self, action: Callable[[sqlite3.Connection], T], is_write: bool) -> T:
        began = time.monotonic()
        try:
            return self._tried(action, is_write, ends=began + self._busy_timeout_s)
        finally:
            if self._pauses and is_write and time.monotonic() - began > SLOW_S:
                time.sleep(PAUSE_S)

    def _tried(self, action: Callable[[sqlite3.Connection], T], is_write: bool, ends: float) -> T:
        """SQLite itself would wait for up to 0.1 s between two tries, and seldom be the first after a slow write."""
        while True:
            try:
                connection = self._connect()
            except (sqlite3.DatabaseError, OSError) as error:
                raise self._translated(error, is_write=False) from error
            try:
                return action(connection)
            except sqlite3.DatabaseError as error:
                if _code(error) in BUSY and time.monotonic() < ends:
                    time.sleep(POLL_S)
                    continue
                self._disconnect()  # whatever is wrong, the next call starts from a clean state
                raise self._translated(error, is_write) from error

    def _connect(self) -> sqlite3.Connection:
        """The connection; a new one if the path now leads to another file, because SQLite would continue with the old
        one.
        """
        if self._connection is not None:
            if self._opened is not None and self._opened == _file_at(self._path):
                return self._connection
            self._disconnect()
        if self._creates:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        elif _file_at(self._path) is None:
            raise self._nothing_there()
        connection = sqlite3.connect(self._path, timeout=self._busy_timeout_s, isolation_level=None)
        try:
            if not (self._creates or _has_table(connection)):
                raise self._nothing_there()
            _prepare(connection)
            self.opening = connection.execute("SELECT hex(randomblob(8))").fetchone()[0]
            connection.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
        self._connection, self._opened = connection, _file_at(self._path)
        return connection

    def _nothing_there(self) -> StoreMissing:
        return StoreMissing(f"no leases yet in {self._path}: no host has run this configuration")

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _translated(self, error: sqlite3.DatabaseError | OSError, is_write: bool) -> StoreError:
        code = _code(error)
        if code in BUSY:
            return StoreUnavailable(
                f"lease file '{self._path}' was locked for more than {self._busy_timeout_s:g} s: if this continues, look for a"
                " stopped process that has it open, and continue or kill it"
            )
        remedy = _REMEDIES.get(code, "make sure that no other program uses this file")
        if is_write and code == sqlite3.SQLITE_IOERR:
            return StoreAmbiguous(
                f"a write to lease file '{self._path}' may or may not have happened ({error}): {remedy}"
            )
        return StoreUnavailable(f"lease file '{self._path}' cannot be used ({error}): {remedy}")


def _code(error: sqlite3.DatabaseError | OSError) -> int:
    """SQLite's primary result code. An OSError came from creating the directory."""
    if isinstance(error, OSError):
        return sqlite3.SQLITE_CANTOPEN
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _list(connection: sqlite3.Connection, prefix: str) -> list[Stored]:
    rows = connection.execute(
        "SELECT id, CAST(body AS TEXT), etag FROM lease_documents WHERE id >= ? AND id < ? || char(0x10FFFF) ORDER BY id",
        (prefix, prefix),
    )
    return [Stored(name, body, str(etag)) for name, body, etag in rows]


def _changes(connection: sqlite3.Connection, prefix: str, since: str | None, opening: str) -> ChangedDocuments | None:
    """A token is the opening and the last number that a write took. The number is read first: what is written between
    the two queries is in this answer and in the next one.
    """
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'lease_documents'").fetchone()
    if row is None:
        return None
    last = row[0]
    here = f"{opening}-"
    if since is None:
        return ChangedDocuments((), f"{here}{last}")
    number = since.removeprefix(here)
    if number == since or not (number.isdecimal() and number.isascii() and len(number) < 20) or int(number) > last:
        return None
    rows = connection.execute(
        # The plus keeps SQLite from reading all documents by the index of their ids.
        "SELECT id, CAST(body AS TEXT), etag FROM lease_documents"
        " WHERE etag > ? AND +id >= ? AND +id < ? || char(0x10FFFF)",
        (int(number), prefix, prefix),
    )
    return ChangedDocuments([Stored(name, body, str(etag)) for name, body, etag in rows], f"{here}{last}")


def _count(connection: sqlite3.Connection, prefix: str) -> int:
    row = connection.execute(
        "SELECT count(*) FROM lease_documents WHERE id >= ? AND id < ? || char(0x10FFFF)", (prefix, prefix)
    ).fetchone()
    return int(row[0])


def _read(connection: sqlite3.Connection, id: str) -> Stored:
    row = connection.execute("SELECT CAST(body AS TEXT), etag FROM lease_documents WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise StoreMissing(f"document '{id}' does not exist: it was deleted, or never created")
    return Stored(id, row[0], str(row[1]))


def _create(connection: sqlite3.Connection, id: str, body: str) -> str:
    insert = "INSERT INTO lease_documents (id, body) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"
    cursor = connection.execute(insert, (id, body))
    if cursor.rowcount == 0:
        raise StoreConflict(f"document '{id}' exists already: read it")
    return str(cursor.lastrowid)


def _replace(connection: sqlite3.Connection, id: str, body: str, etag: str) -> str:
    """A replaced document is a new row, because the row's number is the ETag."""
    replace = (
        "INSERT OR REPLACE INTO lease_documents (id, body)"
        " SELECT id, ? FROM lease_documents WHERE id = ? AND CAST(etag AS TEXT) = ?"
    )
    cursor = connection.execute(replace, (body, id, etag))
    if cursor.rowcount == 0:
        raise _mismatch(connection, id)
    return str(cursor.lastrowid)


def _delete(connection: sqlite3.Connection, id: str, etag: str) -> None:
    delete = "DELETE FROM lease_documents WHERE id = ? AND CAST(etag AS TEXT) = ?"
    if connection.execute(delete, (id, etag)).rowcount == 0:
        raise _mismatch(connection, id)


def _mismatch(connection: sqlite3.Connection, id: str) -> StoreConflict:
    """Raises StoreMissing if the document does not exist now."""
    _read(connection, id)
    return StoreConflict(f"document '{id}' was changed by another writer: read it again")


def _prepare(connection: sqlite3.Connection) -> None:
    # Bytes that are not text are not JSON either, and one bad row must not hide the others.
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")  # or a power loss would move epochs back
    if not _has_table(connection):
        _create_table(connection)


def _has_table(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'lease_documents'").fetchone() is not None


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """The switch fails at once if another process is opening the file for the first time too. Taking a write lock waits
    until that is done.
    """
    for _ in range(WAL_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return
    connection.execute("PRAGMA journal_mode = WAL")


def _create_table(connection: sqlite3.Connection) -> None:
    """AUTOINCREMENT never uses a number twice. It starts at a random number, so that ETags of an earlier file match
    nothing.
    """
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS lease_documents"
        " (etag INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL)"
    )
    connection.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'lease_documents', random() & 0xFFFFFFFFFFFF"
        " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'lease_documents')"
    )
    connection.execute("COMMIT")


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
