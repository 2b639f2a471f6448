"""The SQL of dead letters: into a table in the transaction of their batch, and out of it in the order of their numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import pyarrow as pa
from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.pipeline.connectors.postgres.sql import BATCH, LETTERS, Statement, Tables
from leasehold.pipeline.dead_letters.record import LETTER_SCHEMA

_NAMES = SQL(", ").join(map(Identifier, LETTER_SCHEMA.names))
_TYPES: tuple[LiteralString, ...] = (
    "text",
    "text",
    "bigint",
    "text",
    "integer",
    "text",
    "timestamptz",
    "bytea",
    "text",
)


def storable(letters: pa.Table) -> pa.Table:
    """The letters without NUL in `error`, because PostgreSQL cannot store it; the envelope has it escaped."""
    errors = [error.replace("\0", "\N{REPLACEMENT CHARACTER}") for error in letters["error"].to_pylist()]
    place = letters.schema.get_field_index("error")
    return letters.set_column(place, letters.schema.field("error"), pa.array(errors, pa.string()))


def kept(tables: Tables, letters: pa.Table) -> Composed:
    """Stores letters. Must be the last statement before COMMIT, so that no cycle of waits can include its lock."""
    rows = [_row(tuple(row.values())) for row in storable(letters).to_pylist()]
    return _inserted(tables, SQL("(VALUES {}) AS given ({})").format(SQL(", ").join(rows), _NAMES))


def letters_merge(schema: str) -> str:
    """The same as the `merge` of a separate sink, whose output is the letters."""
    return _inserted(Tables(schema), BATCH).as_string(None)


def _row(values: Sequence[Any]) -> Composed:
    """A row with types, because a column may be null in all rows."""
    typed = (SQL("{}::{}").format(Literal(value), SQL(kind)) for value, kind in zip(values, _TYPES, strict=True))
    return SQL("({})").format(SQL(", ").join(typed))


def _inserted(tables: Tables, rows: Statement | Identifier) -> Composed:
    """Letters get numbers under a lock that ends with the transaction, so no smaller one appears after a larger one was read."""
    return SQL(
        "INSERT INTO {} ({}) SELECT {} FROM (SELECT pg_advisory_xact_lock(hashtextextended({}, 0)) OFFSET 0) AS locked,"
        " {} ORDER BY sequence"
    ).format(tables.letters, _NAMES, _NAMES, Literal(f"leasehold {tables.schema}.{LETTERS}"), rows)


def is_there_query(tables: Tables) -> Composed:
    name = Literal(tables.schema), Literal(LETTERS)
    return SQL("SELECT to_regclass(format('%I.%I', {}::text, {}::text)) IS NOT NULL").format(*name)


def partitions_query(tables: Tables, pipeline: str) -> Composed:
    return SQL("SELECT DISTINCT partition FROM {} WHERE pipeline = {} ORDER BY 1").format(
        tables.letters, Literal(pipeline)
    )


def latest_query(tables: Tables, pipeline: str, partition: str) -> Composed:
    return SQL("SELECT max(id) {}").format(_from(tables, pipeline, partition, 0))


def behind_query(tables: Tables, pipeline: str, partition: str, id: int) -> Composed:
    return SQL("SELECT count(*) {}").format(_from(tables, pipeline, partition, id))


def page_query(tables: Tables, pipeline: str, partition: str, id: int, rows: int, bytes_max: int) -> Composed:
    """At most `rows` rows and `bytes_max` bytes, but at least one row."""
    return SQL(
        """SELECT id, failed_at, body, envelope FROM (
            SELECT id, failed_at, body, envelope, row_number() OVER (ORDER BY id) AS number,
                sum(coalesce(octet_length(body), 0) + octet_length(envelope)) OVER (ORDER BY id) AS bytes
            {} ORDER BY id LIMIT {}) AS next
        WHERE number = 1 OR bytes <= {} ORDER BY id"""
    ).format(_from(tables, pipeline, partition, id), Literal(rows), Literal(bytes_max))


def _from(tables: Tables, pipeline: str, partition: str, id: int) -> Composed:
    return SQL("FROM {} WHERE pipeline = {} AND partition = {} AND id > {}").format(
        tables.letters, Literal(pipeline), Literal(partition), Literal(id)
    )
