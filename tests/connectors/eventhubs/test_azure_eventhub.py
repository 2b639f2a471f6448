"""azure-eventhub, synchronous and not, on the wire server: what everybody does."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient, PartitionContext, TransportType
from azure.eventhub._pyamqp.error import AMQPLinkError, ErrorCondition, MessageException
from azure.eventhub._utils import get_last_enqueued_event_properties
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError
from connectors.eventhubs.clients import HUB, consumed, idempotent, producer, received, receiver, send
from patience import PATIENCE_S
from plugins_eventhubs import EventHubs, running


def test_the_synchronous_client_sends_receives_and_reads_properties(eventhubs: EventHubs) -> None:
    with EventHubProducerClient.from_connection_string(eventhubs.connection_string, eventhub_name=HUB) as client:
        batch = client.create_batch(partition_id="2")
        for n in range(100):
            batch.add(EventData(f"event {n}"))
        client.send_batch(batch)
        assert client.get_partition_ids() == ["0", "1", "2", "3"]
        properties = client.get_partition_properties("2")
    assert (properties["beginning_sequence_number"], properties["last_enqueued_sequence_number"]) == (0, 99)
    assert not properties["is_empty"]
    assert _received_by_threads(eventhubs, 100) == [(n, f"event {n}") for n in range(100)]


def _received_by_threads(eventhubs: EventHubs, count: int) -> list[tuple[int | None, str]]:
    found: list[tuple[int | None, str]] = []
    is_whole = threading.Event()

    def on_events(_: PartitionContext, events: list[EventData]) -> None:
        found.extend((event.sequence_number, event.body_as_str()) for event in events)
        if len(found) >= count:
            is_whole.set()

    client = EventHubConsumerClient.from_connection_string(eventhubs.connection_string, "$Default", eventhub_name=HUB)
    how: dict[str, Any] = {"partition_id": "2", "starting_position": "-1", "max_wait_time": 1}
    thread = threading.Thread(target=client.receive_batch, args=(on_events,), kwargs=how)
    thread.start()
    assert is_whole.wait(PATIENCE_S)
    client.close()
    thread.join()
    return found


async def test_properties_of_a_hub_and_of_an_empty_partition(eventhubs: EventHubs) -> None:
    async with producer(eventhubs) as client:
        assert (await client.get_eventhub_properties())["partition_ids"] == ["0", "1", "2", "3"]
        properties = await client.get_partition_properties("3")
    assert properties["is_empty"]
    assert (properties["last_enqueued_sequence_number"], properties["last_enqueued_offset"]) == (-1, "-1")
    assert properties["last_enqueued_time_utc"].year == 1


async def test_an_event_comes_back_with_all_that_it_was_sent_with(eventhubs: EventHubs) -> None:
    sent = EventData(b"\x00\xff")
    sent.properties = {"text": "é", "number": 7, "truth": True, "half": 0.5, "none": None, "octets": b"\x01"}
    sent.message_id, sent.correlation_id, sent.content_type = "m-1", "c-1", "application/octet-stream"
    async with producer(eventhubs) as client:
        await client.send_batch([sent], partition_key="account 7")
    partition = next(p.id for p in eventhubs.control.partitions(HUB) if p.end)
    [event] = await received(eventhubs, 1, partition)
    assert b"".join(event.body) == b"\x00\xff"
    assert event.properties == {
        b"text": "é".encode(),
        b"number": 7,
        b"truth": True,
        b"half": 0.5,
        b"none": None,
        b"octets": b"\x01",
    }
    assert (event.message_id, event.correlation_id, event.content_type) == ("m-1", "c-1", "application/octet-stream")
    assert (event.partition_key, event.sequence_number, event.offset) == (b"account 7", 0, "0")
    assert abs(event.enqueued_time - datetime.now(UTC)) < timedelta(minutes=1)


async def test_events_of_one_key_lie_in_one_partition_and_those_without_in_turn(eventhubs: EventHubs) -> None:
    async with producer(eventhubs) as client:
        for n in range(4):
            await client.send_batch([EventData(f"k{n}")], partition_key="k")
            await client.send_batch([EventData(f"t{n}")])
    bodies = [eventhubs.control.bodies(HUB, partition) for partition in "0123"]
    assert [each for each in ([b for b in part if b[0] == "k"] for part in bodies) if each] == [
        ["k0", "k1", "k2", "k3"]
    ]
    assert all(sum(body[0] == "t" for body in part) == 1 for part in bodies)


@pytest.mark.parametrize(
    ("position", "is_inclusive", "first"), [(3, False, 4), (3, True, 3), ("offset of 2", False, 3), ("-1", False, 0)]
)
async def test_the_consumer_begins_where_it_was_asked_to(
    eventhubs: EventHubs, position: str | int, is_inclusive: bool, first: int
) -> None:
    eventhubs.control.append(HUB, "0", [str(n) for n in range(6)])
    if position == "offset of 2":
        position = eventhubs.control.events(HUB, "0")[2].offset
    how = {"starting_position": position, "starting_position_inclusive": is_inclusive}
    events = await consumed(eventhubs, 6 - first, **how)
    assert [event.body_as_str() for event in events] == [str(n) for n in range(first, 6)]


@pytest.mark.parametrize(
    ("position", "first"),
    [
        ("sequence-number > '-1'", 0),
        ("sequence-number > '3'", 4),
        ("sequence-number >= '3'", 3),
        ("offset > '{offset}'", 3),
        ("offset >= '{offset}'", 2),
        ("enqueued-time > '{between}'", 4),
        ("enqueued-time >= '{time}'", 4),
    ],
)
async def test_a_receiver_begins_where_its_selector_says(eventhubs: EventHubs, position: str, first: int) -> None:
    eventhubs.control.append(HUB, "0", ["0", "1", "2", "3"])
    eventhubs.control.move_clock(600)
    eventhubs.control.append(HUB, "0", ["4", "5"])
    events = eventhubs.control.events(HUB, "0")
    position = position.format(offset=events[2].offset, time=events[4].time_ms, between=events[3].time_ms + 1000)
    seen = await received(eventhubs, 6 - first, position=position)
    assert [event.body_as_str() for event in seen] == [str(n) for n in range(first, 6)]


async def test_latest_is_what_comes_after_the_receiver(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["before"])
    async with receiver(eventhubs, position="offset > '@latest'") as one:
        eventhubs.control.append(HUB, "0", ["after"])
        assert [event.body_as_str() for event in await one.take(1)] == ["after"]


async def test_what_retention_has_taken_is_passed_over(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", [str(n) for n in range(6)])
    eventhubs.control.trim(HUB, "0", 4)
    events = await received(eventhubs, 2)
    assert [(event.sequence_number, event.body_as_str()) for event in events] == [(4, "4"), (5, "5")]


async def test_each_event_says_where_the_partition_ends_if_asked(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a", "b", "c"])
    events = await consumed(eventhubs, 1, track_last_enqueued_event_properties=True)
    end = get_last_enqueued_event_properties(events[0])
    assert end is not None
    assert end["sequence_number"] == 2
    assert end["offset"] == eventhubs.control.partition(HUB, "0").last_offset


async def test_events_of_many_frames_cross_whole_both_ways(eventhubs: EventHubs) -> None:
    body = "x" * 300_000 + "end"
    await send(eventhubs, body, "small", partition_id="0")
    events = await received(eventhubs, 2)
    assert [event.body_as_str() for event in events] == [body, "small"]


async def test_prefetch_is_a_window_and_no_limit(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 2_000, 50)
    events = await received(eventhubs, 2_000, credit=100)
    assert [event.sequence_number for event in events] == list(range(2_000))


async def test_a_message_above_the_limit_is_rejected_and_the_link_goes_on() -> None:
    with running("--hubs", f"{HUB}:1", "--message-bytes-max", "70000") as small:
        async with producer(small) as client:
            batch = await client.create_batch(partition_id="0")
            assert batch.max_size_in_bytes == 70_000
        async with idempotent(small) as sender:
            with pytest.raises(MessageException, match="exceeds the limit") as refused:
                await sender.publish(["x" * 80_000], 1)
            assert refused.value.condition == ErrorCondition.LinkMessageSizeExceeded
            await sender.publish(["y"], 1)
        assert small.control.bodies(HUB, "0") == ["y"]


async def test_an_unknown_consumer_group_hub_or_partition_is_said_so(eventhubs: EventHubs) -> None:
    for where in ({"group": "nobody"}, {"hub": "no-hub"}):
        with pytest.raises(AMQPLinkError) as refused:
            await received(eventhubs, 1, **where)
        assert refused.value.condition == ErrorCondition.NotFound
    with pytest.raises(AMQPLinkError, match="specified partition is invalid"):
        await received(eventhubs, 1, "9")
    async with producer(eventhubs, "no-hub") as client:
        with pytest.raises(ConnectError, match="404"):
            await client.get_eventhub_properties()


async def test_groups_that_were_named_are_there() -> None:
    with running("--hubs", f"{HUB}:1", "--groups", "bank,other") as server:
        server.control.append(HUB, "0", ["x"])
        for group in ("$Default", "bank", "BANK"):
            assert len(await received(server, 1, group=group)) == 1


async def test_a_wrong_key_is_refused(eventhubs: EventHubs) -> None:
    wrong = eventhubs.connection_string.replace(eventhubs.key, "d3Jvbmc=")
    async with AsyncProducer.from_connection_string(wrong, eventhub_name=HUB, retry_total=0) as client:
        with pytest.raises(AuthenticationError):
            await client.send_batch([EventData("x")], partition_id="0")
        with pytest.raises(AuthenticationError):
            await client.get_eventhub_properties()
    assert eventhubs.control.bodies(HUB, "0") == []


class Credential:
    """An access token of Entra, or what its holder takes for one."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self._token, int(datetime.now(UTC).timestamp()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *_: Any) -> None: ...


