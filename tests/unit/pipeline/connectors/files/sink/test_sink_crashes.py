"""A host dies, or answers are lost, between any two calls to the place: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.pipeline.connectors.files.sink.places import Killed, MemoryPlace, Permit, Way, claim, numbers_in, output

from leasehold.pipeline.connectors.files.sink import FilesSink, leftovers, snapshot_of
from leasehold.pipeline.connectors.files.sink.entry import MANIFEST
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkUnavailable
from leasehold.pipeline.sink import SENDS_MAX

BATCHES = ((0, 3), (3, 4), (4, 4), (4, 9))
"""One of them without a row."""


def at(wanted: int, fate: str) -> Callable[[str, str], str]:
    calls = count(1)
    return lambda call, name: fate if next(calls) == wanted else "done"


async def delivered(way: Way, epoch: int, to: int) -> None:
    """What an owner does: from where the sink stands up to `to`, in batches of two; claims anew as a worker would."""
    sink = FilesSink(way)
    try:
        writer = await sink.open(claim(epoch))
        while (position := int(writer.position or 0)) < to:
            end = min(position + 2, to)
            await writer.write(output(position, end, rows=0 if end == 4 else None), Permit())
    finally:
        sink._threads.shutdown()


EXPECTED = [number for number in range(1, 10) if number not in (3, 4)]
"""The batch that ends at 4 has no rows."""


@pytest.mark.parametrize("fate", ["killed before", "killed after", "refused", "lost", "late"])
def test_at_whatever_call_an_owner_ends_the_next_one_goes_on_exactly_there(fate: str) -> None:
    for wanted in count(1):
        place = MemoryPlace()
        way = Way(place, at(wanted, fate))
        try:
            asyncio.run(delivered(way, 1, 9))
            has_ended = False
        except (Killed, SinkUnavailable, Ambiguous):
            has_ended = True
        seen = numbers_in(place)
        assert seen == EXPECTED[: len(seen)]
        asyncio.run(delivered(Way(place), 2, 9))
        way.arrive()
        assert numbers_in(place) == EXPECTED, f"{fate} at call {wanted}"
        if not has_ended and wanted > 40:
            return


@pytest.mark.parametrize("fate", ["killed before", "killed after", "refused"])
def test_what_an_attempt_left_is_never_seen_and_goes_away(fate: str) -> None:
    left_once = False
    for wanted in range(1, 30):
        place = MemoryPlace()
        with_end = Way(place, at(wanted, fate))
        try:
            asyncio.run(delivered(with_end, 1, 9))
        except (Killed, SinkUnavailable):
            left_once |= len(data_in(place)) > len(snapshot_of(place).files)
            asyncio.run(delivered(Way(place), 2, 9))
        named = {file.name for file in snapshot_of(place).files}
        assert data_in(place) == named
        assert leftovers(place, snapshot_of(place)) == []
    assert left_once or fate == "refused"


def data_in(place: MemoryPlace) -> set[str]:
    return {name for name in place.files if not name.startswith(MANIFEST)}


def test_a_writer_that_wakes_after_many_batches_of_another_is_seen_by_nobody() -> None:
    """Its next entry's name has long gone into a fold, so that its put succeeds."""
    place = MemoryPlace()

    async def story() -> None:
        zombie = await FilesSink(place).open(claim(1))
        await zombie.write(output(0, 1), Permit())
        heir = await FilesSink(place).open(claim(2))
        for number in range(1, 300):
            await heir.write(output(number, number + 1), Permit())
        assert 2 not in {
            int(name[-17:-5]) for name in place.files if name.startswith(MANIFEST) and "-" not in name[-18:]
        }
        await zombie.write(output(1, 5), Permit())  # it cannot know
        assert numbers_in(place) == list(range(1, 301))

        async def goes_on() -> None:
            for number in range(5, 200):
                await zombie.write(output(number, number + 1), Permit())

        with pytest.raises(Fenced):
            await goes_on()
        assert numbers_in(place) == list(range(1, 301))
        await heir.write(output(300, 301), Permit())
        again = await FilesSink(place).open(claim(3))
        assert again.position == "301"

    asyncio.run(story())


