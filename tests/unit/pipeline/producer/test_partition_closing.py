"""Closing a partition's producer while a send is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.pipeline.producer import ProducerPosition
from leasehold.pipeline.producer.errors import PublishError, Reason
from leasehold.pipeline.producer.partition import PartitionProducer


class SlowLink:
    """Takes ten seconds to answer."""

    numbers = ProducerPosition(group=1, level=1, number=0)
    bytes_max = 1000
    is_usable = True
    is_closed = False

    async def send(self, payloads: Any, numbers: Any, key: Any, sending: Callable[[], None]) -> None:
        sending()
        await asyncio.sleep(10)

    async def close(self) -> None:
        self.is_closed = True


class OneLink:
    name = "a hub"

    def __init__(self) -> None:
        self.link = SlowLink()

    async def attach(self, *asked: Any, **more: Any) -> SlowLink:
        return self.link


class Nothing:
    payloads = (b"x",)
    key = None

    def begin(self) -> None: ...

    def keep(self, first: int | None) -> None: ...

    def drop(self) -> None: ...


@pytest.mark.virtual
async def test_whoever_gives_up_closing_leaves_no_link_open_once_the_answer_has_come() -> None:
    broker: Any = OneLink()
    producer = PartitionProducer(broker, "0")
    sending = asyncio.create_task(producer.publish(Nothing()))
    await asyncio.sleep(1)
    sending.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await producer.close(PublishError("closed", reason=Reason.CLIENT_CLOSED))
    assert not broker.link.is_closed
    await asyncio.wait({sending})
    assert broker.link.is_closed
