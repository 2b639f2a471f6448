"""Temporary databases, and the contents of their tables: for tests of pipelines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composable, Identifier

from leasehold.pipeline.connectors.postgres.sql import LETTERS, users
from leasehold.pipeline.errors import SinkRejected

CONNECT_S = 10
_TABLES = SQL(
    "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^pg_' AND schemaname <> 'information_schema' ORDER BY 1, 2"
)


@asynccontextmanager
async def open_database(dsn: str, name: str) -> AsyncIterator[str]:
    """Create a database on the server of `dsn`, yield its DSN, and drop it at the end. Raises SinkRejected."""
    database = Identifier(name)
    async with _connect(
        dsn, "a scratch database cannot be created: name a server where this role has CREATEDB"
    ) as connection:
        await connection.execute(SQL("CREATE DATABASE {}").format(database))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        async with _connect(dsn, f"the scratch database {name} could not be dropped: drop it by hand") as connection:
            await connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(database))


async def switch_fsync_off(dsn: str) -> None:
    """Switch fsync off for a whole server, which may then lose data. Raises SinkRejected."""
    async with _connect(dsn, "`fsync` cannot be switched off") as connection:
        await connection.execute("ALTER SYSTEM SET fsync = off")
        await connection.execute("SELECT pg_reload_conf()")


async def read_tables(dsn: str, ignore: Collection[str] = ()) -> dict[str, list[str]]:
    """The rows of every user table, as JSON without the columns in `ignore`; for dead letters, partition and sequence.

    Raises SinkRejected.
    """
    found: dict[str, list[str]] = {}
    async with _connect(dsn, "the tables cannot be read") as connection:
        for schema, table in await (await connection.execute(_TABLES)).fetchall():
            if table == LETTERS:
                columns: Composable = SQL("json_build_object('partition', partition, 'sequence', sequence)")
            elif table.startswith("leasehold_"):
                continue
            else:
                columns = SQL("to_jsonb(one) - {}::text[]").format(list(ignore))
            query = SQL("SELECT ({})::text FROM {} AS one").format(columns, Identifier(schema, table))
            found[f"{schema}.{table}"] = sorted(row for (row,) in await (await connection.execute(query)).fetchall())
    return found


async def read_query(dsn: str, query: str) -> list[str]:
    """The rows that the query finds, as JSON. Raises SinkRejected."""
    whole = SQL("SELECT row_to_json(one)::text FROM ({}) AS one").format(users(query.strip().rstrip(";")))
    async with _connect(dsn, "`query` fails") as connection:
        return sorted(row for (row,) in await (await connection.execute(whole)).fetchall())


@asynccontextmanager
async def _connect(dsn: str, failing: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Inside the context, errors of the server are raised as SinkRejected."""
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=CONNECT_S) as connection:
            yield connection
    except psycopg.Error as error:
        reason = error.diag.message_primary or str(error).strip().splitlines()[-1]
        raise SinkRejected(f"{failing} ({reason})") from None