def test_a_claim_that_wakes_in_the_past_deletes_nothing() -> None:
    """It listed the manifest, slept while folds took the place of entries, and put its own where names had gone away."""
    place = MemoryPlace()

    def asleep(call: str, name: str) -> str:
        if call == "put" and not slept:
            slept.append(True)
            heir = FilesSink(place)

            async def others() -> None:
                writer = await heir.open(claim(2))
                for number in range(300):
                    await writer.write(output(number, number + 1), Permit())

            asyncio.run(others())
        return "done"

    slept: list[bool] = []
    with pytest.raises(Fenced):
        asyncio.run(FilesSink(Way(place, asleep)).open(claim(1)))
    assert slept
    assert numbers_in(place) == list(range(1, 301))


def test_a_lost_answer_is_settled_by_the_same_bytes() -> None:
    place = MemoryPlace()
    fates: Iterator[str] = iter([*["done"] * 5, "lost", "lost", *["done"] * 50])
    sink = FilesSink(Way(place, lambda call, name: next(fates)))

    async def story() -> None:
        writer = await sink.open(claim(1))
        await writer.write(output(0, 3), Permit())
        await writer.write(output(3, 5), Permit())

    asyncio.run(story())
    assert numbers_in(place) == [1, 2, 3, 4, 5]


def test_trust_that_ends_between_file_and_manifest_leaves_neither() -> None:
    place = MemoryPlace()

    async def story() -> None:
        writer = await FilesSink(place).open(claim(1))
        checks = iter([True, True, False])
        with pytest.raises(NotTrusted):
            await writer.write(output(0, 3), Permit(trusted=lambda: next(checks)))
        assert data_in(place) == set()
        await writer.write(output(0, 3), Permit())

    asyncio.run(story())
    assert numbers_in(place) == [1, 2, 3]


class Owners:
    """Hosts that take one lease from each other, each over a way of its own, on which anything may happen."""

    def __init__(self, fates: Iterator[str]) -> None:
        self.place = MemoryPlace()
        self.fates = fates
        self.epoch = 0
        self.ways: list[Way] = []
        self.writers: list[object] = []
        self.position = 0

    async def act(self, who: int, size: int) -> None:
        """An owner of the past goes on where it was, too."""
        if who >= len(self.writers) or self.writers[who] is None:
            self.epoch += 1
            self.ways.append(Way(self.place, lambda call, name: next(self.fates)))
            self.writers.append(None)
            sink = FilesSink(self.ways[-1])
            try:
                self.writers[-1] = await sink.open(claim(self.epoch))
            finally:
                sink._threads.shutdown(wait=True) if self.writers[-1] is None else None
            return
        writer = self.writers[who]
        position = int(writer.position or 0)  # type: ignore[attr-defined]
        await writer.write(output(position, position + size), Permit())  # type: ignore[attr-defined]


FATES = st.sampled_from(["done", "done", "done", "done", "lost", "late", "refused"])
ACTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.booleans()), max_size=30)


@given(st.lists(FATES, min_size=200, max_size=200), ACTS)
def test_whoever_writes_and_whatever_is_lost_or_late_every_event_is_there_once(
    fates: list[str], acts: list[tuple[int, int, bool]]
) -> None:
    async def story() -> None:
        owners = Owners(iter([*fates, *["done"] * 10_000]))
        held: list[int] = []
        for who, size, arrives in acts:
            try:
                await owners.act(who, size)
            except (Fenced, SinkUnavailable, Ambiguous):
                if who < len(owners.writers):
                    owners.writers[who] = None
            if arrives and owners.ways:
                owners.ways[who % len(owners.ways)].arrive()
            seen = numbers_in(owners.place)
            assert seen == list(range(1, len(seen) + 1))
            assert seen[: len(held)] == held, "what was there stays there"
            held = seen
        last = await FilesSink(owners.place).open(claim(owners.epoch + 1))
        assert int(last.position or 0) == len(numbers_in(owners.place))

    asyncio.run(story())


@pytest.mark.parametrize("fate", ["lost", "late"])
def test_a_batch_whose_entry_was_lost_every_time_is_whole_where_it_arrived(fate: str) -> None:
    place = MemoryPlace()
    lost = iter([fate] * SENDS_MAX)
    way = Way(place, lambda call, name: next(lost, "done") if is_entry(call, name, 1) else "done")

    async def story() -> None:
        writer = await FilesSink(way).open(claim(1))
        with pytest.raises(Ambiguous):
            await writer.write(output(0, 3), Permit())
        way.arrive()
        assert (await FilesSink(place).open(claim(2))).position == "3"

    asyncio.run(story())
    assert numbers_in(place) == [1, 2, 3]


def is_entry(call: str, name: str, version: int) -> bool:
    return call == "put" and name.endswith(f"/{version:012d}.json")
