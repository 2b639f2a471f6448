"""What open pages of the dashboard cost the lease store, however many leases there are and whatever it answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from lab.simulation.group import Group
from lab.simulation.loop import VirtualClock
from lab.simulation.weather import Fate, Outlet, Request

from leasehold.leases.document import lease_prefix
from leasehold.leases.errors import LeasesError
from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing
from leasehold.service.api.events import Changes, ChangeStream
from leasehold.service.group.view import View
from leasehold.service.pipeline import PipelineParts

TWO_MINUTES = 120.0


async def listings_of_three_pages(group: Group, leases: int) -> list[float]:
    """When leases were listed in two minutes, from the beginning of them. Every page also shows the lag."""
    keeper = group.keeper("host-a", "host-a-1")
    for n in range(leases):
        await keeper.create(Lease(pipeline="bank", partition=f"p{n}"))
    pipeline = PipelineParts(name="bank", feed=group.feed, sink=Outlet(group.destination, group.weather))
    view = View(keeper, [pipeline], clock=VirtualClock(), now=lambda: datetime.now(UTC))
    changes, began = Changes(view), asyncio.get_running_loop().time()

    async def watch() -> None:
        async for _ in changes.stream(TWO_MINUTES):
            pass

    async def show_lag() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TWO_MINUTES):
                while True:
                    with suppress(LeasesError):
                        await view.read_lag()
                    await asyncio.sleep(5)

    pages = []
    for _ in range(3):
        pages += [asyncio.create_task(watch()), asyncio.create_task(show_lag())]
        await asyncio.sleep(0.3)
    await asyncio.gather(*pages)
    return [at - began for at in group.asked(lists_leases) if at >= began]


def lists_leases(request: Request) -> bool:
    return request.operation == "list" and request.id == lease_prefix("bank")


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("leases", "timing", "most"),
    [(8, Timing(), 121), (1000, Timing(), 31), (1000, Timing(balance_s=2), 61)],
)
async def test_pages_cost_one_listing_a_second_and_fewer_of_many_leases(leases: int, timing: Timing, most: int) -> None:
    listed = await listings_of_three_pages(Group(timing=timing), leases)
    assert 0.8 * most <= len(listed) <= most


@pytest.mark.virtual
@pytest.mark.parametrize("retry_after_s", [None, 20.0])
async def test_pages_leave_a_container_alone_that_refuses(retry_after_s: float | None) -> None:
    group = Group()
    group.weather.judge = lambda request: Fate(ends="refused", retry_after_s=retry_after_s)
    await listings_of_three_pages(group, 0)
    asked = group.asked(lambda request: request.operation == "list")
    assert len(asked) <= 14
    assert asked[-1] - asked[-2] >= (retry_after_s or group.timing.balance_s)


@pytest.mark.virtual
async def test_a_stream_whose_time_ends_while_its_client_reads_slowly_ends_in_order() -> None:
    group = Group()
    view = View(group.keeper("host-a", "host-a-1"), [], clock=VirtualClock(), now=lambda: datetime.now(UTC))
    sent: list[tuple[bytes, bool]] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(3)
            sent.append((message["body"], message["more_body"]))

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "headers": []}
    await ChangeStream(Changes(view), 2.0)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent == [(b"event: ready\ndata: {}\n\n", True), (b"", False)]
