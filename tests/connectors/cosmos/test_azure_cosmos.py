"""azure-cosmos, asynchronous, on the wire server: documents, ETags, queries, batches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from plugins_cosmos import Cosmos


@pytest.fixture
async def accounts(cosmos: Cosmos) -> AsyncIterator[ContainerProxy]:
    """Twenty documents in four ranges."""
    async with cosmos.client() as client:
        database = await client.create_database_if_not_exists("bank")
        container = await database.create_container_if_not_exists("accounts", PartitionKey("/account"))
        for n in range(20):
            await container.create_item({"id": f"d{n}", "account": f"a{n}", "n": n})
        yield container


async def test_databases_and_containers_are_made_once_and_end(cosmos: Cosmos) -> None:
    async with cosmos.client() as client:
        database = await client.create_database_if_not_exists("bank")
        assert (await client.create_database_if_not_exists("bank")).id == "bank"
        await database.create_container("tx", PartitionKey(["/tenant", "/account"]), default_ttl=-1)
        with pytest.raises(CosmosResourceExistsError):
            await database.create_container("tx", PartitionKey("/account"))
        assert [one["id"] async for one in database.list_containers()] == ["tx"]
        assert [one["id"] async for one in client.query_databases("SELECT * FROM c WHERE c.id = 'bank'")] == ["bank"]
        await database.delete_container("tx")
        with pytest.raises(CosmosResourceNotFoundError):
            await database.get_container_client("tx").read()
        await client.delete_database("bank")
        assert [one async for one in client.list_databases()] == []


async def test_a_stale_etag_changes_nothing(accounts: ContainerProxy) -> None:
    first = await accounts.read_item("d3", "a3")
    await accounts.replace_item(
        "d3", {**first, "n": 33}, etag=first["_etag"], match_condition=MatchConditions.IfNotModified
    )
    stale = {"etag": first["_etag"], "match_condition": MatchConditions.IfNotModified}
    with pytest.raises(CosmosAccessConditionFailedError):
        await accounts.replace_item("d3", {**first, "n": 34}, **stale)
    with pytest.raises(CosmosAccessConditionFailedError):
        await accounts.delete_item("d3", "a3", **stale)
    with pytest.raises(CosmosAccessConditionFailedError):
        await accounts.upsert_item({**first, "n": 34}, **stale)
    assert (await accounts.read_item("d3", "a3"))["n"] == 33


async def test_documents_are_upserted_patched_and_deleted(accounts: ContainerProxy) -> None:
    await accounts.upsert_item({"id": "d3", "account": "a3", "n": 30})
    await accounts.patch_item(
        "d3", "a3", [{"op": "incr", "path": "/n", "value": 3}, {"op": "add", "path": "/k", "value": []}]
    )
    document = await accounts.read_item("d3", "a3")
    assert (document["n"], document["k"]) == (33, [])
    await accounts.delete_item("d3", "a3")
    with pytest.raises(CosmosResourceNotFoundError):
        await accounts.read_item("d3", "a3")
    with pytest.raises(CosmosResourceNotFoundError):
        await accounts.replace_item("d3", document)
    with pytest.raises(CosmosResourceExistsError):
        await accounts.create_item({"id": "d4", "account": "a4"})


async def test_a_batch_is_done_whole_or_not_at_all(accounts: ContainerProxy, cosmos: Cosmos) -> None:
    both = [("create", ({"id": "b1", "account": "b"},)), ("upsert", ({"id": "b2", "account": "b"},))]
    assert [result["statusCode"] for result in await accounts.execute_item_batch(both, "b")] == [201, 201]
    lsns = {version["lsn"] for version in cosmos.control.versions("accounts") if version["id"] in ("b1", "b2")}
    assert len(lsns) == 1
    with pytest.raises(CosmosBatchOperationError) as caught:
        await accounts.execute_item_batch([("delete", ("b1",)), ("create", ({"id": "b2", "account": "b"},))], "b")
    assert (caught.value.status_code, caught.value.error_index) == (409, 1)
    assert (await accounts.read_item("b1", "b"))["id"] == "b1"


@pytest.mark.parametrize("page", [3, 100])
async def test_queries_over_all_ranges(accounts: ContainerProxy, page: int) -> None:
    async def asked(text: str, **parameters: object) -> list[object]:
        given = [{"name": f"@{name}", "value": value} for name, value in parameters.items()]
        return [one async for one in accounts.query_items(text, parameters=given, max_item_count=page)]

    assert len(await asked("SELECT * FROM c")) == 20
    assert len(await asked("SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)", prefix="d1")) == 11
    assert await asked("SELECT VALUE c.n FROM c WHERE c.n > 16 ORDER BY c.n DESC") == [19, 18, 17]
    assert await asked("SELECT c.id FROM c ORDER BY c.n OFFSET 1 LIMIT 2") == [{"id": "d1"}, {"id": "d2"}]
    assert await asked("SELECT VALUE COUNT(1) FROM c") == [20]
    assert await asked("SELECT TOP 3 VALUE c.n FROM c ORDER BY c.n") == [0, 1, 2]


async def test_a_query_of_one_partition_asks_one_range(accounts: ContainerProxy, cosmos: Cosmos) -> None:
    cosmos.control.statistics(clear=True)
    found = [one["n"] async for one in accounts.query_items("SELECT * FROM c", partition_key="a7")]
    assert found == [7]
    assert cosmos.control.requests("documents.query", "accounts") == 1


async def test_documents_lie_where_the_sdk_looks_for_them(accounts: ContainerProxy, cosmos: Cosmos) -> None:
    found = {version["id"]: version["epk"] for version in cosmos.control.versions("accounts")}
    for n in range(20):
        span = await accounts.feed_range_from_partition_key(f"a{n}")
        inside = [one async for one in accounts.query_items("SELECT VALUE c.id FROM c", feed_range=span)]
        assert inside == [f"d{n}"]
        assert any(one.min <= found[f"d{n}"] < one.max for one in cosmos.control.ranges("accounts"))


async def test_the_session_token_names_the_range_and_its_last_lsn(accounts: ContainerProxy, cosmos: Cosmos) -> None:
    seen: list[str] = []
    await accounts.upsert_item(
        {"id": "d1", "account": "a1"}, response_hook=lambda headers, _: seen.append(headers["x-ms-session-token"])
    )
    range_id, _, token = seen[0].partition(":")
    assert int(token.split("#")[1]) == next(one.lsn for one in cosmos.control.ranges("accounts") if one.id == range_id)


async def test_a_lock_ends_by_itself_when_the_clock_has_moved_past_its_time_to_live(cosmos: Cosmos) -> None:
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        leases = await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
        await leases.create_item({"id": "prefix.lock", "ttl": 30})
        with pytest.raises(CosmosResourceExistsError):
            await leases.create_item({"id": "prefix.lock", "ttl": 30})
        cosmos.control.move_clock(31)
        await leases.create_item({"id": "prefix.lock", "ttl": 30})
