"""A container's change feed through splits, merges, throttling and slow answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.cosmos.exceptions import CosmosResourceExistsError
from connectors.cosmos.bank import QUICK, Bank, banked
from patience import PATIENCE_S
from plugins_cosmos import Cosmos
from unit.pipeline.bounds import batch_sizes

from leasehold.common.azure import cosmos_account_of
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, PageLimits, Pauses
from leasehold.pipeline.connectors.cosmos.change_feed_request import Mode
from leasehold.pipeline.connectors.cosmos.records import SEQUENCE_BITS
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import FeedPartition, PartitionEnded


@pytest.fixture
async def bank(cosmos: Cosmos) -> AsyncIterator[Bank]:
    async with banked(cosmos) as bank:
        yield bank


@pytest.fixture
async def feed(bank: Bank) -> AsyncIterator[CosmosChangeFeed]:
    feed = bank.feed()
    yield feed
    await feed.close()


async def read(feed: CosmosChangeFeed, partition: str, after: str | None, count: int) -> list[Page]:
    pages: list[Page] = []
    reader = feed.open(partition, after)
    async with asyncio.timeout(PATIENCE_S):
        while sum(page.events.num_rows for page in pages) < count:
            pages.append(await anext(reader))
    await reader.aclose()
    return pages


async def ended(feed: CosmosChangeFeed, partition: str, after: str | None) -> PartitionEnded:
    reader = feed.open(partition, after)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PartitionEnded) as caught:
            _ = [page async for page in reader]
    return caught.value


def ids(pages: list[Page]) -> list[str]:
    return [dict(event)["id"] for page in pages for event in page.events["properties"].to_pylist()]


async def filled(bank: Bank, account: str, count: int) -> list[str]:
    return [(await bank.create(account))["id"] for _ in range(count)]


# Events


async def test_an_event_is_the_document_as_the_service_has_it(bank: Bank, feed: CosmosChangeFeed) -> None:
    account = bank.account_in("1")
    made = await bank.create(account, amount=1.5, note="ä\u2028")
    [page] = await read(feed, "1", None, 1)
    [event] = page.events.to_pylist()
    body = json.loads(event["body"])
    assert {name: body[name] for name in ("id", "amount", "note", "_etag", "_ts")} == {
        name: made[name] for name in ("id", "amount", "note", "_etag", "_ts")
    }
    assert (event["partition"], event["key"], event["operation"]) == ("1", account, "upsert")
    assert (event["offset"], event["sequence"], page.to) == ("1", 1 << SEQUENCE_BITS, '"1"')
    assert int(event["enqueued_time"].timestamp()) == made["_ts"]


async def test_a_position_lies_between_transactions_and_never_inside_one(bank: Bank) -> None:
    account = bank.account_in("2")
    await bank.create(account)
    await bank.create_together(account, 3)
    await bank.create(account)
    feed = bank.feed(pages=PageLimits(items_max=10))
    [page] = await read(feed, "2", None, 5)
    assert [page.position_after(n) for n in range(1, 5)] == ['"1"', None, None, '"2"']
    assert ids(await read(feed, "2", '"1"', 4)) == ids([page])[1:]
    await feed.close()


async def test_a_transaction_that_is_larger_than_a_page_comes_whole(bank: Bank) -> None:
    account = bank.account_in("2")
    await bank.create_together(account, 7)
    await bank.create(account)
    feed = bank.feed(pages=PageLimits(items_max=3, bytes_max=500))
    assert [page.events.num_rows for page in await read(feed, "2", None, 8)] == [7, 1]
    await feed.close()


async def test_batches_of_the_feeds_own_pages_are_cut_between_transactions(bank: Bank, feed: CosmosChangeFeed) -> None:
    account = bank.account_in("2")
    for count in (70, 70, 70, 90, 1, 1):
        await bank.create_together(account, count)
    assert len(await read(feed, "2", None, 302)) == 1
    assert await batch_sizes(feed, "2", 302) == [140, 162]


async def test_of_a_changed_document_the_latest_version_is_read(bank: Bank, feed: CosmosChangeFeed) -> None:
    account = bank.account_in("0")
    made = await bank.create(account, n=1)
    other = await bank.create(account)
    await bank.container.replace_item(made["id"], {**made, "n": 2})
    assert ids(await read(feed, "0", None, 2)) == [other["id"], made["id"]]


async def test_a_document_that_is_replaced_under_another_id_is_read_under_that_one_alone(bank: Bank) -> None:
    feed, full = bank.feed(), bank.feed(mode="all_versions")
    account = bank.account_in("0")
    start = await full.start_of("0", "latest")
    made, other = await bank.create(account, n=1), await bank.create(account)
    assert ids(await read(feed, "0", None, 2)) == [made["id"], other["id"]]
    await bank.container.replace_item(made["id"], {**made, "id": "renamed", "n": 2})
    with pytest.raises(CosmosResourceExistsError):
        await bank.container.replace_item("renamed", {**made, "id": other["id"]})
    assert ids(await read(feed, "0", '"2"', 1)) == ["renamed"]
    assert ids(await read(feed, "0", None, 2)) == [other["id"], "renamed"]
    events = [event for page in await read(full, "0", start, 3) for event in page.events.to_pylist()]
    assert [(dict(event["properties"])["id"], event["operation"]) for event in events] == [
        (made["id"], "create"),
        (other["id"], "create"),
        ("renamed", "replace"),
    ]
    for each in (feed, full):
        await each.close()


@pytest.mark.parametrize("images", ["none", "deletes", "all"])
async def test_all_versions_tells_creates_replaces_and_deletes(bank: Bank, images: str) -> None:
    """A delete comes without `current`, or with an empty one where the account gives images."""
    bank.cosmos.control.images(bank.name, images)
    feed = bank.feed(mode="all_versions")
    account = bank.account_in("0")
    start = await feed.start_of("0", "latest")
    made = await bank.create(account, n=1)
    await bank.container.replace_item(made["id"], {**made, "n": 2})
    await bank.container.delete_item(made["id"], account)
    events: list[dict[str, Any]] = [e for page in await read(feed, "0", start, 3) for e in page.events.to_pylist()]
    assert [event["operation"] for event in events] == ["create", "replace", "delete"]
    assert [event["body"] and json.loads(event["body"])["n"] for event in events] == [1, 2, None]
    assert {event["key"] for event in events} == {account}
    assert {dict(event["properties"])["id"] for event in events} == {made["id"]}
    assert await feed.lag("0", start) == 3
    await feed.close()


async def test_all_versions_begins_now_or_at_a_continuation_alone(bank: Bank) -> None:
    feed = bank.feed(mode="all_versions")
    with pytest.raises(PositionLost, match="set `start: latest`"):
        await feed.start_of("0", "earliest")
    with pytest.raises(PositionLost, match="set the lease to a continuation"):
        await anext(feed.open("0", None))
    assert feed.identity.endswith("/bank/transactions:all_versions")
    await feed.close()


async def test_an_idle_position_of_all_versions_keeps_up_with_what_the_service_keeps(bank: Bank) -> None:
    """The range moves on with documents of another part of it; our own position would grow old."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += 3600
        await asyncio.sleep(0)

    feed = bank.feed(mode="all_versions", pauses=Pauses(sleep=sleep, monotonic=lambda: now))
    start = await feed.start_of("0", "latest")
    async with asyncio.timeout(PATIENCE_S):
        page = await anext(feed.open("0", start))
    assert (page.events.num_rows, page.to) == (0, '"0"')
    await feed.close()


