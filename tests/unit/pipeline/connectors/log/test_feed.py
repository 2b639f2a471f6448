"""The log as a feed: the contract, and what only it does."""

import asyncio
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from patience import PATIENCE_S, until_async

from leasehold.pipeline.connectors.log import LogChangeFeed, append
from leasehold.pipeline.connectors.log.feed import LOOKS_PER_S_MAX, LogWatch, pause_s
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA, file_name
from leasehold.pipeline.connectors.log.store import Log, Retention
from leasehold.pipeline.contract import ChangeFeedContract, FeedHarness, body
from leasehold.pipeline.errors import FeedUnavailable, PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.ranges import RangeReader


def events(bodies: Sequence[bytes]) -> pa.Table:
    rows = [{"body": body} for body in bodies]
    return pa.Table.from_pylist(rows, schema=BLOCK_SCHEMA)


class LogFeedHarness(FeedHarness):
    partitions = ("a", "b")
    events_max = 8
    bytes_max = 4096
    times_are_apart = True

    def __init__(self, path: Path) -> None:
        self.feed = LogChangeFeed(
            path, page_events_max=self.events_max, page_bytes_max=self.bytes_max, poll_interval_s=0.002
        )
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self.log = Log(path, now=self._later)
        self.log.prepare()
        for partition in self.partitions:
            self.log.partition(partition, new=True)

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        self.log.partition(partition).append(events(bodies))

    async def make_other_reader(self, partition: str, bodies: Sequence[bytes]) -> RangeReader:
        other = LogFeedHarness(self.log.path / "other")
        await other.append(partition, bodies)
        await other.feed.close()
        other.log.close()
        return other.feed.range_reader()

    def _later(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now


class TestLogFeed(ChangeFeedContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[FeedHarness]:
        harness = LogFeedHarness(tmp_path)
        yield harness
        await harness.feed.close()
        harness.log.close()


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[LogChangeFeed]:
    feed = LogChangeFeed(tmp_path, page_events_max=100, poll_interval_s=0.002, busy_timeout_s=0.1)
    yield feed
    await feed.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """Logs in the directory, closed at the end."""
    logs: list[Log] = []

    def make(retention: Retention | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Log:
        logs.append(Log(tmp_path, retention=retention, now=now))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


async def read(feed: LogChangeFeed, partition: str, continuation: str | None, count: int) -> pa.Table:
    tables: list[pa.Table] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(feed.open(partition, continuation)) as pages:
        while sum(table.num_rows for table in tables) < count:
            tables.append((await anext(pages)).events)
    return pa.concat_tables(tables)


async def test_an_event_carries_what_its_producer_said_and_where_the_log_keeps_it(
    tmp_path: Path, kept: Callable[..., Log], feed: LogChangeFeed
) -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
    rows = [
        {"key": "k", "body": b"\xff\x00", "properties": [("a", "1"), ("b", None)], "operation": "create"},
        {"key": None, "body": None, "properties": None, "operation": "delete"},
    ]
    kept(now=lambda: at).partition("p", new=True).append(pa.Table.from_pylist(rows, schema=BLOCK_SCHEMA))
    table = await read(feed, "p", None, 2)
    assert table.schema.equals(EVENT_SCHEMA, check_metadata=True)
    assert table.to_pylist() == [
        {"partition": "p", "sequence": n, "offset": str(n), "enqueued_time": at, **row} for n, row in enumerate(rows)
    ]


async def test_a_log_whose_writer_has_not_begun_has_no_partitions_and_gets_them_later(tmp_path: Path) -> None:
    feed = LogChangeFeed(tmp_path / "not" / "yet")
    assert await feed.partitions() == []
    with pytest.raises(FeedUnavailable, match="has no partition 'p' yet"):
        await read(feed, "p", None, 1)
    append(tmp_path / "not" / "yet", "p", ["x"])
    assert await feed.partitions() == [FeedPartition("p")]
    assert (await read(feed, "p", None, 1))["body"].to_pylist() == [b"x"]
    await feed.close()


def test_many_idle_partitions_are_looked_at_less_often_and_cost_no_more_together() -> None:
    assert pause_s(0.005, waiting=4) == 0.005
    assert 1_000 / pause_s(0.005, waiting=1_000) == LOOKS_PER_S_MAX


class Watched:
    """A log that is watched, and how often it was looked at. mark: of its file."""

    def __init__(self) -> None:
        self.has_changed = False
        self.mark = 0
        self.looks = self.marks = 0

    def wait(self, watch: LogWatch) -> asyncio.Task[None]:
        return asyncio.create_task(watch.wait_for_change(self._look, self._mark))

    async def looked_at(self, *, marks: int = 0, looks: int = 0) -> None:
        """Wait until its file and the log itself were looked at so often."""
        await until_async(lambda: self.marks >= marks and self.looks >= looks)

    def _look(self) -> bool:
        self.looks += 1
        return self.has_changed

    def _mark(self) -> int:
        self.marks += 1
        return self.mark


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogWatch]:
    monkeypatch.setattr("leasehold.pipeline.connectors.log.feed.FRESH_S", 0.0)
    monkeypatch.setattr("leasehold.pipeline.connectors.log.feed.IDLE_LOOK_S", 600.0)
    watch = LogWatch(0.001)
    yield watch
    watch.close()


async def test_of_an_idle_log_only_the_file_is_looked_at(watch: LogWatch) -> None:
    log = Watched()
    waiting = log.wait(watch)
    await log.looked_at(marks=3)
    before = log.looks
    await log.looked_at(marks=30)
    assert log.looks == before
    waiting.cancel()


async def test_what_is_written_and_committed_later_is_noticed(watch: LogWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Watched()
    waiting = log.wait(watch)
    await log.looked_at(marks=3)
    monkeypatch.setattr("leasehold.pipeline.connectors.log.feed.FRESH_S", 60.0)
    log.mark += 1
    await log.looked_at(looks=log.looks + 3)
    log.has_changed = True
    await asyncio.wait_for(waiting, timeout=PATIENCE_S)


async def test_a_change_that_the_file_does_not_show_is_noticed_later(
    watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.connectors.log.feed.IDLE_LOOK_S", 0.0)
    log = Watched()
    waiting = log.wait(watch)
    await log.looked_at(marks=3)
    log.has_changed = True
    await asyncio.wait_for(waiting, timeout=PATIENCE_S)


async def test_idle_logs_do_not_delay_the_events_of_a_busy_one(
    watch: LogWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, busy = [Watched() for _ in range(1_000)], Watched()
    waiting = [log.wait(watch) for log in idle]
    await idle[-1].looked_at(marks=3)
    monkeypatch.setattr(
        "leasehold.pipeline.connectors.log.feed.LOOKS_PER_S_MAX", 10
    )  # idle ones are looked at every 100 seconds
    monkeypatch.setattr("leasehold.pipeline.connectors.log.feed.FRESH_S", 600.0)
    await idle[-1].looked_at(marks=idle[-1].marks + 1)
    reading = busy.wait(watch)
    await busy.looked_at(looks=3)
    busy.has_changed = True
    await asyncio.wait_for(reading, timeout=PATIENCE_S)
    for each in waiting:
        each.cancel()


async def test_any_text_may_name_a_partition(tmp_path: Path, feed: LogChangeFeed) -> None:
    names = sorted(
        {".", "..", "", "a/b", "a%2Fb", "a b", "A", "=", "~", "x" * 300, "x" * 301, "é" * 200, "\n", "\x00", ".db"}
    )
    for name in names:
        append(tmp_path, name, [name])
        assert len(os.fsencode(file_name(name))) < 240
        assert not file_name(name).startswith("."), "files that a copy of the directory would leave out"
    assert [partition.name for partition in await feed.partitions()] == names
    for name in names:
        assert (await read(feed, name, None, 1)).select(["partition", "body"]).to_pylist() == [
            {"partition": name, "body": name.encode()}
        ]


async def test_files_of_others_are_no_partitions(tmp_path: Path, feed: LogChangeFeed) -> None:
    append(tmp_path, "p", ["x"])
    for stranger in ("notes.txt", "a b.db", "%70.db"):
        (tmp_path / stranger).write_text("x")
    assert await feed.partitions() == [FeedPartition("p")]


async def test_a_block_larger_than_a_page_comes_in_pieces(tmp_path: Path, feed: LogChangeFeed) -> None:
    append(tmp_path, "p", [body(n) for n in range(1050)])
    async with aclosing(feed.open("p", "4")) as pages:
        sizes = [(await anext(pages)).events.num_rows for _ in range(11)]
    assert sizes == [100] * 10 + [45]


async def test_small_blocks_come_together_in_a_page(tmp_path: Path, feed: LogChangeFeed) -> None:
    for n in range(30):
        append(tmp_path, "p", [body(n)] * 7)
    async with aclosing(feed.open("p", None)) as pages:
        assert [(await anext(pages)).events.num_rows for _ in range(3)] == [98, 98, 14]


@pytest.mark.parametrize(("continuation", "lost"), [(None, True), ("0", True), ("1", True), ("2", False), ("3", False)])
async def test_what_retention_has_passed_is_a_lost_position(
    kept: Callable[..., Log], feed: LogChangeFeed, continuation: str | None, lost: bool
) -> None:
    log = kept(Retention(bytes_max=1)).partition("p", new=True)
    for n in range(4):
        log.append(events([body(n)]))
    log = kept().partition("p")
    log.append(events([body(4)]))
    assert await feed.start_of("p", "earliest") == "2"
    assert await feed.lag("p", continuation) == (1 if continuation == "3" else 2)
    if lost:
        with pytest.raises(PositionLost, match=r"partition 'p'.*first available is 3.*position to '2'"):
            await read(feed, "p", continuation, 1)
    else:
        assert (await read(feed, "p", continuation, 1))["sequence"].to_pylist()[-1] == 4


async def test_retention_that_passes_a_waiting_reader_loses_nothing(
    kept: Callable[..., Log], feed: LogChangeFeed
) -> None:
    log = kept(Retention(bytes_max=1)).partition("p", new=True)
    log.append(events([body(0)]))
    waiting = asyncio.create_task(read(feed, "p", "0", 1))
    await feed.latest("p")
    log.append(events([body(1)]))
    assert (await waiting)["sequence"].to_pylist() == [1]


async def test_a_position_beyond_the_end_is_lost(tmp_path: Path, feed: LogChangeFeed) -> None:
    append(tmp_path, "p", ["x"])
    for call in (read(feed, "p", "1", 1), feed.lag("p", "1")):
        with pytest.raises(PositionLost, match="ends at 0, before the position '1'") as lost:
            await call
        told = str(lost.value)
        assert (
            "To read all events that the feed still has: `leasehold leases reset FILE PIPELINE p --to earliest --yes`"
            in told
        )
        assert "To skip all of them: `leasehold leases reset FILE PIPELINE p --to latest --yes`" in told


def begun_anew(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    append(path, "p", ["z"])


async def test_a_log_that_was_deleted_and_begun_anew_is_noticed_while_waiting(
    tmp_path: Path, feed: LogChangeFeed
) -> None:
    append(tmp_path, "p", ["x", "y"])
    waiting = asyncio.create_task(read(feed, "p", "1", 1))
    await feed.latest("p")
    begun_anew(tmp_path)
    with pytest.raises((PositionLost, FeedUnavailable)):
        await waiting
    with pytest.raises(PositionLost):
        await read(feed, "p", "1", 1)


async def test_a_log_that_is_deleted_under_a_waiting_reader_is_unavailable(tmp_path: Path, feed: LogChangeFeed) -> None:
    append(tmp_path, "p", ["x"])
    waiting = asyncio.create_task(read(feed, "p", "0", 1))
    await feed.latest("p")
    shutil.rmtree(tmp_path)
    with pytest.raises(FeedUnavailable, match="has no partition 'p' yet"):
        await waiting


@pytest.mark.parametrize("spoil", ["header", "block", "byte", "foreign", "newer"])
async def test_a_damaged_file_is_unavailable_and_named(tmp_path: Path, feed: LogChangeFeed, spoil: str) -> None:
    append(tmp_path, "p", ["abc"])
    path = tmp_path / "p.db"
    with closing(sqlite3.connect(path)) as connection:
        if spoil in ("block", "byte"):
            ((body,),) = connection.execute("SELECT body FROM blocks").fetchall()
            spoilt = body.replace(b"abc", b"abd") if spoil == "byte" else bytes(len(body))
            assert spoilt != body
            connection.execute("UPDATE blocks SET body = ?", (spoilt,))
        if spoil == "foreign":
            connection.execute("PRAGMA application_id = 7")
        if spoil == "newer":
            connection.execute("PRAGMA user_version = 2")
        connection.commit()
    if spoil == "header":
        path.write_bytes(b"not SQLite" * 1000)
    with pytest.raises(FeedUnavailable, match=str(path)):
        await read(feed, "p", None, 1)


async def test_a_path_that_is_no_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    feed = LogChangeFeed(tmp_path / "file")
    for call in (feed.partitions(), feed.latest("p")):
        with pytest.raises(FeedUnavailable, match="cannot be used"):
            await call
    await feed.close()


async def test_a_name_that_is_no_text_is_unavailable(feed: LogChangeFeed) -> None:
    for call in (read(feed, "\ud800", None, 1), feed.latest("\ud800")):
        with pytest.raises(FeedUnavailable, match="cannot be a file name"):
            await call


async def test_many_readers_wait_on_one_thread(tmp_path: Path, feed: LogChangeFeed) -> None:
    for n in range(40):
        append(tmp_path, f"{n}", ["x"])
    before = threading.active_count()
    waiting = [asyncio.create_task(read(feed, f"{n}", "0", 1)) for n in range(40)]
    await asyncio.gather(*(feed.latest(f"{n}") for n in range(40)))
    assert threading.active_count() <= before + 5
    await asyncio.gather(*(asyncio.to_thread(partial(append, tmp_path, f"{n}", ["y"])) for n in range(40)))
    assert [len(table) for table in await asyncio.gather(*waiting)] == [1] * 40


async def test_who_waits_for_more_keeps_no_page(tmp_path: Path, feed: LogChangeFeed) -> None:
    append(tmp_path, "p", ["x"] * 50)
    async with aclosing(feed.open("p", None)) as pages:
        page: Page | None = await anext(pages)
        table = weakref.ref(page.events)  # type: ignore[union-attr]
        page = None
        waiting = asyncio.create_task(anext(pages))  # type: ignore[arg-type]
        await feed.latest("p")
        assert table() is None
        append(tmp_path, "p", ["y"])
        assert (await waiting).to == "50"


async def test_time_in_a_log_never_goes_back(tmp_path: Path, kept: Callable[..., Log], feed: LogChangeFeed) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    times = iter([noon, noon - timedelta(hours=1), noon + timedelta(seconds=1)])
    log = kept(now=lambda: next(times)).partition("p", new=True)
    for n in range(3):
        log.append(events([body(n)]))
    table = await read(feed, "p", None, 3)
    assert table["enqueued_time"].to_pylist() == [noon, noon, noon + timedelta(seconds=1)]
    assert await feed.start_of("p", noon) is None
    assert await feed.start_of("p", noon + timedelta(microseconds=1)) == "1"


def test_the_identity_is_the_place_wherever_it_is_named_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LogChangeFeed("x/../log").identity == LogChangeFeed(tmp_path / "log").identity == f"log:{tmp_path}/log"
