"""How many connections leases hold: docs/guarantees.md has the numbers for those who plan a namespace."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing

from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import feed, taken
from connectors.eventhubs.test_sink_faults import Lease, Permit, Sinks, output, sinks
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.amqp.management import LINES_MAX

__all__ = ["sinks"]
LEASES = 4


def connections(eventhubs: EventHubs) -> tuple[int, int]:
    """Open ones, and how many there have been."""
    found = eventhubs.control.statistics()
    return found["connections"], found["accepted"]


async def test_a_lease_of_a_feed_holds_one_connection(eventhubs: EventHubs) -> None:
    for n in range(LEASES):
        eventhubs.control.append(HUB, str(n), ["a"])
    async with feed(eventhubs) as made, AsyncExitStack() as stack:
        for n in range(LEASES):
            read = await stack.enter_async_context(aclosing(made.open_as(1, str(n), None)))
            assert await taken(read, 1) == ["a"]
        assert connections(eventhubs) == (LEASES, LEASES)
        await asyncio.gather(*(made.lag(str(n % LEASES), None) for n in range(3 * LINES_MAX)))
        assert connections(eventhubs)[0] == LEASES + LINES_MAX


async def test_a_lease_of_a_sink_holds_one_connection_and_its_claim_opens_two_more_for_a_moment(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    sink = sinks()
    leases = [Lease(sink, partition=str(n)) for n in range(LEASES)]
    questions, writers = 1, []
    for n, lease in enumerate(leases, 1):
        writers.append(await lease.open())
        assert connections(eventhubs) == (questions + n, questions + 3 * n)
    for n, writer in enumerate(writers, 1):
        await writer.write(output(0, 2), Permit())
        await writer.write(output(2, 4), Permit())
        assert connections(eventhubs) == (questions + LEASES, questions + 3 * LEASES + n)
    for writer in writers:
        await writer.close("failed")
    assert connections(eventhubs)[0] == questions
