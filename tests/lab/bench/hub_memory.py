"""What a receiver and a producer hold as events go through them by the million: as much in the end as after the first quarter.

Each says its resident set at every quarter of its events; the receiver waits there until the hub, which keeps few, has more.
"""

from __future__ import annotations

import sys
from contextlib import aclosing

import pyarrow as pa
from hub_sides import BODY_BYTES, Order, Took, Watch, main, rss_bytes, say

from leasehold.pipeline.connectors.eventhubs import EventHubsBroker, EventHubsFeed, account_of
from leasehold.pipeline.producer import Event, IdempotentProducer


class Steps:
    """Says what is held after each step's events, and waits for leave where `waits`."""

    def __init__(self, order: Order, *, waits: bool) -> None:
        self.watch = Watch()
        self.events = 0
        self._step = order.size
        self._waits = waits

    def took(self, events: int) -> None:
        before, self.events = self.events, self.events + events
        self.watch.saw(events)
        if self.events // self._step > before // self._step:
            say({"events": self.events, "rss_bytes": rss_bytes(), "arrow_bytes": pa.total_allocated_bytes()})
            if self._waits:
                sys.stdin.readline()


async def receiver(order: Order) -> Took:
    steps = Steps(order, waits=True)
    feed = EventHubsFeed(account_of(connection_string=order.connection_string, event_hub=order.hub))
    async with aclosing(feed.open_as(1, "0", None)) as pages:
        async for page in pages:
            steps.took(page.events.num_rows)
            if steps.events >= order.events:
                break
    await feed.close()
    return steps.watch.took(steps.events)


async def producer(order: Order) -> Took:
    steps, body = Steps(order, waits=False), b"x" * BODY_BYTES
    account = account_of(connection_string=order.connection_string, event_hub=order.hub)
    async with IdempotentProducer(EventHubsBroker(account)) as publishing:
        while steps.events < order.events:
            batch = await publishing.create_batch("0")
            for _ in range(500):
                assert batch.try_add(Event(body=body))
            await publishing.send(batch)
            steps.took(500)
    return steps.watch.took(steps.events)


if __name__ == "__main__":
    main({"receiver": receiver, "producer": producer})
