"""A database of SQLite: the only place that knows sqlite3."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
BUSY_S = 5.0
"""How long a transaction waits for those of other processes."""


class Unavailable(Exception):
    """The transaction was not committed."""


class Database:
    """One file, one connection, one thread: SQLite blocks, and the event loop has to send heartbeats meanwhile."""

    def __init__(self, path: str, schema: str) -> None:
        self.path = path
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """All of `work` in one transaction, or nothing, if it raises. Raises Unavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                done = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise Unavailable(f"{self.path}: {error}") from error
        return done

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._connection.executescript(self._schema)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


EVENTS = """
CREATE TABLE IF NOT EXISTS events (
    partition TEXT NOT NULL, number INTEGER NOT NULL, time TEXT NOT NULL, key TEXT, body BLOB, PRIMARY KEY (partition, number)
);
"""


def append(
    connection: sqlite3.Connection, partition: str, time: str, rows: list[tuple[str | None, bytes | None]]
) -> None:
    """Number the rows (key, body) behind the last one of the partition."""
    (last,) = connection.execute(
        "SELECT coalesce(max(number), 0) FROM events WHERE partition = ?", (partition,)
    ).fetchone()
    numbered = [(partition, last + at, time, key, body) for at, (key, body) in enumerate(rows, 1)]
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", numbered)
