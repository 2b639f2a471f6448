"""A pace: evenly, in order, and free for those who give up."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.common.clock import Turnstile


class Hand:
    """A clock that its sleepers move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


async def test_callers_pass_evenly_and_in_order() -> None:
    hand, passed = Hand(), list[tuple[int, float]]()
    pace = Turnstile(hand.monotonic, hand.sleep)

    async def call(number: int) -> None:
        await pace.wait(per_s=4.0)
        passed.append((number, hand.now))

    await asyncio.gather(*map(call, range(4)))
    assert passed == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    hand.now += 60
    await asyncio.gather(*map(call, range(2)))
    assert [at for _, at in passed[4:]] == [60.75, 61.0]  # what was not used is not saved up


async def test_the_pace_is_that_of_the_moment() -> None:
    hand = Hand()
    pace = Turnstile(hand.monotonic, hand.sleep)
    for per_s, at in ((4.0, 0.0), (4.0, 0.25), (0.5, 2.25), (20.0, 2.3)):
        await pace.wait(per_s)
        assert hand.now == pytest.approx(at)


async def test_callers_that_give_up_cost_the_others_nothing() -> None:
    hand = Hand()
    pace = Turnstile(hand.monotonic, hand.sleep)
    await pace.wait(per_s=1.0)
    callers = [asyncio.ensure_future(pace.wait(per_s=1.0)) for _ in range(100)]
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await pace.wait(per_s=1.0)
    assert hand.now == 1.0