# Splits and merges


async def test_a_split_range_ends_at_what_was_read_and_its_children_go_on_there(
    bank: Bank, feed: CosmosChangeFeed
) -> None:
    account = bank.account_in("1")
    before = await filled(bank, account, 5)
    [page] = await read(feed, "1", None, 5)
    left, right = bank.cosmos.control.split(bank.name, "1")
    after = await filled(bank, bank.account(left.min, left.max), 2) + await filled(
        bank, bank.account(right.min, right.max), 2
    )
    end = await ended(feed, "1", page.to)
    assert end.children == ((left.id, page.to), (right.id, page.to))
    assert end.scopes == {each.id: f"{each.min}-{each.max}" for each in (left, right)}
    found = [each for name, at in end.children for each in ids(await read(feed, name, at, 2))]
    assert sorted(ids([page]) + found) == sorted(before + after)


async def test_a_reader_that_was_not_through_when_its_range_was_split_leaves_the_rest_to_the_children(
    bank: Bank,
) -> None:
    feed = bank.feed(pages=PageLimits(items_max=2))
    account = bank.account_in("1")
    made = await filled(bank, account, 5)
    reader = feed.open("1", None)
    first = await anext(reader)
    children = bank.cosmos.control.split(bank.name, "1")
    with pytest.raises(PartitionEnded) as end:
        await anext(reader)
    assert set(end.value.children) == {(each.id, first.to) for each in children}
    heir = next(each for each in children if each.min <= bank_epk(account) < each.max)
    assert ids([first, *await read(feed, heir.id, first.to, 3)]) == made
    await feed.close()


