"""From hub to event table in Arrow: our feed, and the SDK's two consumers, whose events become the same table batch by batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import azure.eventhub
import azure.eventhub.aio
import pyarrow as pa
import pyarrow.compute as pc
from hub_sides import BODY_BYTES, Order, Took, Watch, main

from pipeline.connectors.eventhubs import EventHubsFeed, account_of
from pipeline.connectors.eventhubs.amqp.sdk_internals import sdk
from pipeline.event import EVENT_SCHEMA

sdk()
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
    feed = EventHubsFeed(account, **({"prefetch": order.size} if order.size else {}))

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
    main({"leasehold": ours, "sdk aio": sdk_aio, "sdk sync": sdk_sync})
