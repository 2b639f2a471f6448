"""Executors read ranges of a container while it changes, on the wire server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from connectors.cosmos.bank import Bank, banked
from plugins_cosmos import Cosmos

from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, PageLimits, Pauses
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.ranges import EventRange

VARIABLE = "LEASEHOLD_TEST_KEY"
PAUSES = Pauses(first_s=0.01, longest_s=0.05, patience_s=2.0)


@pytest.fixture
async def bank(cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bank]:
    monkeypatch.setenv(VARIABLE, cosmos.key)
    async with banked(cosmos) as bank:
        yield bank


async def read(feed: CosmosChangeFeed, ranges: Sequence[EventRange], partition: str = "0") -> list[dict[str, Any]]:
    """The documents' ids and LSNs, the ranges side by side."""
    reader = feed.range_reader()
    assert reader is not None

    def of_one(planned: EventRange) -> list[dict[str, Any]]:
        rows = [event for table in reader.read_range(partition, planned) for event in table.to_pylist()]
        return [{"id": dict(row["properties"])["id"], "lsn": int(row["offset"]), **row} for row in rows]

    found = await asyncio.gather(*(asyncio.to_thread(of_one, each) for each in ranges))
    return [event for each in found for event in each]


async def test_a_transaction_is_in_one_range(bank: Bank) -> None:
    account = bank.account_in("0")
    for _ in range(4):
        await bank.create_together(account, 5)
    feed = bank.feed(executors_env=VARIABLE)
    ranges = await feed.plan_ranges("0", None, 100, 1)
    assert len(ranges) >= 4
    found = await read(feed, ranges)
    assert [event["id"] for event in found] == [f"t{n}" for n in range(1, 21)]
    assert {len({each["lsn"] for each in found[n : n + 5]}) for n in range(0, 20, 5)} == {1}
    await feed.close()


async def test_a_document_that_changes_after_the_plan_follows_with_its_new_version(bank: Bank) -> None:
    account = bank.account_in("0")
    made = [await bank.create(account) for _ in range(6)]
    feed = bank.feed(executors_env=VARIABLE)
    ranges = await feed.plan_ranges("0", None, 100, 2)
    await bank.container.upsert_item({**made[1], "n": 2})
    found = await read(feed, ranges)
    assert [event["id"] for event in found] == [each["id"] for n, each in enumerate(made) if n != 1]
    rest = await read(feed, await feed.plan_ranges("0", ranges[-1].to, 100, 2))
    assert [event["id"] for event in rest] == [made[1]["id"]]
    await feed.close()


async def test_all_versions_that_are_made_after_the_plan_are_behind_it(bank: Bank) -> None:
    account = bank.account_in("0")
    document = await bank.create(account, n=0)
    feed = bank.feed(executors_env=VARIABLE, mode="all_versions")
    for n in (1, 2, 3):
        await bank.container.upsert_item({**document, "n": n})
    ranges = await feed.plan_ranges("0", '"0"', 100, 1)
    await bank.container.delete_item(document["id"], account)
    assert [event["operation"] for event in await read(feed, ranges)] == ["create", "replace", "replace", "replace"]
    rest = await read(feed, await feed.plan_ranges("0", ranges[-1].to, 100, 2))
    assert [(event["operation"], event["body"]) for event in rest] == [("delete", None)]
    await feed.close()


async def test_a_range_that_was_split_since_it_was_planned_is_unavailable(bank: Bank) -> None:
    await bank.create(bank.account_in("0"))
    feed = bank.feed(executors_env=VARIABLE, pauses=PAUSES)
    ranges = await feed.plan_ranges("0", None, 100, 2)
    bank.cosmos.control.split(bank.name, "0")
    with pytest.raises(FeedUnavailable, match="its children take over"):
        await read(feed, ranges)
    assert await feed.plan_ranges("0", None, 100, 2) == []
    await feed.close()


async def test_throttling_and_replicas_that_lag_cost_no_document(bank: Bank) -> None:
    made = [await bank.create(bank.account_in("0")) for _ in range(20)]
    feed = bank.feed(executors_env=VARIABLE, pages=PageLimits(items_max=3))
    ranges = await feed.plan_ranges("0", None, 100, 10)
    bank.cosmos.control.fault("lag", "feed.*", container=bank.name, lsns=8, times=6)
    bank.cosmos.control.fault("throttle", "feed.*", container=bank.name, times=3)
    assert [event["id"] for event in await read(feed, ranges)] == [each["id"] for each in made]
    await feed.close()
