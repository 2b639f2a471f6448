"""Events, batches, and what a failed send says."""

from __future__ import annotations

import asyncio

import pytest
from connectors.producer.conftest import Place
from patience import until_async

from leasehold.pipeline.producer import EventBatch, IdempotentProducer, OutgoingEvent, PublishError


def events(*bodies: str) -> list[OutgoingEvent]:
    return [OutgoingEvent(body=body.encode()) for body in bodies]


async def batch_of(producer: IdempotentProducer, *bodies: str, partition: str = "0") -> EventBatch:
    batch = await producer.create_batch(partition)
    assert all(batch.try_add(event) for event in events(*bodies))
    return batch


async def failed(sending: object) -> PublishError:
    with pytest.raises(PublishError) as error:
        await sending  # type: ignore[misc]
    return error.value


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def number_of(producer: IdempotentProducer, partition: str = "0") -> int | None:
    return (await producer.publishing_properties(partition)).last_published_number


async def stored(place: Place, *bodies: str, partition: str = "0") -> None:
    """Once they are, and nothing else."""
    await until_async(lambda: place.bodies(partition) == list(bodies), seen=lambda: place.bodies(partition))
