"""The broker: whole batches, each once, from the last to attach."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.pipeline.connectors.log import append
from leasehold.pipeline.connectors.log.partition_file import (
    BLOCK_SCHEMA,
    Encoded,
    LogMissing,
    LogUnavailable,
    OutOfOrder,
    Outranked,
    ProducerEnded,
    encoded,
)
from leasehold.pipeline.connectors.log.producer_state import Producer
from leasehold.pipeline.connectors.log.store import BLOCKS_DROPPED_MAX, Log, PartitionLog, Retention
from leasehold.pipeline.markers import Marker
from leasehold.pipeline.producer import NUMBER_MAX, number_after

PRODUCER = Producer(lease="bank/p", generation=0, series=0, level=1, group=7)


def events(bodies: Sequence[str]) -> pa.Table:
    return pa.Table.from_pylist([{"body": body.encode()} for body in bodies], schema=BLOCK_SCHEMA)


def batch(*bodies: str) -> Encoded:
    return encoded(events(bodies))


def marker(to: int, count: int = 1, level: int = 1) -> Marker:
    return Marker(lease="bank/p", generation=0, level=level, start=None, to=str(to), count=count)


def sent() -> None:
    """Trust holds."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., PartitionLog]]:
    """Ways to the partition `p`, each as a process of its own would have it; closed at the end."""
    logs: list[Log] = []

    def make(
        retention: Retention | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> PartitionLog:
        logs.append(Log(tmp_path, retention=retention, now=now))
        return logs[-1].partition("p", new=True)

    yield make
    for log in logs:
        log.close()


def bodies(log: PartitionLog) -> list[str]:
    extent = log.extent()
    _, blocks = log.read(extent.first, events_max=10**9, bytes_max=10**12)
    assert [block.first for block in blocks[1:]] == [block.first + len(block.events) for block in blocks[:-1]]
    assert extent.end == (blocks[-1].first + len(blocks[-1].events) if blocks else extent.first)
    return [body.decode() for block in blocks for body in block.events["body"].to_pylist()]


# Idempotent publishing


def test_a_fresh_producer_s_first_event_is_number_one(made: Callable[..., PartitionLog]) -> None:
    log = made()
    line, end = log.attach(PRODUCER)
    assert (line.number, line.position, end) == (0, None, 0)
    for wrong in (0, 2, NUMBER_MAX):
        with pytest.raises(OutOfOrder, match=f"is at number 0 of level 1, and {wrong} was sent"):
            log.publish(PRODUCER, wrong, batch("x"), marker(1), sent)
    assert log.publish(PRODUCER, 1, batch("a", "b"), marker(2, 2), sent) == 0
    assert log.publish(PRODUCER, 3, batch("c"), marker(3), sent) == 2
    assert bodies(log) == ["a", "b", "c"]


def test_a_gap_is_refused_and_so_is_an_earlier_number(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a", "b"), marker(2, 2), sent)
    for wrong in (2, 4):  # within the last batch: not a silent duplicate, as Event Hubs has it
        with pytest.raises(OutOfOrder):
            log.publish(PRODUCER, wrong, batch("c"), marker(3), sent)
    assert bodies(log) == ["a", "b"]


def test_the_last_batch_sent_again_is_answered_as_the_first_time(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.append(events(["before"]))
    log.attach(PRODUCER)
    for _ in range(3):
        assert log.publish(PRODUCER, 1, batch("a", "b"), marker(2, 2), sent) == 1
        log.append(events(["between"]))
    assert bodies(log) == ["before", "a", "b", "between", "between", "between"]
    assert log.publish(PRODUCER, 3, batch("c"), marker(3), sent) == 6


@pytest.mark.parametrize(
    ("other", "to"), [(batch("a", "c"), 2), (batch("a"), 2), (batch("a", "b", "c"), 2), (batch("a", "b"), 3)]
)
def test_another_batch_under_the_last_one_s_numbers_is_refused(
    made: Callable[..., PartitionLog], other: Encoded, to: int
) -> None:
    log = made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a", "b"), marker(2, 2), sent)
    with pytest.raises(OutOfOrder):
        log.publish(PRODUCER, 1, other, marker(to, 2), sent)
    assert bodies(log) == ["a", "b"]


def test_a_batch_before_the_last_is_not_recognised_and_not_stored(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    log.publish(PRODUCER, 2, batch("b"), marker(2), sent)
    with pytest.raises(OutOfOrder):
        log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    assert bodies(log) == ["a", "b"]


@pytest.mark.parametrize(
    "later",
    [
        replace(PRODUCER, level=2),
        replace(PRODUCER, level=1, series=1, group=8),
        replace(PRODUCER, level=1, generation=1, group=9),
    ],
)
def test_a_later_claim_closes_the_earlier_and_begins_its_own_line(
    tmp_path: Path, made: Callable[..., PartitionLog], later: Producer
) -> None:
    log, other = made(), made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    line, end = other.attach(later)
    assert (line.number, end) == (0, 1)
    assert line.position == ("1" if later.generation == 0 else None)
    for refused in (
        lambda: log.publish(PRODUCER, 2, batch("b"), marker(2), sent),
        lambda: log.publish(PRODUCER, 1, batch("a"), marker(1), sent),
        lambda: log.end(PRODUCER, sent),
        lambda: log.attach(PRODUCER),
    ):
        with pytest.raises(Outranked) as outranked:
            refused()
        assert outranked.value.held == later.rank
    other.publish(later, 1, batch("c"), marker(2, level=later.level), sent)
    assert bodies(log) == ["a", "c"]


def test_a_level_that_is_given_out_twice_is_attached_once(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    with pytest.raises(Outranked) as outranked:
        log.attach(PRODUCER)
    assert outranked.value.held == PRODUCER.rank
    log.publish(PRODUCER, 2, batch("b"), marker(2), sent)
    assert bodies(log) == ["a", "b"]


def test_who_never_attached_is_refused(made: Callable[..., PartitionLog]) -> None:
    log = made()
    with pytest.raises(Outranked, match="not attached") as outranked:
        log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    assert outranked.value.held is None
    log.attach(PRODUCER)
    with pytest.raises(Outranked, match="not attached"):
        log.publish(replace(PRODUCER, level=2), 1, batch("a"), marker(1), sent)


def test_leases_do_not_disturb_each_other(made: Callable[..., PartitionLog]) -> None:
    log, another = made(), replace(PRODUCER, lease="other/p", group=8)
    for producer in (PRODUCER, another):
        log.attach(producer)
        log.publish(producer, 1, batch(producer.lease), replace(marker(1), lease=producer.lease), sent)
    log.attach(replace(PRODUCER, level=2))
    log.publish(another, 2, batch("more"), replace(marker(2), lease=another.lease), sent)
    assert bodies(log) == ["bank/p", "other/p", "more"]


def test_a_send_that_is_called_off_leaves_nothing_behind(made: Callable[..., PartitionLog]) -> None:
    class CalledOff(Exception):
        pass

    def called_off() -> None:
        raise CalledOff

    log = made()
    log.attach(PRODUCER)
    with pytest.raises(CalledOff):
        log.publish(PRODUCER, 1, batch("a"), marker(1), called_off)
    with pytest.raises(CalledOff):
        log.end(PRODUCER, called_off)
    assert bodies(log) == []
    log.publish(PRODUCER, 1, batch("b"), marker(1), sent)
    assert bodies(log) == ["b"]


def test_an_ended_lease_takes_nothing_more_until_a_new_generation(made: Callable[..., PartitionLog]) -> None:
    log, heir = made(), replace(PRODUCER, level=2)
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a"), marker(1), sent)
    log.end(PRODUCER, sent)
    assert log.publish(PRODUCER, 1, batch("a"), marker(1), sent) == 0
    with pytest.raises(ProducerEnded):
        log.publish(PRODUCER, 2, batch("b"), marker(2), sent)
    log.attach(heir)
    with pytest.raises(ProducerEnded):
        log.publish(heir, 1, batch("b"), marker(2), sent)
    reset = replace(PRODUCER, generation=1, level=3)
    log.attach(reset)
    log.publish(reset, 1, batch("c"), marker(1), sent)
    assert bodies(log) == ["a", "c"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(NUMBER_MAX - 6, NUMBER_MAX),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_numbers_wrap_and_repeats_are_recognised_around_it(
    tmp_path: Path, start: int, sizes: list[tuple[int, int]]
) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    log = Log(tmp_path)
    try:
        partition = log.partition("p", new=True)
        partition.attach(PRODUCER)
        with closing(sqlite3.connect(partition.path)) as connection:
            connection.execute("UPDATE producers SET number = ?", (start,))
            connection.commit()
        number, expected = number_after(start), []
        for n, (size, repeats) in enumerate(sizes):
            made = [f"{n}.{i}" for i in range(size)]
            for _ in range(repeats + 1):
                assert partition.publish(PRODUCER, number, batch(*made), marker(n, size), sent) == len(expected)
            expected += made
            number = number_after(number, size)
        with closing(sqlite3.connect(partition.path)) as connection:
            assert connection.execute("SELECT number FROM producers").fetchall() == [
                (number_after(start, len(expected)),)
            ]
        assert bodies(partition) == expected
    finally:
        log.close()


# Reading


def test_a_read_takes_the_blocks_that_fit_and_one_at_least(made: Callable[..., PartitionLog]) -> None:
    log = made()
    for size in (3, 3, 10, 1, 1):
        log.append(events(["x" * 100] * size))

    def firsts(start: int, events_max: int, bytes_max: int = 10**9) -> list[int]:
        return [block.first for block in log.read(start, events_max=events_max, bytes_max=bytes_max)[1]]

    assert firsts(0, 6) == [0, 3]
    assert firsts(0, 5) == [0]
    assert firsts(5, 2) == [3]
    assert firsts(6, 4) == [6]
    assert firsts(16, 100) == [16, 17]
    two = 2 * events(["x" * 100] * 3).nbytes
    assert firsts(0, 100, bytes_max=two) == [0, 3]
    assert firsts(0, 100, bytes_max=two - 1) == [0]
    assert firsts(0, 100, bytes_max=1) == [0]
    assert firsts(18, 100) == firsts(19, 100) == []


def test_the_version_changes_when_another_has_written_and_only_then(made: Callable[..., PartitionLog]) -> None:
    reader, writer = made(), made()
    seen = reader.extent().version
    assert reader.version() == seen
    writer.append(events(["x"]))
    assert reader.version() != seen
    seen = reader.extent().version
    assert reader.version() == seen
    reader.path.rename(reader.path.with_suffix(".away"))
    with pytest.raises(LogMissing):
        reader.version()
    made()
    assert reader.version() != seen


def test_nothing_to_append_is_nothing(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.append(events(["x"]))
    assert log.append(events([])) == 1
    assert bodies(log) == ["x"]


# Retention


def test_retention_by_age_drops_whole_blocks_but_never_the_newest(made: Callable[..., PartitionLog]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    log = made(Retention(age_s=60), lambda: now)
    log.append(events(["a", "b"]))
    now += timedelta(seconds=60)
    log.append(events(["c"]))
    assert bodies(log) == ["a", "b", "c"]
    now += timedelta(microseconds=1)
    log.append(events(["d"]))
    assert (log.extent().first, bodies(log)) == (2, ["c", "d"])
    now += timedelta(days=1)
    log.append(events(["e"]))
    assert (log.extent().first, bodies(log)) == (4, ["e"])


def test_retention_by_age_believes_the_clock_of_who_appends(made: Callable[..., PartitionLog]) -> None:
    """A host whose clock is a day ahead forgets what others have just written. docs/guarantees.md warns of it."""
    log = made(Retention(age_s=3600), lambda: datetime(2026, 1, 1, tzinfo=UTC))
    log.append(events(["a", "b"]))
    ahead = made(Retention(age_s=3600), lambda: datetime(2026, 1, 2, tzinfo=UTC))
    ahead.append(events(["c"]))
    assert (log.extent().first, bodies(log)) == (2, ["c"])


def test_retention_by_bytes_keeps_what_fits(made: Callable[..., PartitionLog]) -> None:
    size = len(batch("a").body)
    log = made(Retention(bytes_max=3 * size))
    for body in "abcdefg":
        log.append(events([body]))
    assert bodies(log) == ["e", "f", "g"]


def test_a_shortened_retention_drops_a_bounded_part_with_each_append(made: Callable[..., PartitionLog]) -> None:
    log = made()
    for n in range(BLOCKS_DROPPED_MAX + 10):
        log.append(events([str(n)]))
    short = made(Retention(bytes_max=1))
    short.append(events(["new"]))
    assert len(bodies(log)) == 11
    short.append(events(["newer"]))
    assert bodies(log) == ["newer"]


def test_room_that_retention_gave_back_is_used_again(made: Callable[..., PartitionLog]) -> None:
    log = made(Retention(bytes_max=1))
    random = [f"{n * 2654435761 % 2**32:x}" * 50 for n in range(500)]
    sizes = []
    for _ in range(12):
        log.append(events(random))
        log.close()  # the last to close moves the write-ahead log into the file
        sizes.append(log.path.stat().st_size)
    assert sizes[-1] == sizes[4]


# Files


def test_a_partition_made_by_many_at_once_is_one_and_never_seen_half_made(tmp_path: Path) -> None:
    logs = [Log(tmp_path) for _ in range(8)]
    together = threading.Barrier(len(logs))

    def work(log: Log) -> int:
        together.wait()
        return log.partition("p", new=True).append(events(["x"]))

    with ThreadPoolExecutor(len(logs)) as threads:
        assert sorted(threads.map(work, logs)) == list(range(len(logs)))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("p.db")] == []
    for log in logs:
        log.close()


def test_a_file_under_another_partition_s_name_is_refused(tmp_path: Path) -> None:
    append(tmp_path, "a", ["x"])
    (tmp_path / "a.db").rename(tmp_path / "A.db")  # what a file system that ignores case would do
    log = Log(tmp_path)
    with pytest.raises(LogUnavailable, match=r"A\.db' holds partition 'a', not 'A'"):
        log.partition("A").extent()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="cannot be a file name"):
        append(tmp_path, "\ud800", ["x"])


def test_power_cuts_do_not_take_back_what_was_answered(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.append(events(["x"]))
    assert log._open is not None
    assert log._open[0].execute("PRAGMA synchronous").fetchall() == [(2,)]  # FULL
    assert log._open[0].execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_a_batch_s_marker_lies_beside_it_for_people_to_read(made: Callable[..., PartitionLog]) -> None:
    log = made()
    log.attach(PRODUCER)
    log.publish(PRODUCER, 1, batch("a", "b"), marker(2, 2), sent)
    with closing(sqlite3.connect(log.path)) as connection:
        ((text,),) = connection.execute("SELECT marker FROM blocks").fetchall()
    assert json.loads(text) == marker(2, 2).properties()


def test_events_can_be_appended_by_hand(tmp_path: Path) -> None:
    assert append(tmp_path / "new" / "log", "p", ["é", b"\xff", None], keys=["k", None, "l"]) == 0
    assert append(tmp_path / "new" / "log", "p", iter(["z"])) == 3
    log = Log(tmp_path / "new" / "log")
    _, (block, _) = log.partition("p").read(0, events_max=10, bytes_max=10**6)
    assert block.events.select(["key", "body"]).to_pylist() == [
        {"key": "k", "body": "é".encode()},
        {"key": None, "body": b"\xff"},
        {"key": "l", "body": None},
    ]
    log.close()
