"""A manifest stays short, whatever is folded when, and its readers always see all of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.pipeline.connectors.files.sink.places import MemoryPlace, Permit, Way, claim, numbers_in, output, written

from leasehold.pipeline.connectors.files.sink import FilesDamaged, FilesSink, snapshot_of
from leasehold.pipeline.connectors.files.sink.entry import MANIFEST, Folders, folder_of, folders_of, listing_of
from leasehold.pipeline.connectors.files.sink.manifest import FAN, LONG, due, name_of, steps, superseded
from leasehold.pipeline.errors import SinkRejected

FOLDERS = Folders(manifest="m", data="d")


def folded(names: set[str], limit: int | None = None) -> set[str]:
    """As an owner does it; with `limit` it dies after so many changes."""
    changes = [(True, name_of(FOLDERS, step)) for step in due(listing_of(names))]
    names = set(names)
    for number, (_, name) in enumerate(changes):
        if number == limit:
            return names
        names.add(name)
    for number, step in enumerate(superseded(listing_of(names)), len(changes)):
        if number == limit:
            return names
        names.discard(name_of(FOLDERS, step))
    return names


def covered(names: set[str]) -> int:
    """How many entries a reader sees."""
    found = list(steps(listing_of(names)))
    assert all(one.last + 1 == next_one.first for one, next_one in pairwise(found))
    return found[-1].last + 1 if found else 0


@given(st.lists(st.tuples(st.integers(1, 200), st.one_of(st.none(), st.integers(0, 150))), max_size=60))
def test_whenever_folding_is_broken_off_readers_see_every_entry_and_little_is_left(
    turns: list[tuple[int, int | None]],
) -> None:
    names: set[str] = set()
    version = 0
    for entries, limit in turns:
        names |= {FOLDERS.entry(each) for each in range(version, version + entries)}
        version += entries
        names = folded(names, limit)
        assert covered(names) == version
    names = folded(names)
    assert covered(names) == version
    assert FOLDERS.entry(version - 1) in names or not version, "the newest entry is always read by itself"
    assert len(names) < 4 * FAN + version // LONG


def test_a_hundred_thousand_entries_are_few_files() -> None:
    names: set[str] = set()
    for version in range(100_000):
        names.add(FOLDERS.entry(version))
        if version % FAN == FAN - 1:
            names = folded(names)
    assert covered(names) == 100_000
    assert len(names) < 4 * FAN + 100_000 // LONG


def test_a_real_manifest_is_folded_and_read_whole() -> None:
    place = MemoryPlace()
    asyncio.run(written(place, 3 * FAN))
    assert numbers_in(place) == list(range(1, 3 * FAN + 1))
    assert sum(name.startswith(MANIFEST) for name in place.files) < 3 * FAN


def test_a_reader_that_folds_overtake_begins_anew() -> None:
    place = MemoryPlace()
    asyncio.run(written(place, FAN - 2))
    overtaken = []

    def slowly(call: str, name: str) -> str:
        if call == "get" and not overtaken:
            overtaken.append(True)
            asyncio.run(written(place, 3 * FAN, epoch=2, start=FAN - 2))
        return "done"

    assert numbers_in(Way(place, slowly)) in (list(range(1, FAN - 1)), list(range(1, 4 * FAN - 1)))
    assert overtaken


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format":2}', b'{"format":1,"version":-1}', b"[" * 100_000]
)
def test_a_damaged_entry_stops_writers_and_readers_with_its_name(content: bytes) -> None:
    place = MemoryPlace()
    asyncio.run(written(place, 3))
    [*_, newest] = sorted(name for name in place.files if name.startswith(MANIFEST))
    place.files[newest] = content
    with pytest.raises(FilesDamaged, match=newest):
        snapshot_of(place)
    with pytest.raises(SinkRejected, match=newest):
        asyncio.run(written(place, 1, epoch=2))


def test_partitions_that_a_file_system_cannot_tell_apart_are_refused() -> None:
    class Careless(MemoryPlace):
        def put(self, name: str, content: bytes) -> bool:
            return super().put(name.lower(), content)

        def get(self, name: str) -> bytes | None:
            return super().get(name.lower())

        def names(self, folder: str) -> list[str]:
            return super().names(folder.lower())

    place = Careless()

    async def story() -> None:
        writer = await FilesSink(place).open(claim(1, partition="a"))
        await writer.write(output(0, 1, "a"), Permit())
        with pytest.raises(SinkRejected, match="is case-insensitive"):
            await FilesSink(place).open(claim(1, partition="A"))

    asyncio.run(story())


@given(st.sets(st.text(st.characters(codec="utf-8"), min_size=1), max_size=20))
def test_every_partition_has_a_folder_of_its_own(partitions: set[str]) -> None:
    folders = {folders_of("p", name).data for name in partitions}
    assert len(folders) == len(partitions)
    assert all(name.count("/") == 1 and name.isascii() and "/." not in name and "/_" not in name for name in folders)
    assert all(len(folder_of(name)) < 200 for name in partitions)


def test_what_no_fold_covers_never_goes() -> None:
    names = {FOLDERS.entry(version) for version in range(5 * FAN)}
    assert superseded(listing_of(names)) == []
    names |= {FOLDERS.fold(first, first + FAN - 1) for first in range(FAN, 4 * FAN, FAN)}
    assert [step.first for step in superseded(listing_of(names))] == list(range(FAN, 4 * FAN))
