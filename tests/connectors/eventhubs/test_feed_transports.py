"""The ways to a hub: plain, TLS, WebSockets with and without, by key and by identity."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import bodies, feed
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.errors import FeedError

LARGE = "x" * 300_000


class Credential:
    """What azure-identity would be."""

    def __init__(self, token: str) -> None:
        self._token = SimpleNamespace(token=token, expires_on=4_000_000_000)

    async def get_token(self, *_: str, **__: Any) -> SimpleNamespace:
        return self._token


def keyed(eventhubs: EventHubs, port: int, *, emulator: bool) -> str:
    string = eventhubs.connection_string.replace(f":{eventhubs.port}", f":{port}")
    return string if emulator else string.replace("UseDevelopmentEmulator=true", "")


def ways(eventhubs: EventHubs) -> dict[str, dict[str, Any]]:
    return {
        "amqp": {},
        "amqps": {"connection_string": keyed(eventhubs, eventhubs.tls_port, emulator=False), "ca_file": eventhubs.ca},
        "ws": {
            "connection_string": keyed(eventhubs, eventhubs.ws_port, emulator=True),
            "transport": "websockets",
        },
        "wss": {
            "connection_string": keyed(eventhubs, eventhubs.wss_port, emulator=False),
            "transport": "websockets",
            "ca_file": eventhubs.ca,
        },
    }


@pytest.mark.parametrize("way", ["amqp", "amqps", "ws", "wss"])
async def test_events_come_by_every_way_also_after_a_cut(eventhubs: EventHubs, way: str) -> None:
    texts = [LARGE, *(str(number) for number in range(500))]
    eventhubs.control.append(HUB, "0", texts)
    eventhubs.control.fault("cut", of="receive", after=100, times=1)
    async with feed(eventhubs, account=ways(eventhubs)[way]) as made:
        assert await bodies(made, len(texts), epoch=1) == texts
        assert [each.name for each in await made.partitions()] == list("0123")


@pytest.mark.parametrize("transport", ["amqp", "websockets"])
async def test_an_identity_has_its_token_in_place_of_a_key(eventhubs: EventHubs, transport: Any) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    port = eventhubs.tls_port if transport == "amqp" else eventhubs.wss_port
    account = account_of(
        namespace=f"{eventhubs.host}:{port}",
        event_hub=HUB,
        identity="default",
        transport=transport,
        ca_file=eventhubs.ca,
    )
    for token, is_taken in ((eventhubs.token, True), ("another", False)):
        made = EventHubsChangeFeed(account, credential=Credential(token), pauses=Pauses(patience_s=0.1))
        if is_taken:
            assert await bodies(made, 1) == ["a"]
        else:
            with pytest.raises(FeedError, match="check the key or the identity"):
                await bodies(made, 1)
        await made.close()


async def test_a_custom_endpoint_is_connected_to_instead_of_the_namespace(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    elsewhere = eventhubs.connection_string.replace(f"{eventhubs.host}:{eventhubs.port}", "shop.servicebus.invalid")
    assert elsewhere != eventhubs.connection_string
    where = {"connection_string": elsewhere, "endpoint": f"{eventhubs.host}:{eventhubs.port}"}
    async with feed(eventhubs, account=where) as made:
        assert await bodies(made, 1) == ["a"]


async def test_a_proxy_is_connected_through_with_its_credentials(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    heads: list[str] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        host, port = heads[-1].split()[1].split(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copied(reader, back), _copied(there, writer))

    proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        where = {**ways(eventhubs)["wss"], "proxy": f"http://user:p%40ss@127.0.0.1:{port}"}
        async with feed(eventhubs, account=where) as made:
            assert await bodies(made, 1) == ["a"]
    assert heads[0].startswith(f"CONNECT {eventhubs.host}:{eventhubs.wss_port} ")
    assert "Proxy-Authorization: Basic " + b64encode(b"user:p@ss").decode() in heads[0]


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "sb://gateway"}, "`endpoint` must be a host"),
        ({"proxy": "proxy:3128", "transport": "websockets"}, "`proxy` must be an address like"),
        ({"proxy": "http://user:secret@proxy", "transport": "websockets"}, "`proxy` must be an address like"),
        ({"proxy": "http://user:secret@proxy:3128"}, "only `transport: websockets` speaks"),
    ],
)
def test_a_wrong_way_to_a_hub_is_refused_without_its_secrets(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        account_of(namespace="shop.servicebus.windows.net", event_hub=HUB, identity="default", **options)
    assert "secret" not in str(refused.value)


async def test_authorities_that_are_not_there_are_told(eventhubs: EventHubs) -> None:
    for ca_file in ("/nowhere/ca.pem", __file__):
        where = {**ways(eventhubs)["amqps"], "ca_file": ca_file}
        async with feed(eventhubs, account=where) as made:
            for call in (bodies(made, 1), made.latest("0")):
                with pytest.raises(FeedError, match=f"`ca_file` {ca_file} cannot be used"):
                    await call
