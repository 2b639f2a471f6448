"""The target of a batch: a user's `merge`, or a table for which we write the merge. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Either `merge` or `table` is set; with a `key`, rows of the table with equal keys are replaced.

    parts: of the table's name. `prepare` adds its schema, so that our own tables are never taken for it.
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
        """The temporary table that gets the rows first."""
        return sql.STAGED if self.merge is None else sql.BATCH

    @property
    def into(self) -> Identifier:
        assert self.parts, "a merge names its tables itself"
        return Identifier(*self.parts)

    def check_key(self, names: Sequence[str]) -> None:
        """Raises SinkRejected if a column of the key is not among these columns of the output."""
        check_key(names, self.key)

    def merged(self, columns: Sequence[sql.Column], shape: Shape, rows: sql.Rows | None = None) -> list[sql.Statement]:
        """The statements that bring rows into the target. rows: by default those of the batch's table."""
        if self.merge is not None:
            return [sql.users(self.merge)]
        if self.key:
            merge = shapes.upserted(self.into, columns, self.key, shape, rows)
        else:
            merge = shapes.appended(self.into, columns, shape, rows)
        return [*shapes.unchanged(self.into, shape), merge]

    def preparable(self, columns: Sequence[sql.Column], shape: Shape) -> Composed:
        """The same as one statement, which the server can check without running it."""
        return shapes.preparable(self.into, columns, self.key, shape)

    @property
    def plannable(self) -> Composed:
        """A statement that can be planned before any output is known, and needs the same table and index."""
        keys = SQL(", ").join(map(Identifier, self.key))
        conflict = SQL(" ON CONFLICT ({}) DO NOTHING").format(keys) if self.key else SQL("")
        return SQL("INSERT INTO {} DEFAULT VALUES{}").format(self.into, conflict)


def table_name(text: str) -> tuple[str, ...]:
    """The parts of a table's name. Raises ValueError."""
    parts = tuple(text.split("."))
    if len(parts) > NAME_PARTS_MAX or not all(parts):
        raise ValueError(f"`table` is '{text}': write `name` or `schema.name`")
    return parts


def relations_in(plans: Sequence[Any]) -> list[tuple[str, str]]:
    """Schema and name of all relations that a statement writes into, by its plans as JSON, without the output itself."""
    modified = (node for node in _nodes(plans) if node.get("Node Type") == "ModifyTable")
    targets = (each for node in modified for each in (node, *node.get("Target Tables", ())))
    return sorted({_relation(each) for each in targets if "Relation Name" in each and not _is_batch(each)})


def reads_batch(plans: Sequence[Any]) -> bool:
    """Whether a statement may read the output, by its plans as JSON. What a user's function in FROM reads is not known."""
    return any(
        _may_read(node) or (node.get("Node Type") != "ModifyTable" and _is_batch(node)) for node in _nodes(plans)
    )


def _may_read(node: Mapping[str, Any]) -> bool:
    """Whether a function in FROM may read tables. A function of the server's own does if it is given a query as text."""
    if node.get("Node Type") != "Function Scan":
        return False
    is_servers = node.get("Schema") == "pg_catalog"
    return not is_servers or "xml" in node["Function Name"] or node["Function Name"].startswith("ts_")


def _is_batch(node: Mapping[str, Any]) -> bool:
    return str(node.get("Schema")).startswith("pg_temp") and node.get("Relation Name") == "batch"


def _relation(node: Mapping[str, Any]) -> tuple[str, str]:
    return node["Schema"], node["Relation Name"]


def _nodes(plan: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a plan."""
    if isinstance(plan, dict):
        yield plan
    for each in plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else ():
        yield from _nodes(each)
