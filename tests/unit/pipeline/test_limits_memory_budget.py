"""What partitions hold between them: bounded, shared by turns, and given back."""

from __future__ import annotations

import asyncio
import gc

import pytest
from lab.simulation.group import until
from unit.pipeline.pump.test_runner import Case, Scripted

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import MalformedRecord
from leasehold.pipeline.event import Page
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.buffer import PageBuffer
from leasehold.pipeline.sink import Output

EVENTS = 100


async def page_bytes() -> int:
    case = Case(1)
    return (await anext(case.feed.open("a", None))).bytes


def cases(budget: Budget, count: int) -> list[Case]:
    """Runners of as many partitions, whose sinks wait for leave to write."""
    made = []
    for _ in range(count):
        made.append(Case(EVENTS))
        made[-1].budget = budget
        made[-1].trust.given.clear()
    return made


async def assert_all_goes_through(case: Case, running: asyncio.Task[object]) -> None:
    case.trust.given.set()
    await until(lambda: case.writer.numbers == list(range(EVENTS)))
    case.stopping.set()
    await running


@pytest.mark.virtual
async def test_whatever_waits_in_whichever_stage_counts_and_all_of_it_is_given_back() -> None:
    size, budget = await page_bytes(), Budget()
    budget.bytes_max = 20 * size
    waiting = cases(budget, 8)
    running = [case.started() for case in waiting]
    await asyncio.sleep(60)
    assert 20 * size <= budget.held <= (20 + 8) * size
    for case, run in zip(waiting, running, strict=True):
        await assert_all_goes_through(case, run)
    assert budget.held == 0


@pytest.mark.virtual
async def test_a_partition_goes_on_page_by_page_while_others_hold_everything() -> None:
    size, budget = await page_bytes(), Budget()
    budget.bytes_max = 10 * size
    greedy, late = cases(budget, 2)
    hoarding = greedy.started()
    await until(lambda: budget.held >= budget.bytes_max)
    await assert_all_goes_through(late, late.started())
    assert max(batch.events for batch in late.transform.batches) == 1
    assert greedy.writer.numbers == []
    await assert_all_goes_through(greedy, hoarding)


@pytest.mark.virtual
async def test_an_event_larger_than_the_whole_budget_comes_through() -> None:
    budget = Budget()
    budget.bytes_max = 1
    (case,) = cases(budget, 1)
    await assert_all_goes_through(case, case.started())


@pytest.mark.virtual
@pytest.mark.parametrize("end", ["stopped", "cancelled", "failed"])
async def test_a_runner_that_ends_with_its_hands_full_gives_all_of_it_back(end: str) -> None:
    budget = Budget()
    (case,) = cases(budget, 1)
    if end == "failed":
        feed = Scripted("a", page_events_max=1)
        feed.append("a", [b"x"] * EVENTS)
        feed.error, case.feed = MalformedRecord("broken"), feed
        case.writer.error = MalformedRecord("refused")
        case.trust.given.set()
    running = case.started()
    if end != "failed":
        await until(lambda: budget.held > 0)
    if end == "stopped":
        case.stopping.set()
    if end == "cancelled":
        running.cancel()
    await asyncio.wait({running})
    assert budget.held == 0


@pytest.mark.virtual
async def test_batches_do_not_wait_for_their_age_where_nothing_more_may_be_read() -> None:
    page, budget = Page(event_table("a", range(1)), "1"), Budget(1)
    case, share = Case(), budget.share()
    limits = BatchLimits(age_max_s=1000)
    pages = PageBuffer("a", None, limits=limits, bytes_max=1 << 30, share=share, clock=case.clock)
    await pages.wait_for_room()
    await pages.put(page)
    reading = asyncio.create_task(pages.wait_for_room())
    batch = await pages.take_batch()
    assert case.clock.monotonic() == 0
    assert not reading.done()
    waiting = asyncio.create_task(pages.take_batch())
    await asyncio.sleep(1)
    assert not waiting.done()  # blocked, and nothing is here
    share.free(batch.bytes)
    await reading
    waiting.cancel()


@pytest.mark.virtual
async def test_an_idle_partition_keeps_nothing_of_what_it_delivered() -> None:
    others = {id(each) for each in kept()}
    case = Case(feed=MemoryChangeFeed("a"))
    case.append(10)
    running = case.started()
    await until(lambda: case.progress.is_idle and case.progress.events == 10)
    case.transform.batches.clear()
    case.writer.began.clear()
    case.writer.outputs.clear()
    case.delivered.clear()
    assert [each for each in kept() if id(each) not in others] == []
    await case.stopped(running)


def kept() -> list[Batch | Output]:
    """Those of tests before are among them."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Batch | Output)]
