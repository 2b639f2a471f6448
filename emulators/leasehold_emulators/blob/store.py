"""Containers and blobs in SQLite, on disk or in memory: each request is one transaction, committed before it is answered."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leasehold_emulators.blob.lease import Lease
from leasehold_emulators.journal import end, opened

SCHEMA = """
CREATE TABLE IF NOT EXISTS containers (name TEXT PRIMARY KEY, fields TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, container TEXT NOT NULL, name TEXT NOT NULL, is_committed INTEGER NOT NULL,
  fields TEXT NOT NULL, UNIQUE (container, name)
);
CREATE TABLE IF NOT EXISTS chunks (
  blob INTEGER NOT NULL, position INTEGER, block TEXT, start INTEGER NOT NULL, size INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS chunks_of_blob ON chunks (blob, position, block);
CREATE TABLE IF NOT EXISTS etags (last INTEGER NOT NULL);
"""
PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    name: str
    etag: str
    modified: float
    metadata: dict[str, str] = field(default_factory=dict)
    lease: Lease = field(default_factory=Lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """id: None until the blob is stored. headers: content type and the like, as answers have them."""

    container: str
    name: str
    kind: str
    etag: str = ""
    created: float = 0.0
    modified: float = 0.0
    size: int = 0
    blocks: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    lease: Lease = field(default_factory=Lease)
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    id: str
    size: int


class Store:
    """path: None for memory. Raises Unusable."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._database = opened(path, SCHEMA) if path else sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. What cannot be written is not acknowledged: the process ends."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def close(self) -> None:
        self._database.close()

    def clear(self) -> None:
        for table in ("containers", "blobs", "chunks"):
            self._run(f"DELETE FROM {table}")

    def next_etag(self, now: float) -> str:
        """An ETag that was never used before, even if the clock was set back."""
        (last,) = self._run("SELECT max(last) FROM etags").fetchone()
        number = max((last or 0) + 1, 0x8D0000000000000 + int(now * 10_000_000))
        self._run("DELETE FROM etags")
        self._run("INSERT INTO etags VALUES (?)", number)
        return f'"0x{number:X}"'

    # --- containers -----------------------------------------------------------------------------------------------------

    def containers(self, prefix: str = "", after: str = "", limit: int = -1) -> list[Container]:
        condition = "substr(name, 1, ?) = ? AND name >= ? ORDER BY name LIMIT ?"
        rows = self._run(f"SELECT fields FROM containers WHERE {condition}", len(prefix), prefix, after, limit)
        return [container_of(fields) for (fields,) in rows]

    def container(self, name: str) -> Container | None:
        row = self._run("SELECT fields FROM containers WHERE name = ?", name).fetchone()
        return container_of(row[0]) if row else None

    def put_container(self, container: Container) -> None:
        self._run("INSERT OR REPLACE INTO containers VALUES (?, ?)", container.name, json.dumps(asdict(container)))

    def delete_container(self, name: str) -> None:
        self._run("DELETE FROM chunks WHERE blob IN (SELECT id FROM blobs WHERE container = ?)", name)
        self._run("DELETE FROM blobs WHERE container = ?", name)
        self._run("DELETE FROM containers WHERE name = ?", name)

    # --- blobs ----------------------------------------------------------------------------------------------------------

    def blobs(self, container: str, prefix: str, start: str, *, with_uncommitted: bool = False) -> Iterator[Blob]:
        """The blobs in the order of their names, from `start` on."""
        kinds = "" if with_uncommitted else " AND is_committed"
        condition = f"container = ? AND name >= ? AND substr(name, 1, ?) = ?{kinds} ORDER BY name LIMIT {PAGE}"
        start = max(start, prefix)
        while True:
            values = (container, start, len(prefix), prefix)
            rows = self._run(f"SELECT id, fields FROM blobs WHERE {condition}", *values).fetchall()
            found = [blob_of(*row) for row in rows]
            yield from found
            if len(found) < PAGE:
                return
            start = found[-1].name + "\0"

    def count(self, container: str) -> tuple[int, int]:
        """The number of committed blobs, and of their bytes."""
        of = "FROM blobs WHERE container = ? AND is_committed"
        row = self._run(f"SELECT count(*), coalesce(sum(json_extract(fields, '$.size')), 0) {of}", container).fetchone()
        return int(row[0]), int(row[1])

    def blob(self, container: str, name: str, *, with_uncommitted: bool = False) -> Blob | None:
        kinds = "" if with_uncommitted else " AND is_committed"
        values = (container, name)
        row = self._run(f"SELECT id, fields FROM blobs WHERE container = ? AND name = ?{kinds}", *values).fetchone()
        return blob_of(*row) if row else None

    def put_blob(self, blob: Blob, *, is_committed: bool = True) -> Blob:
        """Store the blob, and return it with its id."""
        fields = {name: value for name, value in asdict(blob).items() if name != "id"}
        values = (blob.container, blob.name, is_committed, json.dumps(fields))
        if blob.id is None:
            statement = "INSERT INTO blobs (container, name, is_committed, fields) VALUES (?, ?, ?, ?)"
            return replace(blob, id=self._run(statement, *values).lastrowid)
        self._run(
            "UPDATE blobs SET container = ?, name = ?, is_committed = ?, fields = ? WHERE id = ?", *values, blob.id
        )
        return blob

    def delete_blob(self, blob: Blob) -> None:
        self._run("DELETE FROM chunks WHERE blob = ?", blob.id)
        self._run("DELETE FROM blobs WHERE id = ?", blob.id)

    # --- content --------------------------------------------------------------------------------------------------------

    def write(self, blob: Blob, content: bytes) -> None:
        """Replace the content of the blob."""
        self._run("DELETE FROM chunks WHERE blob = ?", blob.id)
        self._run("INSERT INTO chunks VALUES (?, 0, NULL, 0, ?, ?)", blob.id, len(content), content)

    def delete_content(self, blob: Blob) -> None:
        self._run("DELETE FROM chunks WHERE blob = ?", blob.id)

    def append(self, blob: Blob, content: bytes) -> None:
        values = (blob.id, blob.blocks, blob.size, len(content), content)
        self._run("INSERT INTO chunks VALUES (?, ?, NULL, ?, ?, ?)", *values)

    def read(self, blob: Blob, start: int, end: int) -> bytes:
        """The content from start, inclusive, to end, exclusive."""
        rows = self._run(
            "SELECT start, substr(data, max(?2 - start, 0) + 1, min(?3 - start, size) - max(?2 - start, 0)) FROM chunks"
            " WHERE blob = ?1 AND position IS NOT NULL AND start < ?3 AND start + size > ?2 ORDER BY position",
            *(blob.id, start, end),
        )
        return b"".join(data for _, data in rows)

    def stage(self, blob: Blob, block: str, content: bytes) -> None:
        self._run("DELETE FROM chunks WHERE blob = ? AND position IS NULL AND block = ?", blob.id, block)
        self._run("INSERT INTO chunks VALUES (?, NULL, ?, 0, ?, ?)", blob.id, block, len(content), content)

    def blocks(self, blob: Blob, *, committed: bool) -> list[Block]:
        order = "position IS NOT NULL ORDER BY position" if committed else "position IS NULL ORDER BY block"
        rows = self._run(f"SELECT block, size FROM chunks WHERE blob = ? AND block NOT NULL AND {order}", blob.id)
        return [Block(block, size) for block, size in rows]

    def commit_blocks(self, blob: Blob, wanted: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
        """wanted: (a tag of the block list, such as "Latest"; block id). Returns the new size and the number of blocks.

        Returns None if a block does not exist; the caller then has to roll back.
        """
        rows = self._run("SELECT rowid, block, size, position FROM chunks WHERE blob = ? AND block NOT NULL", blob.id)
        found: dict[tuple[bool, str], tuple[int, int]] = {}
        for rowid, block, size, position in rows.fetchall():
            found[position is not None, block] = rowid, size
        used: list[tuple[int, int, str]] = []
        for where, block in wanted:
            places = {"Committed": (True,), "Uncommitted": (False,)}.get(where, (False, True))
            chosen = next((found[place, block] for place in places if (place, block) in found), None)
            if chosen is None:
                return None
            used.append((*chosen, block))
        self._place(blob, used)
        return sum(size for _, size, _ in used), len(used)

    def _place(self, blob: Blob, used: list[tuple[int, int, str]]) -> None:
        """Keep the used blocks in their order, even if one is used twice, and delete all others."""
        (highest,) = self._run("SELECT max(rowid) FROM chunks").fetchone()
        start = 0
        for position, (rowid, size, _) in enumerate(used):
            copied = "INSERT INTO chunks SELECT blob, ?, block, ?, size, data FROM chunks WHERE rowid = ?"
            self._run(copied, position, start, rowid)
            start += size
        self._run("DELETE FROM chunks WHERE blob = ? AND rowid <= ?", blob.id, highest)

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            end(
                f"leasehold: cannot write to {self._path or 'memory'}: {error}. Make room, and start the emulator again."
            )


def container_of(text: str) -> Container:
    fields = json.loads(text)
    return Container(**fields | {"lease": Lease(**fields["lease"])})


def blob_of(id: int, text: str) -> Blob:
    fields = json.loads(text)
    return Blob(**fields | {"lease": Lease(**fields["lease"]), "id": id})
