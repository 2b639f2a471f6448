"""A directory as a place: whole files or none, whatever fails in between, and processes that are killed in the midst."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.connectors.files.sink.places import STEPS, Permit, claim, deliver, numbers_in, output

from leasehold.pipeline.connectors.files.sink import (
    Directory,
    FilesOutputSink,
    FilesUnavailable,
    leftovers,
    snapshot_of,
)
from leasehold.pipeline.connectors.files.sink import directory as module
from leasehold.pipeline.connectors.files.sink.storage import FilesUncertain
from leasehold.pipeline.errors import Ambiguous, SinkRejected, SinkUnavailable


class Steps:
    """Counts the calls of `os` that matter, and lets one of them come to a bad end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: int, error: int, *, after: bool) -> None:
        self.calls = count(1)
        self.is_reached = False
        for name in STEPS:
            monkeypatch.setattr(os, name, self.watched(getattr(os, name), wanted, error, after))

    def watched(self, call: Callable[..., Any], wanted: int, error: int, after: bool) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            if next(self.calls) != wanted:
                return call(*arguments, **options)
            self.is_reached = True
            if after:
                done = call(*arguments, **options)
                if isinstance(done, int):
                    os.close(done)
            raise OSError(error, os.strerror(error))

        return stepped


@pytest.mark.parametrize("after", [False, True])
def test_at_whatever_step_the_disk_fails_nothing_is_lost_or_repeated(tmp_path: Path, after: bool) -> None:
    for wanted in count(1):
        path = tmp_path / str(wanted)
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, wanted, errno.EIO, after=after)
            with suppress(SinkUnavailable, Ambiguous):
                asyncio.run(deliver(path, 1, 2))
        seen = numbers_in(Directory(path))
        assert seen == list(range(1, len(seen) + 1))
        asyncio.run(deliver(path, 2, 3))
        assert numbers_in(Directory(path)) == [1, 2, 3], f"at step {wanted}"
        if not steps.is_reached:
            break
    assert wanted > 20


def test_of_all_who_put_one_name_one_made_it(tmp_path: Path) -> None:
    made = []
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        place = Directory(tmp_path / "out")
        barrier.wait()
        made.extend(str(number) for _ in range(20) if place.put(f"a/{_:012d}.json", str(number).encode()))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place = Directory(tmp_path / "out")
    assert sorted(made) == sorted((place.get(name) or b"").decode() for name in place.names("a"))
    assert len(made) == 20


def test_a_file_system_without_hard_links_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FilesUnavailable, match="without hard links"):
        Directory(tmp_path / "out").prepare()


def test_a_link_that_was_made_though_it_answers_that_the_name_is_taken_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does NFS where the first answer was lost, and the client asked again."""
    link = os.link

    def twice(*arguments: Any) -> None:
        link(*arguments)
        link(*arguments)

    place = Directory(tmp_path / "out")
    monkeypatch.setattr(os, "link", twice)
    assert place.put("a/b", b"ours")
    assert not place.put("a/b", b"theirs")


def test_a_name_that_may_not_outlive_a_loss_of_power_is_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path / "out")
    place.put("a/b", b"")

    def failing(directory: Path) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(module, "sync_directory", failing)
    for name in ("a/c", "a/b"):  # where another made it just now, what follows it must not outlive it
        with pytest.raises(FilesUncertain):
            place.put(name, b"")


def test_what_was_left_half_written_goes_after_a_day_and_is_never_listed(tmp_path: Path) -> None:
    place = Directory(tmp_path / "out")
    place.prepare()
    room = tmp_path / "out" / module.ROOM
    for name, age_s in (("old", module.ABANDONED_S + 60), ("new", 60)):
        (room / name).write_bytes(b"half")
        os.utime(room / name, (0, os.stat(room / name).st_mtime - age_s))
    Directory(tmp_path / "out").prepare()
    assert [path.name for path in room.iterdir()] == ["new"]
    assert place.names("_leasehold") == []


def test_a_directory_that_was_emptied_under_a_lease_is_noticed(tmp_path: Path) -> None:
    async def state() -> str:
        sink = FilesOutputSink(Directory(tmp_path / "out"))
        writer = await sink.open(claim(1))
        await writer.write(output(0, 3), Permit())
        await sink.close()
        return writer.state

    async def again(state: str) -> None:
        await FilesOutputSink(Directory(tmp_path / "elsewhere")).open(claim(2, state=state, continuation="3"))

    kept = asyncio.run(state())
    with pytest.raises(
        SinkRejected, match=r"deleted or restored.*`leasehold leases reset FILE bank p --to earliest --yes`"
    ):
        asyncio.run(again(kept))


def test_leftovers_are_told_from_what_is_under_way_without_a_clock(tmp_path: Path) -> None:
    asyncio.run(deliver(tmp_path, 1, 4))
    place = Directory(tmp_path)
    partition = snapshot_of(place).partitions[0]
    old, next_one = f"{1:012d}-{'a' * 32}.parquet", f"{partition.version + 1:012d}-{'b' * 32}.parquet"
    for name in (old, next_one, "notes.txt"):
        place.put(f"bank/p/{0:09d}/{name}", b"")
    assert [name.rpartition("/")[2] for name in leftovers(place, snapshot_of(place))] == [old]
