"""Dead letters in files: whole, once, in their order, whoever wrote them and however often the host died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.pipeline.burials import NOW, Group, bodies, files_box, lines_box

from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of
from leasehold.pipeline.connectors.files.sink.dead_letters import _letters
from leasehold.pipeline.connectors.files.sink.storage import FilesError
from leasehold.pipeline.dead_letters.record import dead_events, letter_of, letters_of, published
from leasehold.pipeline.dead_letters.settled import ReplayFeed
from leasehold.pipeline.errors import Poison, PositionLost, SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.limits import REPLAY
from leasehold.pipeline.sink import Claim, Output

BOXES = pytest.mark.parametrize("box_of", [files_box, lines_box], ids=["parquet", "jsonl"])


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path, box_of=files_box)
    yield made
    await made.beside.close()


@BOXES
async def test_a_letter_in_a_file_is_the_event_as_it_was(box_of: Any, tmp_path: Path) -> None:
    group = Group(tmp_path, box_of=box_of)
    nasty = [b"!\x00\xff", b"!" + b"x" * 1_500_000, b'!{"a":\n"\xc3\xa9"}']
    group.feed.append("a", [b"a", *nasty], key="kläß", at=NOW)
    await group.run(4)
    letters = [kept.letter for kept in await group.letters()]
    assert [letter.body for letter in letters] == nasty
    one = letters[0]
    assert (one.pipeline, one.partition, one.sequence, one.offset, one.key) == ("pipe", "a", 1, "1", "kläß")
    assert (one.error.startswith("no !"), one.attempts, one.host, one.start) == (True, 1, "host-1", None)
    assert group.delivered == [b"a"]
    await group.beside.close()


async def test_what_a_dead_host_has_put_into_files_stays_and_is_not_put_there_again(group: Group) -> None:
    group.feed.append("a", bodies("a b! c d! e"))
    for _ in range(2):
        group.failures.append(SinkUnavailable("died"))
        with pytest.raises(SinkUnavailable):
            await group.run(5)
    group.transform.mended = {b"d!"}
    group.events_max = 2
    group.feed.append("a", bodies("f!"))
    await group.run(6)
    assert (await group.buried(), group.delivered) == (bodies("b! d! f!"), bodies("a c e"))


async def replayed(group: Group, path: Path) -> str:
    """All letters that are there now; the position behind them."""
    feed = ReplayFeed(files_box(path / "letters"), "pipe")
    again = Group(path, feed=feed, destination=group.destination, transform=group.transform, box_of=files_box)
    again.pipeline = "pipe" + REPLAY
    again.epoch = group.epoch
    end = await feed.latest("a")
    assert end is not None
    await again.run_to(end)
    group.epoch = again.epoch
    await again.beside.close()
    await feed.close()
    return end


async def test_replays_of_files_send_each_letter_through_once_and_see_what_died_again(
    group: Group, tmp_path: Path
) -> None:
    group.feed.append("a", bodies("a b! c! d!"))
    await group.run(4)
    group.transform.mended = {b"b!"}
    end = await replayed(group, tmp_path)
    assert (group.delivered, await group.buried()) == (bodies("a b!"), bodies("b! c! d! c! d!"))
    numbers = [(kept.number, kept.letter.by) for kept in await group.letters()]
    assert numbers == [(0, "pipe"), (2, "pipe"), (4, "pipe"), (1, "pipe.replay"), (3, "pipe.replay")]
    group.feed.append("a", bodies("e!"))
    await group.run(5)
    group.transform.mended = {b"c!", b"d!", b"e!"}
    feed = ReplayFeed(files_box(tmp_path / "letters"), "pipe")
    last, found = await feed.latest("a"), []
    async with aclosing(feed.open("a", end)) as pages:
        while feed.compare(end, last) < 0:
            page = await anext(pages)
            end = page.to
            found += page.events["body"].to_pylist()
    assert found == bodies("e! c! d!")
    await feed.close()


async def test_a_position_tells_how_far_each_strand_was_read(group: Group) -> None:
    group.events_max = 2
    group.feed.append("a", bodies("a! b! c! d!"))
    await group.run(4)
    feed = group.box.feed
    end = await feed.latest("a")
    pages = [page async for page in feed.read_until("a", None, end)]  # type: ignore[attr-defined]
    assert [page.events["body"].to_pylist() for page in pages if page.events.num_rows] == [
        bodies("a! b!"),
        bodies("c! d!"),
    ]
    after_one = pages[0].position_after(1)
    rest = [page async for page in feed.read_until("a", after_one, end)]  # type: ignore[attr-defined]
    assert [body for page in rest for body in page.events["body"].to_pylist()] == bodies("b! c! d!")
    assert feed.compare(None, after_one) < feed.compare(after_one, after_one) == 0 < feed.compare(end, after_one)
    assert (await feed.lag("a", after_one), await feed.lag("a", end)) == (3, 0)
    with pytest.raises(PositionLost):
        feed.compare("nonsense", end)


async def test_recovery_reads_no_file_of_letters_that_were_safe_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, box_of=files_box, events_max=2)
    group.feed.append("a", bodies(" ".join(f"x{n} y{n}!" for n in range(20))))
    await group.run(40)
    group.feed.append("a", bodies("z!"))
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(41)
    read: list[str] = []
    get = Directory.get

    def counted(place: Directory, name: str) -> bytes | None:
        read.append(name)
        return get(place, name)

    monkeypatch.setattr(Directory, "get", counted)
    await group.run(41)
    assert len([name for name in read if name.endswith(".parquet")]) == 1
    assert len(await group.buried()) == 21
    await group.beside.close()


async def test_files_of_letters_are_seen_by_the_readers_of_the_sink_too(group: Group, tmp_path: Path) -> None:
    group.feed.append("a", bodies("a b! c!"))
    await group.run(3)
    table = snapshot_of(Directory(tmp_path / "letters")).table()
    assert table["body"].to_pylist() == bodies("b! c!")
    assert {"partition", "sequence", "error", "attempts", "host", "failed_at"} <= set(table.column_names)


def test_a_letter_whose_event_has_no_body_is_none_of_an_empty_one_wherever_it_lies() -> None:
    """A hub gives back an empty body for none."""
    event = {"partition": "a", "sequence": 0, "offset": "0", "enqueued_time": NOW}
    events = pa.Table.from_pylist([{**event, "body": None}, {**event, "body": b""}], EVENT_SCHEMA)
    poison = [Poison(index=n, reason="no") for n in range(2)]
    output = Output(table=events, start=None, to="2", events=2, dead=dead_events(events, poison, NOW))
    claim = Claim(
        pipeline="p",
        partition="a",
        owner="h",
        epoch=1,
        generation=0,
        continuation=None,
        state="",
        compare=lambda a, b: 0,
    )
    letters = [letter_of({**row, "body": b""}) for row in published(letters_of(claim, output)).to_pylist()]
    assert [letter.body for letter in letters if letter is not None] == [None, b""]


@pytest.mark.parametrize("line", [b"[" * 100_000, b"nonsense", b'{"body":"?","envelope":""}', b"7", b"{}"])
def test_a_line_that_holds_something_else_is_no_dead_letter(line: bytes) -> None:
    with pytest.raises(FilesError, match="holds something else"):
        list(_letters(line, "jsonl"))
