"""azure-eventhub for the tests of the wire server: how they send, receive, and publish with numbers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from azure.eventhub import EventData
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.aio import ReceiveClientAsync, SendClientAsync
from azure.eventhub._pyamqp.endpoints import ApacheFilters, Source
from azure.eventhub._pyamqp.error import AMQPException, RetryPolicy
from azure.eventhub._pyamqp.message import BatchMessage, Message
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from patience import PATIENCE_S
from plugins_eventhubs import EventHubs

HUB = "raw-event"

ID, LEVEL, NUMBER = (b"com.microsoft:producer-" + name for name in (b"id", b"epoch", b"sequence-number"))
EPOCH = b"com.microsoft:epoch"
TYPES = {ID: AMQPTypes.long, LEVEL: AMQPTypes.short, NUMBER: AMQPTypes.int}


def producer(eventhubs: EventHubs, hub: str = HUB, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(
        eventhubs.connection_string, eventhub_name=hub, **{"retry_total": 0} | options
    )


def consumer(eventhubs: EventHubs, group: str = "$Default", hub: str = HUB, **options: Any) -> EventHubConsumerClient:
    return EventHubConsumerClient.from_connection_string(
        eventhubs.connection_string, group, eventhub_name=hub, **{"retry_total": 0} | options
    )


async def send(eventhubs: EventHubs, *bodies: str, **where: Any) -> None:
    async with producer(eventhubs) as client:
        await client.send_batch([EventData(body) for body in bodies], **where)


async def consumed(eventhubs: EventHubs, count: int, partition: str = "0", **how: Any) -> list[EventData]:
    """The first events that the SDK's consumer gets: its way takes two seconds, half of them to close."""
    found: list[EventData] = []
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_event(_: Any, event: EventData | None) -> None:
        if event is not None:
            found.append(event)
        if len(found) == count and not ended.done():
            ended.set_result(None)

    async def on_error(_: Any, error: Exception) -> None:
        if not ended.done():
            ended.set_exception(error)

    async with consumer(eventhubs, **how.pop("options", {})) as client:
        how = {"starting_position": "-1"} | how
        task = asyncio.create_task(client.receive(on_event, on_error=on_error, partition_id=partition, **how))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ended
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return found


class Receiver:
    """The SDK's receiver without its consumer, which hides a refusal and tries for ever."""

    def __init__(self, client: ReceiveClientAsync, messages: list[Message]) -> None:
        self._client = client
        self._messages = messages

    async def take(self, count: int) -> list[EventData]:
        """The next ones. Raises what the service says instead."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._messages) < count:
                await self._client.do_work_async(batch=100)
        taken, self._messages[:] = self._messages[:count], self._messages[count:]
        return [EventData._from_message(message) for message in taken]


@asynccontextmanager
async def receiver(
    eventhubs: EventHubs,
    partition: str = "0",
    position: str = "offset > '-1'",
    *,
    hub: str = HUB,
    group: str = "$Default",
    epoch: int | None = None,
    credit: int = 300,
) -> AsyncIterator[Receiver]:
    """position: of the selector, without its prefix."""
    url = f"amqps://{eventhubs.host}:{eventhubs.port}/{hub}/ConsumerGroups/{group}/Partitions/{partition}"
    source = Source(address=url, filters={})  # type: ignore[call-arg]  # its defaults are hidden from Mypy
    source.filters[ApacheFilters.selector_filter] = (
        ApacheFilters.selector_filter,
        f"amqp.annotation.x-opt-{position}",
    )
    messages: list[Message] = []

    async def on_message(message: Message) -> None:
        messages.append(message)

    async with producer(eventhubs, hub) as client:
        inner = ReceiveClientAsync(
            f"{eventhubs.host}:{eventhubs.port}",
            source,
            auth=await client._create_auth_async(),
            link_properties=None if epoch is None else {EPOCH: {TYPE: AMQPTypes.long, VALUE: epoch}},
            link_credit=credit,
            retry_policy=RetryPolicy(retry_total=0),
            streaming_receive=True,
            socket_timeout=0.2,
            message_received_callback=on_message,
            use_tls=False,
        )
        try:
            await opened(inner)
            yield Receiver(inner, messages)
        finally:
            await inner.close_async()


async def opened(client: SendClientAsync | ReceiveClientAsync) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await client.open_async()
        is_ready = False
        while not is_ready:
            is_ready = await client.client_ready_async()


async def received(eventhubs: EventHubs, count: int, partition: str = "0", **how: Any) -> list[EventData]:
    async with receiver(eventhubs, partition, **how) as one:
        return await one.take(count)


class Idempotent(SendClientAsync):
    """The SDK's sender, with the capability that it does not hand on."""

    async def _client_ready_async(self) -> bool:
        if not self._link:
            self._link = self._session.create_sender_link(
                target_address=self.target,
                link_credit=self._link_credit,
                send_settle_mode=self._send_settle_mode,
                rcv_settle_mode=self._receive_settle_mode,
                max_message_size=self._max_message_size,
                properties=self._link_properties,
                desired_capabilities=[b"com.microsoft:idempotent-producer"],
            )
            await self._link.attach()
            return False
        return bool(self._link.get_state().value == 3)

    async def begun(self) -> None:
        """Keeps what the service has replied: producer id, level and last number."""
        await opened(self)
        replied = self._link.remote_properties
        self.state = (replied[ID], replied[LEVEL], replied[NUMBER])

    async def publish(self, bodies: Sequence[str], first: int) -> None:
        """With numbers from `first` on, as one batch."""
        producer_id, level, _ = self.state
        events = [_numbered(body, producer_id, level, (first + i) & 0x7FFFFFFF) for i, body in enumerate(bodies)]
        async with asyncio.timeout(PATIENCE_S):
            await self.send_message_async(BatchMessage(data=events), timeout=PATIENCE_S)


def _numbered(body: str, producer_id: int, level: int, number: int) -> bytes:
    marks = zip(TYPES, (producer_id, level, number), strict=True)
    annotations = {name: {TYPE: TYPES[name], VALUE: value} for name, value in marks}
    out = bytearray()
    encode_payload(out, Message(data=[body.encode()], message_annotations=annotations))
    return bytes(out)


@asynccontextmanager
async def idempotent(
    eventhubs: EventHubs, partition: str = "0", asked: tuple[int | None, int | None, int | None] | None = None
) -> AsyncIterator[Idempotent]:
    """asked: producer id, level and last number, None for what the service chooses; none of the three is sent without it."""
    target = f"amqps://{eventhubs.host}:{eventhubs.port}/{HUB}/Partitions/{partition}"
    pairs = zip(TYPES, asked, strict=True) if asked else ()
    properties = {
        name: {TYPE: TYPES[name] if value is not None else AMQPTypes.null, VALUE: value} for name, value in pairs
    }
    async with producer(eventhubs) as client:
        sender = Idempotent(
            f"{eventhubs.host}:{eventhubs.port}",
            target,
            auth=await client._create_auth_async(),
            link_properties=properties or None,
            retry_policy=RetryPolicy(retry_total=0),
            use_tls=False,
        )
        try:
            await sender.begun()
            yield sender
        finally:
            await sender.close_async()


async def published(eventhubs: EventHubs) -> Exception | None:
    """What became of a batch of one event, by a link of its own."""
    async with idempotent(eventhubs) as sender:
        try:
            await sender.publish(["a"], 1)
        except (AMQPException, TimeoutError) as error:
            return error
    return None
