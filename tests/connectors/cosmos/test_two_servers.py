"""What a lease store asks, of the wire server and of one that nobody here wrote: both answer alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from plugins_cosmos import Cosmos

IF_MATCH = MatchConditions.IfNotModified


@asynccontextmanager
async def leases(endpoint: str, key: str, name: str) -> AsyncIterator[ContainerProxy]:
    async with CosmosClient(endpoint, key) as client:
        database = await client.create_database_if_not_exists(name)
        yield await database.create_container_if_not_exists("leases", PartitionKey("/id"))
        await client.delete_database(name)


@pytest.fixture(params=["the wire server", "cosmosdb-server"])
async def container(request: pytest.FixtureRequest, cosmos: Cosmos) -> AsyncIterator[ContainerProxy]:
    endpoint = cosmos.endpoint if request.param == "the wire server" else request.getfixturevalue("cosmosdb_server")
    async with leases(endpoint, cosmos.key, "two") as made:
        yield made


async def status(call: Any) -> int:
    with pytest.raises(CosmosHttpResponseError) as caught:
        await call
    return int(caught.value.status_code)


async def test_a_lease_is_created_once_and_replaced_by_its_newest_etag_alone(container: ContainerProxy) -> None:
    lease = await container.create_item({"id": "p..0", "Owner": None, "unknown": {"kept": [1, None]}})
    assert await status(container.create_item({"id": "p..0"})) == 409
    taken = await container.replace_item("p..0", {**lease, "Owner": "a"}, etag=lease["_etag"], match_condition=IF_MATCH)
    assert taken["_etag"] != lease["_etag"]
    stale = {"etag": lease["_etag"], "match_condition": IF_MATCH}
    assert await status(container.replace_item("p..0", {**lease, "Owner": "b"}, **stale)) == 412
    assert await status(container.delete_item("p..0", "p..0", **stale)) == 412
    read = await container.read_item("p..0", "p..0")
    assert (read["Owner"], read["unknown"]) == ("a", {"kept": [1, None]})


async def test_a_lease_that_is_gone_is_not_found(container: ContainerProxy) -> None:
    lease = await container.create_item({"id": "p..0"})
    await container.delete_item("p..0", "p..0", etag=lease["_etag"], match_condition=IF_MATCH)
    assert await status(container.read_item("p..0", "p..0")) == 404
    assert await status(container.delete_item("p..0", "p..0")) == 404
    gone = {"etag": lease["_etag"], "match_condition": IF_MATCH}
    assert await status(container.replace_item("p..0", {"id": "p..0"}, **gone)) == 404


async def test_leases_are_listed_by_their_prefix(container: ContainerProxy) -> None:
    for name in ("p..0", "p..1", "p.info", "q..0"):
        await container.create_item({"id": name})
    query = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)"
    parameters = [{"name": "@prefix", "value": "p.."}]
    for page in (1, 100):
        found = [one["id"] async for one in container.query_items(query, parameters=parameters, max_item_count=page)]
        assert sorted(found) == ["p..0", "p..1"]
