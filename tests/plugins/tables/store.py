"""Leases in a table: a row for each document. Its ETag is a number that no other change of any document has had."""

from __future__ import annotations

from collections.abc import Callable
from sqlite3 import Connection
from typing import TypeVar

from leasehold import LeaseStore, StoreConflict, Stored, StoreMissing, StoreUnavailable
from plugins.tables.database import Database, Unavailable

T = TypeVar("T")
SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, body TEXT NOT NULL, etag TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT);
"""


class TableLeases(LeaseStore):
    leasehold_interface = 1

    def __init__(self, path: str) -> None:
        self._database = Database(path, SCHEMA)

    async def list(self, prefix: str) -> list[Stored]:
        query = "SELECT id, body, etag FROM documents WHERE substr(id, 1, ?) = ? ORDER BY id"
        found = await self._run(lambda c: c.execute(query, (len(prefix), prefix)).fetchall())
        return [Stored(*row) for row in found]

    async def read(self, id: str) -> Stored:
        return await self._run(lambda connection: find(connection, id))

    async def create(self, id: str, body: str) -> str:
        def create(connection: Connection) -> str:
            if connection.execute("SELECT 1 FROM documents WHERE id = ?", (id,)).fetchone():
                raise StoreConflict(f"document '{id}' exists already")
            return put(connection, id, body)

        return await self._run(create)

    async def replace(self, id: str, body: str, etag: str) -> str:
        def replace(connection: Connection) -> str:
            check(connection, id, etag)
            return put(connection, id, body)

        return await self._run(replace)

    async def delete(self, id: str, etag: str) -> None:
        def delete(connection: Connection) -> None:
            check(connection, id, etag)
            connection.execute("DELETE FROM documents WHERE id = ?", (id,))

        await self._run(delete)

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            return await self._database.run(work)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error


def find(connection: Connection, id: str) -> Stored:
    """Raises StoreMissing."""
    found = connection.execute("SELECT id, body, etag FROM documents WHERE id = ?", (id,)).fetchone()
    if found is None:
        raise StoreMissing(f"there is no document '{id}'")
    return Stored(*found)


def check(connection: Connection, id: str, etag: str) -> None:
    """Raises StoreMissing, StoreConflict."""
    if find(connection, id).etag != etag:
        raise StoreConflict(f"document '{id}' has changed")


def put(connection: Connection, id: str, body: str) -> str:
    """Under an ETag of its own."""
    number = connection.execute("INSERT INTO changes DEFAULT VALUES").lastrowid
    connection.execute("DELETE FROM changes WHERE number < ?", (number,))
    connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (id, body, str(number)))
    return str(number)
