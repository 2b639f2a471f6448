"""Malformed records of files: with dead letters they are kept as they are, and the others are read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.burials import NOW, Group

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.errors import MalformedRecord, PoisonEvent

CSV = b'name,n\nann,1\n"b,ob",2,3\ncat,4\r\nd\xffn,5\neve,6\n'
LINES = b'{"n":1}\n{"n":\n\n[2]\n{"n":3}\n{"n":4,"n":5}'


async def read(path: Path, **options: Any) -> list[tuple[bytes, str | None]]:
    """Body and trouble of every record of a file that has been read to its end."""
    feed = FilesChangeFeed(str(path), reading=Reading(accepts_unterminated=True, yields_malformed=True), **options)
    [partition] = await feed.partitions()
    found, end = [], await feed.latest(partition.name)
    try:
        async with aclosing(feed.open(partition.name, None)) as pages:
            async for page in pages:
                found += [(body, page.malformed) for body in page.events["body"].to_pylist()]
                if feed.compare(page.to, end) >= 0 and len(found) >= 5:
                    return found
    finally:
        await feed.close()
    raise AssertionError


async def test_records_of_csv_with_other_fields_or_bytes_are_kept_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(CSV)
    assert await read(path) == [
        (b'{"name":"ann","n":"1"}', None),
        (b'"b,ob",2,3', "the record has 3 fields, and the header 2 fields"),
        (b'{"name":"cat","n":"4"}', None),
        (b"d\xffn,5", "the record is not UTF-8 (byte 0xff)"),
        (b'{"name":"eve","n":"6"}', None),
    ]


async def test_lines_that_are_no_json_are_kept_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    found = await read(path)
    assert [body for body, _ in found] == [b'{"n":1}', b'{"n":', b"[2]", b'{"n":3}', b'{"n":4,"n":5}']
    assert [trouble is None for _, trouble in found] == [True, False, False, True, False]
    assert found[2][1] == "the record is not a JSON object"


@pytest.mark.parametrize("content", [b'n\n1\na"b\n3\n', b"n\n1\n" + b"x" * 200 + b"\n3\n", b"n,n\n1,2\n"])
async def test_where_a_record_ends_in_doubt_the_partition_stops(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    feed = FilesChangeFeed(str(path), reading=Reading(yields_malformed=True, record_bytes_max=100))
    [partition] = await feed.partitions()
    with pytest.raises(MalformedRecord):
        [page.malformed async for page in feed.open(partition.name, None)]
    await feed.close()


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    (tmp_path / "a").write_bytes(LINES + b"\n")
    made = Group(
        tmp_path, feed=FilesChangeFeed(str(tmp_path / "a"), format="jsonl", reading=Reading(yields_malformed=True))
    )
    yield made
    await made.beside.close()
    await made.feed.close()


async def test_malformed_records_are_dead_letters_with_file_and_line(group: Group) -> None:
    await group.run_to(str(await _behind(group)))
    assert group.delivered == [b'{"n":1}', b'{"n":3}']
    letters = [kept.letter for kept in await group.letters()]
    assert [(each.body, each.sequence) for each in letters] == [(b'{"n":', 1), (b"[2]", 2), (b'{"n":4,"n":5}', 4)]
    assert [dict(each.properties or ())["line"] for each in letters] == ["2", "4", "6"]  # type: ignore[arg-type]
    assert letters[1].error == "the record is not a JSON object"
    assert all(b'{"n":' not in applied and b"[2]" not in applied for applied in group.transform.applied)


async def test_strict_stops_at_a_malformed_record(group: Group) -> None:
    group.policy = DeadLetters(now=lambda: NOW, stops_at_misfits=True)
    with pytest.raises(PoisonEvent, match="sequence 1: the record is not JSON"):
        await group.run_to("never")
    assert (await group.buried(), group.delivered) == ([], [b'{"n":1}'])


async def test_without_dead_letters_a_malformed_record_stops_its_partition_and_is_no_event(group: Group) -> None:
    group.policy = None  # type: ignore[assignment]
    group.refusals = None
    with pytest.raises(MalformedRecord, match="not JSON"):
        await group.run_to("never")
    assert all(b'{"n":' not in applied for applied in group.transform.applied)


async def _behind(group: Group) -> str:
    """The position behind the last record."""
    to = ""
    async with aclosing(group.feed.open("a", None)) as pages:
        async for page in pages:
            to = page.to
            if page.events["sequence"][-1].as_py() == 4:
                return to
    raise AssertionError
