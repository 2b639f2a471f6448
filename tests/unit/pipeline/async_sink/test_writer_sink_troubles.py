"""A destination that throttles, fails items, stalls and dies: all arrives, memory is bounded, and the rate comes back."""

from __future__ import annotations

import asyncio

import pytest
from lab.simulation.group import until
from unit.pipeline.destinations import Scripted, Trouble, now
from unit.pipeline.pumps import Numbers, Pump

from leasehold.pipeline.async_sink import Limits


@pytest.mark.virtual
async def test_a_slow_destination_is_used_to_nine_tenths() -> None:
    """20 ms a request, 8 at a time, 100 entries each: 40,000 a second, less what finding the limit takes."""
    events = 60_000
    pump = Pump(Scripted(takes_s=0.02), Numbers(events), Limits(batch_entries_max=100, in_flight_max=8), 10_000)
    running = pump.started()
    await until(lambda: len(pump.destination.taken) == events)
    took_s = pump.destination.taken[-1].at
    assert events / took_s >= 0.9 * 8 * 100 / 0.02
    assert pump.destination.most_at_once == 8
    pump.stopping.set()
    await running


@pytest.mark.virtual
@pytest.mark.parametrize("kind", ["dead", "throttle", "stall"])
async def test_ten_seconds_after_a_minute_of_nothing_the_rate_is_back(kind: str) -> None:
    limits = Limits(batch_entries_max=100, in_flight_max=8, request_timeout_s=4.0)
    destination = Scripted(takes_s=0.2, troubles=[Trouble(kind, start=5, end=65)])
    pump = Pump(destination, Numbers(200_000), limits, 5_000)
    running = pump.started()
    await asyncio.sleep(79)
    full = 8 * 100 / 0.2
    assert destination.rate(2.5, 5) >= 0.9 * full
    assert destination.rate(6, 65) == 0
    assert destination.rate(75, 78) >= 0.9 * full
    assert pump.most_unsettled <= limits.buffered_entries_max
    assert len(destination.began) < 2000
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.virtual
async def test_all_is_delivered_through_everything_at_once() -> None:
    """80% of requests throttled, items failing, stalls, and a minute of death, while reading goes on no further than it may."""
    events = 60_000
    limits = Limits(batch_entries_max=50, in_flight_max=8, buffered_entries_max=2_000, request_timeout_s=2.0)
    troubles = [
        Trouble("throttle", start=1, end=30, share=0.8),
        Trouble("items", start=30, end=60, share=0.1),
        Trouble("stall", start=60, end=75, share=0.5),
        Trouble("dead", start=80, end=140),
    ]
    destination = Scripted(takes_s=0.05, troubles=troubles)
    pump = Pump(destination, Numbers(events), limits, 1_000)
    running = pump.started()
    most_ahead = 0
    while pump.position != str(events):
        most_ahead = max(most_ahead, pump.feed.read - len(set(pump.numbers)) if now() % 5 < 0.5 else 0)
        await asyncio.sleep(0.5)
        assert now() < 400
    assert sorted(pump.numbers) == list(range(1, events + 1))
    assert pump.most_unsettled <= limits.buffered_entries_max
    assert most_ahead < limits.buffered_entries_max + 1_000 * 3 + (1 << 20) / 8
    pump.stopping.set()
    await running


@pytest.mark.virtual
async def test_a_destination_that_says_when_to_come_back_is_left_alone_until_then() -> None:
    destination = Scripted(troubles=[Trouble("throttle", end=29, retry_after_s=30.0)])
    pump = Pump(destination, Numbers(1000))
    running = pump.started()
    await until(lambda: pump.position == "1000")
    assert {at for at in destination.began if at < 30} == {0.0}
    assert destination.taken[0].at < 31
    pump.stopping.set()
    await running
