"""The sink `postgres`: a batch's output, merged in the transaction that moves its partition's position.

docs/protocol.md (a). The position's row carries the epoch; a guard on it raises inside the transaction, so a late write of an
earlier owner is rolled back by the server, whatever became of that owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.postgres import sql, staging_sql
from leasehold.pipeline.connectors.postgres.copy import columns_of
from leasehold.pipeline.connectors.postgres.session import Connections, PostgresServer, PostgresSession, endpoint_of
from leasehold.pipeline.connectors.postgres.sink_parts import SinkParts
from leasehold.pipeline.connectors.postgres.stager import read_variable
from leasehold.pipeline.connectors.postgres.target import Target, table_name
from leasehold.pipeline.connectors.postgres.writer import PostgresWriter, fenced, known_state
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import SinkError, SinkRejected
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.publishing_writer import generation_lost
from leasehold.pipeline.sink import Claim, Sink, to_write_again


class PostgresOutputSink(Sink):
    """Exactly one of `merge` and `table` is set.

    - `merge`: one INSERT, UPDATE, DELETE or MERGE (a WITH may precede it) that reads this batch's output as table `batch`.
      It should touch rows in the order of their keys (`ORDER BY`), because merges of other partitions run at the same time.
    - `table`: a table ("name" or "schema.name") with the output's columns. A value that its type would change is refused.
    - `key`: columns of the table. A row with an existing key replaces the old one, as if the rows arrived one by one. That
      needs a unique index, which decides which keys are equal. Without a key, every row is inserted.
    - `setup`: SQL to run once per process, one host after the other; it has to be repeatable (IF NOT EXISTS).
    - `executors_env`: the environment variable, on hosts and executors, with the DSN with which executors stage rows. Its
      role needs USAGE on the schema of `tables`; each staging table grants it INSERT. Without it, all rows come through the host.
    """

    holds_position = True

    def __init__(
        self,
        dsn: str,
        *,
        merge: str | None = None,
        table: str | None = None,
        key: Sequence[str] = (),
        setup: str | None = None,
        tables: sql.Tables | None = None,
        connections: Connections | None = None,
        executors_env: str | None = None,
    ) -> None:
        """Raises ValueError if the settings contradict each other."""
        if (merge is None) == (table is None):
            raise ValueError("set exactly one of `merge` and `table`")
        if key and table is None:
            raise ValueError("`key` requires `table`")
        server = PostgresServer(dsn, connections or Connections())
        thread = ThreadPoolExecutor(1, thread_name_prefix="postgres-load")
        target = Target(merge=merge, table=table, key=tuple(key), parts=() if table is None else table_name(table))
        self._parts = SinkParts(server, thread, tables or sql.Tables(), target, executors_env)
        self._setup = setup

    @property
    def identity(self) -> str:
        parts = self._parts
        return f"postgresql://{parts.server.address} schema={parts.tables.schema} target={parts.target.name}"

    @property
    def endpoint(self) -> Endpoint:
        return endpoint_of(self._parts.server.address, self._parts.target.table)

    def claimed(self, state: str) -> str:
        """The position's row holds everything; the lease notes only that the row exists, so that its loss is noticed."""
        return state

    async def prepare(self) -> None:
        talk = self._parts.server.talk
        if self._setup is not None:
            await talk("`setup`", self._set_up)
        await talk("creating the tables for positions", self._create)
        await talk(f"`{self._parts.target.kind}`", self._check)
        if self._parts.executors_env is not None:
            read_variable(self._parts.executors_env)
            await talk("checking `executors_env`", self._check_staging)

    async def open(self, claim: Claim) -> PostgresWriter:
        is_known = claim.state == known_state(claim.generation)
        message = sql.claimed(self._parts.tables, claim, is_known=is_known)

        async def converse(session: PostgresSession) -> list[list[Any]]:
            return await session.ask(message)

        _, granted, newest = await self._parts.server.talk(f"claiming partition '{claim.partition}'", converse)
        if granted:
            if self._parts.executors_env is not None:
                await self._clear(claim)
            return PostgresWriter(self._parts, claim, granted[0][0])
        held = int(newest[0][0]) if newest else None
        if held == claim.generation:
            raise fenced(claim, newest)
        if held is not None and held > claim.generation:
            raise generation_lost(claim, f"schema '{self._parts.tables.schema}'", held)
        raise _position_lost(claim, self._parts)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        tables = self._parts.tables

        async def converse(session: PostgresSession) -> list[Any]:
            [[[has_positions]]] = await session.ask(sql.has_positions(tables))
            if not has_positions:
                return []
            [found] = await session.ask(sql.standing(tables, pipeline, partition))
            return found

        found = await self._parts.server.talk(f"looking for the position of partition '{partition}'", converse)
        return Standing(*found[0]) if found else None

    async def close(self) -> None:
        self._parts.thread.shutdown(wait=False)
        await self._parts.server.close()

    async def _set_up(self, session: PostgresSession) -> None:
        assert self._setup is not None
        await session.remove_batch(self._parts.target.batch)  # `setup` may mean another table of this name
        await session.execute(sql.alone(sql.users(self._setup)))

    async def _create(self, session: PostgresSession) -> None:
        """Asks first what exists: a role without the right to create tables can use existing ones."""
        wanted = sql.wanted(self._parts.tables)
        [[are_there]] = await session.ask(sql.existing(wanted))
        if missing := [each.creation for each, is_there in zip(wanted, are_there, strict=True) if not is_there]:
            await session.execute(sql.alone(*missing))

    async def _check(self, session: PostgresSession) -> None:
        """Check the target as far as possible without columns; for a merge, that only the table `batch` is missing."""
        target = self._parts.target
        if target.merge is None:
            [found] = await session.ask(sql.resolved(target.parts))
            if found:
                schema, name = found[0]
                self._parts = replace(self._parts, target=replace(target, parts=(schema, name)))
                await self._parts.check_relations(session, [(schema, name)])
            await self._parts.check_plan(session, self._parts.target.plannable)
            await self._parts.check_index(session)
            return
        await self._parts.check_path(session)
        await session.execute(sql.hidden())
        try:
            await session.execute(sql.checked(sql.users(target.merge)), extended=True)
        except psycopg.errors.WrongObjectType as error:
            if '"batch"' not in (error.diag.message_primary or ""):
                raise
            await session.execute(sql.ROLLBACK)
        else:
            await session.execute(sql.ROLLBACK)
            await session.execute(sql.unchecked())
            await self._parts.check_plan(session, sql.users(target.merge))

    async def check_columns(self, columns: pa.Schema) -> None:
        parts, given = self._parts, columns_of(columns)
        parts.target.check_key(columns.names)

        async def converse(session: PostgresSession) -> None:
            await parts.prepare_batch(session, given)
            if parts.target.merge is None:
                statement = parts.target.preparable(given, await parts.read_shape(session, given))
                await session.execute(sql.checked(statement), extended=True)
                await session.execute(sql.unchecked())

        await parts.server.talk(f"`{parts.target.kind}` for the transform's output", converse)

    async def _check_staging(self, session: PostgresSession) -> None:
        [[[may_create]]] = await session.ask(staging_sql.may_create(self._parts.tables))
        if not may_create:
            raise SinkRejected(
                f"PostgreSQL {self._parts.server.address}: `executors_env` needs a role that may create tables in schema"
                f" '{self._parts.tables.schema}': grant CREATE on it to the role in `dsn`, or remove `executors_env`"
            )

    async def _clear(self, claim: Claim) -> None:
        """Drop what earlier epochs of this lease have staged. What cannot be dropped now is left to the next claim."""
        query = staging_sql.staging_names(self._parts.tables, claim)

        async def converse(session: PostgresSession) -> list[Any]:
            [found] = await session.ask(query)
            return found

        with suppress(SinkError):
            found = await self._parts.server.talk("looking for staged rows", converse)
            await self._parts.remove(staging_sql.outranked((name for (name,) in found), claim))


def _position_lost(claim: Claim, parts: SinkParts) -> SinkRejected:
    return SinkRejected(
        f"PostgreSQL {parts.server.address}, schema '{parts.tables.schema}' has no position of lease"
        f" '{lease_of(claim.pipeline, claim.partition)}' in generation {claim.generation}, and the lease has seen one: the"
        f" database was restored, or rows of `{sql.POSITIONS}` were deleted, and output is lost. Restore the database as it was,"
        f" or {to_write_again(claim)}"
    )
