"""A log read from outside: nothing of it changes, whatever hosts do or have left behind."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.log import append, feed
from leasehold.pipeline.connectors.log.feed import Forgotten, LogReader
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA, LogMissing, LogUnavailable, file_name
from leasehold.pipeline.connectors.log.store import Log, PartitionLog, Retention

Found = list[int | Forgotten]


def sequences(path: Path, partition: str = "a", start: int = 0) -> Found:
    found: Found = []
    for each in LogReader(path).read(partition, start):
        found += [each] if isinstance(each, Forgotten) else each["sequence"].to_pylist()
    return found


def found_or_error(path: Path) -> Found | str:
    try:
        return sequences(path)
    except LogUnavailable as error:
        return str(error)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("-shm")}


def left_by_a_killed_writer(path: Path, into: Path) -> None:
    """A copy of the log as it is while a connection has it open, whose last event is in its WAL alone."""
    with closing(sqlite3.connect(path / "a.db")) as connection:
        connection.execute("SELECT * FROM log").fetchall()
        append(path, "a", ["c"])
        shutil.copytree(path, into)


def test_it_reads_partitions_and_events_from_a_sequence_on(tmp_path: Path) -> None:
    append(tmp_path, "b", ["x"])
    append(tmp_path, "a", ["0", "1", "2"], keys=["k", None, "k"])
    append(tmp_path, "a", ["3"])
    assert LogReader(tmp_path).partitions() == ["a", "b"]
    (events,) = LogReader(tmp_path).read("a", 1)
    assert isinstance(events, pa.Table)
    assert [(row["sequence"], row["key"], row["body"]) for row in events.to_pylist()] == [
        (1, None, b"1"),
        (2, "k", b"2"),
        (3, None, b"3"),
    ]
    assert (sequences(tmp_path, "a", 4), sequences(tmp_path, "a", 99)) == ([], [])


@pytest.mark.parametrize("name", ["a", "a" * 500], ids=["short", "cut"])
def test_a_log_that_nobody_has_open_is_as_it_was(tmp_path: Path, name: str) -> None:
    append(tmp_path, name, ["0"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert LogReader(tmp_path).partitions() == [name]
    assert sequences(tmp_path, name) == [0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert list(before) == [file_name(name)]


def test_what_a_killed_host_had_committed_is_read_and_left_where_it_is(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", ["a", "b"])
    left_by_a_killed_writer(tmp_path / "log", tmp_path / "left")
    before = contents(tmp_path / "left")
    assert before["a.db-wal"]
    assert sequences(tmp_path / "left") == [0, 1, 2]
    assert contents(tmp_path / "left") == before


def test_only_what_is_committed_is_read_beside_a_writer(tmp_path: Path) -> None:
    append(tmp_path, "a", ["0"])
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE log SET next = 7")
        assert sequences(tmp_path) == [0]
        writer.execute("ROLLBACK")


def test_what_is_written_while_it_reads_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "EVENTS_MAX", 2)
    for body in "012":
        append(tmp_path, "a", [body])
    found = LogReader(tmp_path).read("a", 0)
    first = next(found)
    append(tmp_path, "a", ["3"])
    assert [table["sequence"].to_pylist() for table in (first, *found) if isinstance(table, pa.Table)] == [[0, 1], [2]]


def test_what_retention_has_dropped_is_reported_and_reading_goes_on_behind_it(tmp_path: Path) -> None:
    moments = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(9))
    log = Log(tmp_path, retention=Retention(age_s=60), now=lambda: next(moments))
    partition = log.partition("a", new=True)
    for bodies in (["0", "1"], ["2"], ["3"]):
        partition.append(pa.Table.from_pylist([{"body": body.encode()} for body in bodies], schema=BLOCK_SCHEMA))
    log.close()
    assert sequences(tmp_path) == [Forgotten(0, 2), 3]
    assert sequences(tmp_path, start=2) == [Forgotten(2, 2), 3]
    assert sequences(tmp_path, start=3) == [3]


def test_a_partition_or_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert LogReader(tmp_path / "log").partitions() == []
    with pytest.raises(LogMissing, match="no partition 'a' yet"):
        sequences(tmp_path / "log")
    assert not list(tmp_path.iterdir())


Meanwhile = Callable[[Path], None]


def _append(path: Path) -> None:
    append(path, "a", ["late"])


def _break_and_repair(path: Path) -> None:
    append(path, "a", ["late"])
    raise LogUnavailable("half of a change")


@pytest.mark.parametrize("meanwhile", [_append, _break_and_repair])
def test_a_look_during_which_a_writer_came_and_went_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    append(tmp_path, "a", ["0"])
    looks: list[int] = []
    extent = PartitionLog.extent

    def disturbed(log: PartitionLog) -> object:
        found = extent(log)
        looks.append(found.end)
        if len(looks) == 1:
            meanwhile(tmp_path)
        return found

    monkeypatch.setattr(PartitionLog, "extent", disturbed)
    assert sequences(tmp_path) == [0, 1]
    assert looks == [1, 2]


def test_a_damaged_file_is_reported_at_once(tmp_path: Path) -> None:
    append(tmp_path, "a", ["0"])
    (tmp_path / "a.db").write_bytes(b"not a database, but longer than the hundred bytes of a header" * 3)
    with pytest.raises(LogUnavailable, match="the file is damaged, or it is not a log"):
        sequences(tmp_path)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("DELETE FROM blocks", "its newest events are missing"),
        ("DELETE FROM blocks WHERE first = 3", "its newest events are missing"),
        ("DELETE FROM blocks WHERE first = 0", "events are missing"),
        ("DELETE FROM blocks WHERE first = 2", "events are missing"),
        ("UPDATE blocks SET events = x'00' WHERE first = 0", None),
        ("UPDATE blocks SET enqueued = x'00' WHERE first = 0", "the block at 0 is not what was written"),
        ("UPDATE blocks SET body = x'00' WHERE first = 0", "the block at 0 is not what was written"),
        ("UPDATE blocks SET marker = CAST(x'ff' AS TEXT)", "Could not decode to UTF-8"),
        ("DELETE FROM log", "its description cannot be read"),
    ],
)
def test_events_that_are_missing_by_damage_are_not_blamed_on_retention(
    tmp_path: Path, damage: str, error: str | None
) -> None:
    for bodies in (["0", "1"], ["2"], ["3"]):
        append(tmp_path, "a", bodies)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute(damage)
    if error is None:
        assert sequences(tmp_path) == [0, 1, 2, 3]
        return
    with pytest.raises(LogUnavailable, match=rf"log file '.*a\.db' is damaged \({error}"):
        sequences(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_raises_anything_but_an_error_with_the_file(tmp_path: Path, seed: int) -> None:
    for bodies in (["0", "1"], ["2"], ["3"]):
        append(tmp_path, "a", bodies)
    whole, chance = (tmp_path / "a.db").read_bytes(), random.Random(seed)
    for _ in range(20):
        at = chance.randrange(len(whole)) // 4096 * 4096 + chance.randrange(64)
        (tmp_path / "a.db").write_bytes(whole[:at] + chance.randbytes(4) + whole[at + 4 :])
        found = found_or_error(tmp_path)
        assert found == [0, 1, 2, 3] or "a.db'" in str(found)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_log_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", ["0"])
    (tmp_path / "log").chmod(0o500)
    try:
        assert sequences(tmp_path / "log") == [0]
    finally:
        (tmp_path / "log").chmod(0o700)
