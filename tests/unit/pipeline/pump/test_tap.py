"""Watchers see what is read and what is delivered, and the work does not depend on them."""

from __future__ import annotations

import pytest
from lab.simulation.group import until
from unit.pipeline.pump.test_runner import Case
from unit.pipeline.pump.test_runner_ranges import LIMITS, RangedFeed, RangedTransform

from leasehold.pipeline.event import Page
from leasehold.pipeline.pump.tap import Tap
from leasehold.pipeline.ranges import RangedBatch, RangePlan
from leasehold.pipeline.sink import Output


class Notes:
    """A watcher that takes notes."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.ranges: list[int] = []
        self.delivered: list[int] = []
        self.ended = 0

    def see_page(self, page: Page) -> None:
        self.read += page.events["sequence"].to_pylist()

    def see_ranges(self, batch: RangedBatch) -> None:
        self.ranges.append(batch.events)

    def see_output(self, output: Output) -> None:
        self.delivered += output.table["sequence"].to_pylist()

    def see_end(self) -> None:
        self.ended += 1


@pytest.mark.virtual
async def test_a_watcher_sees_events_when_they_are_read_and_rows_once_they_are_delivered() -> None:
    tap, notes = Tap(), Notes()
    work = Case(3, tap=tap)
    tap.add(notes)
    work.writer.takes_s = 5.0
    running = work.started()
    await until(lambda: notes.read == [0, 1, 2])
    assert notes.delivered == []
    await until(lambda: notes.delivered == [0, 1, 2])
    assert len(work.delivered) == 3
    await work.stopped(running)


@pytest.mark.virtual
async def test_a_watcher_that_has_left_sees_nothing_and_others_still_do() -> None:
    tap, gone, stays = Tap(), Notes(), Notes()
    work = Case(1, tap=tap)
    tap.add(gone)
    tap.add(stays)
    running = work.started()
    await until(lambda: stays.delivered == [0])
    tap.remove(gone)
    work.append(1)
    await until(lambda: stays.delivered == [0, 1])
    assert (gone.read, gone.delivered) == ([0], [0])
    tap.close()
    assert (gone.ended, stays.ended, tap.watchers) == (0, 1, ())
    await work.stopped(running)


@pytest.mark.virtual
async def test_a_watcher_learns_how_many_events_executors_read() -> None:
    tap, notes, feed = Tap(), Notes(), RangedFeed()
    work = Case(40, feed=feed, plan=RangePlan(feed.compare, LIMITS), tap=tap)
    work.transform = RangedTransform()
    tap.add(notes)
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(40)))
    assert (notes.ranges, notes.read) == ([20, 20], [])
    await work.stopped(running)
