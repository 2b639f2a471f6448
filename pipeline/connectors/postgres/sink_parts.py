"""What a sink of PostgreSQL shares with its writers, and its checks that the target keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg

from leasehold.pipeline.connectors.postgres import sql, staging_sql
from leasehold.pipeline.connectors.postgres.copy import Load
from leasehold.pipeline.connectors.postgres.session import PostgresServer, PostgresSession, Timeouts
from leasehold.pipeline.connectors.postgres.shape import NO_SHAPE, Shape
from leasehold.pipeline.connectors.postgres.target import Target, reads_batch, relations_in
from leasehold.pipeline.errors import SinkError, SinkRejected

STAGED_SHARE = 8 / 9
"""How much of `Timeouts.transaction_s` the server may spend on a staged batch: it gives up before the host does."""
DROP_LOCK_S = 1.0
"""How long a drop waits for a locked staging table. An executor that hangs inside its COPY locks the table until it ends."""


@dataclass(frozen=True, slots=True)
class SinkParts:
    """What a sink shares with its writers."""

    server: PostgresServer
    thread: ThreadPoolExecutor
    tables: sql.Tables
    target: Target
    executors_env: str | None
    timeouts_of: dict[tuple[str, str], tuple[str | None, int]] = field(default_factory=dict)
    """Pipeline and partition -> the start of the batch that has taken too long, and how many times it has."""
    kept_of: dict[str, sql.Statement] = field(default_factory=dict)
    """Version of the table that was found to keep rows -> a statement that fails if it no longer does."""

    async def prepare_batch(self, session: PostgresSession, columns: tuple[sql.Column, ...]) -> None:
        """Raises SinkRejected if the merge stores nothing of the batch, or stores it where it could be lost."""
        await session.prepare_batch(
            self.target.batch, columns, None if self.target.merge is None else self._check_merge
        )

    async def _check_merge(self, session: PostgresSession) -> sql.Statement:
        assert self.target.merge is not None
        await self.check_path(session)
        return await self.check_plan(session, sql.users(self.target.merge))

    def kept(self, session: PostgresSession, shape: Shape) -> list[sql.Statement]:
        """Statements that fail if targets have changed since their last check, or may lose rows now."""
        kept = session.kept if self.target.merge is not None else self.kept_of.get(shape.version)
        return [] if kept is None else [kept]

    async def check_path(self, session: PostgresSession) -> None:
        """Raises SinkRejected if a merge may read another table than the output."""
        [[[is_ours]]] = await session.ask(sql.is_batch_ours())
        if not is_ours:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `merge` would read another table `batch` than the output as soon as there is"
                " one, because the role's search_path names pg_temp after other schemas: take that out of search_path"
            )

    async def check_plan(self, session: PostgresSession, statement: sql.Statement) -> sql.Statement:
        """Raises SinkRejected if it stores nothing, or stores rows in a table that may lose them while the position stays.

        Returns a check to run after `statement` in later transactions. It fails if tables have changed or may lose rows by then.
        """
        rows = await (await session.execute(sql.explained(statement), extended=True)).fetchall()
        plans = [plan for (plan,) in rows]
        written = relations_in(plans)
        if not written:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `{self.target.kind}` stores no row of the output, and its position would move"
                " over it: write an INSERT, UPDATE, DELETE or MERGE into a table. If that is called `batch`, name its schema"
            )
        if self.target.merge is not None and not reads_batch(plans):
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `merge` never reads the output, and its position would move over it: read the"
                " table `batch`, by a condition that can be true"
            )
        [[[state]]] = await session.ask(sql.state(written))
        await self.check_relations(session, written)
        return sql.kept(written, state)

    async def has_right_statement(
        self, session: PostgresSession, columns: tuple[sql.Column, ...], shape: Shape
    ) -> bool:
        """Whether the server accepts the failed statement without its rows: its names, types and privileges are correct."""
        target = self.target
        try:
            await session.execute(sql.ROLLBACK)
            await self.prepare_batch(session, columns)
            statement = sql.users(target.merge) if target.merge is not None else target.preparable(columns, shape)
            await session.execute(sql.explained(statement), extended=True)
        except (psycopg.Error, SinkError):
            return False
        return True

    async def check_index(self, session: PostgresSession) -> None:
        """Raises SinkRejected if a constraint on the columns of `key` is DEFERRABLE, because no upsert can use it."""
        if not self.target.key:
            return
        [found] = await session.ask(sql.deferrable(self.target.into, self.target.key))
        for (name,) in found:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: the constraint {name} on the columns in `key` is DEFERRABLE, and no upsert"
                " can use it: make it again as NOT DEFERRABLE"
            )

    async def check_relations(self, session: PostgresSession, relations: Sequence[tuple[str, str]]) -> None:
        """Raises SinkRejected if one of the relations, or a partition, may lose rows while the position stays."""
        [weak] = await session.ask(sql.weak(relations))
        for schema, table, kind, persistence in weak:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `{self.target.kind}` writes into {schema}.{table}, which is"
                f" {_why_weak(kind, persistence)}: use an ordinary table"
            )

    async def read_shape(self, session: PostgresSession, columns: tuple[sql.Column, ...]) -> Shape:
        """Raises SinkRejected if the target cannot hold these columns, or no longer stores rows where they stay."""
        if self.target.merge is not None:
            return NO_SHAPE
        shape = await session.read_shape(self.target.into, columns, self.target.key)
        for place in shape.cut:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: column '{columns[place].name}' is {columns[place].type} in the output and"
                f" {shape.fits[place].type} in the table, which would cut it: cast it in the transform, or"
                " change the table"
            )
        if shape.persistence != "p" or shape.kind == "f":
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `table` is {_why_weak(shape.kind, shape.persistence)}: use an ordinary table"
            )
        if shape.version and shape.version not in self.kept_of:
            self.kept_of[shape.version] = await self.check_plan(session, self.target.plannable)
        return shape

    async def copy_into_target(self, session: PostgresSession, batch: Load) -> bool:
        """Copy rows directly into the target, in a new transaction. Returns False if that is impossible."""
        return self.target.merge is None and not self.target.key and await session.copy_into(self.target.into, batch)

    @property
    def timeouts(self) -> Timeouts:
        return self.server.timeouts

    @property
    def staged_s(self) -> float:
        """How long the server may take for a batch that executors staged."""
        return self.timeouts.transaction_s * STAGED_SHARE

    async def remove(self, names: Iterable[str]) -> None:
        """Drop staging tables. A locked one is left to the next claim."""
        for name in names:
            message = staging_sql.staging_dropped(self.tables, name, DROP_LOCK_S)

            async def converse(session: PostgresSession, message: sql.Statement = message) -> None:
                await session.execute(message)

            with suppress(SinkError):
                await self.server.talk(f"dropping `{name}`", converse)


def _why_weak(kind: str, persistence: str) -> str:
    if kind == "f":
        return "a foreign table, whose rows are not committed together with the position"
    if persistence == "t":
        return "a temporary table, which ends with its connection"
    return "UNLOGGED, and so it is empty after a crash of the server, while the position stays"
