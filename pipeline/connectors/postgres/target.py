"""What a batch is merged into: a user's `merge`, or a table that we write the merge for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.sql import SQL, Composed, Identifier

from leasehold.pipeline.connectors.postgres import shape as shapes
from leasehold.pipeline.connectors.postgres import sql
from leasehold.pipeline.connectors.postgres.copy import check_key
from leasehold.pipeline.connectors.postgres.shape import Shape

NAME_PARTS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Either `merge` or `table` is set; with a `key`, rows of the table are replaced by it.

    parts: of the table's name, which `prepare` completes by its schema: our own tables are never taken for it.
    """

    merge: str | None
    table: str | None
    key: tuple[str, ...]
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.table or "merge"

    @property
    def kind(self) -> str:
        """The setting to correct after a refusal."""
        return "table" if self.table else "merge"

    @property
    def batch(self) -> Identifier:
        """The temporary table that has the rows first."""
        return sql.STAGED if self.merge is None else sql.BATCH

    @property
    def into(self) -> Identifier:
        assert self.parts, "a merge names its tables itself"
        return Identifier(*self.parts)

    def check_key(self, names: Sequence[str]) -> None:
        """Raises SinkRejected if one of these columns of the output should be a key, and is not there."""
        check_key(names, self.key)

    def merged(self, columns: Sequence[sql.Column], shape: Shape, rows: sql.Rows | None = None) -> list[sql.Statement]:
        """What brings the rows into the target. rows: other ones than those of the batch's table."""
        if self.merge is not None:
            return [sql.users(self.merge)]
        if self.key:
            merge = shapes.upserted(self.into, columns, self.key, shape, rows)
        else:
            merge = shapes.appended(self.into, columns, shape, rows)
        return [*shapes.unchanged(self.into, shape), merge]

    def preparable(self, columns: Sequence[sql.Column], shape: Shape) -> Composed:
        """The same as one statement, which the server can look at without running it."""
        return shapes.preparable(self.into, columns, self.key, shape)

    @property
    def plannable(self) -> Composed:
        """A statement that can be planned before any output is known, and needs the same table and index."""
        keys = SQL(", ").join(map(Identifier, self.key))
        conflict = SQL(" ON CONFLICT ({}) DO NOTHING").format(keys) if self.key else SQL("")
        return SQL("INSERT INTO {} DEFAULT VALUES{}").format(self.into, conflict)


def table_name(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    parts = tuple(text.split("."))
    if len(parts) > NAME_PARTS_MAX or not all(parts):
        raise ValueError(f"`table` is '{text}': write `name` or `schema.name`")
    return parts


def relations_in(plans: Sequence[Any]) -> list[tuple[str, str]]:
    """Schema and name of all relations that a statement writes into, by its plans as JSON, without the output itself."""
    found = {written for plan in plans for written in _written(plan)}
    return sorted(each for each in found if not (each[0].startswith("pg_temp") and each[1] == "batch"))


def _written(plan: Any) -> Iterator[tuple[str, str]]:
    if isinstance(plan, list):
        for each in plan:
            yield from _written(each)
    elif isinstance(plan, dict):
        targets = [plan, *plan.get("Target Tables", ())] if plan.get("Node Type") == "ModifyTable" else []
        yield from ((each["Schema"], each["Relation Name"]) for each in targets if "Relation Name" in each)
        for value in plan.values():
            yield from _written(value)
