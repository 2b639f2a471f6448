"""A process that claims a lease of the sink `kafka`, and writes from its position on: writing.py SERVERS TOPIC EPOCH END

A batch has two events. It prints `done` once all are written.
"""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa

from leasehold import Claim, Output
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink


class Always:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


async def write(servers: str, topic: str, epoch: int, end: int) -> None:
    sink = KafkaOutputSink(KafkaAccess(servers=servers), topic)
    await sink.prepare()
    writer = await sink.open(
        Claim(
            pipeline="bank",
            partition="0",
            owner=f"process-{epoch}",
            epoch=epoch,
            generation=0,
            continuation=None,
            state="",
            compare=lambda a, b: int(a or 0) - int(b or 0),
        )
    )
    while (at := int(writer.position or 0)) < end:
        table = pa.table({"body": [b"%d" % (at + 1), b"%d" % (at + 2)]})
        await writer.write(Output(table=table, start=writer.position, to=str(at + 2), events=2), Always())
    sys.stdout.write("done\n")
    await writer.close("shutdown")
    await sink.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
