"""One reading for everybody who asks within a moment."""

from __future__ import annotations

import asyncio

import pytest
from lab.simulation.loop import VirtualClock

from leasehold.common.clock import Backoff
from leasehold.leases.errors import StoreUnavailable
from leasehold.service.group.view import SharedReading


@pytest.mark.virtual
async def test_a_change_during_a_reading_is_seen_by_whoever_asks_after_it() -> None:
    state = "before"

    async def read() -> str:
        found = state
        await asyncio.sleep(0.2)
        return found

    shared = SharedReading(read, VirtualClock(), Backoff(first_s=1, max_s=8))
    early = asyncio.create_task(shared.get(1.0))
    await asyncio.sleep(0.1)
    state = "after"
    shared.forget()
    assert await shared.get(1.0) == "after"
    assert await early == "before"
    state = "unseen"
    assert await shared.get(1.0) == "after"


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("retry_after_s", "readings"), [(None, [0, 1, 3, 7, 15, 23]), (3.0, [0, 3, 6, 10, 18]), (12.0, [0, 12, 24])]
)
async def test_a_container_that_refuses_is_asked_less_and_less_often_whoever_asks(
    retry_after_s: float | None, readings: list[int]
) -> None:
    loop = asyncio.get_running_loop()
    began, asked, refuses = loop.time(), [], True

    async def read() -> str:
        asked.append(round(loop.time() - began))
        if refuses:
            raise StoreUnavailable("busy", retry_after_s=retry_after_s)
        return "well"

    shared = SharedReading(read, VirtualClock(), Backoff(first_s=1, max_s=8))
    while loop.time() < began + 25:
        with pytest.raises(StoreUnavailable) as caught:
            await shared.get(0.0)
        assert caught.value.retry_after_s == retry_after_s
        await asyncio.sleep(0.25)
    assert asked == readings
    refuses = False
    shared.forget()
    assert await shared.get(0.0) == "well"
    refuses, before = True, len(asked)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await shared.get(0.0)
        await asyncio.sleep(retry_after_s or 1)
    assert len(asked) == before + 2, "the pauses begin anew"
