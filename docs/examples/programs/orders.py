"""Calls a function with the changes of a Cosmos DB container, as documents."""

import asyncio
import os

from leasehold import CosmosFeed, CosmosLeases, Pipeline, Processor


async def on_changes(changes, context):  # at least once
    for document in changes:
        print(context.partition, document["id"], flush=True)


shop = {"connection_string": os.environ["SHOP_COSMOS"], "database": "shop"}
processor = Processor(
    Pipeline("orders", feed=CosmosFeed(**shop, container="orders"), handler=on_changes, batch_events_max=20),
    leases=CosmosLeases(**shop, container="leases"),
)

if __name__ == "__main__":
    asyncio.run(processor.run())  # until Ctrl-C or SIGTERM
