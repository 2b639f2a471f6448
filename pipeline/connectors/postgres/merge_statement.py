"""What a batch is merged into: a user's `merge`, or a table that we write the merge for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from psycopg.sql import SQL, Identifier

from pipeline.connectors.postgres import sql
from pipeline.connectors.postgres.copy import Load, last_per_key, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Either `merge` or `table` is set; with a `key`, rows of the table are replaced by it."""

    merge: str | None
    table: str | None
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.table or "merge"

    @property
    def kind(self) -> str:
        """The setting to mend where the server refuses."""
        return "table" if self.table else "merge"

    def load(self, table: pa.Table) -> Load:
        """Raises SinkRejected."""
        return load(last_per_key(table, self.key) if self.key else table)

    def merged(self, batch: Load) -> sql.Statement:
        """The statement that brings the table `batch` into the target."""
        if self.merge is not None:
            return sql.users(self.merge)
        if self.key:
            return sql.upserted(self._into, batch.columns, self.key)
        return sql.appended(self._into, batch.columns)

    @property
    def checkable(self) -> sql.Statement:
        """A statement of this target that can be parsed before any output is known."""
        if self.merge is not None:
            return sql.users(self.merge)
        return SQL("INSERT INTO {} SELECT FROM {}").format(self._into, sql.BATCH)

    @property
    def _into(self) -> Identifier:
        assert self.table is not None
        return Identifier(*self.table.split("."))
