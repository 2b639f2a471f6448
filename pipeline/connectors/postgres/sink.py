"""The sink `postgres`: a batch's output, merged in the transaction that moves its partition's position.

docs/protocol.md (a). The position's row carries the epoch; a guard on it raises inside the transaction, so a late write of an
earlier owner is rolled back by the server, whatever became of that owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg.sql import Identifier

from leasehold.common.azure import Identity
from leasehold.common.entra_token import TokenCredential
from leasehold.pipeline.connectors.postgres import dead_letters, refusal, sql
from leasehold.pipeline.connectors.postgres.copy import FEW_BYTES, FEW_ROWS, Load, columns_of, load
from leasehold.pipeline.connectors.postgres.session import Server, Session, Timeouts, endpoint_of
from leasehold.pipeline.connectors.postgres.shape import NO_SHAPE, Shape
from leasehold.pipeline.connectors.postgres.stager import PostgresStager, is_stageable, read_variable, role_of
from leasehold.pipeline.connectors.postgres.target import Target, reads_batch, relations_in, table_name
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.record import letters_of
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Fenced, OutputRefused, OutputTooLarge, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.publishing_writer import generation_lost
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter, Standing, to_write_again
from leasehold.pipeline.staging import NotStaged, Stager, check_parts

STAGED_SHARE = 8 / 9
"""How much of `Timeouts.transaction_s` the server spends on a staged batch: it gives up before the host does."""
DROP_LOCK_S = 1.0
"""How long a staging table may be locked. An executor that is stopped within its COPY locks it until it ends."""
TIMEOUTS_MAX = 3
"""So often a batch may exceed `Timeouts.statement_s` before it is refused."""
Mode = Literal["append", "upsert"]


class PostgresOutputSink(Sink):
    """Either `merge`, or `table` with `mode`.

    - `merge`: one INSERT, UPDATE, DELETE or MERGE (WITH before it as you like) that reads this batch's output as table
      `batch`. It should touch rows in the order of their keys (`ORDER BY`), as other partitions do the same at the same
      time.
    - `table`: a table ("name" or "schema.name") with the output's columns. A value that its type would change is refused.
    - `append`: every row is inserted.
    - `upsert`: a row whose `key` is there already is replaced, as if the rows came one by one; `key` needs a unique
      index, which knows what is one key.
    - `setup`: SQL to run once per process, one host after the other; it has to be repeatable (IF NOT EXISTS).
    - `schema`: where `leasehold_positions` and `leasehold_history` are, and are created if absent.
    - `history`: note every batch in `leasehold_history`, in its own transaction: pipeline, partition, generation,
      epoch, owner, from, to, events, committed_at. Only you delete there.
    - `letters`: take dead letters, into `leasehold_dead_letters`, in their batch's transaction.
    - `identity`: for Azure Database for PostgreSQL, "default" or a managed identity's client id. Every new connection
      gets an access token of Microsoft Entra ID as its password, so `dsn` must not have one.
    - `credential`: of azure-identity's asynchronous kind, used for tokens instead; it is not closed.
    - `executors_env`: the environment variable with the DSN by which executors stage rows, on hosts and executors. Its
      role needs USAGE on `schema`; each staging table grants it INSERT. Without it, all rows come through the host.
    """

    holds_position = True

    def __init__(
        self,
        dsn: str,
        *,
        merge: str | None = None,
        table: str | None = None,
        mode: Mode = "append",
        key: Sequence[str] = (),
        setup: str | None = None,
        schema: str = "public",
        history: bool = False,
        letters: bool = False,
        connections_max: int = 4,
        timeouts: Timeouts | None = None,
        application_name: str = "leasehold",
        identity: Identity | None = None,
        credential: TokenCredential | None = None,
        executors_env: str | None = None,
    ) -> None:
        """Raises ValueError where the settings contradict each other."""
        if (merge is None) == (table is None):
            raise ValueError("set exactly one of `merge` and `table`")
        if (mode == "upsert") != bool(key) or (key and merge is not None):
            raise ValueError('`key` requires `table` and mode "upsert", and names at least one column')
        timeouts = timeouts or Timeouts()
        server = Server(
            dsn,
            connections_max=connections_max,
            timeouts=timeouts,
            application_name=application_name,
            identity=identity,
            credential=credential,
        )
        thread = ThreadPoolExecutor(1, thread_name_prefix="postgres-load")
        target = Target(merge=merge, table=table, key=tuple(key), parts=() if table is None else table_name(table))
        self._parts = _Parts(server, thread, sql.Tables(schema, history, letters), target, timeouts, executors_env)
        self._setup = setup

    @property
    def identity(self) -> str:
        parts = self._parts
        return f"postgresql://{parts.server.address} schema={parts.tables.schema} target={parts.target.name}"

    @property
    def endpoint(self) -> Endpoint:
        return endpoint_of(self._parts.server.address, self._parts.target.table)

    def claimed(self, state: str) -> str:
        """The position's row holds everything; the lease keeps that there is one, to notice that it was lost."""
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
        is_known = claim.state == _known(claim.generation)
        message = sql.claimed(self._parts.tables, claim, is_known=is_known)

        async def converse(session: Session) -> list[list[Any]]:
            return await _answers(await session.execute(message))

        _, granted, newest = await self._parts.server.talk(f"claiming partition '{claim.partition}'", converse)
        if granted:
            if self._parts.executors_env is not None:
                await self._clear(claim)
            return PostgresWriter(self._parts, claim, granted[0][0])
        held = int(newest[0][0]) if newest else None
        if held == claim.generation:
            raise _fenced(claim, newest)
        if held is not None and held > claim.generation:
            raise generation_lost(claim, f"schema '{self._parts.tables.schema}'", held)
        raise _position_lost(claim, self._parts)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        tables = self._parts.tables

        async def converse(session: Session) -> list[Any]:
            [[[has_positions]]] = await _answers(await session.execute(sql.has_positions(tables)))
            if not has_positions:
                return []
            [found] = await _answers(await session.execute(sql.standing(tables, pipeline, partition)))
            return found

        found = await self._parts.server.talk(f"looking for the position of partition '{partition}'", converse)
        return Standing(*found[0]) if found else None

    async def close(self) -> None:
        self._parts.thread.shutdown(wait=False)
        await self._parts.server.close()

    async def _set_up(self, session: Session) -> None:
        assert self._setup is not None
        await session.remove_batch(self._parts.target.batch)  # which `setup` may name, and mean another
        await session.execute(sql.alone(sql.users(self._setup)))

    async def _create(self, session: Session) -> None:
        """Asks first: a role that may not create tables can use existing ones."""
        wanted = sql.wanted(self._parts.tables)
        [[are_there]] = await _answers(await session.execute(sql.existing(wanted)))
        if missing := [each.creation for each, is_there in zip(wanted, are_there, strict=True) if not is_there]:
            await session.execute(sql.alone(*missing))

    async def _check(self, session: Session) -> None:
        """As far as that is possible without columns: of a merge, that nothing but the table `batch` is missing."""
        target = self._parts.target
        if target.merge is None:
            [found] = await _answers(await session.execute(sql.resolved(target.parts)))
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

        async def converse(session: Session) -> None:
            await parts.prepare_batch(session, given)
            if parts.target.merge is None:
                statement = parts.target.preparable(given, await parts.read_shape(session, given))
                await session.execute(sql.checked(statement), extended=True)
                await session.execute(sql.unchecked())

        await parts.server.talk(f"`{parts.target.kind}` for the transform's output", converse)

    async def _check_staging(self, session: Session) -> None:
        [[[may_create]]] = await _answers(await session.execute(sql.may_create(self._parts.tables)))
        if not may_create:
            raise SinkRejected(
                f"PostgreSQL {self._parts.server.address}: `executors_env` needs a role that may create tables in schema"
                f" '{self._parts.tables.schema}': grant CREATE on it to the role in `dsn`, or remove `executors_env`"
            )

    async def _clear(self, claim: Claim) -> None:
        """Drop what earlier epochs of this lease have staged. What cannot be dropped now is left to the next claim."""
        query = sql.staging_names(self._parts.tables, claim)

        async def converse(session: Session) -> list[Any]:
            [found] = await _answers(await session.execute(query))
            return found

        with suppress(SinkError):
            found = await self._parts.server.talk("looking for staged rows", converse)
            await self._parts.remove(sql.outranked((name for (name,) in found), claim))


