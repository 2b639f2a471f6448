"""From hub to event table in Arrow: our feed, and the SDK's two consumers, whose events become the same table batch by batch.

Beside them is what any client has to do at least: read the socket, and find where its frames end.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import struct
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import azure.eventhub
import azure.eventhub.aio
import pyarrow as pa
import pyarrow.compute as pc
from hub_sides import BODY_BYTES, Order, Took, Watch, main

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.amqp.connection import GROUP, Hub
from leasehold.pipeline.connectors.eventhubs.amqp.link import CHUNK_BYTES_MAX, ReceiverLink
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import connection_of, sdk, transport_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.connectors.eventhubs.position import BEGINNING, selector
from leasehold.pipeline.event import EVENT_SCHEMA

sdk()
PREFETCH = 4000
"""As our feed's by default."""
SIZE = struct.Struct(">I")
pc.sum(pa.array([1]))  # whatever is imported or looked up once, before the clock runs


class Arrived:
    """What has come of each partition. Raises ValueError where something is missing, doubled, or not as it was sent."""

    def __init__(self, order: Order) -> None:
        self.watch = Watch()
        self._expected = {str(n): 0 for n in range(order.partitions)}
        self._of_each = order.events

    def add(self, partition: str, events: pa.Table) -> bool:
        """Whether all of the partition is there."""
        begin, end = self._expected[partition], self._expected[partition] + events.num_rows
        sequences = events["sequence"]
        if (sequences[0].as_py(), sequences[-1].as_py()) != (begin, end - 1):
            raise ValueError(
                f"partition {partition}: {sequences[0]} to {sequences[-1]} came, and not {begin} to {end - 1}"
            )
        if pc.sum(pc.binary_length(events["body"])).as_py() != BODY_BYTES * events.num_rows:
            raise ValueError(f"partition {partition}: bodies of {begin} to {end - 1} are not whole")
        self._expected[partition] = end
        self.watch.saw(events.num_rows)
        return end >= self._of_each

    @property
    def is_whole(self) -> bool:
        return all(end >= self._of_each for end in self._expected.values())

    def took(self) -> Took:
        return self.watch.took(sum(self._expected.values()))


async def ours(order: Order) -> Took:
    arrived = Arrived(order)
    account = account_of(connection_string=order.connection_string, event_hub=order.hub)
    feed = EventHubsChangeFeed(account, limits=ReceiverLimits(**({"prefetch": order.size} if order.size else {})))

    async def read(partition: str) -> None:
        async with aclosing(feed.open_as(1, partition, None)) as pages:
            async for page in pages:
                if arrived.add(partition, page.events):
                    return

    async with asyncio.TaskGroup() as group:
        for n in range(order.partitions):
            group.create_task(read(str(n)))
    result = arrived.took()
    await feed.close()
    return result


async def raw_socket(order: Order) -> Took:
    """Links are attached, and granted credit, as our feed's are; all else is a socket and a count of frames."""
    watch = Watch()
    hub = Hub(account_of(connection_string=order.connection_string, event_hub=order.hub))
    counts, ready = [await FrameCount.attach(hub, str(n)) for n in range(order.partitions)], selectors.DefaultSelector()
    for count in counts:
        ready.register(count.socket, selectors.EVENT_READ, count)
        await count.link.replenish(0, 0)
    while any(count.frames < order.events for count in counts):
        for key, _ in ready.select():
            before = key.data.frames
            await key.data.read()
            watch.saw(key.data.frames - before)
    result = watch.took(sum(count.frames for count in counts))
    for count in counts:
        await count.link.close()
    await hub.close()
    return result


class FrameCount:
    """Use `attach`. The frames of one link are counted, which are all transfers while it lasts."""

    def __init__(self, link: ReceiverLink, own_socket: socket.socket) -> None:
        self.link = link
        self.socket = own_socket
        self.frames = 0
        self._left = b""

    @classmethod
    async def attach(cls, hub: Hub, partition: str) -> FrameCount:
        """Without credit yet, so that asyncio has read nothing of what is to come."""
        path = f"ConsumerGroups/{GROUP}/Partitions/{partition}"
        link = await ReceiverLink.attach(
            hub, path, selector(BEGINNING), epoch=1, credit=0, timeout_s=20.0, reports_end=True
        )
        transport = transport_of(connection_of(link._client)).writer.transport
        transport.pause_reading()
        link._credit = PREFETCH
        return cls(link, socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())))

    async def read(self) -> None:
        data, at, frames = self._left + self.socket.recv(CHUNK_BYTES_MAX), 0, 0
        while len(data) - at >= SIZE.size and at + (size := SIZE.unpack_from(data, at)[0]) <= len(data):
            at += size
            frames += 1
        self._left = data[at:]
        self.frames += frames
        await self.link.replenish(frames, frames)


async def sdk_aio(order: Order) -> Took:
    arrived = Arrived(order)
    consumer = azure.eventhub.aio.EventHubConsumerClient.from_connection_string(
        order.connection_string, "$Default", eventhub_name=order.hub
    )
    whole: asyncio.Future[Took] = asyncio.get_running_loop().create_future()

    async def on_batch(context: Any, events: Sequence[Any]) -> None:
        arrived.add(context.partition_id, table_of(context.partition_id, events))
        if arrived.is_whole and not whole.done():
            whole.set_result(arrived.took())

    receiving = asyncio.create_task(
        consumer.receive_batch(
            on_batch, starting_position="-1", owner_level=1, prefetch=order.size, max_batch_size=order.size
        )
    )
    result = await whole
    await consumer.close()
    await receiving
    return result


def sdk_sync(order: Order) -> Took:
    arrived = Arrived(order)
    consumer = azure.eventhub.EventHubConsumerClient.from_connection_string(
        order.connection_string, "$Default", eventhub_name=order.hub
    )
    results: list[Took] = []

    def on_batch(context: Any, events: Sequence[Any]) -> None:
        arrived.add(context.partition_id, table_of(context.partition_id, events))
        if arrived.is_whole and not results:
            results.append(arrived.took())
            consumer.close()

    consumer.receive_batch(
        on_batch, starting_position="-1", owner_level=1, prefetch=order.size, max_batch_size=order.size
    )
    return results[0]


def table_of(partition: str, events: Sequence[Any]) -> pa.Table:
    """As quick as lists of what the SDK gives can be."""
    columns = {
        "partition": pa.repeat(partition, len(events)),
        "sequence": pa.array([event.sequence_number for event in events], pa.int64()),
        "offset": pa.array([event.offset for event in events], pa.string()),
        "enqueued_time": pa.array([event.enqueued_time for event in events], EVENT_SCHEMA.field("enqueued_time").type),
        "key": pa.array([event.partition_key for event in events], pa.string()),
        "body": pa.array([b"".join(event.body) for event in events], pa.binary()),
        "properties": pa.array(
            [tuple(event.properties.items()) for event in events], EVENT_SCHEMA.field("properties").type
        ),
        "operation": pa.nulls(len(events), pa.string()),
    }
    return pa.table([columns[field.name] for field in EVENT_SCHEMA], EVENT_SCHEMA)


if __name__ == "__main__":
    main({"leasehold": ours, "raw socket": raw_socket, "sdk aio": sdk_aio, "sdk sync": sdk_sync})
