"""What happens to files while they are read."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed, reader
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.errors import FeedError, FeedUnavailable, MalformedRecord, PositionLost

HEADER = "id,text\n"


def write(path: Path, text: str) -> None:
    path.write_text(text)


def put(path: Path, text: str) -> None:
    """Append."""
    with path.open("a", newline="") as file:
        file.write(text)


def change(path: Path, old: str, new: str) -> None:
    """In place, at the first `old`."""
    path.write_text(path.read_text().replace(old, new, 1))


def rows(first: int, end: int) -> str:
    return "".join(f"{number},text {number}\n" for number in range(first, end))


class Feed(FilesChangeFeed):
    """Tells how often each of its readers looked at a file again."""

    def __init__(self, path: str, **options: Any) -> None:
        self._polls: Counter[asyncio.Task[None] | None] = Counter()
        self._polled = asyncio.Condition()
        super().__init__(path, sleep=self._poll, **options)

    async def _poll(self, seconds: float) -> None:
        async with self._polled:
            self._polls[asyncio.current_task()] += 1
            self._polled.notify_all()
        await asyncio.sleep(0)

    async def polled(self, reader: asyncio.Task[None]) -> None:
        """Returns once the reader waits, having seen all that was changed before."""
        seen = self._polls[reader] + 2
        async with self._polled:
            await self._polled.wait_for(lambda: self._polls[reader] >= seen)


class Tail:
    """A reader of `a.csv`: the ids that it read, and the position behind them."""

    def __init__(self, feed: Feed, position: str | None) -> None:
        self.ids: list[int] = []
        self.position = position
        self._feed = feed
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for page in self._feed.open("a.csv", self.position):
            self.ids += [int(json.loads(body)["id"]) for body in page.events["body"].to_pylist()]
            self.position = page.to

    async def waits(self) -> list[int]:
        """What it has read once it waits for more."""
        async with asyncio.timeout(PATIENCE_S):
            polled = asyncio.create_task(self._feed.polled(self._task))
            await asyncio.wait([polled, self._task], return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                polled.cancel()
                self._task.result()
        return self.ids

    async def fails(self) -> str:
        """The error that it ends with, as text."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self._task])
        return f"{type(self._task.exception()).__name__}: {self._task.exception()}"

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of ten records."""
    path = tmp_path / "a.csv"
    path.write_text(HEADER + rows(0, 10))
    return path


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[Feed]:
    feed = Feed(f"{tmp_path}/*.csv")
    yield feed
    await feed.close()


@pytest.fixture
async def accepting(tmp_path: Path) -> AsyncIterator[Feed]:
    feed = Feed(f"{tmp_path}/*.csv", reading=Reading(accepts_unterminated=True))
    yield feed
    await feed.close()


@asynccontextmanager
async def tail(feed: Feed, position: str | None = None) -> AsyncIterator[Tail]:
    tail = Tail(feed, position)
    yield tail
    await tail.close()


async def read(feed: Feed) -> str | None:
    """The position behind all that can be read now."""
    async with tail(feed) as reading:
        await reading.waits()
        return reading.position


async def resumed(feed: Feed, position: str | None) -> list[int]:
    async with tail(feed, position) as reading:
        return await reading.waits()


# Edits that leave what was read as it was.


def append(path: Path) -> None:
    put(path, rows(10, 12))


def put_a_copy_there_and_append(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    append(path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def touch_and_append(path: Path) -> None:
    os.utime(path, ns=(1, 1))
    append(path)


HARMLESS = [append, put_a_copy_there_and_append, touch_and_append]


@pytest.mark.parametrize("edit", HARMLESS)
async def test_reading_resumes_where_all_that_was_read_is_still_there(
    feed: Feed, path: Path, edit: Callable[[Path], None]
) -> None:
    position = await read(feed)
    edit(path)
    assert await resumed(feed, position) == [10, 11]


@pytest.mark.parametrize("edit", HARMLESS)
async def test_a_reader_goes_on_where_all_that_was_read_is_still_there(
    feed: Feed, path: Path, edit: Callable[[Path], None]
) -> None:
    async with tail(feed) as reading:
        assert await reading.waits() == list(range(10))
        edit(path)
        assert await reading.waits() == list(range(12))


async def test_a_file_that_was_only_touched_or_copied_yields_nothing_again(feed: Feed, path: Path) -> None:
    async with tail(feed) as reading:
        await reading.waits()
        os.utime(path, ns=(1, 1))
        await reading.waits()
        shutil.copy(path, path.with_name("copy"))
        os.replace(path.with_name("copy"), path)
        assert await reading.waits() == list(range(10))


# Edits that change what was read.


def truncate(path: Path) -> None:
    os.truncate(path, 20)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def edit_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(len(HEADER) + 2)
        file.write(b"TEXT")


def write_something_longer(path: Path) -> None:
    write(path, HEADER + rows(100, 200))


def replace_by_another(path: Path) -> None:
    path.with_name("other").write_text(HEADER + rows(100, 110))
    os.replace(path.with_name("other"), path)


def rename_a_column(path: Path) -> None:
    change(path, "text\n", "TEXT\n")


def break_the_header(path: Path) -> None:
    change(path, "text\n", 'te"t\n')


HARMFUL = [
    (truncate, "it has only 20 bytes now"),
    (empty, "it has only 0 bytes now"),
    (edit_in_place, "it was edited there"),
    (write_something_longer, "it was edited there"),
    (replace_by_another, "another file has taken its place"),
    (rename_a_column, "its header is another one now"),
    (break_the_header, "what precedes its first record cannot be read now"),
]


@pytest.mark.parametrize(("edit", "what"), HARMFUL)
async def test_a_position_is_lost_once_what_was_read_has_changed(
    feed: Feed, path: Path, edit: Callable[[Path], None], what: str
) -> None:
    position = await read(feed)
    edit(path)
    with pytest.raises(PositionLost, match=r"file 'a.csv' was read up to line 12 .*reset the lease") as lost:
        await resumed(feed, position)
    assert what in str(lost.value)


@pytest.mark.parametrize(("edit", "what"), HARMFUL)
async def test_a_reader_stops_once_what_it_read_has_changed(
    feed: Feed, path: Path, edit: Callable[[Path], None], what: str
) -> None:
    async with tail(feed) as reading:
        await reading.waits()
        edit(path)
        error = await reading.fails()
    assert error.startswith("PositionLost")
    assert what in error
    assert reading.ids == list(range(10))


async def test_every_byte_that_was_read_is_verified_in_bounded_steps(
    feed: Feed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "VERIFY_BYTES", 7)
    position = await read(feed)
    assert await resumed(feed, position) == []
    edit_in_place(path)
    with pytest.raises(PositionLost, match="edited"):
        await resumed(feed, position)


async def test_before_anything_was_read_a_file_may_become_another(feed: Feed, path: Path) -> None:
    write(path, "ID")
    async with tail(feed) as reading:
        assert await reading.waits() == []
        write(path, HEADER)
        assert await reading.waits() == []
        write(path, "note," + HEADER + "x,7,y\n")
        assert await reading.waits() == [7]


async def test_reading_goes_on_from_a_malformed_record_once_it_is_mended_in_place(feed: Feed, path: Path) -> None:
    append(path)
    change(path, "\n10,", "\n10,,")
    async with tail(feed) as reading:
        error = await reading.fails()
        assert error.startswith(
            "MalformedRecord: file 'a.csv', line 12: the record has 3 fields, and the header 2 fields"
        )
        assert reading.ids == list(range(10))
    with pytest.raises(MalformedRecord, match="line 12"):
        await resumed(feed, reading.position)
    change(path, "\n10,,", "\n10,")
    assert await resumed(feed, reading.position) == [10, 11]


async def test_a_deleted_file_is_waited_for_by_its_reader_s_owner(feed: Feed, path: Path) -> None:
    async with tail(feed) as reading:
        await reading.waits()
        os.rename(path, path.with_name("away"))
        assert (
            await reading.fails()
            == f"FeedNotFound: file '{path}' does not exist any longer: put it back, and reading continues"
        )
    assert await feed.partitions() == []
    with pytest.raises(FeedUnavailable, match=r"no file 'a\.csv' matches"):
        await resumed(feed, reading.position)
    os.rename(path.with_name("away"), path)
    append(path)
    assert await resumed(feed, reading.position) == [10, 11]


async def test_a_file_that_may_not_be_read_says_so(feed: Feed, path: Path) -> None:
    await feed.partitions()
    with unreadable(path), pytest.raises(FeedError, match=r"a.csv': permission denied: give"):
        await resumed(feed, None)


async def test_a_probe_finds_the_file_that_may_not_be_read(feed: Feed, path: Path) -> None:
    await feed.probe()
    with unreadable(path), pytest.raises(FeedError, match=r"a.csv': permission denied: give"):
        await feed.probe()


async def test_a_column_that_a_header_lacks_is_told_once_for_each_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.csv", "id,taken at\n1,x\n2,y\n")
    write(tmp_path / "b.csv", "celsius,id\n3,1\n")
    write(tmp_path / "empty.csv", "")
    feed = Feed(str(tmp_path / "*.csv"), columns=dict.fromkeys(("id", "celsius", "note"), False))
    await feed.probe()
    assert await resumed(feed, None) == [1, 2]
    assert caplog.messages == [
        (
            f"file '{tmp_path / 'a.csv'}' has no column 'celsius', 'note', which the schema names: null in all its events."
            " Its header has 'id', 'taken at'"
        ),
        (
            f"file '{tmp_path / 'b.csv'}' has no column 'note', which the schema names: null in all its events."
            " Its header has 'celsius', 'id'"
        ),
    ]


@pytest.mark.parametrize("header", ["id;celsius", "id\tcelsius"])
async def test_a_file_whose_fields_are_not_separated_by_commas_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    write(tmp_path / "a.csv", f"{header}\n")
    feed = Feed(str(tmp_path / "*.csv"), columns={"id": False})
    await feed.probe()
    (told,) = caplog.messages
    assert told == f"file '{tmp_path / 'a.csv'}' has a single column '{header}': fields must be separated by commas"


async def test_a_probe_refuses_a_header_that_lacks_a_required_column(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "id,note\n1,x\n")
    await Feed(str(tmp_path / "*.csv"), columns={"id": True, "celsius": False}).probe()
    with pytest.raises(
        FeedError, match=r"no column 'celsius', which the schema declares NOT NULL.*header has 'id', 'note'"
    ):
        await Feed(str(tmp_path / "*.csv"), columns={"id": True, "celsius": True}).probe()


async def test_a_fifo_in_the_place_of_a_file_holds_nobody(feed: Feed, path: Path) -> None:
    async with tail(feed) as reading:
        await reading.waits()
        os.mkfifo(f"{path}.fifo")
        os.replace(f"{path}.fifo", path)
        assert "not a regular file" in await reading.fails()


async def test_a_last_record_without_line_end_waits_for_it(feed: Feed, path: Path) -> None:
    write(path, HEADER + "0,a\n1,b")
    async with tail(feed) as reading:
        assert await reading.waits() == [0]
        put(path, "c\n")
        assert await reading.waits() == [0, 1]


NO_LINE_END = "the last line has no line end yet: end it, or accept it as it is with `final_record: accept`"
OPEN_QUOTE = "a quoted field is not closed: close it in the file, and reading continues from this record"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (HEADER + '0,a\n1,"b\n2,c\n', 3, OPEN_QUOTE),
        (HEADER + '0,a\n1,"b""', 3, OPEN_QUOTE),
        (HEADER + "0,a\n\n\n1,b", 5, NO_LINE_END),
        (HEADER + '0,a\n1,"b"\r', 3, NO_LINE_END),
        ("\ufeff\nid,text", 2, NO_LINE_END),
        ('id,"te\nxt\n0,a\n', 1, OPEN_QUOTE),
    ],
)
async def test_what_a_file_holds_back_is_told_once_with_its_place_and_remedy_and_counts_as_lag(
    feed: Feed, path: Path, caplog: pytest.LogCaptureFixture, text: str, line: int, reason: str
) -> None:
    write(path, text)
    async with tail(feed) as reading:
        for _ in range(3):
            await reading.waits()
        async with tail(feed) as another:
            await another.waits()
    told = f"file 'a.csv', line {line}: {reason}"
    assert caplog.messages == [told]
    for position in {None, reading.position}:
        assert await feed.find_held_back("a.csv", position) == told
    assert await feed.lag("a.csv", reading.position) == 1


@pytest.mark.parametrize("text", ["", "\ufeff", HEADER, HEADER + "0,a\n", HEADER + "0,a\r\n\r\n\r"])
async def test_a_file_that_is_whole_holds_nothing_back(
    feed: Feed, path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    write(path, text)
    async with tail(feed) as reading:
        for _ in range(3):
            await reading.waits()
    assert caplog.messages == []
    assert await feed.find_held_back("a.csv", reading.position) is None
    assert await feed.lag("a.csv", reading.position) == 0


async def test_an_open_quote_that_is_closed_in_the_file_costs_nothing_and_the_next_one_is_told_anew(
    feed: Feed, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(path, '10,"b\n11,c\n')
    async with tail(feed) as reading:
        assert await reading.waits() == list(range(10))
        position = reading.position
        change(path, '10,"b', "10,b")
        assert await reading.waits() == list(range(12))
        put(path, '12,"d\n')
        await reading.waits()
    assert await resumed(feed, position) == [10, 11]
    assert [message.split(":")[0] for message in caplog.messages] == [
        "file 'a.csv', line 12",
        "file 'a.csv', line 14",
    ]


async def test_a_record_that_is_whole_at_the_next_look_is_not_told(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line_ends, looked_again = ["\n"], asyncio.Event()

    async def sleep(seconds: float) -> None:
        if line_ends:
            put(path, line_ends.pop())
        else:
            looked_again.set()
        await asyncio.sleep(0)

    put(path, "10,x")
    feed = FilesChangeFeed(str(path), sleep=sleep)
    async with tail(feed) as reading:  # type: ignore[arg-type]
        await asyncio.wait_for(looked_again.wait(), PATIENCE_S)
    await feed.close()
    assert reading.ids == list(range(11))
    assert caplog.messages == []


@pytest.mark.parametrize(("text", "line"), [(HEADER + '0,a\n1,"b\n2,c\n', 3), ('id,"text\n0,a\n', 1)])
async def test_where_last_records_are_accepted_an_open_quote_is_an_error(
    accepting: Feed, path: Path, text: str, line: int
) -> None:
    write(path, text)
    async with tail(accepting) as reading:
        error = await reading.fails()
    assert error.startswith(
        f"MalformedRecord: file 'a.csv', line {line}: the file ends within quotes: correct the file"
    )
    assert await accepting.lag("a.csv", reading.position) == 1


async def test_where_last_records_are_accepted_a_header_without_line_end_is_a_file_without_records(
    accepting: Feed, path: Path
) -> None:
    write(path, "id,text")
    assert await accepting.find_held_back("a.csv", None) is None
    assert await accepting.lag("a.csv", None) == 0


async def test_a_json_line_without_its_end_is_held_back_whatever_quotes_it_has(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"id": 1}\n{"id": "')
    feed = Feed(f"{tmp_path}/*.jsonl")
    assert await feed.find_held_back("a.jsonl", None) == f"file 'a.jsonl', line 2: {NO_LINE_END}"
    await feed.close()


async def test_a_feed_without_files_says_what_it_looks_for_and_where(tmp_path: Path) -> None:
    feed = Feed(f"{tmp_path}/in/**/words-*.jsonl")
    assert feed.no_partitions == f"no file matches '**/words-*.jsonl' in {tmp_path}/in yet"
    await feed.close()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_an_accepted_last_record_comes_once_with_its_line_end_or_without(
    accepting: Feed, path: Path, line_end: str
) -> None:
    write(path, HEADER + "0,a\n1,b")
    async with tail(accepting) as reading:
        assert await reading.waits() == [0, 1]
        taken = reading.position
        assert await accepting.lag("a.csv", taken) == 0
        for part in (line_end[:-1], "\n"):
            put(path, part)
            assert await reading.waits() == [0, 1]
        assert await resumed(accepting, taken) == []
        assert await accepting.lag("a.csv", taken) == 0
        terminated = await accepting.latest("a.csv")
        assert accepting.compare(taken, terminated) == 0
        put(path, f"2,c{line_end}3,d")
        assert await reading.waits() == [0, 1, 2, 3]
    assert await resumed(accepting, taken) == [2, 3]
    pages = accepting.open("a.csv", taken)
    assert (await anext(pages)).events["offset"].to_pylist() == ["line 4", "line 5"]


async def test_an_accepted_last_record_that_goes_on_later_costs_the_position(accepting: Feed, path: Path) -> None:
    write(path, HEADER + "0,a\n1,b")
    async with tail(accepting) as reading:
        await reading.waits()
        put(path, "c\n")
        assert "its last record, which was taken as it was, has been continued since" in await reading.fails()
    with pytest.raises(PositionLost, match="has been continued since"):
        await resumed(accepting, reading.position)


async def test_a_partition_starts_at_its_end_where_it_was_last_modified_before_the_time(feed: Feed, path: Path) -> None:
    modified = datetime(2024, 5, 1, tzinfo=UTC)
    os.utime(path, (0, modified.timestamp()))
    tick = timedelta(microseconds=1)
    assert await feed.start_of("a.csv", modified) is None
    assert await feed.start_of("a.csv", modified - tick) is None
    assert await feed.start_of("a.csv", modified + tick) == await feed.latest("a.csv") is not None


async def test_latest_reads_on_only_where_a_file_grew(feed: Feed, path: Path) -> None:
    write(path, HEADER + rows(0, 1000))
    latest = await feed.latest("a.csv")
    modified_ns = os.stat(path).st_mtime_ns
    edit_in_place(path)  # unseen: far before the end, and under the same time
    os.utime(path, ns=(0, modified_ns))
    assert await feed.latest("a.csv") == latest
    os.utime(path, ns=(0, modified_ns + 1000))
    assert await feed.latest("a.csv") != latest


async def test_latest_follows_a_file_that_grows_or_becomes_another(feed: Feed, path: Path) -> None:
    async def ids_behind() -> list[int]:
        position = await feed.latest("a.csv")
        put(path, "99,x\n")
        return await resumed(feed, position)

    assert await ids_behind() == [99]
    assert await ids_behind() == [99]
    replace_by_another(path)
    assert await ids_behind() == [99]
    truncate(path)
    put(path, "\n")
    assert await ids_behind() == [99]


async def test_latest_lies_before_a_malformed_record_which_counts_as_lag(feed: Feed, path: Path) -> None:
    put(path, '"x"y\n11,z\n')
    latest = await feed.latest("a.csv")
    assert feed.compare(latest, None) == 10
    assert await feed.lag("a.csv", latest) > 0


@pytest.mark.parametrize(
    ("text", "waiting", "accepted"),
    [
        ("\n\n", 0, 0),
        ("10,x", 1, 1),
        ("10,x\n", 1, 1),
        ('10,"\n', 1, 1),
        ("10,x\n11", 2, 2),
        ('\n10,"\n"\r\n\n11,y\n', 2, 2),
    ],
)
async def test_lag_counts_records_not_lines(
    feed: Feed, accepting: Feed, path: Path, text: str, waiting: int, accepted: int
) -> None:
    position = await read(feed)
    put(path, text)
    assert await feed.lag("a.csv", position) == waiting
    assert await accepting.lag("a.csv", position) == accepted
    assert await feed.lag("a.csv", None) == 10 + waiting


async def test_a_lag_too_long_to_count_is_estimated(feed: Feed, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COUNT_BYTES", 20_000)
    monkeypatch.setattr(reader, "WINDOW_BYTES", 5_000)
    write(path, HEADER + rows(0, 10_000))
    assert 9_000 < await feed.lag("a.csv", None) < 11_500


async def test_the_lag_of_a_file_that_became_shorter_is_a_lost_position(feed: Feed, path: Path) -> None:
    position = await read(feed)
    truncate(path)
    with pytest.raises(PositionLost, match="20 bytes"):
        await feed.lag("a.csv", position)


async def test_readers_that_wait_hold_no_thread(feed: Feed, path: Path) -> None:
    waiting = [Tail(feed, None) for _ in range(20)]
    for each in waiting:
        await each.waits()
    assert await resumed(feed, None) == list(range(10))
    for each in waiting:
        await each.close()


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -1},
        {"offset": 2**63},
        {"offset": 3},
        {"record": True},
        {"line": "1"},
        {"v": 2},
        {"prefix": "0" * 32},
        {"header": ""},
        {"unterminated": 0},
        {"more": 1},
        {"file": "x" * 2000},
    ],
)
async def test_a_continuation_made_by_hand_is_a_lost_position(
    feed: Feed, path: Path, change: dict[str, object]
) -> None:
    position = await read(feed)
    assert position is not None
    with pytest.raises(PositionLost):
        await resumed(feed, json.dumps(json.loads(position) | change))


async def test_a_continuation_is_small_whatever_was_read(feed: Feed, path: Path) -> None:
    write(path, HEADER + rows(0, 5000))
    position = await read(feed)
    assert position is not None
    assert len(position) < 250


@pytest.mark.parametrize(
    ("path", "options", "why"),
    [
        ("in/*", {}, "does not show the format"),
        ("in/*.txt", {"format": "xml"}, "does not show the format"),
        ("a.csv", {"poll_interval_s": 0}, "poll_interval_s is 0"),
    ],
)
async def test_settings_that_cannot_work_are_refused(path: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Feed(path, **options)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"record_bytes_max": 0}, "record_bytes_max is 0"),
        ({"page_bytes_max": 2**31}, "page_bytes_max is 2147483648"),
        ({"page_events_max": -1}, "page_events_max is -1"),
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Reading(**limits)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """To root nothing is: it becomes somebody else for a while."""
    path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("yields_malformed", [False, True])
async def test_a_file_of_another_format_is_refused_by_its_name_and_is_no_dead_letter(
    tmp_path: Path, suffix: str, yields_malformed: bool
) -> None:
    (tmp_path / f"x.{suffix}").write_bytes("a\r\n1\r\n".encode("utf-16"))
    feed = FilesChangeFeed(f"{tmp_path}/*.{suffix}", reading=Reading(yields_malformed=yields_malformed))
    named = rf"file 'x\.{suffix}', line 1: the file is UTF-16: convert it to UTF-8"
    with pytest.raises(MalformedRecord, match=named):
        await anext(feed.open(f"x.{suffix}", None))
    with pytest.raises(FeedError, match=named):
        await feed.probe()
    assert await feed.lag(f"x.{suffix}", None) == 1
    assert await feed.find_held_back(f"x.{suffix}", None) is None
    await feed.close()
