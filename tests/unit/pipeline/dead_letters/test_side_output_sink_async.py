"""Dead letters beside requests: letters are kept once, though what was not acknowledged comes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.burials import Group, bodies

from leasehold.pipeline.async_sink import AsyncSink, Converted, Entry, Limits
from leasehold.pipeline.async_sink import Destination as RequestDestination
from leasehold.pipeline.errors import SinkRejected


class Destination(RequestDestination):
    """Takes entries one by one; refuses a body for good, as often as it is told to."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.refuses: list[bytes] = []

    async def submit(self, entries: Sequence[Entry]) -> list[Entry]:
        for entry in entries:
            await asyncio.sleep(0)
            if entry.value in self.refuses:
                self.refuses.remove(entry.value)
                raise SinkRejected("not now")
            self.taken.append(entry.value)
        return []


def body(row: Mapping[str, Any], key: str) -> Converted:
    return Converted(value=row["body"], bytes=10)


async def test_sink_and_letters_are_the_feed_and_no_letter_is_doubled(tmp_path: Path) -> None:
    destination = Destination()
    limits = Limits(batch_entries_max=2, buffer_age_max_s=0.0)
    sink = AsyncSink(destination, identity="bodies", limits=limits, convert=body)
    group = Group(tmp_path, events_max=2, sink=sink)
    text = "a b! c d e! f g h! i j"
    group.feed.append("a", bodies(text))
    destination.refuses = bodies("d g i")
    while destination.refuses:
        with pytest.raises(SinkRejected):
            await group.run(10)
    await group.run(10)
    assert await group.buried() == bodies("b! e! h!")
    assert set(destination.taken) == set(bodies("a c d f g i j"))
    assert max(Counter(destination.taken).values()) <= 4
    await group.beside.close()
