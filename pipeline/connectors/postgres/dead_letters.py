"""The dead letters of one pipeline in PostgreSQL as a feed, for lists and replays.

A position is the number of the last letter read, in decimal. Partitions are those of the pipeline's feed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.connectors.postgres.dead_letters_sql import (
    behind_query,
    is_there_query,
    latest_query,
    page_query,
    partitions_query,
)
from leasehold.pipeline.connectors.postgres.session import Connections, PostgresServer, PostgresSession
from leasehold.pipeline.connectors.postgres.sql import Statement, Tables
from leasehold.pipeline.dead_letters.record import kept_events
from leasehold.pipeline.errors import FeedUnavailable, PositionLost, SinkError
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start

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
        """Raises ValueError if `dsn` is not a DSN."""
        self._server = PostgresServer(
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
        at = _number_in(continuation)
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
        at = _number_in(continuation)
        [[count]] = await self._rows(behind_query(self._tables, self._pipeline, partition, at))
        return int(count)

    def compare(self, a: str | None, b: str | None) -> int:
        return _number_in(a) - _number_in(b)

    async def close(self) -> None:
        await self._server.close()

    async def _rows(self, query: Statement) -> list[tuple[Any, ...]]:
        async def converse(session: PostgresSession) -> list[tuple[Any, ...]]:
            return await (await session.execute(query)).fetchall()

        try:
            return await self._server.talk("reading dead letters", converse)
        except SinkError as error:
            raise FeedUnavailable(str(error)) from error


def _page(partition: str, rows: Sequence[tuple[Any, ...]]) -> Page:
    numbers = [row[0] for row in rows]
    return Page(kept_events(partition, rows), str(numbers[-1]), lambda n: str(numbers[n - 1]))


def _number_in(position: str | None) -> int:
    """Raises PositionLost."""
    if position is None:
        return 0
    if not (position.isascii() and position.isdecimal() and len(position) < 19):
        raise PositionLost(
            f"{position[:100]!r} is not a position among dead letters: set the lease's position to a number"
        )
    return int(position)
