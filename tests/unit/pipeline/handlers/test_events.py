"""Acknowledgement by hand, and the handler in docs/handlers.md that stores pages of events, on a simulation's time."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lab.simulation.group import Group, until

from leasehold.pipeline.connectors.handler_loop import HandlerLoop
from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.observers import for_lease
from leasehold.pipeline.handlers.events import AckRefused, Events
from leasehold.pipeline.limits import BatchLimits, ParallelLimits
from leasehold.pipeline.sink import Claim

PAGE = (Path(__file__).parents[4] / "docs" / "handlers.md").read_text()
EXAMPLE = re.findall(r"<!-- example: pages.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[0]
TAKES_S = 0.05


async def test_nothing_comes_between_a_look_at_stale_events_and_their_acknowledgement() -> None:
    is_released = False
    events = Events(
        [{"sequence": 0}],
        key="a",
        partition="a",
        acknowledge=lambda count: not is_released,
        is_released=lambda: is_released,
    )

    async def acknowledge() -> None:
        if not events.is_stale:
            await events.ack(0)

    async def release() -> None:
        nonlocal is_released
        is_released = True

    await asyncio.gather(acknowledge(), release())
    assert events.is_stale
    with pytest.raises(AckRefused, match="is acknowledged already"):
        await events.ack(0)


class Pages:
    """The example, with a store that takes its time. failures: how many of the next pages it refuses."""

    def __init__(self) -> None:
        self.module: Any = ModuleType("pages_of_the_docs")
        sys.modules[self.module.__name__] = self.module
        exec(EXAMPLE, self.module.__dict__)
        self.module.store = self.store
        self.stored: list[list[bytes]] = []
        self.failures = 0
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.limits = ParallelLimits(max=64, events_max=10, manual_ack=True)

    async def store(self, bodies: list[bytes]) -> None:
        await self.may_store.wait()
        await asyncio.sleep(TAKES_S)
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.stored.append(bodies)

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(chain.from_iterable(self.stored))

    def group(self) -> Group:
        return Group(
            "ab",
            sink=self.sink,
            limits=BatchLimits(events_max=self.limits.batch_events_max),
        )

    def sink(self) -> HandlerSink:
        loop, handle = HandlerLoop(asyncio.get_running_loop()), self.module.handle

        async def replaced(events: Events) -> None:
            raise AssertionError

        def of_claim(function: object, claim: Claim, report: Any) -> Any:
            return for_lease(
                handle, claim, report, name="handle", gets="events", loop=loop, seen={}, limits=self.limits
            )

        return HandlerSink(replaced, key="key", limits=self.limits, for_lease=of_claim)

    def end(self) -> None:
        for writer in self.module.writers:
            writer.cancel()


@pytest.fixture
def pages() -> Iterator[Pages]:
    found = Pages()
    yield found
    del sys.modules[found.module.__name__]


def append(group: Group, events: int, keys: int = 40) -> set[bytes]:
    """To both partitions."""
    found = set()
    for partition in "ab":
        for number in range(events):
            body = f"{partition}{number}".encode()
            group.feed.append(partition, [body], key=str(number % keys))
            found.add(body)
    return found


def positions(group: Group) -> list[int]:
    return [int(group.leases[partition].continuation or 0) for partition in "ab"]


@pytest.mark.virtual
async def test_pages_of_two_partitions_are_stored_once_and_the_last_ones_by_time(pages: Pages) -> None:
    group = pages.group()
    bodies = append(group, 437)
    running = await group.start("host-a")
    await until(lambda: positions(group) == [437, 437], 60)
    assert pages.counts == Counter(bodies)
    assert not any({body[:1] for body in stored} == {b"a", b"b"} for stored in pages.stored), "one partition a page"
    assert max(map(len, pages.stored)) >= 100
    assert not running.said("released")
    pages.end()


@pytest.mark.virtual
async def test_a_page_that_cannot_be_stored_is_stored_again(pages: Pages, caplog: pytest.LogCaptureFixture) -> None:
    group = pages.group()
    pages.failures = 3
    bodies = append(group, 120)
    await group.start("host-a")
    with caplog.at_level(logging.ERROR):
        await until(lambda: positions(group) == [120, 120], 60)
    assert pages.counts == Counter(bodies)
    assert caplog.text.count("OSError: the disk is full") == 3
    pages.end()


@pytest.mark.virtual
async def test_pages_of_a_lost_lease_are_left_to_its_next_tenure(pages: Pages) -> None:
    group = pages.group()
    pages.may_store.clear()
    append(group, 250)
    first = await group.tenure("a")
    await until(lambda: "a" in pages.module.waiting and pages.module.waiting["a"].qsize() > 5)
    lost = pages.module.waiting["a"].qsize()
    group.edit("a", lambda lease: lease.revoked())
    await first.task
    await group.tenure("a", name="host-b")
    await until(lambda: pages.module.waiting["a"].qsize() > lost)
    pages.may_store.set()
    await until(lambda: group.leases["a"].continuation == "250", 60)
    assert set(pages.counts) == {f"a{number}".encode() for number in range(250)}
    again = [body for body, times in pages.counts.items() if times > 1]
    assert len(again) <= 110, "only what was being stored when the lease was lost"
    pages.end()


@pytest.mark.virtual
async def test_a_handoff_repeats_nothing_of_pages(pages: Pages) -> None:
    group = pages.group()
    bodies = append(group, 437)
    await group.start("host-a")
    await until(lambda: len(pages.stored) > 2)
    await group.start("host-b")
    await until(lambda: sorted(group.shares.values()) == [1, 1])
    await until(lambda: positions(group) == [437, 437], 60)
    assert pages.counts == Counter(bodies)
    pages.end()