def bank_epk(account: str) -> str:
    from connectors.cosmos.bank import KEY

    from leasehold_emulators.cosmos.epk import epk_of

    return epk_of([account], KEY)


async def test_a_split_that_is_being_completed_is_waited_for(bank: Bank, feed: CosmosChangeFeed) -> None:
    await feed.partitions()
    children = bank.cosmos.control.split(bank.name, "1", completing=3)
    end = await ended(feed, "1", '"0"')
    assert [name for name, _ in end.children] == [each.id for each in children]


async def test_merged_ranges_go_on_apart_each_from_its_own_continuation(bank: Bank, feed: CosmosChangeFeed) -> None:
    """Their LSNs are of different logs: one is far ahead, and nothing of either is told twice or skipped."""
    accounts = [bank.account_in("0"), bank.account_in("1")]
    for account, count in zip(accounts, (9, 2), strict=True):
        await filled(bank, account, count)
    halves = bank.cosmos.control.ranges(bank.name)[:2]
    await feed.partitions()
    positions = [(await read(feed, name, None, count))[-1].to for name, count in (("0", 7), ("1", 1))]
    positions[0] = '"7"'
    positions[1] = '"1"'
    merged = bank.cosmos.control.merge(bank.name, "0", "1")
    later = [await filled(bank, account, 2) for account in accounts]
    for name, half, position, account in zip("01", halves, positions, accounts, strict=True):
        end = await ended(feed, name, position)
        part = f"{half.min}-{half.max}"
        assert (end.children, end.scopes) == (((part, position),), {part: part})
        left = {"0": 4, "1": 3}[name]
        events = [e for page in await read(feed, part, position, left) for e in page.events.to_pylist()]
        assert {event["key"] for event in events} == {account}
        assert [dict(event["properties"])["id"] for event in events][-2:] == later[int(name)]
        assert len(events) == left
    assert (await feed.partitions())[-1].name == merged.id


async def test_the_merge_of_ranges_that_nobody_here_ever_saw_is_followed_by_the_leases_scopes(bank: Bank) -> None:
    halves = bank.cosmos.control.ranges(bank.name)[:2]
    bank.cosmos.control.merge(bank.name, "0", "1")
    feed = bank.feed()
    with pytest.raises(FeedError, match="the lease has no bounds"):
        await ended(feed, "0", '"0"')
    feed.remember({"0": f"{halves[0].min}-{halves[0].max}"})
    assert (await ended(feed, "0", '"0"')).children == ((f"{halves[0].min}-{halves[0].max}", '"0"'),)
    await feed.close()


