"""A replay sends each dead letter's event through once, as it was, and what fails again is a letter again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from unit.pipeline.burials import NOW, Group, bodies
from unit.pipeline.dead_letters.test_refusals import Items, converted

from leasehold.pipeline.async_sink import AsyncSink
from leasehold.pipeline.connectors.log import LogChangeFeed
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.dead_letters.settled import ReplayFeed
from leasehold.pipeline.errors import FeedUnavailable, SinkUnavailable
from leasehold.pipeline.limits import REPLAY


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path)
    yield made
    await made.beside.close()


async def replayed(group: Group, letters: int, **later: Any) -> None:
    """All letters up to the number `letters` are sent through by hosts of the replay; later: of the group that replays."""
    box = LetterBox(feed=LogChangeFeed(group.path / "letters"))
    feed = ReplayFeed(box, "pipe")
    again = Group(group.path, feed=feed, destination=group.destination, transform=group.transform, **later)
    again.pipeline = "pipe" + REPLAY
    try:
        while again.failures:
            with pytest.raises(SinkUnavailable):
                await again.run(letters - 1)
        await again.run_on(letters - 1)
    finally:
        await again.beside.close()
        await feed.close()


@pytest.mark.parametrize("deaths", range(3))
async def test_a_replay_sends_each_letter_through_once_and_buries_again_what_fails_again(
    group: Group, deaths: int
) -> None:
    group.feed.append("a", bodies("a b! c d! e!"), key="k", at=NOW)
    await group.run(5)
    group.transform.mended = {b"b!", b"e!"}
    await replayed(group, 3, failures=[SinkUnavailable("died")] * deaths)
    assert sorted(group.delivered) == bodies("a b! c e!")
    assert await group.buried() == bodies("b! d! e! d!")
    again = (await group.letters())[-1].letter
    assert (again.pipeline, again.by, again.sequence, again.key) == ("pipe", "pipe.replay", 3, "k")


async def test_what_a_dying_replay_wrote_again_is_tried_by_the_next_one_and_not_taken_for_done(group: Group) -> None:
    """The next replay's end lies behind it, and its event's old letter is buried under the same sequence."""
    group.feed.append("a", bodies("a! b!"))
    await group.run(2)
    group.transform.mended = {b"a!"}
    died = [SinkUnavailable("died")]
    feed = ReplayFeed(LetterBox(feed=LogChangeFeed(group.path / "letters")), "pipe")
    again = Group(group.path, feed=feed, destination=group.destination, transform=group.transform, failures=died)
    again.pipeline = "pipe" + REPLAY
    with pytest.raises(SinkUnavailable):
        await again.run(1)
    await again.beside.close()
    assert await group.buried() == bodies("a! b! b!")
    group.transform.mended = {b"a!", b"b!"}
    after = Group(
        group.path,
        feed=ReplayFeed(LetterBox(feed=LogChangeFeed(group.path / "letters")), "pipe"),
        destination=group.destination,
        transform=group.transform,
    )
    after.pipeline, after.epoch, after.state = "pipe" + REPLAY, again.epoch, again.state
    with pytest.raises(FeedUnavailable, match="under a claim of their own"):
        await after.run(2)
    assert after.continuation == "1"
    await after.run(2)
    await after.beside.close()
    assert group.delivered == bodies("a! b!")
    assert await group.buried() == bodies("a! b! b!")


async def test_an_event_is_replayed_as_it_was(group: Group) -> None:
    group.feed.append("a", bodies("a b!"), key="k", at=NOW)
    original = (await anext(group.feed.open("a", None))).events.slice(1)
    await group.run(2)
    feed = ReplayFeed(group.box, "pipe")
    assert (await anext(feed.open("a", None))).events.equals(original)
    assert await feed.lag("a", None) == 1


async def test_letters_that_come_while_a_replay_runs_are_left_to_the_next(group: Group) -> None:
    group.feed.append("a", bodies("a! b"))
    await group.run(2)
    feed = ReplayFeed(group.box, "pipe")
    end = await feed.latest("a")
    group.feed.append("a", bodies("c! d!"))
    await group.run(4)
    page = await anext(feed.open("a", None))
    assert (page.events["body"].to_pylist(), page.to) == (bodies("a!"), end)
    assert await feed.lag("a", page.to) == 0


async def test_what_the_sink_refuses_of_letters_that_lie_in_another_order_than_their_events_is_found(
    group: Group,
) -> None:
    group.feed.append("a", bodies("a!? b! c"))
    group.transform.mended = {b"a!?"}
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(3)
    group.transform.mended = set()
    await group.run(3)
    assert await group.buried() == bodies("b! a!?")
    group.transform.mended = {b"a!?", b"b!"}
    destination = Items(tells=True)
    sink = AsyncSink(destination, identity="items", convert=converted)
    async with asyncio.timeout(PATIENCE_S):
        await replayed(group, 2, sink=sink)
    assert (await group.buried(), set(destination.taken)) == (bodies("b! a!? a!?"), {b"b!"})
