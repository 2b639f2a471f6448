"""The feed over tables keeps what every feed must hold, and misses no row that was deleted before it was read."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from plugins.tables import TableFeed
from plugins.tables.database import EVENTS, append

from leasehold import FeedError, FeedUnavailable, PositionLost
from leasehold.testing import ChangeFeedContract, FeedHarness


class Harness(FeedHarness):
    partitions = ("0", "1", "2", "3")
    events_max = 8
    bytes_max = 4096

    def __init__(self, path: Path) -> None:
        limits = {"page_events_max": self.events_max, "page_bytes_max": self.bytes_max}
        self.feed = TableFeed(str(path), partitions=4, poll_s=0.01, **limits)
        self.connection = sqlite3.connect(path)
        self.connection.executescript(EVENTS)

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        append(self.connection, partition, datetime.now(UTC).isoformat(), [(None, body) for body in bodies])
        self.connection.commit()


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path / "events.db")
    yield harness
    await harness.feed.close()
    harness.connection.close()


class TestTableFeed(ChangeFeedContract):
    @pytest_asyncio.fixture
    async def harness(self, harness: Harness) -> Harness:
        return harness


async def test_rows_that_were_deleted_before_they_were_read_stop_the_reader(harness: Harness) -> None:
    await harness.append("0", [b"1", b"2", b"3", b"4"])
    harness.connection.execute("DELETE FROM events WHERE number < 4")
    harness.connection.commit()
    with pytest.raises(PositionLost, match="set the lease's position to '3'"):
        await anext(harness.feed.open("0", "1"))
    assert (await anext(harness.feed.open("0", "3"))).events["body"].to_pylist() == [b"4"]


async def test_a_file_that_was_replaced_is_an_error(harness: Harness) -> None:
    await harness.append("0", [b"1"])
    with pytest.raises(PositionLost, match="ends at 1, before the position 3"):
        await harness.feed.lag("0", "3")


async def test_a_partition_that_the_settings_do_not_have_is_refused(harness: Harness) -> None:
    with pytest.raises(FeedError, match="has no partition '4'"):
        await harness.feed.latest("4")


async def test_a_directory_that_is_missing_is_unavailable(tmp_path: Path) -> None:
    feed = TableFeed(str(tmp_path / "missing" / "events.db"), partitions=1)
    with pytest.raises(FeedUnavailable, match="unable to open database file"):
        await feed.lag("0", None)
    await feed.close()
