"""Reading ahead: bounded in bytes, and batches that are cut as soon as they are due."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock, run_virtual

from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import FeedUnavailable, PipelineError
from leasehold.pipeline.event import Page
from leasehold.pipeline.limits import BatchLimits, Budget, Share
from leasehold.pipeline.pump.buffer import PageBuffer
from leasehold.pipeline.ranges import EventRange, RangedBatch


def page(first: int, events: int = 1) -> Page:
    return Page(event_table("a", range(first, first + events)), str(first + events), lambda n: str(first + n))


def whole(first: int, events: int) -> Page:
    """A page of one transaction."""
    return replace(page(first, events), position_after=lambda n: None)


ONE = page(0).bytes


def buffer(*, bytes_max: int = 1 << 30, share: Share | None = None, **limits: float) -> PageBuffer:
    return PageBuffer(
        "a",
        None,
        limits=BatchLimits(**limits),  # type: ignore[arg-type]
        bytes_max=bytes_max,
        share=share or Budget().share(),
        clock=VirtualClock(),
    )


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.virtual
async def test_a_batch_takes_what_waits_and_starts_where_the_last_one_ended() -> None:
    pages = buffer()
    for first in range(3):
        await pages.put(page(first))
    batch = await pages.take_batch()
    assert (batch.start, batch.to, batch.events, pages.is_empty, pages.bytes) == (None, "3", 3, True, 0)
    await pages.put(page(3))
    assert (await pages.take_batch()).start == "3"


@pytest.mark.virtual
async def test_a_taker_waits_for_the_first_page() -> None:
    pages = buffer()
    taking = asyncio.create_task(pages.take_batch())
    await asyncio.sleep(1000)
    assert not taking.done()
    await pages.put(page(0))
    assert (await taking).opened_at == 1000


@pytest.mark.virtual
async def test_a_batch_waits_for_its_age_and_no_longer() -> None:
    pages, clock = buffer(age_max_s=10), VirtualClock()
    await pages.put(page(0))
    taking = asyncio.create_task(pages.take_batch())
    await clock.sleep(9)
    await pages.put(page(1))
    assert (await taking).events == 2
    assert clock.monotonic() == 10


@pytest.mark.virtual
@pytest.mark.parametrize("limits", [{"events_max": 3}, {"bytes_max": 3 * ONE}])
async def test_a_batch_that_is_full_waits_for_no_age(limits: dict[str, float]) -> None:
    pages, clock = buffer(age_max_s=10, **limits), VirtualClock()
    taking = asyncio.create_task(pages.take_batch())
    for first in range(4):
        await pages.put(page(first))
    assert (await taking).events == 3
    assert clock.monotonic() == 0


@pytest.mark.virtual
async def test_a_page_that_comes_at_any_step_of_a_waiting_taker_is_noticed() -> None:
    """Between its look at the clock and its waiting, too: the batch is full then, and nothing else will come."""
    for steps in range(12):
        pages, clock = buffer(age_max_s=1000, events_max=2, bytes_max=2 * ONE), VirtualClock()
        started = clock.monotonic()
        await pages.put(page(0))
        taking = asyncio.create_task(pages.take_batch())
        for _ in range(steps):
            await asyncio.sleep(0)
        await pages.put(page(1))
        assert (await taking).events == 2
        assert clock.monotonic() == started


@pytest.mark.virtual
async def test_the_reader_waits_while_the_buffer_is_full_and_goes_on_once_a_batch_is_taken() -> None:
    pages = buffer(bytes_max=2 * ONE)
    for first in range(2):
        await pages.put(page(first))
    putting = asyncio.create_task(pages.put(page(2)))
    await settled()
    assert not putting.done()
    assert pages.bytes == 2 * ONE
    await pages.take_batch()
    await putting
    assert (await pages.take_batch()).to == "3"


@pytest.mark.virtual
async def test_a_full_buffer_is_due_whatever_its_age_since_nothing_can_join_it() -> None:
    pages, clock = buffer(bytes_max=2 * ONE, age_max_s=1000), VirtualClock()
    taking = asyncio.create_task(pages.take_batch())
    for first in range(3):
        await pages.put(page(first))
    assert (await taking).events == 2
    waiting = asyncio.create_task(pages.take_batch())
    await clock.sleep(900)
    assert not waiting.done()  # there is room again, and so the third page's batch may grow
    assert (await waiting).to == "3"
    assert clock.monotonic() == 1000


@pytest.mark.virtual
async def test_a_page_larger_than_the_buffer_gets_in_alone() -> None:
    pages = buffer(bytes_max=ONE)
    await pages.put(page(0, 50))
    assert (await pages.take_batch()).events == 50


@pytest.mark.virtual
async def test_a_page_larger_than_a_batch_is_cut_and_its_rest_joins_what_follows() -> None:
    share = Budget().share()
    pages = buffer(events_max=5, share=share)
    for first, events in ((0, 3), (3, 9), (12, 2)):
        await pages.put(page(first, events))
    batches = [await pages.take_batch() for _ in range(3)]
    assert [(batch.start, batch.to, batch.events) for batch in batches] == [
        (None, "5", 5),
        ("5", "10", 5),
        ("10", "14", 4),
    ]
    assert [n for batch in batches for n in batch.table["sequence"].to_pylist()] == list(range(14))
    assert (pages.is_empty, pages.bytes, share.held) == (True, 0, sum(batch.bytes for batch in batches))


@pytest.mark.virtual
async def test_a_page_of_ten_thousand_is_cut_event_by_event_without_being_copied() -> None:
    pages, one = buffer(events_max=1), page(0, 10_000)
    await pages.put(one)
    address = one.events["sequence"].chunk(0).buffers()[1].address
    for n in range(10_000):
        batch = await pages.take_batch()
        assert (batch.to, batch.events) == (str(n + 1), 1)
        assert batch.pages[0].events["sequence"].chunk(0).buffers()[1].address == address
    assert pages.is_empty


@pytest.mark.virtual
async def test_a_page_is_cut_only_where_the_feed_can_be_cut() -> None:
    """Transactions of 3, 1, 6 and 2 events."""
    ends = {3: "3", 4: "4", 10: "10"}
    pages = buffer(events_max=5)
    await pages.put(replace(page(0, 12), position_after=ends.get))
    assert [(batch.to, batch.events) for batch in [await pages.take_batch() for _ in range(3)]] == [
        ("4", 4),
        ("10", 6),  # a transaction comes whole
        ("12", 2),
    ]


@pytest.mark.virtual
async def test_a_page_that_cannot_be_cut_joins_none_that_it_would_make_too_large() -> None:
    pages = buffer(events_max=5)
    for each in (page(0, 3), whole(3, 4), whole(7, 9)):
        await pages.put(each)
    assert [(await pages.take_batch()).events for _ in range(3)] == [3, 4, 9]


@pytest.mark.virtual
async def test_what_is_left_of_a_page_is_as_old_as_the_page() -> None:
    pages, clock = buffer(events_max=5, age_max_s=10), VirtualClock()
    await pages.put(page(0, 7))
    assert (await pages.take_batch()).events == 5
    await clock.sleep(4)
    assert ((await pages.take_batch()).opened_at, clock.monotonic()) == (0, 10)


@pytest.mark.virtual
async def test_an_error_comes_behind_the_pages_that_came_before_it_and_at_once() -> None:
    pages, clock = buffer(age_max_s=1000), VirtualClock()
    await pages.put(page(0))
    taking = asyncio.create_task(pages.take_batch())
    await clock.sleep(1)
    pages.end(FeedUnavailable("away"))
    assert (await taking).to == "1"
    for _ in range(2):
        with pytest.raises(FeedUnavailable, match="away"):
            await pages.take_batch()
    assert clock.monotonic() == 1


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), max_size=20),
    st.lists(st.floats(0, 3), max_size=20),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.5, 100.0]),
)
def test_whoever_waits_for_whom_every_event_comes_once_in_order_within_the_bounds(
    sizes: list[int], pauses: list[float], events_max: int, room: int, age_max_s: float
) -> None:
    async def main() -> list[int]:
        pages = buffer(bytes_max=room * ONE, events_max=events_max, age_max_s=age_max_s)

        async def read() -> None:
            first = 0
            for size in sizes:
                await pages.put(page(first, size))
                assert pages.bytes <= max(room * ONE, page(first, size).bytes)
                first += size
            pages.end(PipelineError("end"))

        reading, numbers, waits = asyncio.create_task(read()), list[int](), iter(pauses)
        position: str | None = None
        while True:
            try:
                batch = await pages.take_batch()
            except PipelineError:
                await reading
                return numbers
            assert batch.start == position
            assert batch.events <= events_max
            position = batch.to
            numbers += batch.table["sequence"].to_pylist()
            await asyncio.sleep(next(waits, 0))

    assert run_virtual(main()) == list(range(sum(sizes)))


def ranged(start: str | None, to: str) -> RangedBatch:
    return RangedBatch("a", 1, (EventRange(start, to, int(to) - int(start or 0)),), 0.0)


@pytest.mark.virtual
async def test_ranges_are_a_batch_of_their_own_behind_all_pages() -> None:
    pages = buffer(age_max_s=60.0)
    await pages.put(page(0))
    waiting = asyncio.create_task(pages.wait_until_taken())
    await settled()
    assert not waiting.done()
    assert (await pages.take_batch()).to == "1"  # at once: nothing can join it
    await waiting
    pages.put_ranged(ranged("1", "9"))
    assert not pages.is_empty
    assert await pages.take_batch() == ranged("1", "9")
    assert pages.is_empty
    await pages.put(page(9))
    pages.end(FeedUnavailable("gone"))
    batch = await pages.take_batch()
    assert (batch.start, batch.to) == ("9", "10")


@pytest.mark.virtual
async def test_ranges_that_were_put_come_before_the_end() -> None:
    pages = buffer()
    pages.put_ranged(ranged(None, "9"))
    pages.end(FeedUnavailable("gone"))
    assert (await pages.take_batch()).to == "9"
    with pytest.raises(FeedUnavailable):
        await pages.take_batch()


@pytest.mark.virtual
async def test_a_taker_that_waits_is_woken_by_ranges() -> None:
    pages = buffer()
    taking = asyncio.create_task(pages.take_batch())
    await settled()
    pages.put_ranged(ranged(None, "9"))
    await settled()
    assert taking.done()
