"""A runner over an asynchronous sink: batches overlap, checkpoints follow the acknowledged prefix, and every end is clean."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from lab.simulation.group import until
from unit.pipeline.destinations import Scripted, Trouble, now
from unit.pipeline.pumps import Numbers, Pump

from leasehold.pipeline.async_sink import Limits
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.pump.delivering import STOP_S_MAX


@pytest.mark.virtual
async def test_batches_overlap_and_each_is_told_once_it_is_delivered_in_order() -> None:
    pump = Pump(Scripted(takes_s=1.0), Numbers(2000), batch=500, limits=Limits(batch_entries_max=500))
    running = pump.started()
    await until(lambda: pump.position == "2000")
    assert pump.destination.most_at_once > 1
    assert pump.delivered == ["500", "1000", "1500", "2000"]
    assert (pump.progress.events, pump.progress.batches) == (2000, 4)
    pump.stopping.set()
    assert await running is None


@pytest.mark.virtual
async def test_what_is_not_acknowledged_keeps_the_partition_busy_and_then_it_is_idle() -> None:
    pump = Pump(Scripted(takes_s=3.0), Numbers(10))
    running = pump.started()
    await asyncio.sleep(2)
    assert list(pump.progress.busy) == ["waiting for acknowledgements"]
    assert not pump.progress.is_idle
    await until(lambda: pump.progress.is_idle)
    assert (pump.position, pump.progress.busy) == ("10", {})
    pump.stopping.set()
    await running


@pytest.mark.virtual
async def test_a_batch_that_takes_long_is_no_standstill_while_something_of_it_is_acknowledged() -> None:
    limits = Limits(batch_entries_max=100, in_flight_max=1)
    pump = Pump(Scripted(takes_s=1.0), Numbers(1000), limits=limits)
    running = pump.started()
    await asyncio.sleep(5.5)
    assert list(pump.progress.busy) == ["waiting for acknowledgements"]
    assert now() - pump.progress.busy["waiting for acknowledgements"] <= 1
    await until(lambda: pump.position == "1000")
    pump.stopping.set()
    await running


@pytest.mark.virtual
async def test_a_few_events_are_sent_after_their_time_in_the_buffer() -> None:
    pump = Pump(Scripted(), Numbers(3), limits=Limits(buffer_age_max_s=0.5))
    running = pump.started()
    await until(lambda: pump.destination.began)
    assert pump.destination.began == [pytest.approx(0.5)]
    await until(lambda: pump.position == "3")
    pump.stopping.set()
    await running


@pytest.mark.virtual
async def test_a_stop_delivers_what_was_taken_and_repeats_nothing() -> None:
    pump = Pump(Scripted(takes_s=0.3), Numbers(100_000), limits=Limits(buffer_age_max_s=60))
    running = pump.started()
    await asyncio.sleep(3)
    pump.stopping.set()
    assert await running is None
    assert now() < 3 + STOP_S_MAX
    assert pump.writer is not None
    assert pump.writer._desk.is_settled
    assert sorted(pump.numbers) == list(range(1, int(pump.position or 0) + 1))


@pytest.mark.virtual
async def test_a_stop_does_not_wait_for_ever_for_a_destination_that_is_away() -> None:
    pump = Pump(Scripted(troubles=[Trouble("dead", start=1)]), Numbers(1_000_000))
    running = pump.started()
    await asyncio.sleep(5)
    pump.stopping.set()
    assert await running is None
    assert now() < 5 + STOP_S_MAX + 0.5
    assert set(range(1, int(pump.position or 0) + 1)) <= set(pump.numbers)


@pytest.mark.virtual
async def test_the_end_of_a_partition_waits_for_all_of_it() -> None:
    pump = Pump(Scripted(takes_s=2.0), Numbers(1700, ends=True))
    assert isinstance(await pump.run(), PartitionEnded)
    assert (sorted(pump.numbers), pump.position) == (list(range(1, 1701)), "1700")


@pytest.mark.virtual
async def test_a_stop_before_all_is_delivered_is_no_end_of_the_partition() -> None:
    pump = Pump(Scripted(troubles=[Trouble("dead")]), Numbers(10, ends=True))
    running = pump.started()
    await asyncio.sleep(1)
    pump.stopping.set()
    assert await running is None
    assert pump.position is None


@pytest.mark.virtual
async def test_a_refused_entry_ends_the_run_and_what_was_delivered_before_is_kept() -> None:
    class Refusing(Scripted):
        async def submit(self, entries: object) -> object:
            if any(entry.value == b"2500" for entry in entries):  # type: ignore[attr-defined]
                raise SinkRejected("no 2500")
            return await super().submit(entries)  # type: ignore[arg-type]

    pump = Pump(Refusing(), Numbers(5000), limits=Limits(in_flight_max=1))
    with pytest.raises(SinkRejected, match="no 2500"):
        await pump.run()
    assert pump.position == "2000"


@pytest.mark.virtual
@pytest.mark.parametrize("seed", range(8))
async def test_after_crashes_nothing_is_missing_and_what_comes_again_is_bounded(seed: int) -> None:
    """I9: per crash at most buffered_entries_max and two batches come again, whatever the destination does."""
    limits = Limits(batch_entries_max=50, in_flight_max=4, buffered_entries_max=700)
    events, batch = 24_000, 600
    rng = random.Random(seed)
    troubles = [Trouble("items", share=0.05), Trouble("throttle", share=0.05), Trouble("dead", start=2, end=4)]
    pump = Pump(Scripted(0.05, troubles, rng), Numbers(events), limits, batch)
    crashes = 0
    while True:
        running = pump.started()
        await asyncio.wait({running}, timeout=1 + rng.random() * 4)
        if pump.position == str(events):
            break
        assert not running.done(), running
        running.cancel()
        await asyncio.wait({running})
        crashes += 1
    pump.stopping.set()
    await running
    times = Counter(pump.numbers)
    assert sorted(times) == list(range(1, events + 1))
    assert crashes > 1
    assert sum(times.values()) - events <= (limits.buffered_entries_max + 2 * batch) * crashes
    assert pump.most_unsettled <= limits.buffered_entries_max
    assert [int(to or 0) for to in pump.checkpoints] == sorted(int(to or 0) for to in pump.checkpoints)
