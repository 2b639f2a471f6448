"""Samples: what is chosen, shown and left out."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from patience import PATIENCE_S

from leasehold.pipeline.contract import event_table
from leasehold.pipeline.event import Page
from leasehold.pipeline.ranges import EventRange, RangedBatch
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import StagedPart
from leasehold.service.api import rendering
from leasehold.service.api import samples as module
from leasehold.service.api.masking import Mask, ShownRow, copied
from leasehold.service.api.rendering import Renderer
from leasehold.service.api.samples import Limits, Sampler, spread

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def test_rows_are_taken_evenly() -> None:
    assert list(spread(3, 10)) == [0, 1, 2]
    assert list(spread(10, 3)) == [0, 3, 6]
    assert list(spread(10, 0)) == list(spread(0, 5)) == []


class Case:
    """A sampler with a clock that stands still."""

    def __init__(self, limits: Limits | None = None, mask: Sequence[str] = ()) -> None:
        self.time = 0.0
        self.renderer = Renderer(lambda: self.time)
        self.sampler = Sampler(
            limits or Limits(), Mask(mask), self.renderer, monotonic=lambda: self.time, now=lambda: NOW
        )

    def read(self, count: int) -> None:
        self.sampler.see_page(Page(event_table("7", range(count)), "99"))

    def deliver(self, count: int, staged: int = 0) -> None:
        parts = (StagedPart(epoch=1, start="1", name="x", rows=staged, bytes=1),) if staged else ()
        table = event_table("7", range(count))
        self.sampler.see_output(Output(table=table, start="1", to="9", events=count, staged=parts))

    async def settle(self) -> None:
        """Until the thread, which takes one thing after another, has rendered all."""
        done = asyncio.Event()
        self.renderer.render(list, lambda _: done.set(), 0)
        await done.wait()

    async def taken(self) -> list[tuple[str, dict[str, Any]]]:
        await self.settle()
        blocks = self.sampler.take().decode().split("\n\n")[:-1]
        lines = [block.split("\n") for block in blocks]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]

    @property
    def left_out(self) -> tuple[int, int]:
        counts = self.sampler.left_out
        return counts.input, counts.output


async def test_a_page_is_sampled_evenly_within_the_limit_and_the_rest_is_counted() -> None:
    case = Case(Limits(rows_per_s=4))
    case.read(100)
    case.deliver(2)
    taken = await case.taken()
    assert [(name, data["values"]["sequence"]) for name, data in taken] == [
        *(("input", n) for n in (0, 25, 50, 75)),
        ("output", 0),
        ("output", 1),
    ]
    assert (taken[0][1]["to"], taken[4][1]["from"], taken[4][1]["to"]) == ("99", "1", "9")
    assert case.left_out == (96, 0)
    case.read(1)
    assert (await case.taken(), case.left_out) == ([], (97, 0))
    case.time = 1.0
    case.read(1)
    assert len(await case.taken()) == 1


async def test_a_client_that_does_not_read_loses_samples_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED_BYTES_MAX", 2000)
    case = Case(Limits(rows_per_s=100, rows_max=10_000))
    for _ in range(50):
        case.time += 1
        case.read(100)
        await case.settle()
    assert sum(len(text) for text in case.sampler._queue) < 2500
    assert case.left_out[0] + case.sampler.shown == 5000


async def test_bytes_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_PER_S", 1000)
    case = Case(Limits(rows_per_s=100))
    case.read(100)
    await case.settle()
    assert 1 <= case.sampler.shown < 10


async def test_only_the_wanted_side_is_shown_and_counted() -> None:
    case = Case(Limits(sides=("output",), rows_per_s=1))
    case.read(5)
    case.deliver(3)
    assert [name for name, _ in await case.taken()] == ["output"]
    assert case.left_out == (0, 2)


async def test_what_executors_have_read_or_staged_counts_as_left_out() -> None:
    case = Case()
    case.sampler.see_ranges(RangedBatch("7", 1, (EventRange(None, "30", 30),), 0.0))
    case.deliver(0, staged=20)
    assert (await case.taken(), case.left_out) == ([], (30, 20))


async def test_it_ends_with_its_last_row_or_with_the_lease() -> None:
    case = Case(Limits(rows_max=3))
    case.read(5)
    await case.settle()
    assert (case.sampler.why_ended, case.sampler.shown, case.left_out) == ("limit", 3, (2, 0))
    case.sampler.see_end()
    assert case.sampler.why_ended == "limit"
    other = Case()
    other.sampler.see_end()
    assert other.sampler.why_ended == "lease"
    other.sampler.take()
    assert other.sampler.changed.is_set(), "or its stream would wait"


async def test_a_row_that_cannot_be_shown_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(row: ShownRow, mask: Mask) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(module, "values_of", fail)
    case = Case()
    case.read(1)
    assert (await case.taken())[0][1]["values"] == {"...": "(cannot be shown: TypeError)"}


def large(count: int) -> Page:
    """Each event has about 60 kB of JSON."""
    body = json.dumps({"rows": [{"name": "x" * 20, "v": n} for n in range(1400)]}).encode()
    events = pa.Table.from_pylist([{"sequence": n, "body": body} for n in range(count)])
    return Page(events, "99")


async def test_few_of_many_large_rows_are_looked_at_and_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(
        module, "copied", lambda table, place, mask: looked_at.append(place) or copied(table, place, mask)
    )
    case = Case(Limits(rows_per_s=100, rows_max=10_000))
    page = large(100)
    for second in range(10):
        case.time = second
        for _ in range(5):
            case.sampler.see_page(page)
    await case.settle()
    assert set(looked_at) == {0, 50}, "evenly from a page"
    assert 8 <= len(looked_at) <= 12, "about one a second"
    assert case.left_out[0] == 5000 - len(looked_at)


async def test_taps_together_look_at_no_more_than_the_host_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "PARSED_BYTES_PER_S", 100_000)
    case, other = Case(Limits(rows_per_s=100)), Case(Limits(rows_per_s=100))
    other.sampler = Sampler(Limits(), Mask(()), case.renderer, monotonic=lambda: 0.0, now=lambda: NOW)
    for each in (case, other):
        each.sampler.see_page(large(100))
        each.sampler.see_output(Output(table=large(100).events, start="1", to="9", events=100))
    await case.settle()
    await other.settle()
    assert case.sampler.shown + other.sampler.shown == 2
    assert sum(case.left_out + other.left_out) == 398


async def test_rows_are_parsed_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    monkeypatch.setattr(module, "values_of", lambda row, mask: threads.add(threading.current_thread().name) or {})
    case = Case()
    case.read(2)
    await case.settle()
    assert len(threads) == 1
    assert threads.pop().startswith("taps")


async def test_rows_that_wait_for_the_thread_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "WAITING_BYTES_MAX", 1000)
    may_go_on = threading.Event()
    monkeypatch.setattr(module, "values_of", lambda row, mask: may_go_on.wait(PATIENCE_S) and {})
    case = Case(Limits(rows_per_s=100))
    case.read(100)
    case.deliver(100)
    assert 1 <= case.sampler.rendering < 10
    assert sum(case.left_out) == 200 - case.sampler.rendering
    may_go_on.set()
    await case.settle()
    assert case.sampler.shown + sum(case.left_out) == 200


async def test_it_ends_only_when_what_is_being_rendered_is_there() -> None:
    case = Case()
    case.read(2)
    case.sampler.see_end()
    assert case.sampler.why_ended is None
    assert len(await case.taken()) == 2
    assert case.sampler.why_ended == "lease"


async def test_what_is_being_rendered_when_it_is_closed_counts_as_left_out() -> None:
    case = Case()
    case.read(2)
    case.sampler.close()
    assert (case.left_out, case.sampler.shown) == ((2, 0), 0)
    case.read(1)
    await asyncio.to_thread(lambda: None)
    assert (case.sampler.take(), case.left_out) == (b"", (2, 0))


async def test_a_row_that_cannot_be_copied_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: pa.Table, place: int, mask: Mask) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(module, "copied", fail)
    case = Case()
    case.read(1)
    assert (await case.taken())[0][1]["values"] == {"...": "(cannot be shown: TypeError)"}
