"""The ways to a hub that is published to: plain, TLS, WebSockets, by key and by identity; each again after a cut."""

from __future__ import annotations

import pytest
from connectors.eventhubs.test_feed_transports import Credential, keyed, ways
from connectors.producer.conftest import HUB, QUICK, Hub
from connectors.producer.parts import events, failed

from leasehold.pipeline.connectors.eventhubs import EventHubsBroker, account_of
from leasehold.pipeline.producer import IdempotentProducer, PublishError, Reason, RetryPolicy

LARGE = "x" * 300_000


@pytest.mark.parametrize("way", ["amqp", "amqps", "ws", "wss"])
async def test_events_go_by_every_way_also_after_a_cut(hub: Hub, way: str) -> None:
    options = {"connection_string": hub.eventhubs.connection_string, "event_hub": HUB} | ways(hub.eventhubs)[way]
    async with IdempotentProducer(EventHubsBroker(account_of(**options)), retry=QUICK) as one:
        await one.send(events("a", LARGE), "0")
        hub.fault("after")
        await one.send(events("b", LARGE), "0")
        assert await one.partition_ids() == ("0", "1", "2", "3")
    assert [len(body) for body in hub.bodies("0")] == [1, 300_000] * 2


async def test_an_identity_has_its_token_in_place_of_a_key(hub: Hub) -> None:
    server = hub.eventhubs
    account = account_of(
        namespace=f"{server.host}:{server.tls_port}", event_hub=HUB, identity="default", ca_file=server.ca
    )
    async with IdempotentProducer(EventHubsBroker(account, credential=Credential(server.token)), retry=QUICK) as one:
        await one.send(events("a"), "0")
    assert hub.bodies("0") == ["a"]


async def test_a_wrong_key_is_told_at_once_and_not_tried_again(hub: Hub) -> None:
    wrong = hub.eventhubs.connection_string.replace(hub.eventhubs.key, "d3Jvbmc=")
    account = account_of(connection_string=wrong, event_hub=HUB)
    async with IdempotentProducer(EventHubsBroker(account), retry=RetryPolicy(try_timeout_s=5)) as one:
        error = await failed(one.send(events("a"), "0"))
    assert isinstance(error, PublishError)
    assert (error.reason, error.is_transient, error.outcome) == (Reason.GENERAL_ERROR, False, "failed")
    assert "key" in str(error)
    assert "d3Jvbmc" not in str(error)


async def test_nobody_at_the_other_end_is_told_with_what_to_check(hub: Hub) -> None:
    nowhere = keyed(hub.eventhubs, 1, emulator=True)
    account = account_of(connection_string=nowhere, event_hub=HUB)
    async with IdempotentProducer(
        EventHubsBroker(account), retry=RetryPolicy(retries_max=1, delay_s=0.01, try_timeout_s=5)
    ) as one:
        error = await failed(one.send(events("a"), "0"))
    assert (error.reason, error.is_transient) == (Reason.SERVICE_COMMUNICATION_PROBLEM, True)
    assert "check the connection" in str(error)
