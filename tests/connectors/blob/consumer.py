"""A consumer as people run it: `EventHubConsumerClient` over a `BlobCheckpointStore`, a process of its own, until it is ended.

    python consumer.py HUBS HUB BLOBS CONTAINER CHECKPOINT_EVERY

It says each event once it is processed, as `PARTITION NUMBER`, and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

LAST = 150
"""Of a partition, no event behind this one is ever done: whoever ends this does it in mid-stream."""


async def main(hubs: str, hub: str, blobs: str, container: str, every: str) -> None:
    async def process(context: Any, event: Any) -> None:
        if event.sequence_number > LAST:
            await asyncio.Event().wait()
        print(context.partition_id, event.sequence_number, flush=True)  # noqa: T201  # that is what it is for
        if event.sequence_number % int(every) == int(every) - 1:
            await context.update_checkpoint(event)

    store = BlobCheckpointStore.from_connection_string(blobs, container, api_version="2019-07-07")
    options = {"checkpoint_store": store, "load_balancing_interval": 0.5}
    client = EventHubConsumerClient.from_connection_string(hubs, "$Default", eventhub_name=hub, **options)
    async with store, client:
        await client.receive(process, starting_position="-1", prefetch=20)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