async def test_a_part_of_a_range_goes_on_through_splits_that_do_not_cut_it(bank: Bank, feed: CosmosChangeFeed) -> None:
    left = bank.cosmos.control.ranges(bank.name)[0]
    merged = bank.cosmos.control.merge(bank.name, "0", "1")
    account = bank.account(left.min, left.max)
    part = f"{left.min}-{left.max}"
    before = await filled(bank, account, 2)
    reader = feed.open(part, None)
    first = await anext(reader)
    bank.cosmos.control.split(bank.name, merged.id, at=left.max)
    after = await filled(bank, account, 1)
    async with asyncio.timeout(PATIENCE_S):
        assert ids([first, await anext(reader)]) == before + after
    await reader.aclose()


async def test_a_part_of_a_range_that_is_cut_ends_and_each_side_goes_on(bank: Bank, feed: CosmosChangeFeed) -> None:
    left = bank.cosmos.control.ranges(bank.name)[0]
    part = f"{left.min}-{left.max}"
    merged = bank.cosmos.control.merge(bank.name, "0", "1")
    cut = f"{int(left.max, 16) // 2:032X}"
    bank.cosmos.control.split(bank.name, merged.id, at=cut)
    end = await ended(feed, part, '"0"')
    assert end.children == ((f"{left.min}-{cut}", '"0"'), (f"{cut}-{left.max}", '"0"'))


async def test_bounds_of_other_lengths_are_the_same_bounds(bank: Bank, feed: CosmosChangeFeed) -> None:
    """As the ranges of hierarchical keys have them, and .NET's leases of them."""
    cut = "1F"
    [left, right] = bank.cosmos.control.split(bank.name, "1", at=cut)
    made = await filled(bank, bank.account(left.min, cut), 2)
    assert left.max == right.min == cut
    part = f"{left.min.rstrip('0')}-{cut}00"
    assert ids(await read(feed, part, None, 2)) == made
    merged = bank.cosmos.control.merge(bank.name, right.id, "2")
    end = await ended(feed, f"{left.min}-{right.max.rstrip('0')}", '"0"')
    assert [name for name, _ in end.children] == [f"{left.min}-{cut}", f"{cut}-{right.max.rstrip('0')}"]
    listed = next(each for each in await feed.partitions() if each.name == merged.id)
    assert feed.uncovered(listed, [f"{cut}00-{right.max}", f"{right.max.rstrip('0')}-{merged.max}"]) == []


async def test_all_versions_go_on_through_a_merge_each_part_by_itself(bank: Bank) -> None:
    feed = bank.feed(mode="all_versions")
    halves = bank.cosmos.control.ranges(bank.name)[:2]
    accounts = [bank.account(half.min, half.max) for half in halves]
    starts = [await feed.start_of(name, "latest") for name in "01"]
    made = [await bank.create(account, n=1) for account in accounts]
    bank.cosmos.control.merge(bank.name, "0", "1")
    for document in made:
        await bank.container.delete_item(document["id"], document["account"])
    for name, half, account, start in zip("01", halves, accounts, starts, strict=True):
        end = await ended(feed, name, start)
        assert end.children == ((f"{half.min}-{half.max}", start),)
        pages = await read(feed, end.children[0][0], start, 2)
        events = [event for page in pages for event in page.events.to_pylist()]
        assert [(event["key"], event["operation"]) for event in events] == [(account, "create"), (account, "delete")]
    await feed.close()


async def test_a_listed_range_is_covered_by_the_parts_that_leases_hold(bank: Bank, feed: CosmosChangeFeed) -> None:
    left, right = bank.cosmos.control.ranges(bank.name)[:2]
    merged = bank.cosmos.control.merge(bank.name, "0", "1")
    listed = next(each for each in await feed.partitions() if each.name == merged.id)
    parts = [f"{each.min}-{each.max}" for each in (left, right)]
    assert feed.uncovered(listed, parts) == []
    assert feed.uncovered(listed, parts[:1]) == [FeedPartition(parts[1], (), parts[1])]
    assert feed.uncovered(listed, ["nonsense"]) == [listed]


