"""Ranges of a log: executors read those that the host planned, or refuse another log at the same path."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.log import LogChangeFeed, append, feed
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA, file_name
from leasehold.pipeline.connectors.log.store import Log, Retention
from leasehold.pipeline.errors import FeedUnavailable, PositionLost
from leasehold.pipeline.ranges import EventRange, RangeReader

BODIES = [f"event {number}" for number in range(40)]


def fill(path: Path, bodies: Sequence[str] = BODIES, *, block: int = 5) -> None:
    for at in range(0, len(bodies), block):
        append(path, "a", bodies[at : at + block])


def write(log: Log, *bodies: bytes) -> None:
    table = pa.Table.from_pylist([{"body": body} for body in bodies], schema=BLOCK_SCHEMA)
    log.partition("a", new=True).append(table)


async def planned(path: Path, size: int, start: str | None = None) -> list[EventRange]:
    made = LogChangeFeed(path)
    try:
        return await made.plan_ranges("a", start, 1000, size)
    finally:
        await made.close()


def reader(path: Path) -> RangeReader:
    return LogChangeFeed(path).range_reader()


def read(path: Path, ranges: Sequence[EventRange]) -> list[str]:
    tables = [table for each in ranges for table in reader(path).read_range("a", each)]
    return [body.decode() for table in tables for body in table["body"].to_pylist()]


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    fill(tmp_path / "log")
    return tmp_path / "log"


@pytest.mark.parametrize("size", [1, 3, 5, 7, 40])
async def test_ranges_begin_and_end_within_blocks(log: Path, size: int) -> None:
    assert read(log, await planned(log, size)) == BODIES
    assert read(log, await planned(log, size, "16")) == BODIES[17:]


async def test_a_longer_log_and_a_copy_of_it_are_the_same_log(log: Path, tmp_path: Path) -> None:
    ranges = await planned(log, 7)
    append(log, "a", ["more"])
    shutil.copytree(log, tmp_path / "copy")
    assert read(log, ranges) == read(tmp_path / "copy", ranges) == BODIES


@pytest.mark.parametrize("changed", [0, 39])
async def test_another_log_with_as_many_events_is_refused(tmp_path: Path, changed: int, clock: Clock) -> None:
    """Also if a single event differs, and both were written at the same time."""
    for name, bodies in (
        ("log", BODIES),
        ("other", [f"{body}!" * (n == changed) or body for n, body in enumerate(BODIES)]),
    ):
        log = Log(tmp_path / name, now=clock)
        log.prepare()
        for at in range(0, 40, 5):
            write(log, *(body.encode() for body in bodies[at : at + 5]))
        log.close()
    with pytest.raises(FeedUnavailable, match=f"has other events at {changed};"):
        read(tmp_path / "other", await planned(tmp_path / "log", 40))


async def test_the_same_events_at_another_time_are_another_log(log: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other")
    with pytest.raises(FeedUnavailable, match="has other events at 0;"):
        read(tmp_path / "other", await planned(log, 40))


async def test_a_log_that_differs_since_a_backup_is_refused(log: Path, tmp_path: Path) -> None:
    shutil.copytree(log, tmp_path / "backup")
    fill(log, ["here"] * 10)
    fill(tmp_path / "backup", ["away"] * 10)
    [whole] = await planned(log, 50)
    with pytest.raises(FeedUnavailable, match="has other events at 49;"):
        read(tmp_path / "backup", [whole])


async def test_no_event_of_another_log_is_yielded(log: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other")
    [whole] = await planned(log, 40)
    with pytest.raises(FeedUnavailable):
        next(reader(tmp_path / "other").read_range("a", whole))


async def test_a_log_that_is_replaced_while_it_is_read_is_refused(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "EVENTS_MAX", 10)
    fill(tmp_path / "other")
    [whole] = await planned(log, 40)
    tables = reader(log).read_range("a", whole)
    assert next(tables)["body"].to_pylist() == [body.encode() for body in BODIES[:10]]
    (tmp_path / "other" / file_name("a")).replace(log / file_name("a"))
    with pytest.raises(FeedUnavailable, match="has other events at 39;"):
        list(tables)


async def test_a_range_without_fingerprints_is_refused(log: Path) -> None:
    [whole] = await planned(log, 40)
    with pytest.raises(FeedUnavailable, match="has other events at 0;"):
        read(log, [whole._replace(check="")])


@pytest.mark.parametrize(
    ("events", "what"), [(None, "does not exist there;"), (0, "ends at -1, before 39;"), (20, "has other events at 0;")]
)
async def test_the_error_names_the_executor_the_path_and_the_next_step(
    log: Path, tmp_path: Path, events: int | None, what: str
) -> None:
    other = tmp_path / "other"
    if events is not None:
        made = Log(other)
        made.prepare()
        made.partition("a", new=True)
        made.close()
        fill(other, BODIES[:events])
    with pytest.raises(FeedUnavailable) as found:
        read(other, await planned(log, 40))
    for words in (f"an executor on '{socket.gethostname()}'", f"'{other}'", "partition 'a'", what, "the same volume"):
        assert words in str(found.value)


@pytest.fixture
def forgetful(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    """A log that forgets what is older than a minute."""
    log = Log(tmp_path / "forgetful", retention=Retention(age_s=60), now=clock)
    log.prepare()
    yield log
    log.close()


async def test_what_retention_forgot_since_it_was_planned_is_lost(forgetful: Log, clock: Clock) -> None:
    write(forgetful, b"0", b"1")
    ranges = await planned(forgetful.path, 10)
    clock.now += timedelta(seconds=120)
    write(forgetful, b"2")
    with pytest.raises(PositionLost, match="retention has deleted 0"):
        read(forgetful.path, ranges)


async def test_nothing_is_planned_that_retention_forgets_meanwhile(
    forgetful: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(forgetful, b"0", b"1")
    extent = forgetful.partition("a").extent()
    clock.now += timedelta(seconds=120)
    write(forgetful, b"2")
    assert forgetful.partition("a").fingerprints([0, 2]) is None
    assert forgetful.partition("a").fingerprints([2, 3]) is None
    assert len(forgetful.partition("a").fingerprints([2, 2]) or ()) == 2

    async def earlier(self: LogChangeFeed, partition: str) -> object:
        return replace(extent)

    monkeypatch.setattr(LogChangeFeed, "_extent", earlier)
    assert await planned(forgetful.path, 10) == []
