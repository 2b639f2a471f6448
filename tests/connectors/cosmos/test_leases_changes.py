"""What changed in a container of leases, by its change feed: what it costs, and what splits, lags and other programs do to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from plugins_cosmos import Cosmos

from leasehold.common.azure import CosmosAccount
from leasehold.leases import dotnet
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.lease import Lease
from leasehold.leases.store import ChangedDocuments
from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer, container

PREFIX = "ordersappacct.documents.azure.com_q0oIAA==_q0oIALS6YvQ="
RANGES = 4


class Transactions:
    """The container whose changes are read."""

    mode: str = dotnet.INCREMENTAL

    async def read_lease_prefix(self) -> str:
        return PREFIX


@pytest.fixture
async def store(cosmos: Cosmos) -> AsyncIterator[CosmosStore]:
    place = CosmosContainerAddress(database="bank", container="leases")
    account = CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)
    store = CosmosStore(LeaseContainer(account, place, call_timeout_s=60.0), {"orders": Transactions()})
    yield store
    await store.close()


async def begun(store: CosmosStore) -> str:
    changes = await store.read_changes("")
    assert changes is not None
    return changes.token


async def changes_since(store: CosmosStore, token: str, prefix: str = "") -> ChangedDocuments:
    changes = await store.read_changes(prefix, token)
    assert changes is not None
    return changes


def ids(changes: ChangedDocuments) -> list[str]:
    return sorted(stored.id for stored in changes.documents)


async def test_changes_cost_one_request_for_each_physical_partition(store: CosmosStore, cosmos: Cosmos) -> None:
    for n in range(40):
        await store.create(f"a/leases/{n}", "{}")
    token = await begun(store)
    assert cosmos.control.requests("feed.latest") == RANGES
    for n in range(40, 80):
        await store.create(f"a/leases/{n}", "{}")
    changes = await changes_since(store, token)
    assert ids(changes) == sorted(f"a/leases/{n}" for n in range(40, 80))
    assert cosmos.control.requests("feed.latest") == 2 * RANGES
    assert not (await changes_since(store, changes.token)).documents
    assert cosmos.control.requests("feed.latest") == 3 * RANGES


async def test_reading_ends_although_others_write_all_the_time(
    store: CosmosStore, cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosmos.control.ranges_of("leases", 1)
    token = await begun(store)
    for n in range(10):
        await store.create(f"a/leases/{n}", "{}")
    page, pages = container._page, 0

    async def read_page(*arguments: Any) -> Any:
        nonlocal pages
        pages += 1
        await store.create(f"a/leases/late-{pages}", "{}")
        return await page(*arguments)

    monkeypatch.setattr(container, "PAGE_ITEMS_MAX", 3)
    monkeypatch.setattr(container, "_page", read_page)
    changes = await changes_since(store, token)
    assert pages == 4, "what was there at its beginning, and no more"
    assert set(ids(changes)) >= {f"a/leases/{n}" for n in range(10)}
    monkeypatch.setattr(container, "_page", page)
    rest = await changes_since(store, changes.token)
    assert {*ids(changes), *ids(rest)} >= {f"a/leases/late-{n}" for n in range(1, 5)}


async def test_after_a_split_or_a_merge_of_its_partitions_the_leases_are_listed(
    store: CosmosStore, cosmos: Cosmos
) -> None:
    await store.create("a/leases/0", "{}")
    token = await begun(store)
    children = cosmos.control.split("leases", "1")
    assert await store.read_changes("", token) is None
    token = await begun(store)
    await store.create("a/leases/1", "{}")
    assert ids(await changes_since(store, token)) == ["a/leases/1"]
    cosmos.control.merge("leases", *(child.id for child in children))
    assert await store.read_changes("", token) is None


async def test_what_a_replica_does_not_have_yet_is_in_a_later_answer(store: CosmosStore, cosmos: Cosmos) -> None:
    cosmos.control.consistency("BoundedStaleness")  # the client of a session refuses such an answer
    cosmos.control.ranges_of("leases", 1)
    token = await begun(store)
    await store.create("a/leases/0", "{}")
    cosmos.control.fault("lag", "feed.latest", lsns=1, times=1)
    behind = await changes_since(store, token)
    assert ids(behind) == []
    assert ids(await changes_since(store, behind.token)) == ["a/leases/0"]


async def test_leases_of_dotnet_are_found_as_a_listing_has_them(store: CosmosStore, cosmos: Cosmos) -> None:
    theirs = {
        "version": 0,
        "LeaseToken": "0",
        "FeedRange": {"Range": {"min": "", "max": "FF"}},
        "Owner": "dotnet-host-1",
        "ContinuationToken": '"234"',
        "timestamp": "2026-03-04T23:55:16.5233511Z",
        "Mode": "Incremental Feed",
    }
    await store.list("")
    token = await begun(store)
    async with cosmos.client() as client:
        documents = client.get_database_client("bank").get_container_client("leases")
        for name in (f"{PREFIX}..0", f"other{PREFIX}..0", f"{PREFIX}.info", f"{PREFIX}.lock"):
            await documents.create_item({"id": name, **theirs})
        await documents.create_item({"id": f"{PREFIX}..1", **theirs, "LeaseToken": 7})
    await store.create(lease_id("orders", "2"), encode_lease(Lease(pipeline="orders", partition="2", scope="-FF")))
    await store.create("orders/info", "{}")
    await store.create("_hosts/host-a", "{}")
    for prefix in ("", "orders/leases/", "orders/", "_"):
        changes = await changes_since(store, token, prefix)
        assert sorted(changes.documents) == await store.list(prefix)
    names = [json.loads(stored.body).get("owner") for stored in await store.list("orders/leases/0")]
    assert names == ["dotnet-host-1"]


async def test_a_container_whose_keys_are_not_its_ids_is_listed(cosmos: Cosmos, store: CosmosStore) -> None:
    """Two documents may have one id there, and a listing alone shows both."""
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        await database.create_container("leases", {"paths": ["/partitionKey"], "kind": "Hash"})
    assert await store.read_changes("") is None


async def test_a_container_that_was_created_again_is_listed(store: CosmosStore, cosmos: Cosmos) -> None:
    cosmos.control.consistency("BoundedStaleness")
    for n in range(8):
        await store.create(f"a/leases/{n}", "{}")
    token = await begun(store)
    async with cosmos.client() as client:
        database = client.get_database_client("bank")
        await database.delete_container("leases")
        await database.create_container("leases", {"paths": ["/id"], "kind": "Hash"})
    assert await store.read_changes("", token) is None
