"""The state of each dead letter follows from how far the replay got, however often its host died."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.burials import NOW, Group, bodies, files_box, log_box

from leasehold.pipeline.dead_letters import StoredLetter
from leasehold.pipeline.dead_letters.settled import Replayed, ReplayFeed, judge, judged
from leasehold.pipeline.errors import FeedUnavailable, SinkUnavailable
from leasehold.pipeline.limits import REPLAY


@pytest.fixture(params=[log_box, files_box], ids=["log", "files"])
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    made = Group(tmp_path, box_of=request.param)
    yield made
    await made.beside.close()


class Replay:
    """Of a group's letters, by hosts one after the other, from where the last one left its lease."""

    def __init__(self, group: Group) -> None:
        self.group, self.epoch, self.position, self.state = group, 0, None, ""

    async def run(self, *, dies: bool = False, discarded_to: Mapping[str, str | None] | None = None) -> None:
        """All letters that are there now; or until its sink fails, after letters were written and before the output was."""
        group = self.group
        feed = ReplayFeed(group.box_of(group.path / "letters"), "pipe", discarded_to=discarded_to)
        again = Group(
            group.path, feed=feed, destination=group.destination, transform=group.transform, box_of=group.box_of
        )
        again.pipeline, again.epoch = "pipe" + REPLAY, self.epoch
        again.continuation, again.state = self.position, self.state
        again.failures += [SinkUnavailable("died")] * dies
        try:
            while again.continuation != (end := await feed.latest("a")):
                with suppress(FeedUnavailable):  # tried again, as by a worker
                    await again.run_to(str(end))
        except SinkUnavailable:
            assert dies
        finally:
            self.epoch, self.position, self.state = again.epoch, again.continuation, again.state
            await again.beside.close()
            await feed.close()

    async def states(self) -> list[tuple[str, str, int | None]]:
        """Body, state and number of the letter that stands for it."""
        letters = await self.group.letters()
        found, problems = await judge(self.group.box, "pipe", letters, Replayed({"a": self.position}))
        assert problems == []
        return [((one.kept.letter.body or b"").decode(), one.state, one.again) for one in found]


@pytest.mark.parametrize("dies", [False, True])
async def test_open_letters_are_discarded_and_later_ones_stay_open(group: Group, dies: bool) -> None:
    """Also after a replay that died between its letters and its output."""
    group.feed.append("a", bodies("a b! c! d"), at=NOW)
    await group.run(4)
    replay = Replay(group)
    await replay.run(dies=dies)
    letters = len(await group.letters())
    feed = group.box.by_partition or group.box.feed
    ends = {"a": await feed.latest("a")}
    group.feed.append("a", bodies("e!"), at=NOW)
    await group.run(5)
    await replay.run(discarded_to=ends)
    still_open = [body for body, state, _ in await replay.states() if state == "open"]
    assert (still_open, group.delivered) == (["e!"], bodies("a d"))
    assert len(await group.letters()) == letters + 1
    group.transform.mended = {b"b!", b"c!", b"e!"}
    await replay.run()
    assert ([state for _, state, _ in await replay.states()].count("open"), group.delivered) == (0, bodies("a d e!"))


async def test_partitions_whose_letters_were_not_listed_are_left_alone(group: Group) -> None:
    group.feed.append("a", bodies("b!"), at=NOW)
    await group.run(1)
    feed = ReplayFeed(group.box, "pipe", discarded_to={"other": None})
    assert await feed.partitions() == []


async def test_a_letter_is_open_until_a_replay_has_processed_it_and_then_replayed_or_failed_again(group: Group) -> None:
    group.feed.append("a", bodies("a b! c! d"), at=NOW)
    await group.run(4)
    replay = Replay(group)
    assert await replay.states() == [("b!", "open", None), ("c!", "open", None)]
    group.transform.mended = {b"b!"}
    await replay.run()
    again = (await group.letters())[-1].number
    assert await replay.states() == [("b!", "replayed", None), ("c!", "failed_again", again), ("c!", "open", None)]
    await replay.run()
    once_more = (await group.letters())[-1].number
    group.transform.mended = {b"b!", b"c!"}
    await replay.run()
    assert await replay.states() == [
        ("b!", "replayed", None),
        ("c!", "failed_again", again),
        ("c!", "failed_again", once_more),
        ("c!", "replayed", None),
    ]


