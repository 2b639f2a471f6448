"""The rate guard: how many of the last events may be dead, whatever the batches are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.dead_letters.guards import ParkGuard, RateGuard


def stops_at(guard: RateGuard, dead: list[bool], batches: list[int]) -> int | None:
    """Where a partition stops whose events come in batches of these sizes; the last batch takes what is left."""
    start = 0
    for size in [*batches, len(dead)]:
        places = [place for place, is_dead in enumerate(dead[start : start + size]) if is_dead]
        found = guard.one_too_many(start, places)
        if found is not None:
            return start + found
        guard.record(start, len(dead[start : start + size]), places)
        start += size
        if start >= len(dead):
            break
    return None


def first_too_many(dead: list[bool], events: int, most: int) -> int | None:
    """The same, counted plainly."""
    for place, is_dead in enumerate(dead):
        if is_dead and sum(dead[max(0, place - events + 1) : place + 1]) > most:
            return place
    return None


@given(
    st.lists(st.booleans(), max_size=60),
    st.lists(st.integers(1, 20), max_size=20),
    st.integers(1, 30),
    st.floats(0, 1),
)
def test_it_stops_at_the_same_event_however_the_batches_are_cut(
    dead: list[bool], batches: list[int], events: int, share_max: float
) -> None:
    guard = RateGuard(events=events, share_max=share_max)
    assert stops_at(guard, dead, batches) == first_too_many(dead, events, guard.most)


@given(st.lists(st.integers(0, 9), unique=True, min_size=1), st.integers(2, 5))
def test_a_batch_that_comes_again_counts_once(places: list[int], times: int) -> None:
    guard = RateGuard(events=1000, share_max=len(places) / 1000)
    for _ in range(times):
        assert guard.one_too_many(100, sorted(places)) is None
        guard.record(100, 10, sorted(places))
    assert guard.one_too_many(110, [0]) == 0


@pytest.mark.parametrize(("share_max", "stops"), [(0.0, True), (1.0, False)])
def test_nothing_or_everything_may_be_dead(share_max: float, stops: bool) -> None:
    guard = RateGuard(events=10, share_max=share_max)
    assert (stops_at(guard, [True] * 100, [7] * 20) is not None) == stops


def test_parked_events_count_over_all_claims_and_each_event_once() -> None:
    guard = ParkGuard(events=10, share_max=0.2)
    for _ in range(3):
        guard.begin(())
        assert guard.admit([7], 0)
        guard.confirm([7])
        assert guard.admit([7, 8], 0)
        guard.confirm([7, 8])
        assert not guard.admit([9], 5)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 30), st.floats(0, 1), st.lists(st.integers(0, 60)))
def test_events_that_are_parked_in_order_are_limited_as_any_however_often_they_are_claimed(
    dead: list[bool], events: int, share_max: float, claims: list[int]
) -> None:
    guard = ParkGuard(events=events, share_max=share_max)
    stopped = None
    for place, is_dead in enumerate(dead):
        if place in claims:
            guard.settled = place
            guard.begin(())
        if is_dead and not guard.admit([place], place):
            stopped = place
            break
        guard.confirm([place])
    assert stopped == first_too_many(dead, events, guard.most)


def test_what_a_claim_acknowledges_again_lets_it_park_no_more() -> None:
    guard = ParkGuard(events=10, share_max=0.1)
    assert guard.admit([30], 30)
    guard.confirm([30])
    for acknowledged in (0, 20, 39):
        assert not guard.admit([31], acknowledged)
    assert guard.admit([31], 40)


def test_only_letters_that_were_written_count_in_the_next_claim() -> None:
    guard = ParkGuard(events=10, share_max=0.2)
    assert guard.admit([1, 2], 0)
    guard.begin({1})
    assert guard.admit([3], 0)
    assert not guard.admit([4], 0)
