"""The lease's one text for a sink and the box beside it: what a box has left is no burden to whoever comes after it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.burials import Group, bodies, files_box, log_box

from leasehold.pipeline.connectors.log import LogFeed
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryFeed, MemorySink, MemoryWriter
from leasehold.pipeline.dead_letters import LetterBox, beside, sink_alone
from leasehold.pipeline.dead_letters.side_output_sink import States, states_in
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.pipeline.sink import Claim, CloseReason
from leasehold.service.pipeline import Pipeline

STATES = States(sink='{"level":3}', letters="7", box="b", since="4", at="9")


def test_what_was_written_is_read() -> None:
    assert states_in(STATES.encoded(), "b") == STATES


def test_what_another_box_has_left_is_no_use_to_this_one() -> None:
    assert states_in(STATES.encoded(), "c") == States(sink='{"level":3}', box="c")


@pytest.mark.parametrize("state", ["", "17", '{"level":3}', '{"sink":1,"letters":""}', "[" * 2000, '{"sink":"a"}'])
def test_a_state_without_a_box_is_the_sinks(state: str) -> None:
    assert states_in(state, "b") == States(sink=state, box="b")
    assert sink_alone(state) == state


def test_a_pipeline_whose_box_is_turned_off_goes_on_with_its_sinks_state_alone() -> None:
    class Sink(MemorySink):
        def claimed(self, state: str) -> str:
            return f"claimed {state}"

    pipeline = Pipeline(name="p", feed=MemoryFeed("a"), sink=Sink(MemoryDestination()))
    assert pipeline.claimed(STATES.encoded()) == 'claimed {"level":3}'
    assert pipeline.claimed("x") == "claimed x"


def test_a_pipeline_with_a_box_gives_it_all_to_what_is_made_of_both(tmp_path: Path) -> None:
    group = Group(tmp_path)
    pipeline = Pipeline(name="p", feed=group.feed, sink=group.beside, box=group.box)
    assert '"letters":"{' in pipeline.claimed("")


async def test_letters_go_on_in_another_box_from_where_the_sink_stands(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.feed.append("a", bodies("a! b"))
    await group.run(2)
    other = Group(tmp_path / "other", feed=group.feed, destination=group.destination, box_of=files_box)
    other.epoch, other.state, other.continuation = group.epoch, group.state, group.continuation
    group.feed.append("a", bodies("c! d"))
    await other.run(4)
    assert (await group.buried(), await other.buried()) == (bodies("a!"), bodies("c!"))
    assert group.delivered == bodies("b d")
    await group.beside.close()
    await other.beside.close()


async def test_recovery_reads_what_came_since_the_claim_and_not_the_whole_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, events_max=10, box_of=log_box)
    group.feed.append("a", bodies(" ".join(f"{n}!" for n in range(100))))
    await group.run(100)
    group.feed.append("a", bodies("x! y z!"))
    group.failures += [SinkUnavailable("died"), SinkUnavailable("died")]
    for _ in range(2):
        with pytest.raises(SinkUnavailable):
            await group.run(103)
    read = 0
    opened = LogFeed.open

    async def counted(feed: LogFeed, partition: str, continuation: str | None) -> Any:
        nonlocal read
        async for page in opened(feed, partition, continuation):
            read += page.events.num_rows
            yield page

    monkeypatch.setattr(LogFeed, "open", counted)
    await group.run(103)
    assert read == 2
    monkeypatch.undo()
    assert len(await group.buried()) == 102
    await group.beside.close()


class AfterCommits(list[Exception]):
    """One failure, of the write that follows so many."""

    def __init__(self, group: Group, commits: int) -> None:
        super().__init__([SinkUnavailable("died")])
        self._group = group
        self._commits = commits

    def __bool__(self) -> bool:
        return len(self) > 0 and len(self._group.destination.commits) >= self._commits


async def test_a_box_that_is_far_ahead_is_read_from_where_that_began_until_the_sink_has_come_so_far(
    tmp_path: Path,
) -> None:
    """The letters of one large batch, then a new one of a small batch before it is over."""
    group = Group(tmp_path)
    group.feed.append("a", bodies("y! z"))
    await group.run(2)
    group.feed.append("a", bodies("a! b c! d! e! f"))
    group.transform.mended = {b"d!"}
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(8)
    group.transform.mended = set()
    group.events_max = 2
    group.sink.failures = AfterCommits(group, 3)  # type: ignore[union-attr]
    with pytest.raises(SinkUnavailable):
        await group.run(8)
    assert group.delivered == bodies("z b")
    await group.run(8)
    assert await group.buried() == bodies("y! a! c! e! d!")
    assert group.delivered == bodies("z b f")
    await group.beside.close()


async def test_where_the_box_is_not_read_in_time_neither_writer_is_left_open() -> None:
    open_now: list[str] = []

    class Counted(MemorySink):
        async def open(self, claim: Claim) -> MemoryWriter:
            writer = await super().open(claim)
            open_now.append(claim.pipeline)
            plain = writer.close

            async def close(reason: CloseReason) -> None:
                open_now.remove(claim.pipeline)
                await plain(reason)

            writer.close = close  # type: ignore[method-assign]
            return writer

    feed: Any = MemoryFeed("a")
    reached = asyncio.Event()

    async def latest(partition: str) -> str:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    feed.latest = latest
    sink = beside(Counted(MemoryDestination()), LetterBox(feed=feed, sink=Counted(MemoryDestination())))
    claim = Claim(
        pipeline="p",
        partition="a",
        owner="host-1",
        epoch=1,
        generation=0,
        continuation=None,
        state=sink.claimed(""),
        compare=feed.compare,
    )
    opening = asyncio.create_task(sink.open(claim))
    await reached.wait()
    assert len(open_now) == 2
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not open_now