# A range that fell back


async def test_a_range_that_stays_behind_what_was_read_is_told_instead_of_waited_for(bank: Bank) -> None:
    feed = bank.feed(pauses=Pauses(patience_s=0.1))
    await filled(bank, bank.account_in("0"), 3)
    with pytest.raises(PositionLost, match=r"ends at 3 and was read up to \"999\".*like '\"3\"'"):
        await read(feed, "0", '"999"', 1)
    await feed.close()


# Replicas that lag


@pytest.mark.parametrize("mode", ["latest", "all_versions"])
@pytest.mark.parametrize("again", [False, True], ids=["304", "200"])
async def test_what_a_lagging_replica_answers_moves_nothing_back_and_repeats_nothing(
    bank: Bank, mode: Mode, again: bool
) -> None:
    """It is two transactions behind, for three answers, and again after each of the next events."""
    feed = bank.feed(mode=mode)
    account = bank.account_in("1")
    start = await feed.start_of("1", "latest")
    made = await filled(bank, account, 4)
    reader = feed.open("1", start)
    pages: list[Page] = []
    async with asyncio.timeout(PATIENCE_S):
        pages.append(await anext(reader))
        for _ in range(2):
            bank.cosmos.control.fault("lag", "feed.*", container=bank.name, lsns=2, again=again, times=3)
            made += await filled(bank, account, 1)
            pages.append(await anext(reader))
    await reader.aclose()
    assert [fault["taken"] for fault in bank.cosmos.control.faults()] == [3, 3]
    assert (ids(pages), [page.to for page in pages]) == (made, ['"4"', '"5"', '"6"'])
    assert await feed.lag("1", '"6"') == 0
    await feed.close()


async def test_a_replica_that_has_a_part_of_what_is_new_delivers_that_part(bank: Bank, feed: CosmosChangeFeed) -> None:
    made = await filled(bank, bank.account_in("1"), 5)
    bank.cosmos.control.fault("lag", "feed.*", container=bank.name, lsns=2, times=2)
    pages = await read(feed, "1", '"1"', 4)
    assert (ids(pages), [page.to for page in pages]) == (made[1:], ['"3"', '"5"'])


async def test_what_a_replica_repeats_is_no_lag(bank: Bank, feed: CosmosChangeFeed) -> None:
    await filled(bank, bank.account_in("1"), 4)
    bank.cosmos.control.fault("lag", "feed.*", container=bank.name, lsns=2, again=True, times=1)
    assert await feed.lag("1", '"4"') == 0


# Lag


async def test_lag_is_what_the_estimator_says(bank: Bank, feed: CosmosChangeFeed) -> None:
    account = bank.account_in("3")
    await filled(bank, account, 4)
    await bank.create_together(account, 5)
    truth = next(each for each in bank.cosmos.control.ranges(bank.name) if each.id == "3")
    assert (truth.lsn, truth.documents) == (5, 9)
    assert [await feed.lag("3", at) for at in (None, '"2"', '"4"', '"5"')] == [5, 3, 1, 0]


async def test_the_time_of_the_first_change_comes_with_the_lag_and_costs_no_request(
    bank: Bank, feed: CosmosChangeFeed
) -> None:
    for _ in range(4):
        await filled(bank, bank.account_in("3"), 1)
        bank.cosmos.control.move_clock(10)
    pages = feed.open("3", None)
    _, _, third, fourth = (await anext(pages)).events["enqueued_time"].to_pylist()
    await pages.aclose()
    await feed.lag("3", '"2"')
    before = bank.cosmos.control.requests("feed.latest")
    assert await feed.find_enqueued_time("3", '"2"') == third
    assert bank.cosmos.control.requests("feed.latest") == before
    assert await feed.find_enqueued_time("3", '"3"') == fourth
    assert bank.cosmos.control.requests("feed.latest") == before + 1
    assert third < fourth


