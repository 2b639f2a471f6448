"""azure-cosmos (asynchronous) on the wire server: documents, queries, ETags."""

from __future__ import annotations

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

from tests.plugins_cosmos import Cosmos


async def test_a_document_is_created_read_replaced_and_deleted(cosmos: Cosmos) -> None:
    async with cosmos.client() as client:
        database = await client.create_database_if_not_exists("bank")
        container = await database.create_container_if_not_exists("tx", PartitionKey("/account"))
        made = await container.create_item({"id": "1", "account": "a", "n": 1})
        assert (await container.read_item("1", "a"))["_etag"] == made["_etag"]
        await container.replace_item(
            "1", {**made, "n": 2}, etag=made["_etag"], match_condition=MatchConditions.IfNotModified
        )
        with pytest.raises(CosmosAccessConditionFailedError):
            await container.delete_item("1", "a", etag=made["_etag"], match_condition=MatchConditions.IfNotModified)
        assert (await container.read_item("1", "a"))["n"] == 2
        with pytest.raises(CosmosResourceExistsError):
            await container.create_item({"id": "1", "account": "a"})
        await container.delete_item("1", "a")
        with pytest.raises(CosmosResourceNotFoundError):
            await container.read_item("1", "a")


async def test_a_wrong_key_is_refused(cosmos: Cosmos) -> None:
    from azure.cosmos.aio import CosmosClient

    with pytest.raises(CosmosHttpResponseError) as caught:
        async with CosmosClient(cosmos.endpoint, "d3Jvbmc=") as client:
            await client.create_database("bank")
    assert caught.value.status_code == 401
