"""Prints events of a hub; checkpoints after every 50 events of a partition, and after the last event of each call."""

import asyncio
import os

from leasehold import EventHubsFeed, Handler, Pipeline, Processor, SqliteLeases


class Readings(Handler):  # one object for each partition
    async def process(self, changes, context):
        for event in changes:
            print(context.partition, event.json()["n"], flush=True)
            if event.sequence % 50 == 49 or event is changes[-1]:
                await context.checkpoint(event)

    async def close(self, context, reason):
        print("closed", context.partition, reason, flush=True)


feed = EventHubsFeed(connection_string=os.environ["HUB"], event_hub="readings", start="earliest")
pipeline = Pipeline("readings", feed=feed, handler=Readings, checkpoint_s="manual")

if __name__ == "__main__":
    asyncio.run(Processor(pipeline, leases=SqliteLeases(path="leases.db")).run())
