"""The SQL of rows that executors stage: a table for each batch, until its output is merged. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256

from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.pipeline.connectors.postgres.sql import (
    BATCH,
    BEGIN,
    COMMIT,
    Column,
    Rows,
    Tables,
    column_names,
    one_message,
)
from leasehold.pipeline.sink import Claim

PART, ROW = "leasehold_part", "leasehold_row"
"""The columns of a staging table in addition to the output's: the part's name, and the place of the row in it."""
STAGING = "leasehold_staged"
MISSING = "leasehold_missing"
"""Part of the message of the error that `counted` raises."""
_STAGING = re.compile(rf"{STAGING}_(?P<lease>[0-9a-f]{{16}})_(?P<epoch>0|[1-9][0-9]{{0,18}})_[0-9a-f]{{8}}")


def staging_name(claim: Claim, start: str | None) -> str:
    """The table for the batch that begins at `start`: it names lease and epoch. At most 62 bytes; PostgreSQL permits 63."""
    return f"{STAGING}_{_lease(claim)}_{claim.epoch}_{_digest(claim.generation, start)[:8]}"


def staging_names(tables: Tables, claim: Claim) -> Composed:
    """The names of all tables that may be staging tables of this lease."""
    return SQL(
        """SELECT relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {} AND c.relkind = 'r' AND c.relpersistence = 'u' AND starts_with(relname::text, {})"""
    ).format(Literal(tables.schema), Literal(f"{STAGING}_{_lease(claim)}_"))


def outranked(names: Iterable[str], claim: Claim) -> list[str]:
    """The staging tables of this lease that an earlier epoch has made, and no other table."""
    found = [(name, _STAGING.fullmatch(name)) for name in names]
    return [name for name, of in found if of and of["lease"] == _lease(claim) and int(of["epoch"]) < claim.epoch]


def may_create(tables: Tables) -> Composed:
    """One boolean: whether this role may create tables next to the positions."""
    return SQL("SELECT has_schema_privilege({}, 'CREATE')").format(Literal(tables.schema))


def staging_created(tables: Tables, name: str, columns: Iterable[Column], role: str | None) -> Composed:
    """role: that of the executors, which may only insert; None if its name is unknown.

    The table can be unlogged: if a crash of the server empties it, `counted` refuses the batch.
    """
    table = Identifier(tables.schema, name)
    definitions = [SQL("{} {}").format(Identifier(c.name), SQL(c.type)) for c in columns]
    of_leasehold = [SQL("{} {} NOT NULL").format(Identifier(n), SQL(t)) for n, t in ((PART, "text"), (ROW, "bigint"))]
    grant = [] if role is None else [SQL("GRANT INSERT ON {} TO {}").format(table, Identifier(role))]
    return one_message(
        BEGIN,
        SQL("CREATE UNLOGGED TABLE IF NOT EXISTS {} ({}) WITH (autovacuum_enabled = false)").format(
            table, SQL(", ").join([*definitions, *of_leasehold])
        ),
        *grant,
        COMMIT,
    )


def staging_dropped(tables: Tables, name: str, lock_s: float) -> Composed:
    """lock_s: how long to wait for a lock. An executor that hangs inside its COPY locks the table for as long as it hangs."""
    return one_message(
        BEGIN,
        SQL("SELECT set_config('lock_timeout', {}, true)").format(Literal(str(round(lock_s * 1000)))),
        SQL("DROP TABLE IF EXISTS {}").format(Identifier(tables.schema, name)),
        COMMIT,
    )


def time_left(seconds: float) -> Composed:
    """Limits the next statement to what is left of `seconds` since BEGIN, so that all statements together take no longer."""
    return SQL(
        "SELECT set_config('statement_timeout',"
        " greatest(1, {} - (1000 * extract(epoch FROM clock_timestamp() - now()))::bigint)::text, true)"
    ).format(Literal(round(seconds * 1000)))


def in_order(table: Identifier, columns: Iterable[Column], parts: Sequence[str]) -> Composed:
    """The staged rows of these parts, in their order."""
    return SQL("(SELECT {} {} ORDER BY named.number, staged.{}) AS rows").format(
        _of_staged(c.name for c in columns), _from_parts(table, parts), Identifier(ROW)
    )


def numbered(table: Identifier, columns: Iterable[Column], parts: Sequence[str]) -> Composed:
    """The staged rows of these parts, with the order that `in_order` has in two more columns."""
    names = _of_staged([*(c.name for c in columns), ROW])
    return SQL("(SELECT {}, named.number AS {} {}) AS rows").format(names, Identifier(PART), _from_parts(table, parts))


def of_parts(table: Identifier, parts: Sequence[str]) -> Composed:
    """The staged rows of these parts, for a count."""
    return SQL("(SELECT {}) AS rows").format(_from_parts(table, parts))


def refilled(columns: Iterable[Column], rows: Rows) -> Composed:
    """Copies rows into `batch` for a user's merge, which may read it several times."""
    names = column_names(columns)
    return SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(BATCH, names, names, rows)


def counted(rows: Rows, expected: int) -> Composed:
    """Raises MISSING unless there are `expected` rows."""
    return SQL("SELECT CASE count(*) WHEN {} THEN 1 ELSE ({} || count(*))::integer END FROM {}").format(
        Literal(expected), Literal(f"{MISSING}: rows found: "), rows
    )


def _from_parts(table: Identifier, parts: Sequence[str]) -> Composed:
    named = (SQL("({}, {})").format(Literal(part), Literal(number)) for number, part in enumerate(parts))
    return SQL("FROM {} AS staged JOIN (VALUES {}) AS named (part, number) ON staged.{} = named.part").format(
        table, SQL(", ").join(named), Identifier(PART)
    )


def _of_staged(names: Iterable[str]) -> Composed:
    return SQL(", ").join(SQL("staged.{}").format(Identifier(name)) for name in names)


def _lease(claim: Claim) -> str:
    return _digest(claim.pipeline, claim.partition)[:16]


def _digest(*values: str | int | None) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()
