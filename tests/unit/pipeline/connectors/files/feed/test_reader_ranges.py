"""Ranges of a file: planned without its content, and read by executors only as they were planned."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed, reader
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.connectors.files.feed.records import CsvRecords, JsonRecords
from leasehold.pipeline.errors import FeedUnavailable, MalformedRecord, PositionLost
from leasehold.pipeline.ranges import EventRange

AWKWARD = b'\xef\xbb\xbfid,text\r\n\r\n0,"a\nb"\r\n1,"say ""hi"""\n\n\n2,c\r\n3,"\r\n,\n"\n4,\xc3\xa4\n\n'
"""Five records with quoted line ends and quotes, and blank lines between them."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + b"".join(b"%d,text %d\n" % (n, n) for n in range(100)))
    return path


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[FilesChangeFeed]:
    feed = FilesChangeFeed(f"{tmp_path}/*.csv", poll_interval_s=0.002, reading=Reading(page_events_max=7))
    yield feed
    await feed.close()


async def opened(feed: FilesChangeFeed, partition: str, start: str | None, count: int) -> pa.Table:
    tables: list[pa.Table] = []
    async with aclosing(feed.open(partition, start)) as pages:
        while sum(table.num_rows for table in tables) < count:
            tables.append((await anext(pages)).events)
    return pa.concat_tables(tables)


def read(feed: FilesChangeFeed, ranges: list[EventRange], partition: str = "a.csv") -> pa.Table:
    return pa.concat_tables([table for each in ranges for table in feed.range_reader().read_range(partition, each)])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_quoted_line_ends_and_blank_lines_are_read_as_by_the_host(
    tmp_path: Path, feed: FilesChangeFeed, size: int
) -> None:
    (tmp_path / "a.csv").write_bytes(AWKWARD)
    ranges = await feed.plan_ranges("a.csv", None, 100, size)
    assert [each.events for each in ranges] == [size] * (5 // size) + [5 % size] * (5 % size > 0)
    assert read(feed, ranges).to_pylist() == (await opened(feed, "a.csv", None, 5)).to_pylist()


async def test_tables_of_a_range_are_pages(feed: FilesChangeFeed, path: Path) -> None:
    [planned] = await feed.plan_ranges("a.csv", None, 100, 100)
    sizes = [table.num_rows for table in feed.range_reader().read_range("a.csv", planned)]
    assert sizes == [7] * 14 + [2]


async def test_records_larger_than_a_window_are_planned_and_read(tmp_path: Path, feed: FilesChangeFeed) -> None:
    feed = FilesChangeFeed(f"{tmp_path}/*.csv", reading=Reading(record_bytes_max=4 * reader.WINDOW_BYTES))
    large = b"x" * (2 * reader.WINDOW_BYTES)
    (tmp_path / "a.csv").write_bytes(b"id,text\n" + b"".join(b"%d,%s\n" % (n, large) for n in range(4)))
    ranges = await feed.plan_ranges("a.csv", None, 100, 2)
    assert [each.events for each in ranges] == [2, 2]
    assert read(feed, ranges)["sequence"].to_pylist() == [0, 1, 2, 3]
    await feed.close()


async def test_planning_builds_no_events(feed: FilesChangeFeed, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (CsvRecords, JsonRecords):
        monkeypatch.delattr(kind, "content")
    assert len(await feed.plan_ranges("a.csv", None, 100, 10)) == 10


async def test_what_was_planned_before_is_not_read_again(
    feed: FilesChangeFeed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []
    verify = reader.FileReader.verify
    monkeypatch.setattr(reader.FileReader, "verify", lambda *args: (verified.append(args[1].offset), verify(*args))[1])
    start: str | None = None
    for _ in range(5):
        ranges = await feed.plan_ranges("a.csv", start, 20, 10)
        start = ranges[-1].to
    assert verified == []
    assert await feed.plan_ranges("a.csv", ranges[0].to, 20, 10) != []  # before what was planned last
    assert verified == [len(b"id,text\n")]


async def test_executors_read_nothing_before_their_range_but_the_header(
    feed: FilesChangeFeed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = (await feed.plan_ranges("a.csv", None, 100, 50))[-1]
    begin = reader.decode(last.start or "").offset
    offsets: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: (offsets.append(offset), pread(file, size, offset))[1])
    read(feed, [last])
    assert offsets[0] == 0
    assert min(offsets[1:]) == begin


def spoil(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def replace(path: Path, old: bytes, new: bytes) -> None:
    """By another file."""
    other = path.with_suffix(".other")
    shutil.copy(path, other)
    spoil(other, old, new)
    other.replace(path)


@pytest.mark.parametrize("change", [spoil, replace])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"text 70", b"text 7x"),
        (b"text 70\n", b"text 7"),
        (b"id,text", b"id,test"),
        (b"70,text 70\n", b"\n70,text 7\n"),
        (b"text 99\n", b"text 99 and more\n"),
        (b"98,text 98\n99,text 99\n", b"98,text 98,99,text 99\n"),
    ],
)
async def test_what_changed_since_it_was_planned_is_not_read(
    feed: FilesChangeFeed, path: Path, change: Callable[[Path, bytes, bytes], None], old: bytes, new: bytes
) -> None:
    ranges = await feed.plan_ranges("a.csv", None, 100, 50)
    change(path, old, new)
    with pytest.raises((FeedUnavailable, MalformedRecord)):
        read(feed, ranges[1:])


async def test_a_file_that_is_not_there_on_executors_is_unavailable(feed: FilesChangeFeed, path: Path) -> None:
    ranges = await feed.plan_ranges("a.csv", None, 100, 50)
    path.unlink()  # noqa: ASYNC240 - at once
    with pytest.raises(FeedUnavailable):
        read(feed, ranges)


async def test_a_range_without_a_fingerprint_is_not_read(feed: FilesChangeFeed, path: Path) -> None:
    [planned] = await feed.plan_ranges("a.csv", None, 100, 100)
    assert read(feed, [planned]).num_rows == 100
    with pytest.raises(FeedUnavailable):
        read(feed, [planned._replace(check="")])


async def test_a_range_with_another_number_of_records_is_not_read(feed: FilesChangeFeed, path: Path) -> None:
    [_, second] = await feed.plan_ranges("a.csv", None, 100, 50)
    assert second.start is not None
    for field in ("record", "line"):
        start = reader.decode(second.start)
        with pytest.raises(FeedUnavailable):
            read(feed, [second._replace(start=replaced(start, **{field: 7}).encode())])


async def test_a_file_that_is_only_touched_is_planned_on(feed: FilesChangeFeed, path: Path) -> None:
    ranges = await feed.plan_ranges("a.csv", None, 50, 50)
    os.utime(path, (0, 0))
    assert [each.events for each in await feed.plan_ranges("a.csv", ranges[-1].to, 50, 50)] == [50]


async def test_a_file_that_grows_is_read_as_it_was_planned(feed: FilesChangeFeed, path: Path) -> None:
    ranges = await feed.plan_ranges("a.csv", None, 1000, 50)
    with path.open("ab") as file:
        file.write(b"100,more\n")
    assert read(feed, ranges)["sequence"].to_pylist() == list(range(100))


@pytest.mark.parametrize("change", [spoil, replace])
async def test_a_file_that_changed_between_two_plans_is_left_to_the_host(
    feed: FilesChangeFeed, path: Path, change: Callable[[Path, bytes, bytes], None]
) -> None:
    ranges = await feed.plan_ranges("a.csv", None, 50, 10)
    change(path, b"text 4", b"other 4")
    with suppress(PositionLost):
        assert await feed.plan_ranges("a.csv", ranges[-1].to, 50, 10) == []
    with pytest.raises(PositionLost):
        await opened(feed, "a.csv", ranges[-1].to, 1)


@pytest.mark.parametrize("bad", [b"too,many,fields\n", b"\xff,x\n", b'a"b,x\n', b"z," + b"x" * 3000 + b"\n"])
async def test_a_range_ends_before_a_malformed_record(tmp_path: Path, bad: bytes) -> None:
    feed = FilesChangeFeed(f"{tmp_path}/*.csv", reading=Reading(record_bytes_max=2000))
    (tmp_path / "a.csv").write_bytes(b"id,text\n0,a\n1,b\n2,c\n" + bad + b"4,e\n" * reader.WINDOW_BYTES)
    ranges = await feed.plan_ranges("a.csv", None, 100, 2)
    assert [each.events for each in ranges] == [2, 1]
    assert read(feed, ranges)["sequence"].to_pylist() == [0, 1, 2]
    assert await feed.plan_ranges("a.csv", ranges[-1].to, 100, 1) == []
    with pytest.raises(MalformedRecord):
        await opened(feed, "a.csv", ranges[-1].to, 1)
    await feed.close()


async def test_executors_refuse_malformed_json_also_with_dead_letters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1}\n{"n":\n{"n":3}\n')
    feed = FilesChangeFeed(f"{tmp_path}/*.jsonl", reading=Reading(accepts_unterminated=True, yields_malformed=True))
    ranges = await feed.plan_ranges("a.jsonl", None, 100, 3)
    with pytest.raises(MalformedRecord, match="line 2"):
        read(feed, ranges, "a.jsonl")
    await feed.close()


async def test_a_last_record_without_line_end_is_the_hosts_and_ranges_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    feed = FilesChangeFeed(f"{tmp_path}/*.csv", reading=Reading(accepts_unterminated=True))
    path.write_bytes(b"id,text\n0,a\n1,b")
    [planned] = await feed.plan_ranges("a.csv", None, 100, 1)
    assert read(feed, [planned])["sequence"].to_pylist() == [0]
    latest = await feed.latest("a.csv")
    assert await feed.plan_ranges("a.csv", latest, 100, 1) == []
    path.write_bytes(b"id,text\n0,a\n1,b\r\n2,c\n3,d\n")
    ranges = await feed.plan_ranges("a.csv", latest, 100, 1)
    assert [each.events for each in ranges] == [1, 1]
    found = read(feed, ranges)
    assert found.to_pylist() == (await opened(feed, "a.csv", latest, 2)).to_pylist()
    assert found["offset"].to_pylist() == ["line 4", "line 5"]
    await feed.close()


async def test_a_header_that_cannot_be_read_is_left_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,id\n0,a\n")
    feed = FilesChangeFeed(f"{tmp_path}/*.csv")
    assert await feed.plan_ranges("a.csv", None, 100, 1) == []
    await feed.close()


async def test_little_is_not_planned_because_all_before_it_would_be_read(
    feed: FilesChangeFeed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    start = (await feed.plan_ranges("a.csv", None, 90, 90))[-1].to
    feed._planned.clear()
    monkeypatch.setattr(reader.FileReader, "verify", refuse)
    assert await feed.plan_ranges("a.csv", start, 100, 11) == []
    with pytest.raises(AssertionError):
        await feed.plan_ranges("a.csv", start, 100, 10)