@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
async def test_an_access_token_and_tls_with_the_authority_that_the_server_names(
    eventhubs: EventHubs, transport: TransportType
) -> None:
    port = eventhubs.tls_port if transport is TransportType.Amqp else eventhubs.wss_port
    where = {
        "custom_endpoint_address": f"sb://{eventhubs.host}:{port}",
        "connection_verify": eventhubs.ca,
        "transport_type": transport,
    }
    for token, is_taken in ((eventhubs.token, True), ("another", False)):
        client = AsyncProducer("127.0.0.1", HUB, Credential(token), retry_total=0, **where)  # type: ignore[arg-type]
        async with client:
            if is_taken:
                await client.send_batch([EventData("x")], partition_id="0")
            else:
                with pytest.raises(AuthenticationError):
                    await client.send_batch([EventData("y")], partition_id="0")
    assert eventhubs.control.bodies(HUB, "0") == ["x"]


async def test_a_hub_that_grows_has_more_partitions(eventhubs: EventHubs) -> None:
    eventhubs.control.grow(HUB, 6)
    async with producer(eventhubs) as client:
        assert await client.get_partition_ids() == list("012345")
    await send(eventhubs, "x", partition_id="5")
    assert len(await received(eventhubs, 1, "5")) == 1


async def test_events_cross_a_web_socket_both_ways(eventhubs: EventHubs) -> None:
    bodies = ["x" * 100_000, *(str(n) for n in range(500))]
    over = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://{eventhubs.host}:{eventhubs.ws_port}",
    }
    async with producer(eventhubs, **over) as client:
        await client.send_batch([EventData(body) for body in bodies], partition_id="0")
    assert eventhubs.control.bodies(HUB, "0") == bodies
    events = await consumed(eventhubs, len(bodies), options=over)
    assert [event.body_as_str() for event in events] == bodies


async def test_a_web_socket_is_cut_and_closed_like_any_connection(eventhubs: EventHubs) -> None:
    over = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://{eventhubs.host}:{eventhubs.ws_port}",
    }
    for do, is_stored in (("cut", False), ("cut_after", True)):
        eventhubs.control.fault(do, times=1)
        async with producer(eventhubs, **over) as client:
            with pytest.raises(EventHubError):
                await client.send_batch([EventData(do)], partition_id="0")
        assert (do in eventhubs.control.bodies(HUB, "0")) is is_stored
