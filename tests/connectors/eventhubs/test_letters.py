"""Dead letters in an event hub: published once, read by the hub's partitions, replayed by the letters' own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from connectors.eventhubs.test_sink import HUB, QUICK
from plugins_eventhubs import EventHubs
from unit.pipeline.burials import NOW, Group, bodies

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.letters import HubLetters
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.dead_letters.box import read_kept
from leasehold.pipeline.dead_letters.merged_feed import MergedLetters
from leasehold.pipeline.dead_letters.settled import Replayed, ReplayFeed, judge
from leasehold.pipeline.errors import OutputRefused, SinkRejected, SinkUnavailable
from leasehold.pipeline.limits import REPLAY


@pytest.fixture
async def group(eventhubs: EventHubs, tmp_path: Path) -> AsyncIterator[Group]:
    made = grouped(eventhubs, tmp_path)
    yield made
    await made.beside.close()


def hub_box(eventhubs: EventHubs) -> LetterBox:
    account = account_of(connection_string=eventhubs.connection_string, event_hub=HUB)
    feed = EventHubsChangeFeed(account)
    by_partition = MergedLetters(HubLetters(feed, "pipe"))
    return LetterBox(
        feed=feed, sink=EventHubsOutputSink(account, consumer_group="$Default", retry=QUICK), by_partition=by_partition
    )


def grouped(eventhubs: EventHubs, path: Path, **given: object) -> Group:
    return Group(path, box_of=lambda _: hub_box(eventhubs), **given)  # type: ignore[arg-type]


async def test_letters_are_whole_and_there_once_though_the_host_dies_before_the_output(group: Group) -> None:
    group.feed.append("a", [b"a", b"!\xff\x00", b"c"], key="k", at=NOW)
    for _ in range(2):
        group.failures.append(SinkUnavailable("died"))
        with pytest.raises(SinkUnavailable):
            await group.run(3)
    group.transform.mended = {b"!\xff\x00"}
    await group.run(3)
    [kept] = await group.letters()
    assert (kept.letter.body, kept.letter.partition, kept.letter.sequence) == (b"!\xff\x00", "a", 1)
    assert (kept.letter.key, kept.letter.host, kept.letter.to) == ("k", "host-1", "3")
    assert group.delivered == [b"a", b"c"]


async def test_recovery_reads_the_hub_from_where_it_ended_before_the_batch(
    group: Group, eventhubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(4):
        eventhubs.control.fill(HUB, str(partition), 2000)
    group.feed.append("a", bodies("a b!"))
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(2)
    read = 0
    received = EventHubsChangeFeed.open

    async def counted(feed: EventHubsChangeFeed, partition: str, continuation: str | None) -> AsyncIterator[object]:
        nonlocal read
        async for page in received(feed, partition, continuation):
            read += page.events.num_rows
            yield page

    monkeypatch.setattr(EventHubsChangeFeed, "open", counted)
    await group.run(2)
    assert (read, group.delivered) == (1, [b"a"])


async def test_a_replay_reads_by_the_letters_partitions_whatever_else_the_hub_holds(
    eventhubs: EventHubs, tmp_path: Path
) -> None:
    """Two partitions share one of the hub's; their events have the same sequences."""
    eventhubs.control.make_hub("narrow", 1)
    account = account_of(connection_string=eventhubs.connection_string, event_hub="narrow")

    def box() -> LetterBox:
        feed = EventHubsChangeFeed(account)
        by_partition = MergedLetters(HubLetters(feed, "pipe"))
        return LetterBox(
            feed=feed,
            sink=EventHubsOutputSink(account, consumer_group="$Default", retry=QUICK),
            by_partition=by_partition,
        )

    eventhubs.control.append("narrow", "0", ["none of ours"])
    for partition in "ab":
        group = Group(tmp_path, feed=MemoryChangeFeed("ab"), box_of=lambda _: box())
        group.partition = partition
        group.feed.append(partition, [f"{partition}0!".encode(), f"{partition}1".encode(), f"{partition}2!".encode()])
        await group.run(3)
        await group.beside.close()
    feed = ReplayFeed(box(), "pipe")
    assert [each.name for each in await feed.partitions()] == ["a", "b"]
    for partition in "ab":
        end = await feed.latest(partition)
        found: list[dict[str, object]] = []
        async with aclosing(feed.open(partition, None)) as pages:
            async for page in pages:
                found += page.events.to_pylist()
                if page.to == end:
                    break
        assert [(row["partition"], row["sequence"], row["body"]) for row in found] == [
            (partition, 0, f"{partition}0!".encode()),
            (partition, 2, f"{partition}2!".encode()),
        ]
        assert await feed.lag(partition, end) == 0
    await feed.close()


async def test_a_replay_sends_each_letter_through_once(eventhubs: EventHubs, group: Group, tmp_path: Path) -> None:
    group.feed.append("a", bodies("a b! c d!"))
    await group.run(4)
    group.transform.mended = {b"b!"}
    feed = ReplayFeed(hub_box(eventhubs), "pipe")
    again = grouped(
        eventhubs,
        tmp_path,
        feed=feed,
        destination=group.destination,
        transform=group.transform,
        pipeline="pipe" + REPLAY,
    )
    await again.run_to(str(await feed.latest("a")))
    assert group.delivered == bodies("a c b!")
    assert await group.buried() == bodies("b! d! d!")
    box, letters = hub_box(eventhubs), await group.letters()
    found, problems = await judge(box, "pipe", letters, Replayed({"a": again.continuation}))
    assert [one.state for one in found] == ["replayed", "failed_again", "open"]
    assert (found[1].again, problems) == (letters[2].number, [])
    await box.close()
    await again.beside.close()


async def test_a_letter_that_the_hub_does_not_take_stops_the_partition_and_blames_no_event(
    group: Group, eventhubs: EventHubs
) -> None:
    group.feed.append("a", [b"a", b"!" + b"x" * 1_100_000])
    with pytest.raises(SinkRejected, match=r"the dead letters cannot be kept: .*batch of the hub at most") as caught:
        await group.run_on(2)
    assert not isinstance(caught.value, OutputRefused)
    assert await group.buried() == []


async def test_letters_of_a_pipeline_are_told_from_others(group: Group) -> None:
    group.feed.append("a", bodies("a!"))
    await group.run(1)
    assert [kept async for kept in read_kept(group.box, "other")] == []
