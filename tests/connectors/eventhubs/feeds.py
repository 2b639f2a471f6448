"""The Event Hubs feed for tests: made on the wire server, read for so many events; messages as no public client sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from azure.eventhub._pyamqp.aio import SendClientAsync
from azure.eventhub._pyamqp.error import RetryPolicy
from azure.eventhub._pyamqp.message import Message
from connectors.eventhubs.clients import HUB, opened, producer
from patience import PATIENCE_S
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.event import Page


@asynccontextmanager
async def feed(
    eventhubs: EventHubs, hub: str = HUB, account: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[EventHubsChangeFeed]:
    reached = account_of(**{"connection_string": eventhubs.connection_string, "event_hub": hub} | (account or {}))
    usual = {"pauses": Pauses(first_s=0.01, patience_s=30), "limits": ReceiverLimits(timeout_s=30)}
    made = EventHubsChangeFeed(reached, **usual | options)
    try:
        yield made
    finally:
        await made.close()


async def pages(
    feed: EventHubsChangeFeed,
    count: int,
    partition: str = "0",
    continuation: str | None = None,
    epoch: int | None = None,
) -> list[Page]:
    """Until there are so many events."""
    found: list[Page] = []
    where = (partition, continuation)
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(feed.open(*where) if epoch is None else feed.open_as(epoch, *where)) as read,
    ):
        while sum(page.events.num_rows for page in found) < count:
            found.append(await anext(read))
    return found


async def taken(read: AsyncGenerator[Page, None], count: int) -> list[str]:
    """The next bodies of what is being read."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [body.decode() for body in (await anext(read)).events["body"].to_pylist()]
    return found


async def events(feed: EventHubsChangeFeed, count: int, *where: Any, **how: Any) -> list[dict[str, Any]]:
    return [event for page in await pages(feed, count, *where, **how) for event in page.events.to_pylist()]


async def bodies(feed: EventHubsChangeFeed, count: int, *where: Any, **how: Any) -> list[str]:
    return [event["body"].decode() for event in await events(feed, count, *where, **how)]


async def sent(eventhubs: EventHubs, *messages: Message, partition: str = "0") -> None:
    """As they are, sections and types and all."""
    async with producer(eventhubs) as client:
        sender = SendClientAsync(
            f"{eventhubs.host}:{eventhubs.port}",
            f"amqps://{eventhubs.host}:{eventhubs.port}/{HUB}/Partitions/{partition}",
            auth=await client._create_auth_async(),
            retry_policy=RetryPolicy(retry_total=0),
            use_tls=False,
        )
        try:
            await opened(sender)
            for message in messages:
                await sender.send_message_async(message, timeout=PATIENCE_S)
        finally:
            await sender.close_async()


async def sent_raw(eventhubs: EventHubs, *events: bytes, partition: str = "0") -> None:
    """A batch of them, octet by octet."""
    broker = EventHubsBroker(account_of(connection_string=eventhubs.connection_string, event_hub=HUB))
    link = await broker.attach(partition, None, idempotent=False)
    await link.send(events, None, None, lambda: None)
    await link.close()
    await broker.close()
