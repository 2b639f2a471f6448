"""From bodies to acknowledged batches of one partition, one after the other: our producer and the SDK's two."""

from __future__ import annotations

import azure.eventhub
import azure.eventhub.aio
from hub_sides import BODY_BYTES, Order, Took, Watch, main

from leasehold.pipeline.connectors.eventhubs import EventHubsBroker, account_of
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import sdk
from leasehold.pipeline.producer import Event, IdempotentProducer

sdk()
PARTITION = "0"
BODY = b"x" * BODY_BYTES


async def ours(order: Order) -> Took:
    watch = Watch()
    account = account_of(connection_string=order.connection_string, event_hub=order.hub)
    async with IdempotentProducer(EventHubsBroker(account)) as producer:
        for _ in range(order.events // order.size):
            batch = await producer.create_batch(PARTITION)
            for _ in range(order.size):
                assert batch.try_add(Event(body=BODY))
            await producer.send(batch)
            watch.saw(order.size)
        return watch.took(order.events)


async def sdk_aio(order: Order) -> Took:
    watch = Watch()
    client = azure.eventhub.aio.EventHubProducerClient.from_connection_string(
        order.connection_string, eventhub_name=order.hub
    )
    async with client:
        for _ in range(order.events // order.size):
            batch = await client.create_batch(partition_id=PARTITION)
            for _ in range(order.size):
                batch.add(azure.eventhub.EventData(BODY))
            await client.send_batch(batch)
            watch.saw(order.size)
        return watch.took(order.events)


def sdk_sync(order: Order) -> Took:
    watch = Watch()
    client = azure.eventhub.EventHubProducerClient.from_connection_string(
        order.connection_string, eventhub_name=order.hub
    )
    with client:
        for _ in range(order.events // order.size):
            batch = client.create_batch(partition_id=PARTITION)
            for _ in range(order.size):
                batch.add(azure.eventhub.EventData(BODY))
            client.send_batch(batch)
            watch.saw(order.size)
        return watch.took(order.events)


if __name__ == "__main__":
    main({"leasehold": ours, "sdk aio": sdk_aio, "sdk sync": sdk_sync})
