"""How an owner writes batches to PostgreSQL: output and position in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.sql import Identifier

from leasehold.pipeline.connectors.postgres import dead_letters_sql, refusal, sql, staging_sql
from leasehold.pipeline.connectors.postgres.copy import FEW_BYTES, FEW_ROWS, Load, columns_of, load
from leasehold.pipeline.connectors.postgres.session import PostgresSession
from leasehold.pipeline.connectors.postgres.shape import NO_SHAPE, Shape
from leasehold.pipeline.connectors.postgres.sink_parts import SinkParts
from leasehold.pipeline.connectors.postgres.stager import PostgresStager, is_stageable, read_variable, role_of
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.record import letters_of
from leasehold.pipeline.errors import Fenced, OutputRefused, OutputTooLarge, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, SinkWriter
from leasehold.pipeline.staging import NotStaged, Stager, check_parts

TIMEOUTS_MAX = 3
"""A batch that exceeds `Timeouts.statement_s` this many times is refused."""


class PostgresWriter(SinkWriter):
    """The writer of one claim. `position` is what the server has committed."""

    position: str | None = None
    state: str = ""

    buried: Collection[int] = ()
    """Always empty, because letters and position are committed together."""

    def __init__(self, parts: SinkParts, claim: Claim, position: str | None) -> None:
        self._parts = parts
        self._claim = claim
        self.position = position
        self.state = known_state(claim.generation)
        self._staging: dict[str | None, str] = {}
        """Start of a batch -> the staging table that was created for it."""

    async def write(self, output: Output, permit: Permit) -> None:
        claim, parts = self._claim, self._parts
        check_parts(output.staged, epoch=claim.epoch, start=output.start)
        assert not (output.staged and output.table.num_rows), "staged output has all rows in its parts"
        batch = await self._loadable(output) if output.table.num_rows else None
        moved, others = sql.moved(parts.tables, claim, output.start, output.to), self._beside(output)

        async def converse(session: PostgresSession) -> None:
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
        """Further statements of the output's transaction: history and dead letters."""
        others: list[sql.Statement] = []
        if self._parts.tables.history:
            others.append(sql.remembered(self._parts.tables, self._claim, output.start, output.to, output.events))
        if output.dead is not None:
            others.append(dead_letters_sql.kept(self._parts.tables, letters_of(self._claim, output)))
        return others

    async def _bring(self, session: PostgresSession, output: Output, batch: Load | None) -> _Brought:
        """Send the rows to the server, or put few into the message. Until they are merged, no other writer waits for them."""
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
        name, role = staging_sql.staging_name(claim, start), role_of(read_variable(parts.executors_env))
        message = staging_sql.staging_created(parts.tables, name, columns_of(columns), role)

        async def converse(session: PostgresSession) -> None:
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

    async def _bring_parts(self, session: PostgresSession, output: Output) -> _Brought:
        """The rows are on the server. The statements bring exactly those of the output's parts into the target, or fail."""
        parts, names, columns = self._parts, [part.name for part in output.staged], columns_of(output.table.schema)
        table = Identifier(parts.tables.schema, staging_sql.staging_name(self._claim, output.start))
        shape = await parts.read_shape(session, columns)
        target, within = parts.target, staging_sql.time_left(parts.staged_s)
        if target.merge is not None:
            await parts.prepare_batch(session, columns)
            filled = staging_sql.refilled(columns, staging_sql.in_order(table, columns, names))
            counted, merged = staging_sql.counted(sql.BATCH, output.rows), target.merged(columns, shape)
            merged = [within, filled, counted, within, *merged]
            return _Brought(merged=merged, kept=parts.kept(session, shape), columns=columns, shape=shape)
        counted = staging_sql.counted(staging_sql.of_parts(table, names), output.rows)
        rows = (
            staging_sql.numbered(table, columns, names) if target.key else staging_sql.in_order(table, columns, names)
        )
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
                f"PostgreSQL {address} has lost rows that executors staged, perhaps in a crash of the server: their batch is"
                " processed again"
            ) from error
        if refusal.is_timeout(error):
            raise NotStaged(
                f"PostgreSQL {address}: `{self._parts.target.kind}` cannot take {output.rows} rows in"
                f" {self._parts.staged_s:g} s: smaller batches follow"
            ) from error

    def _check_time(self, output: Output, error: psycopg.Error) -> None:
        """Raises a refusal if the batch that begins here takes too long every time: it would be repeated forever."""
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

        async def converse(session: PostgresSession) -> None:
            await self._decide(session, message, permit)

        await self._parts.server.talk(f"ending partition '{self._claim.partition}'", converse)

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    async def _loadable(self, output: Output) -> Load:
        """Few rows are converted on the event loop, because waiting for a thread would take longer."""
        self._parts.target.check_key(output.table.column_names)
        if output.table.num_rows <= FEW_ROWS and output.table.nbytes <= FEW_BYTES:
            return load(output.table)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parts.thread, load, output.table)

    async def _decide(self, session: PostgresSession, message: sql.Statement, permit: Permit) -> None:
        """Send guard, merge and COMMIT as one message. From then on, only the server decides whether they take effect."""
        permit.check()
        session.is_sent = True
        try:
            await session.execute(message)
            crash_point("committed")
        except psycopg.Error as error:
            if not refusal.is_guard(error):
                raise
            raise fenced(self._claim, await self._newest(session)) from None

    def _lossy(self, brought: _Brought, loss: refusal.Loss) -> OutputRefused:
        column, taken = brought.columns[loss.place], brought.shape.fits[loss.place].type
        event = "" if loss.sequence is None else f" of the event with sequence {loss.sequence}"
        return OutputRefused(
            f"PostgreSQL {self._parts.server.address}: the table would change a value{event} in column '{column.name}', which is"
            f" {column.type} in the output and {taken} in the table: cast it in the transform, or change the table",
            sequences=() if loss.sequence is None else (loss.sequence,),
        )

    async def _newest(self, session: PostgresSession) -> Sequence[Any]:
        message = sql.one_message(sql.ROLLBACK, sql.newest(self._parts.tables, self._claim))
        try:
            [newest] = await session.ask(message)
        except psycopg.Error:
            return []
        return newest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """The beginning of a batch's message, what brings its rows into the target, and the columns for which that was made.

    kept: statements that fail if targets have changed since their last check.
    """

    first: Sequence[sql.Statement] = (sql.BEGIN,)
    merged: Sequence[sql.Statement] = ()
    kept: Sequence[sql.Statement] = ()
    columns: tuple[sql.Column, ...] = ()
    shape: Shape = NO_SHAPE


def known_state(generation: int) -> str:
    """The sink state of a lease that has seen the row of its position in this generation."""
    return f"known:{generation}"


def fenced(claim: Claim, newest: Sequence[Any]) -> Fenced:
    """newest: the row of the partition's newest generation, or none if it could not be read."""
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
