"""What an emulator keeps on disk: its changes in order, in SQLite, one transaction for each acknowledged request.

A change is in the write-ahead log before its request is acknowledged, so it survives the end of the process at any moment.
The log is not synced to the disk, so a machine that loses power may lose the last changes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

FORMAT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
  seq INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, fields TEXT NOT NULL, body BLOB, until INTEGER
);
CREATE INDEX IF NOT EXISTS of_owner ON journal (owner, kind, until);
"""


class Unusable(Exception):
    """The file cannot be opened: another process has it, another release wrote it, or it is not a database."""


class Row(NamedTuple):
    """owner: the container or partition that changed. until: for events, the number after the last one."""

    owner: str
    kind: str
    fields: dict[str, Any]
    body: bytes


class Journal:
    """Without a path it keeps nothing. Changes are added one by one, and committed together."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._database = opened(path) if path else None
        self._is_replaying = False
        self._has_changes = False

    @property
    def is_kept(self) -> bool:
        """Whether `add` does anything; if not, callers need not prepare rows."""
        return self._database is not None and not self._is_replaying

    def add(self, owner: str, kind: str, fields: dict[str, Any], body: bytes = b"", until: int | None = None) -> None:
        if self.is_kept:
            text = json.dumps(fields, separators=(",", ":"))
            statement = "INSERT INTO journal (owner, kind, fields, body, until) VALUES (?, ?, ?, ?, ?)"
            self._execute(statement, owner, kind, text, body, until)

    def forget(self, owner: str, kind: str | None = None, before: int | None = None) -> None:
        """Delete the rows of an owner: all, those of a kind, or those of a kind whose `until` is not above `before`."""
        if self.is_kept:
            conditions = {"owner = ?": owner, "kind = ?": kind, "until <= ?": before}
            given = {condition: value for condition, value in conditions.items() if value is not None}
            self._execute(f"DELETE FROM journal WHERE {' AND '.join(given)}", *given.values())

    def put(self, owner: str, kind: str, fields: dict[str, Any]) -> None:
        """Replace the owner's row of that kind."""
        self.forget(owner, kind)
        self.add(owner, kind, fields)

    def clear(self) -> None:
        if self.is_kept:
            self._execute("DELETE FROM journal")

    def commit(self) -> None:
        """Commit what was added. What cannot be written is not acknowledged: the process ends."""
        if self._has_changes and self._database is not None:
            try:
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                self._end(error)
            self._has_changes = False

    def replay(self) -> Iterator[Row]:
        """All changes in order. Until the last one, `add` does nothing: what it gets is already on disk."""
        if self._database is None:
            return
        self._is_replaying = True
        try:
            rows = self._database.execute("SELECT owner, kind, fields, body FROM journal ORDER BY seq")
            for owner, kind, fields, body in rows:
                yield Row(owner, kind, json.loads(fields), body)
        finally:
            self._is_replaying = False

    def close(self) -> None:
        if self._database is not None:
            self.commit()
            self._database.close()

    def _execute(self, statement: str, *values: Any) -> None:
        assert self._database is not None
        try:
            if not self._has_changes:
                self._database.execute("BEGIN IMMEDIATE")
                self._has_changes = True
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            self._end(error)

    def _end(self, error: sqlite3.Error) -> NoReturn:
        end(f"leasehold: cannot write to {self._path}: {error}. Make room, and start the emulator again.")


def opened(path: Path, schema: str = SCHEMA) -> sqlite3.Connection:
    """Open the database for this process alone. Raises Unusable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, isolation_level=None, timeout=1)
    except (sqlite3.Error, OSError) as error:
        raise Unusable(f"cannot open {path}: {error}") from error
    try:
        _prepare(database, path, schema)
    except BaseException as error:
        database.close()
        if not isinstance(error, sqlite3.Error):
            raise
        if "locked" in str(error):
            raise Unusable(f"{path} is in use: stop the other emulator, or use another --data directory") from error
        raise Unusable(f"cannot open {path}: {error}") from error
    return database


def _prepare(database: sqlite3.Connection, path: Path, schema: str) -> None:
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
        database.execute(f"PRAGMA {pragma}")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, FORMAT):
        raise Unusable(f"{path} has format {version}, and this release reads {FORMAT}: use another --data directory")
    database.execute("BEGIN IMMEDIATE")
    for statement in schema.split(";"):
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {FORMAT}")
    database.execute("COMMIT")


def end(reason: str) -> NoReturn:
    """End the process at once: memory is ahead of the disk, so clients must not read it."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)
