"""A sink's writer for as long as a test needs it, and what was written delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from patience import PATIENCE_S
from unit.pipeline.destinations import Trusted, claim

from leasehold.pipeline.async_sink import AsyncSink
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.sink import Output


@asynccontextmanager
async def writing(sink: AsyncSink) -> AsyncIterator[AsyncWriter]:
    """The sink is this one's to close."""
    try:
        await sink.prepare()
        writer = await sink.open(claim())
        try:
            yield writer
        finally:
            await writer.close("shutdown")
    finally:
        await sink.close()


async def delivered(writer: AsyncWriter, *outputs: Output) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for output in outputs:
            await writer.write(output, Trusted())
        await writer.flush()
