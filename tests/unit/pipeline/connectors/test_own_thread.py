"""A reader that was made while its caller left is closed."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.connectors.own_thread import reading_with


class Reader:
    def __init__(self) -> None:
        self.closed = Event()

    def close(self) -> None:
        self.closed.set()


async def test_a_reader_that_is_made_too_late_is_closed() -> None:
    reader, begun, goes_on = Reader(), Event(), Event()

    def make() -> Reader:
        begun.set()
        goes_on.wait(PATIENCE_S)
        return reader

    async def read() -> None:
        async with reading_with("reader", make, lambda reader: None):
            pytest.fail("it was made in time")

    reading = asyncio.create_task(read())
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    goes_on.set()
    assert await asyncio.to_thread(reader.closed.wait, PATIENCE_S)
