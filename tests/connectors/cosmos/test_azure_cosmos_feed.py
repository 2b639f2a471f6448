"""azure-cosmos, asynchronous, on the wire server: the change feed in both modes, through splits and merges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from plugins_cosmos import Cosmos

DOCUMENTS = 40


@pytest.fixture
async def tx(cosmos: Cosmos) -> AsyncIterator[ContainerProxy]:
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        container = await database.create_container("tx", PartitionKey("/account"))
        await fill(container)
        yield container


async def fill(container: ContainerProxy, prefix: str = "d") -> None:
    for n in range(DOCUMENTS):
        await container.upsert_item({"id": f"{prefix}{n}", "account": f"a{n}", "n": n})


def ids(prefix: str = "d") -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(DOCUMENTS))


async def read(container: ContainerProxy, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """All there is now, and the SDK's continuation after it."""
    found = [item async for item in container.query_items_change_feed(**options)]
    return found, container.client_connection.last_response_headers["etag"]


async def test_every_range_has_its_own_documents_and_together_all(tx: ContainerProxy, cosmos: Cosmos) -> None:
    found = []
    for span, truth in zip([one async for one in tx.read_feed_ranges()], cosmos.control.ranges("tx"), strict=True):
        items, _ = await read(tx, feed_range=span, start_time="Beginning")
        assert [item["_lsn"] for item in items] == list(range(1, truth.lsn + 1))
        found += [item["id"] for item in items]
    assert sorted(found) == ids()


async def test_a_continuation_brings_what_came_after_it_and_a_document_once_in_its_latest_version(
    tx: ContainerProxy,
) -> None:
    items, continuation = await read(tx, start_time="Beginning", max_item_count=7)
    assert sorted(item["id"] for item in items) == ids()
    for n in (1, 2, 3):
        await tx.upsert_item({"id": "d1", "account": "a1", "n": n})
    items, _ = await read(tx, continuation=continuation)
    assert [(item["id"], item["n"]) for item in items] == [("d1", 3)]


async def test_a_feed_from_now_or_from_a_time_begins_there(tx: ContainerProxy, cosmos: Cosmos) -> None:
    items, now = await read(tx, start_time="Now")
    assert items == []
    cosmos.control.move_clock(100)
    await fill(tx, "e")
    items, _ = await read(tx, continuation=now)
    assert sorted(item["id"] for item in items) == ids("e")
    items, _ = await read(tx, start_time=datetime.now(UTC) + timedelta(seconds=50))
    assert sorted(item["id"] for item in items) == ids("e")


async def test_a_feed_of_one_partition_key_brings_its_documents_alone(tx: ContainerProxy) -> None:
    items, _ = await read(tx, partition_key="a5", start_time="Beginning")
    assert [item["id"] for item in items] == ["d5"]


@pytest.mark.parametrize(("images", "previous"), [("none", [None, None, None]), ("all", [None, 1, 2])])
async def test_all_versions_and_deletes_arrive_in_order(
    tx: ContainerProxy, cosmos: Cosmos, images: str, previous: list[int | None]
) -> None:
    cosmos.control.images("tx", images)
    _, now = await read(tx, mode="AllVersionsAndDeletes")
    await tx.create_item({"id": "new", "account": "new", "v": 1})
    await tx.upsert_item({"id": "new", "account": "new", "v": 2})
    await tx.delete_item("new", "new")
    items, _ = await read(tx, mode="AllVersionsAndDeletes", continuation=now)
    assert [item["metadata"]["operationType"] for item in items] == ["create", "replace", "delete"]
    assert [item.get("current", {}).get("v") for item in items] == [1, 2, None]
    assert [item.get("previous", {}).get("v") for item in items] == previous
    assert (items[2]["metadata"]["id"], items[2]["metadata"]["partitionKey"]) == ("new", {"account": "new"})
    lsns = [item["metadata"]["lsn"] for item in items]
    assert lsns == [lsns[0], lsns[0] + 1, lsns[0] + 2]


@pytest.mark.parametrize("completing", [0, 2])
async def test_splits_in_the_midst_of_a_feed_lose_and_repeat_nothing(
    tx: ContainerProxy, cosmos: Cosmos, completing: int
) -> None:
    found, number = [], 0
    async for page in tx.query_items_change_feed(start_time="Beginning", max_item_count=3).by_page():
        found += [item["id"] async for item in page]
        number += 1
        if number in (2, 5, 8):
            widest = max(cosmos.control.ranges("tx"), key=lambda one: one.documents)
            cosmos.control.split("tx", widest.id, completing=completing)
    assert sorted(found) == ids()
    assert len(cosmos.control.ranges("tx")) == 7


async def test_continuations_of_merged_ranges_go_on_each_over_its_own_span(tx: ContainerProxy, cosmos: Cosmos) -> None:
    spans = [span async for span in tx.read_feed_ranges()][:2]
    left_items, left = await read(tx, feed_range=spans[0], start_time="Beginning")
    right_page = await anext(
        tx.query_items_change_feed(feed_range=spans[1], start_time="Beginning", max_item_count=2).by_page()
    )
    right_items = [item async for item in right_page]
    right = tx.client_connection.last_response_headers["etag"]
    cosmos.control.merge("tx", "0", "1")
    await fill(tx, "e")
    for continuation in (left, right):
        items, _ = await read(tx, continuation=continuation)
        (left_items if continuation == left else right_items).extend(items)
    inside = {v["id"] for v in cosmos.control.versions("tx") if v["range"] == "4"}
    found = [item["id"] for item in (*left_items, *right_items)]
    assert sorted(found) == sorted(inside)


async def test_what_the_feed_delivered_is_known_to_the_server(tx: ContainerProxy, cosmos: Cosmos) -> None:
    await read(tx, start_time="Beginning")
    latest = {(version["id"], version["lsn"]): 1 for version in cosmos.control.versions("tx")}
    assert cosmos.control.delivered("tx") == latest
