"""The end of a hub's partition: what a silent receiver and an old answer of `$management` say together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from lab.simulation.loop import run_virtual

from leasehold.pipeline.connectors.eventhubs.amqp.management import PartitionExtent
from leasehold.pipeline.connectors.eventhubs.feed.receiver import Received
from leasehold.pipeline.connectors.eventhubs.sink import tail
from leasehold.pipeline.connectors.eventhubs.sink.tail import TailReading, Tails
from leasehold.pipeline.markers import Search

EMPTY = PartitionExtent(first=0, last=-1, offset="", time_ms=0, is_empty=True)


class SlowHub:
    """Its only event comes `event_s` after a receiver has attached. `$management` calls it empty."""

    name = "hub"
    links: Any = None

    def __init__(self, event_s: float) -> None:
        self.event_s = event_s

    async def read_extent(self, target: str) -> PartitionExtent:
        return EMPTY

    async def take_next(self) -> Received:
        await asyncio.sleep(self.event_s)
        page: Any = SimpleNamespace(events={"sequence": Column([0]), "properties": Column([{}])})
        return Received([page], 0, None, 0)


class Column:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def to_pylist(self) -> list[Any]:
        return self._values


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(tail, "time", clock)


@pytest.mark.parametrize(("event_s", "end"), [(0.0, 0), (9.0, 0), (11.0, -1)])
def test_an_old_answer_that_a_partition_is_empty_counts_only_after_a_long_silence(
    event_s: float, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: Any = SlowHub(event_s)

    @asynccontextmanager
    async def open_receiver(*_: object) -> AsyncIterator[SlowHub]:
        yield hub

    async def main() -> None:
        tails = Tails(hub, "sinks", timeout_s=20.0)
        assert await tails.read("0", TailReading(Search("lease", 0), -1, -1)) == end

    monkeypatch.setattr(tail, "open_receiver", open_receiver)
    run_virtual(main())


class GrowingHub(SlowHub):
    """The second of its two events comes late. By then others have published more."""

    def __init__(self) -> None:
        super().__init__(9.0)
        self.answers = [(0.0, 0, 1), (9.0, 1, None), (0.0, 5, 5)]

    async def take_next(self) -> Received:
        late_s, sequence, end = self.answers.pop(0)
        await asyncio.sleep(late_s)
        page: Any = SimpleNamespace(events={"sequence": Column([sequence]), "properties": Column([{}])})
        return Received([page], sequence, None, end)


def test_the_end_that_a_long_claim_saw_is_as_old_as_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = GrowingHub()

    @asynccontextmanager
    async def open_receiver(*_: object) -> AsyncIterator[SlowHub]:
        yield hub

    async def main() -> None:
        tails = Tails(hub, "sinks", timeout_s=20.0)
        assert await tails.read("0", TailReading(Search("lease", 0), -1, -1)) == 1
        assert await tails.look("0", 1, age_max_s=10.0) == 1, "which is 9 s old"
        assert await tails.look("0", 1, age_max_s=5.0) == 5

    monkeypatch.setattr(tail, "open_receiver", open_receiver)
    run_virtual(main())


def test_a_claim_that_sees_the_end_makes_up_for_a_look_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = GrowingHub()
    hub.answers = [(3.0, 0, 0), (0.0, 0, 0), (0.0, 5, 5)]

    @asynccontextmanager
    async def open_receiver(*_: object) -> AsyncIterator[SlowHub]:
        yield hub

    async def main() -> None:
        tails = Tails(hub, "sinks", timeout_s=20.0)
        assert await tails.look("0", -1, age_max_s=5.0) == -1, "it took too long"
        assert await tails.read("0", TailReading(Search("lease", 0), -1, -1)) == 0
        await asyncio.sleep(6)
        assert await tails.look("0", 0, age_max_s=5.0) == 5

    monkeypatch.setattr(tail, "open_receiver", open_receiver)
    run_virtual(main())