async def test_letters_that_come_after_a_replay_are_open(group: Group) -> None:
    group.feed.append("a", bodies("a!"), at=NOW)
    await group.run(1)
    replay = Replay(group)
    group.transform.mended = {b"a!"}
    await replay.run()
    group.feed.append("a", bodies("b!"), at=NOW)
    await group.run(2)
    assert await replay.states() == [("a!", "replayed", None), ("b!", "open", None)]


async def test_what_a_dying_replay_had_not_delivered_stays_open_and_each_event_that_fails_again_is_open_once(
    group: Group,
) -> None:
    group.feed.append("a", bodies("a! b! c!"), at=NOW)
    await group.run(3)
    replay = Replay(group)
    group.transform.mended = {b"a!", b"c!"}
    for _ in range(2):
        await replay.run(dies=True)
        assert await replay.states() == [
            ("a!", "open", None),
            ("b!", "failed_again", (await group.letters())[-1].number),
            ("c!", "open", None),
            ("b!", "open", None),
        ]
    await replay.run()
    assert [(body, state) for body, state, _ in await replay.states()] == [
        ("a!", "replayed"),
        ("b!", "failed_again"),
        ("c!", "replayed"),
        ("b!", "failed_again"),
        ("b!", "open"),
    ]
    group.transform.mended |= {b"b!"}
    await replay.run()
    assert "open" not in [state for _, state, _ in await replay.states()]
    assert sorted(group.delivered) == bodies("a! b! c!")


async def test_where_nothing_was_replayed_no_letter_is_read_twice(group: Group) -> None:
    group.feed.append("a", bodies("a! b!"), at=NOW)
    await group.run(2)
    letters = await group.letters()
    found, _ = await judge(_Unreadable(), "pipe", letters, Replayed({}))  # type: ignore[arg-type]
    assert [one.state for one in found] == ["open", "open"]


class _Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


async def test_letters_whose_replay_is_unknown_are_unknown_with_the_reason(group: Group) -> None:
    group.feed.append("a", bodies("a!"), at=NOW)
    await group.run(1)
    letters = await group.letters()
    for replayed, why in (
        (Replayed({}, everything="the leases cannot be read"), "the leases cannot be read"),
        (Replayed({"a": "0"}, unknown={"a": "its lease is unreadable"}), "partition 'a': its lease is unreadable"),
    ):
        found, problems = await judge(group.box, "pipe", letters, replayed)
        assert ([one.state for one in found], problems) == (["unknown"], [why])


async def test_a_position_behind_the_end_of_a_log_that_was_made_anew_is_unknown(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.feed.append("a", bodies("a!"), at=NOW)
    await group.run(1)
    found, [problem] = await judge(group.box, "pipe", await group.letters(), Replayed({"a": "7"}))
    assert ([one.state for one in found], "ends at 0, before the position '7'" in problem) == (["unknown"], True)
    await group.beside.close()


async def test_of_an_event_that_died_twice_by_a_reset_the_letter_behind_the_replay_is_open(tmp_path: Path) -> None:
    """Two letters of the pipeline, and one of a replay between them."""
    group = Group(tmp_path)
    group.feed.append("a", bodies("a!"), at=NOW)
    await group.run(1)
    [first] = await group.letters()
    again = StoredLetter("a", 1, replace(first.letter, by="pipe.replay", failed_at="2026-01-31T13:00:00+00:00"))
    second = StoredLetter("a", 2, replace(first.letter, generation=1, failed_at="2026-01-31T14:00:00+00:00"))

    def states(*unread: StoredLetter) -> list[tuple[str, int | None]]:
        behind = {
            (k.letter.partition, k.number, k.letter.by, 0, k.letter.generation, k.letter.failed_at) for k in unread
        }
        return [(one.state, one.again) for one in judged([first, again, second], behind, ())]

    assert states(again, second) == [("failed_again", 1), ("open", None), ("open", None)]
    assert states(second) == [("failed_again", 1), ("replayed", None), ("open", None)]
    assert states() == [("failed_again", 1), ("replayed", None), ("replayed", None)]
    second = second._replace(letter=replace(second.letter, failed_at="2026-01-31T12:30:00+00:00"))
    assert states(second)[2] == ("open", None), "though its host's clock is behind"
    await group.beside.close()
