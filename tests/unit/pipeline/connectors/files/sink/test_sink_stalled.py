"""An owner that stood still in the middle of an attempt, while its partition went on without it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from unit.pipeline.connectors.files.sink.places import MemoryPlace, Permit, Way, claim, numbers_in, output, written

from leasehold.pipeline.connectors.files.sink import FilesSink
from leasehold.pipeline.errors import Ambiguous


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
        writer = await FilesSink(Way(place, fate)).open(claim(1))
        with pytest.raises(Ambiguous, match="no longer exists"):
            await writer.write(output(0, 5), Permit())

    asyncio.run(main())
    assert not stalls
    assert numbers_in(place) == list(range(1, 146))
