"""Rows of a table as events. A position is the number of the last row that was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from sqlite3 import Connection
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import Field

from leasehold import EVENT_SCHEMA, ChangeFeed, FeedError, FeedPartition, FeedUnavailable, Page, PositionLost, Start
from plugins.tables.database import EVENTS, Database, Unavailable

T = TypeVar("T")
DIGITS_MAX = 18
Row = tuple[int, str, str | None, bytes | None]
NEXT = "SELECT number, time, key, body FROM events WHERE partition = ? AND number > ? ORDER BY number LIMIT ?"


class TableFeed(ChangeFeed):
    """Partitions are "0", "1" and so on. Rows may be deleted from the front of a partition, once they have been read."""

    leasehold_interface = 1

    def __init__(
        self,
        path: str,
        *,
        partitions: Annotated[int, Field(ge=1, le=1024)],
        poll_s: Annotated[float, Field(gt=0)] = 0.2,
        page_events_max: Annotated[int, Field(ge=1)] = 1000,
        page_bytes_max: Annotated[int, Field(ge=1)] = 4 * 1024 * 1024,
    ) -> None:
        self._database = Database(path, EVENTS)
        self._partitions = sorted(map(str, range(partitions)))
        self._poll_s = poll_s
        self._events_max = page_events_max
        self._bytes_max = page_bytes_max

    @property
    def identity(self) -> str:
        return f"tables:{self._database.path}"

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name) for name in self._partitions]

    async def start_of(self, partition: str, start: Start) -> str | None:
        if start == "latest":
            return await self.latest(partition)
        before = start.isoformat() if isinstance(start, datetime) else ""
        return await self._number("SELECT max(number) FROM events WHERE partition = ? AND time < ?", partition, before)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        position = number_of(continuation)
        self._check(partition)
        while True:
            if rows := await self._read(partition, position):
                position = rows[-1][0]
                yield page_of(partition, rows)
            else:
                await asyncio.sleep(self._poll_s)

    async def _read(self, partition: str, position: int) -> list[Row]:
        """Raises PositionLost."""
        rows = await self._run(lambda c: c.execute(NEXT, (partition, position, self._events_max)).fetchall())
        if position and rows and rows[0][0] != position + 1:
            raise PositionLost(
                f"{self.identity}: the rows behind {position} of partition '{partition}' were deleted before they were read. To"
                f" continue without them, set the lease's position to '{rows[0][0] - 1}'"
            )
        size, page = 0, list[Row]()
        for row in rows:
            size += len(row[3] or b"")
            if page and size > self._bytes_max:
                break
            page.append(row)
        return page

    async def latest(self, partition: str) -> str | None:
        return await self._number("SELECT max(number) FROM events WHERE partition = ?", partition)

    async def lag(self, partition: str, continuation: str | None) -> int:
        position, last = number_of(continuation), number_of(await self.latest(partition))
        if position > last:
            raise PositionLost(
                f"{self.identity}: partition '{partition}' ends at {last}, before the position {position}: the file was replaced."
                " Reset the lease"
            )
        count = "SELECT count(*) FROM events WHERE partition = ? AND number > ?"
        return int((await self._run(lambda c: c.execute(count, (partition, position)).fetchone()))[0])

    def compare(self, a: str | None, b: str | None) -> int:
        return number_of(a) - number_of(b)

    async def close(self) -> None:
        await self._database.close()

    async def _number(self, query: str, partition: str, *more: str) -> str | None:
        self._check(partition)
        (number,) = await self._run(lambda c: c.execute(query, (partition, *more)).fetchone())
        return None if number is None else str(number)

    def _check(self, partition: str) -> None:
        if partition not in self._partitions:
            raise FeedError(f"{self.identity} has no partition '{partition}': raise `partitions`, or reset the lease")

    async def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            return await self._database.run(work)
        except Unavailable as error:
            raise FeedUnavailable(str(error)) from error


def page_of(partition: str, rows: list[Row]) -> Page:
    events: list[dict[str, Any]] = [
        {
            "partition": partition,
            "sequence": number,
            "offset": str(number),
            "enqueued_time": datetime.fromisoformat(time),
            "key": key,
            "body": body,
        }
        for number, time, key, body in rows
    ]
    table = pa.Table.from_pylist(events, schema=EVENT_SCHEMA)
    return Page(table, str(rows[-1][0]), lambda n: str(rows[n - 1][0]))


def number_of(position: str | None) -> int:
    """Raises PositionLost."""
    if position is None:
        return 0
    if not (position.isascii() and position.isdecimal() and len(position) <= DIGITS_MAX):
        raise PositionLost(f"{position[:100]!r} is not the number of a row: set the lease's position to one")
    return int(position)