class PostgresWriter(SinkWriter):
    """One claim's way in. `position` is the server's word, never ours."""

    position: str | None = None
    state: str = ""

    buried: Collection[int] = ()
    """Letters and position move together."""

    def __init__(self, parts: _Parts, claim: Claim, position: str | None) -> None:
        self._parts = parts
        self._claim = claim
        self.position = position
        self.state = _known(claim.generation)
        self._staging: dict[str | None, str] = {}
        """Where a batch begins -> the table that was made for it."""

    async def write(self, output: Output, permit: Permit) -> None:
        claim, parts = self._claim, self._parts
        check_parts(output.staged, epoch=claim.epoch, start=output.start)
        assert not (output.staged and output.table.num_rows), "staged output has all rows in its parts"
        batch = await self._loadable(output) if output.table.num_rows else None
        moved, others = sql.moved(parts.tables, claim, output.start, output.to), self._beside(output)

        async def converse(session: Session) -> None:
            brought = await self._bring(session, output, batch)
            crash_point("batch staged")
            message = sql.one_message(*brought.first, moved, *brought.merged, *brought.kept, *others, sql.COMMIT)
            try:
                await self._decide(session, message, permit)
            except psycopg.Error as error:
                if refusal.is_changed(error):
                    parts.kept_of.clear()
                if (loss := refusal.loss_of(error)) is not None:
                    raise self._lossy(brought, loss) from error
                if refusal.may_be_of_value(error) and await parts.has_right_statement(
                    session, brought.columns, brought.shape
                ):
                    raise refusal.refused(error, parts.server.address, doing, is_of_value=True) from error
                raise

        doing = f"`{parts.target.kind}` of partition '{claim.partition}' from {output.start!r} to {output.to!r}"
        try:
            await parts.server.talk(doing, converse)
        except SinkError as error:
            if isinstance(cause := error.__cause__, psycopg.Error):
                self._check_staged(output, cause)
                self._check_time(output, cause)
            raise
        parts.timeouts_of.pop((claim.pipeline, claim.partition), None)
        self.position = output.to
        if (staging := self._staging.pop(output.start, None)) is not None:
            await parts.remove([staging])

    def _beside(self, output: Output) -> list[sql.Statement]:
        """What else its transaction has: history and dead letters."""
        others: list[sql.Statement] = []
        if self._parts.tables.history:
            others.append(sql.remembered(self._parts.tables, self._claim, output.start, output.to, output.events))
        if output.dead is not None:
            others.append(dead_letters.kept(self._parts.tables, letters_of(self._claim, output)))
        return others

    async def _bring(self, session: Session, output: Output, batch: Load | None) -> _Brought:
        """The rows to the server. Until they are merged, no other writer waits for them."""
        parts = self._parts
        if output.staged:
            return await self._bring_parts(session, output)
        if batch is None:
            return _Brought()
        if batch.few is None and await parts.copy_into_target(session, batch):
            return _Brought(first=[])
        await parts.prepare_batch(session, batch.columns)
        shape = await parts.read_shape(session, batch.columns)
        merged, kept = parts.target.merged(batch.columns, shape), parts.kept(session, shape)
        if batch.few is None:
            await session.load(parts.target.batch, batch)
            return _Brought(first=[], merged=merged, kept=kept, columns=batch.columns, shape=shape)
        first: list[sql.Statement] = [sql.BEGIN, sql.filled(parts.target.batch, batch.columns, batch.few)]
        return _Brought(first=first, merged=merged, kept=kept, columns=batch.columns, shape=shape)

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        claim, parts = self._claim, self._parts
        if parts.executors_env is None or not is_stageable(columns.names):
            return None
        parts.target.check_key(columns.names)
        name, role = sql.staging_name(claim, start), role_of(read_variable(parts.executors_env))
        message = sql.staging_created(parts.tables, name, columns_of(columns), role)

        async def converse(session: Session) -> None:
            await session.execute(message)

        await parts.server.talk(f"creating `{name}`, which `executors_env` needs,", converse)
        self._staging[start] = name
        return PostgresStager(
            variable=parts.executors_env,
            table=(parts.tables.schema, name),
            columns=columns,
            epoch=claim.epoch,
            start=start,
            timeouts=parts.timeouts,
        )

    async def _bring_parts(self, session: Session, output: Output) -> _Brought:
        """They are there: brings the rows of exactly these parts into the target, or fails if some are gone."""
        parts, names, columns = self._parts, [part.name for part in output.staged], columns_of(output.table.schema)
        table = Identifier(parts.tables.schema, sql.staging_name(self._claim, output.start))
        shape = await parts.read_shape(session, columns)
        target, within = parts.target, sql.time_left(parts.staged_s)
        if target.merge is not None:
            await parts.prepare_batch(session, columns)
            filled = sql.refilled(columns, sql.in_order(table, columns, names))
            counted, merged = sql.counted(sql.BATCH, output.rows), target.merged(columns, shape)
            merged = [within, filled, counted, within, *merged]
            return _Brought(merged=merged, kept=parts.kept(session, shape), columns=columns, shape=shape)
        counted = sql.counted(sql.of_parts(table, names), output.rows)
        rows = sql.numbered(table, columns, names) if target.key else sql.in_order(table, columns, names)
        merged = target.merged(columns, shape, rows)
        merged = [*merged[:-1], within, counted, within, merged[-1]]
        return _Brought(merged=merged, kept=parts.kept(session, shape), columns=columns, shape=shape)

    def _check_staged(self, output: Output, error: psycopg.Error) -> None:
        """Raises what an error of the server means for staged rows in particular."""
        if not output.staged:
            return
        address = self._parts.server.address
        if refusal.is_missing(error):
            raise SinkUnavailable(
                f"PostgreSQL {address} has lost rows that executors staged, as after a crash of the server: their batch is"
                " processed again"
            ) from error
        if refusal.is_timeout(error):
            raise NotStaged(
                f"PostgreSQL {address}: `{self._parts.target.kind}` cannot take {output.rows} rows in"
                f" {self._parts.staged_s:g} s: smaller batches follow"
            ) from error

    def _check_time(self, output: Output, error: psycopg.Error) -> None:
        """Raises a refusal if the batch that begins here takes too long every time: it would be repeated for ever."""
        if not refusal.is_timeout(error):
            return
        lease, parts = (self._claim.pipeline, self._claim.partition), self._parts
        start, times = parts.timeouts_of.get(lease, (output.start, 0))
        times = times + 1 if start == output.start else 1
        parts.timeouts_of[lease] = output.start, times
        if times < TIMEOUTS_MAX:
            return
        what = (
            f"PostgreSQL {parts.server.address}: `{parts.target.kind}` of {output.rows} rows has exceeded"
            f" {parts.timeouts.statement_s:g} s {times} times: give it an index or a simpler statement"
        )
        if output.events > 1:
            raise OutputTooLarge(f"{what}, or smaller batches (`batch.events_max`)") from error
        raise SinkRejected(what) from error

    async def end(self, permit: Permit) -> None:
        message = sql.one_message(sql.BEGIN, sql.ended(self._parts.tables, self._claim, self.position), sql.COMMIT)

        async def converse(session: Session) -> None:
            await self._decide(session, message, permit)

        await self._parts.server.talk(f"ending partition '{self._claim.partition}'", converse)

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    async def _loadable(self, output: Output) -> Load:
        """Few rows at once: a thread's turn would take longer."""
        self._parts.target.check_key(output.table.column_names)
        if output.table.num_rows <= FEW_ROWS and output.table.nbytes <= FEW_BYTES:
            return load(output.table)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parts.thread, load, output.table)

    async def _decide(self, session: Session, message: sql.Statement, permit: Permit) -> None:
        """From here on it is the server's to finish: guard, merge and COMMIT are one message."""
        permit.check()
        session.is_sent = True
        try:
            await session.execute(message)
            crash_point("committed")
        except psycopg.Error as error:
            if not refusal.is_guard(error):
                raise
            raise _fenced(self._claim, await self._newest(session)) from None

    def _lossy(self, brought: _Brought, loss: refusal.Loss) -> OutputRefused:
        column, taken = brought.columns[loss.place], brought.shape.fits[loss.place].type
        event = "" if loss.sequence is None else f" of the event with sequence {loss.sequence}"
        return OutputRefused(
            f"PostgreSQL {self._parts.server.address}: the table would change a value{event} in column '{column.name}', which is"
            f" {column.type} in the output and {taken} in the table: cast it in the transform, or change the table",
            sequences=() if loss.sequence is None else (loss.sequence,),
        )

    async def _newest(self, session: Session) -> Sequence[Any]:
        message = sql.one_message(sql.ROLLBACK, sql.newest(self._parts.tables, self._claim))
        try:
            [newest] = await _answers(await session.execute(message))
        except psycopg.Error:
            return []
        return newest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """What a batch's message begins with, what brings its rows into the target, and the columns for which that was made.

    kept: refuses targets that may lose rows since their last check.
    """

    first: Sequence[sql.Statement] = (sql.BEGIN,)
    merged: Sequence[sql.Statement] = ()
    kept: Sequence[sql.Statement] = ()
    columns: tuple[sql.Column, ...] = ()
    shape: Shape = NO_SHAPE


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a sink shares with its writers."""

    server: Server
    thread: ThreadPoolExecutor
    tables: sql.Tables
    target: Target
    timeouts: Timeouts
    executors_env: str | None
    timeouts_of: dict[tuple[str, str], tuple[str | None, int]] = field(default_factory=dict)
    """Pipeline and partition -> where the batch begins that has taken too long, and how often that was."""
    kept_of: dict[str, sql.Statement] = field(default_factory=dict)
    """The versions of the table that were found to keep rows, each with a statement that refuses it if it no longer does."""

    async def prepare_batch(self, session: Session, columns: tuple[sql.Column, ...]) -> None:
        """Raises SinkRejected if the merge stores nothing of it, or stores it where it could be lost."""
        await session.prepare_batch(
            self.target.batch, columns, None if self.target.merge is None else self._check_merge
        )

    async def _check_merge(self, session: Session) -> sql.Statement:
        assert self.target.merge is not None
        await self.check_path(session)
        return await self.check_plan(session, sql.users(self.target.merge))

    def kept(self, session: Session, shape: Shape) -> list[sql.Statement]:
        """Refuses targets that may lose rows since their last check."""
        kept = session.kept if self.target.merge is not None else self.kept_of.get(shape.version)
        return [] if kept is None else [kept]

    async def check_path(self, session: Session) -> None:
        """Raises SinkRejected if a merge may read another table than the output."""
        [[[is_ours]]] = await _answers(await session.execute(sql.is_batch_ours()))
        if not is_ours:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `merge` would read another table `batch` than the output as soon as there is"
                " one, because the role's search_path names pg_temp behind other schemas: take that out of search_path"
            )

    async def check_plan(self, session: Session, statement: sql.Statement) -> sql.Statement:
        """Raises SinkRejected if it stores nothing, or in a table whose rows may vanish while the position stays.

        Returns what refuses, behind the same statement later, that its tables are others or may lose rows by then.
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
        [[[state]]] = await _answers(await session.execute(sql.state(written)))
        await self.check_relations(session, written)
        return sql.kept(written, state)

    async def has_right_statement(self, session: Session, columns: tuple[sql.Column, ...], shape: Shape) -> bool:
        """Whether the server would run what has failed, if there were no rows: with these names, types and rights."""
        target = self.target
        try:
            await session.execute(sql.ROLLBACK)
            await self.prepare_batch(session, columns)
            statement = sql.users(target.merge) if target.merge is not None else target.preparable(columns, shape)
            await session.execute(sql.explained(statement), extended=True)
        except (psycopg.Error, SinkError):
            return False
        return True

    async def check_index(self, session: Session) -> None:
        """Raises SinkRejected if a constraint by `key` is one that no upsert can use."""
        if not self.target.key:
            return
        [found] = await _answers(await session.execute(sql.deferrable(self.target.into, self.target.key)))
        for (name,) in found:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: the constraint {name} on the columns in `key` is DEFERRABLE, and no upsert"
                " can use it: make it again as NOT DEFERRABLE"
            )

    async def check_relations(self, session: Session, relations: Sequence[tuple[str, str]]) -> None:
        """Raises SinkRejected if one of them, or a partition, may lose rows while the position stays."""
        [weak] = await _answers(await session.execute(sql.weak(relations)))
        for schema, table, kind, persistence in weak:
            raise SinkRejected(
                f"PostgreSQL {self.server.address}: `{self.target.kind}` writes into {schema}.{table}, which is"
                f" {_why_weak(kind, persistence)}: use an ordinary table"
            )

    async def read_shape(self, session: Session, columns: tuple[sql.Column, ...]) -> Shape:
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

    async def copy_into_target(self, session: Session, batch: Load) -> bool:
        """Whether the rows are in the target, in a transaction that has begun."""
        return self.target.merge is None and not self.target.key and await session.copy_into(self.target.into, batch)

    @property
    def staged_s(self) -> float:
        """How long the server may take for a batch that executors staged."""
        return self.timeouts.transaction_s * STAGED_SHARE

    async def remove(self, names: Iterable[str]) -> None:
        """Staging tables. One that is locked is left to the next claim."""
        for name in names:
            message = sql.staging_dropped(self.tables, name, DROP_LOCK_S)

            async def converse(session: Session, message: sql.Statement = message) -> None:
                await session.execute(message)

            with suppress(SinkError):
                await self.server.talk(f"dropping `{name}`", converse)


