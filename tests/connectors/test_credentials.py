"""A program's own credentials, like those of azure-identity and azure-identity.aio, are what its sections connect with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from plugins_cosmos import Cosmos
from plugins_eventhubs import EventHubs

from leasehold import (
    Context,
    CosmosFeed,
    CosmosLeases,
    EventHubsFeed,
    EventHubsSink,
    FilesFeed,
    Pipeline,
    Processor,
    SqliteLeases,
    StartFailed,
)

HUB = "raw-event"


class Blocking:
    """As those of azure.identity."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.scopes: set[str] = set()
        self.is_closed = False

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.scopes.update(scopes)
        return AccessToken(self.token, 4_000_000_000)

    def close(self) -> None:
        self.is_closed = True


class Asynchronous:
    """As those of azure.identity.aio."""

    def __init__(self, token: str) -> None:
        self._blocking = Blocking(token)

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        await asyncio.sleep(0)
        return self._blocking.get_token(*scopes, **options)

    async def close(self) -> None:
        self._blocking.close()

    @property
    def scopes(self) -> set[str]:
        return self._blocking.scopes

    @property
    def is_closed(self) -> bool:
        return self._blocking.is_closed


Credential = Blocking | Asynchronous
KINDS = pytest.mark.parametrize("kind", [Blocking, Asynchronous])


async def processed(feed: Any, leases: Any) -> list[Any]:
    """What a handler gets of the feed."""
    seen: list[Any] = []

    async def on_changes(changes: list[Any], context: Context) -> None:
        seen.extend(changes)

    async with Processor(Pipeline("orders", feed=feed, handler=on_changes), leases=leases) as processor:
        backlog = await processor.idle()
    assert not backlog.failed, backlog.failed
    return seen


@KINDS
async def test_a_container_and_its_leases_are_opened_with_it(cosmos: Cosmos, kind: Callable[[str], Credential]) -> None:
    async with cosmos.client() as client:
        database = await client.create_database("shop")
        orders = await database.create_container("orders", {"paths": ["/customer"], "kind": "Hash"})  # type: ignore[arg-type]
        await database.create_container("leases", {"paths": ["/id"], "kind": "Hash"})  # type: ignore[arg-type]
        await orders.create_item({"id": "order-1", "customer": "ann"})
    credential = kind(cosmos.token)
    shop: dict[str, Any] = {
        "endpoint": cosmos.https,
        "ca_file": cosmos.ca,
        "database": "shop",
        "credential": credential,
    }
    seen = await processed(CosmosFeed(**shop, container="orders"), CosmosLeases(**shop, container="leases"))
    assert [document["id"] for document in seen] == ["order-1"]
    assert len(credential.scopes) == 1
    assert not credential.is_closed, "it belongs to the program"


@KINDS
async def test_a_hub_is_read_with_it(eventhubs: EventHubs, tmp_path: Path, kind: Callable[[str], Credential]) -> None:
    eventhubs.control.append(HUB, "0", ["one", "two"])
    credential = kind(eventhubs.token)
    feed = EventHubsFeed(
        namespace=f"{eventhubs.host}:{eventhubs.tls_port}", event_hub=HUB, ca_file=eventhubs.ca, credential=credential
    )
    seen = await processed(feed, SqliteLeases(path=tmp_path / "leases.db"))
    assert [event.body for event in seen] == [b"one", b"two"]
    assert len(credential.scopes) == 1
    assert not credential.is_closed, "it belongs to the program"


@KINDS
async def test_a_hub_is_written_with_it(
    eventhubs: EventHubs, tmp_path: Path, kind: Callable[[str], Credential]
) -> None:
    (tmp_path / "words.jsonl").write_text('{"word": "apple"}\n')
    sink = EventHubsSink(
        namespace=f"{eventhubs.host}:{eventhubs.tls_port}",
        event_hub=HUB,
        consumer_group="sinks",
        ca_file=eventhubs.ca,
        credential=kind(eventhubs.token),
    )
    words = Pipeline("words", feed=FilesFeed(path=tmp_path / "words.jsonl"), sink=sink)
    async with Processor(words, leases=SqliteLeases(path=tmp_path / "leases.db")) as processor:
        assert not (await processor.idle()).failed
    bodies = [body for partition in "0123" for body in eventhubs.control.bodies(HUB, partition)]
    assert [body for body in bodies if "apple" in body] == ['{"word": "apple"}']


async def test_a_token_that_is_refused_ends_the_start_and_is_not_in_the_error(
    eventhubs: EventHubs, cosmos: Cosmos
) -> None:
    shop: dict[str, Any] = {
        "endpoint": cosmos.https,
        "ca_file": cosmos.ca,
        "database": "shop",
        "credential": Blocking("of another tenant"),
    }
    with pytest.raises(StartFailed, match="identity") as caught:
        await processed(CosmosFeed(**shop, container="orders"), CosmosLeases(**shop, container="leases"))
    assert "of another tenant" not in str(caught.value)