async def test_the_lag_of_a_range_that_was_split_is_its_childrens(bank: Bank, feed: CosmosChangeFeed) -> None:
    await filled(bank, bank.account_in("1"), 3)
    await feed.partitions()
    bank.cosmos.control.split(bank.name, "1")
    assert await feed.lag("1", '"1"') == 2
    assert await feed.latest("1") == '"3"'


# A busy or slow account


async def test_throttling_is_waited_for_as_long_as_asked_and_keeps_nobody_else(bank: Bank) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    feed = bank.feed(pauses=Pauses(sleep=sleep))
    await filled(bank, bank.account_in("0"), 1)
    await filled(bank, bank.account_in("1"), 1)
    bank.cosmos.control.fault("throttle", "feed.*", container=bank.name, range_id="0", retry_after_ms=2500, times=3)
    assert len(ids(await read(feed, "1", None, 1))) == 1
    assert slept == []
    assert len(ids(await read(feed, "0", None, 1))) == 1
    assert len(slept) == 3
    assert all(2.5 <= pause < 2.8 for pause in slept)
    await feed.close()


async def test_a_listing_that_is_throttled_is_asked_for_again_when_the_account_says(bank: Bank) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    feed = bank.feed(pauses=Pauses(sleep=sleep))
    bank.cosmos.control.fault("throttle", "ranges.list", container=bank.name, retry_after_ms=300, times=2)
    assert len(await feed.partitions()) == 4
    assert len(slept) == 2
    assert all(0.3 <= pause < 0.4 for pause in slept)
    bank.cosmos.control.fault("fail", "ranges.list", container=bank.name, status=503)
    with pytest.raises(FeedUnavailable):
        await feed.partitions()
    assert len(slept) == 2
    await feed.close()


async def test_an_account_that_stays_away_is_told_once_patience_is_used_up(bank: Bank) -> None:
    feed = bank.feed(pauses=Pauses(first_s=0.01, longest_s=0.05, patience_s=0.2))
    bank.cosmos.control.fault("throttle", "feed.*", retry_after_ms=10)
    with pytest.raises(FeedUnavailable, match="too many requests") as caught:
        await read(feed, "0", None, 1)
    assert caught.value.retry_after_s == 0.01
    await feed.close()


async def test_pages_are_halved_where_they_do_not_come_in_time_and_grow_again(bank: Bank) -> None:
    feed = bank.feed(pages=PageLimits(items_max=8), timeout_s=2.5)
    made = await filled(bank, bank.account_in("0"), 30)
    await feed.partitions()
    bank.cosmos.control.fault("delay", "feed.*", delay_s=5, times=2)
    pages = await read(feed, "0", None, 30)
    assert ids(pages) == made
    assert [page.events.num_rows for page in pages] == [2, 2, 2, 2, 4, 4, 4, 4, 6]
    await feed.close()


@pytest.mark.parametrize("do", ["cut", "lose_reply"])
async def test_a_page_that_was_lost_on_its_way_is_read_again(bank: Bank, feed: CosmosChangeFeed, do: str) -> None:
    made = await filled(bank, bank.account_in("0"), 3)
    await feed.partitions()
    bank.cosmos.control.fault(do, "feed.*", times=2)
    assert ids(await read(feed, "0", None, 3)) == made


async def test_an_account_over_tls_by_a_connection_string_shows_no_key(bank: Bank) -> None:
    """The SDK trusts any certificate of this machine."""
    text = f"AccountEndpoint={bank.cosmos.https};AccountKey={bank.cosmos.key};"
    feed = CosmosChangeFeed(cosmos_account_of(connection_string=text), "bank", bank.name, pauses=QUICK)
    await filled(bank, bank.account_in("0"), 1)
    assert len(await read(feed, "0", None, 1)) == 1
    assert bank.cosmos.key not in feed.identity + repr(cosmos_account_of(connection_string=text))
    await feed.close()
