"""An owner that stood still in the middle of an attempt, while its partition went on without it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from unit.pipeline.connectors.files.sink.places import MemoryPlace, Permit, Way, claim, numbers_in, output, written

from leasehold.pipeline.connectors.files.sink import FilesOutputSink, leftovers, snapshot_of
from leasehold.pipeline.connectors.files.sink.manifest import FAN
from leasehold.pipeline.errors import Ambiguous
from leasehold.pipeline.sink import SENDS_MAX


def test_a_file_that_others_have_folded_is_left_where_its_owner_cannot_tell_whose_it_is() -> None:
    place = MemoryPlace()
    puts = count(1)
    stalls = True

    def fate(call: str, name: str) -> str:
        """The answer to the entry's first put is lost; its second says that it is there, and before it is read years go by."""
        nonlocal stalls
        if not name.endswith("00000001.json"):
            return "done"
        if call == "put" and next(puts) == 1:
            return "lost"
        if call == "get" and stalls:
            stalls = False
            asyncio.run(written(place, 140, epoch=2, start=5))
        return "done"

    async def main() -> None:
        writer = await FilesOutputSink(Way(place, fate)).open(claim(1))
        with pytest.raises(Ambiguous, match="no longer exists"):
            await writer.write(output(0, 5), Permit())

    asyncio.run(main())
    assert not stalls
    assert numbers_in(place) == list(range(1, 146))


def test_an_entry_that_arrives_after_it_was_folded_away_is_read_by_nobody_though_its_file_is_gone() -> None:
    """The next claim took its number, cleared its file, and a fold that begins with this number freed the name."""
    place = MemoryPlace()
    asyncio.run(written(place, FAN - 2))
    name = f"{FAN:012d}.json"
    puts = count(1)
    way = Way(
        place, lambda call, of: "late" if call == "put" and of.endswith(name) and next(puts) <= SENDS_MAX else "done"
    )

    async def main() -> None:
        writer = await FilesOutputSink(way).open(claim(2))
        with pytest.raises(Ambiguous):
            await writer.write(output(FAN - 2, FAN), Permit())

    asyncio.run(main())
    asyncio.run(written(place, 140, epoch=3, start=FAN - 2))
    before = set(place.files)
    way.arrive()
    (late,) = set(place.files) - before
    assert late.endswith(name)
    assert numbers_in(place) == list(range(1, FAN + 139))
    assert leftovers(place, snapshot_of(place)) == []
    asyncio.run(written(place, 80, epoch=4, start=FAN + 138))
    assert numbers_in(place) == list(range(1, FAN + 219))
    assert late not in place.files, "the next fold removes it"
