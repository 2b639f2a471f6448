"""A process that claims a lease of the sink `pulsar`, and writes from its position on:

    writing.py SERVERS TOPIC PARTITION EPOCH END

A batch has two events. It prints `done` once all are written.
"""

from __future__ import annotations

import asyncio
import sys

from connectors.pulsar.topics import PERMIT, claim, output

from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink


async def write(servers: str, topic: str, partition: str, epoch: int, end: int) -> None:
    sink = PulsarOutputSink(PulsarAccess(servers=servers), topic)
    await sink.prepare()
    writer = await sink.open(claim(epoch, partition=partition))
    while (at := int(writer.position or 0)) < end:
        await writer.write(output(at, at + 2), PERMIT)
    sys.stdout.write("done\n")
    await writer.close("shutdown")
    await sink.close()


if __name__ == "__main__":
    servers, topic, partition, epoch, end = sys.argv[1:]
    asyncio.run(write(servers, topic, partition, int(epoch), int(end)))