def _why_weak(kind: str, persistence: str) -> str:
    if kind == "f":
        return "a foreign table, whose rows are not committed together with the position"
    if persistence == "t":
        return "a temporary table, which ends with its connection"
    return "UNLOGGED, and so it is empty after a crash of the server, while the position stays"


async def _answers(cursor: psycopg.AsyncCursor) -> list[list[Any]]:
    """The rows of every statement of a message that has rows."""
    answers = []
    while True:
        if cursor.description is not None:
            answers.append(await cursor.fetchall())
        if not cursor.nextset():
            return answers


def _known(generation: int) -> str:
    """The sink state of a lease whose position of that generation has its row."""
    return f"known:{generation}"


def _position_lost(claim: Claim, parts: _Parts) -> SinkRejected:
    return SinkRejected(
        f"PostgreSQL {parts.server.address}, schema '{parts.tables.schema}' has no position of lease"
        f" '{lease_of(claim.pipeline, claim.partition)}' in generation {claim.generation}, and the lease has seen one: the"
        f" database was restored, or rows of `{sql.POSITIONS}` were deleted, and output is lost. Restore the database as it was,"
        f" or {to_write_again(claim)}"
    )


def _fenced(claim: Claim, newest: Sequence[Any]) -> Fenced:
    """newest: the row of the partition's newest generation, or none where it could not be read."""
    ours = f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at epoch {claim.epoch}"
    if not newest:
        return Fenced(f"{ours}, and its position was not found: take the lease again")
    generation, epoch, owner, position, state = newest[0]
    if generation != claim.generation:
        why = f"generation {claim.generation}, and generation {generation} has begun: its position was reset"
    elif epoch > claim.epoch:
        why = f"and belongs to '{owner}' since epoch {epoch}"
    elif state == "closed":
        why = f"and has ended at {position!r}"
    else:
        why = f"and is at {position!r} already: another write of this claim was first"
    return Fenced(f"{ours}, {why}", epoch=epoch)
