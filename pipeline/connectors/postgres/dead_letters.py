"""Dead letters in PostgreSQL, as a feed of one pipeline's: to be listed, and to be sent through again.

A position is the number of the last letter read, in decimal. Partitions are those of the pipeline's feed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, LiteralString

import pyarrow as pa
from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.connectors.postgres.session import Connections, Server, Session
from leasehold.pipeline.connectors.postgres.sql import BATCH, LETTERS, Statement, Tables
from leasehold.pipeline.dead_letters.record import LETTER_SCHEMA, kept_events
from leasehold.pipeline.errors import FeedUnavailable, PositionLost, SinkError
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start

# The SQL of dead letters, pure: into a table in the transaction of their batch, and out of it in the order of their numbers.


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
    """Texts for people without the NUL that PostgreSQL has no place for; the envelope has it escaped."""
    errors = [error.replace("\0", "\N{REPLACEMENT CHARACTER}") for error in letters["error"].to_pylist()]
    place = letters.schema.get_field_index("error")
    return letters.set_column(place, letters.schema.field("error"), pa.array(errors, pa.string()))


def kept(tables: Tables, letters: pa.Table) -> Composed:
    """Must be the last before COMMIT: then no cycle of waits can include this lock."""
    rows = [_row(tuple(row.values())) for row in storable(letters).to_pylist()]
    return _inserted(tables, SQL("(VALUES {}) AS given ({})").format(SQL(", ").join(rows), _NAMES))


def letters_merge(schema: str) -> str:
    """The same for a sink of their own, whose output is the letters: its `merge`."""
    return _inserted(Tables(schema), BATCH).as_string(None)


def _row(values: Sequence[Any]) -> Composed:
    """With types, since a column may be null in all rows."""
    typed = (SQL("{}::{}").format(Literal(value), SQL(kind)) for value, kind in zip(values, _TYPES, strict=True))
    return SQL("({})").format(SQL(", ").join(typed))


def _inserted(tables: Tables, rows: Statement | Identifier) -> Composed:
    """Numbers are given under a lock that ends with the transaction: no smaller one appears behind one that was read."""
    return SQL(
        "INSERT INTO {} ({}) SELECT {} FROM (SELECT pg_advisory_xact_lock(hashtextextended({}, 0)) OFFSET 0) AS locked,"
        " {} ORDER BY sequence"
    ).format(tables.letters, _NAMES, _NAMES, Literal(f"leasehold {tables.schema}.{LETTERS}"), rows)


# Reading


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
    """At most so many rows and bytes, but one row at least."""
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


POLL_S = 1.0
PAGE_ROWS = 1000


class PostgresLettersFeed(ChangeFeed):
    def __init__(
        self,
        dsn: str,
        pipeline: str,
        *,
        schema: str = "public",
        connections: Connections | None = None,
        page_bytes_max: int = 4 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        """Raises ValueError where the DSN is none."""
        self._server = Server(
            dsn, replace(connections or Connections(), max=2, application_name="leasehold dead letters")
        )
        self._tables = Tables(schema, keeps_letters=True)
        self._pipeline = pipeline
        self._page_bytes_max = page_bytes_max
        self._clock = clock or LoopClock()

    @property
    def identity(self) -> str:
        return f"postgresql://{self._server.address} schema={self._tables.schema} dead letters of {self._pipeline}"

    async def partitions(self) -> list[FeedPartition]:
        [[is_there]] = await self._rows(is_there_query(self._tables))
        found = await self._rows(partitions_query(self._tables, self._pipeline)) if is_there else []
        return [FeedPartition(name) for (name,) in found]

    async def start_of(self, partition: str, start: Start) -> str | None:
        return await self.latest(partition) if start == "latest" else None

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        at = _number(continuation)
        while True:
            limits = PAGE_ROWS, self._page_bytes_max
            rows = await self._rows(page_query(self._tables, self._pipeline, partition, at, *limits))
            if not rows:
                await self._clock.sleep(POLL_S)
                continue
            at = rows[-1][0]
            yield _page(partition, rows)

    async def latest(self, partition: str) -> str | None:
        [[last]] = await self._rows(latest_query(self._tables, self._pipeline, partition))
        return None if last is None else str(last)

    async def lag(self, partition: str, continuation: str | None) -> int:
        at = _number(continuation)
        [[count]] = await self._rows(behind_query(self._tables, self._pipeline, partition, at))
        return int(count)

    def compare(self, a: str | None, b: str | None) -> int:
        return _number(a) - _number(b)

    async def close(self) -> None:
        await self._server.close()

    async def _rows(self, query: Statement) -> list[tuple[Any, ...]]:
        async def converse(session: Session) -> list[tuple[Any, ...]]:
            return await (await session.execute(query)).fetchall()

        try:
            return await self._server.talk("reading dead letters", converse)
        except SinkError as error:
            raise FeedUnavailable(str(error)) from error


def _page(partition: str, rows: Sequence[tuple[Any, ...]]) -> Page:
    numbers = [row[0] for row in rows]
    return Page(kept_events(partition, rows), str(numbers[-1]), lambda n: str(numbers[n - 1]))


def _number(position: str | None) -> int:
    """Raises PositionLost."""
    if position is None:
        return 0
    if not (position.isascii() and position.isdecimal() and len(position) < 19):
        raise PositionLost(
            f"{position[:100]!r} is not a position among dead letters: set the lease's position to a number"
        )
    return int(position)
