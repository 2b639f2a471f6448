"""Intervals that fit together, whatever of them is set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.timing import SLOW, Timing, derived_timing

DURATIONS = st.floats(min_value=0.1, max_value=3600.0)
"""What `leases.duration_s` may be."""


def test_intervals_that_are_derived_from_the_default_are_the_defaults() -> None:
    assert derived_timing() == Timing()


@given(DURATIONS)
def test_intervals_that_are_derived_fit_together(duration_s: float) -> None:
    timing = derived_timing(duration_s)
    assert timing.problems() == []
    assert timing.duration_s == duration_s
    assert timing.balance_s <= 13
    assert timing.call_timeout_s <= 5
    assert timing.audit_s <= 60


@given(DURATIONS)
def test_one_beat_that_is_lost_costs_no_trust_and_is_not_taken_for_a_slow_one(duration_s: float) -> None:
    timing = Timing().lasting(duration_s)
    assert timing.beat_s + timing.retry_s + 2 * timing.beat_timeout_s < timing.trust_s
    assert timing.beat_timeout_s < SLOW * duration_s < duration_s / 3
    assert timing.judging_s >= 1.25 * timing.beat_s, "a busy machine is late at times"
    assert timing.looks.grace_s >= 2 * timing.beat_timeout_s + timing.retry_s


def test_the_defaults_promise_a_takeover_within_ten_seconds() -> None:
    timing = Timing()
    assert (timing.look_s + timing.duration_s) * 1.03 <= 9.9, "clocks may differ in speed, and three requests follow"
    assert timing.beat_s + timing.judging_s <= timing.trust_s, "an outage of writes makes no owner look dead"
    assert timing.trust_s * 1.03 < timing.duration_s * 0.98, "clocks may differ in speed"


@pytest.mark.parametrize("name", ["duration_s", "balance_s", "call_timeout_s", "handoff_poll_s"])
def test_an_interval_that_is_not_above_zero_is_refused(name: str) -> None:
    assert Timing(**{name: 0.0}).problems() == [f"{name} is 0, and must be above 0"]


@pytest.mark.parametrize(
    ("leases", "patience_s", "seconds"),
    [(0, 60, 60), (10_000, 60, 60), (20_000, 60, 120), (40_000, 60, 240), (100_000, 60, 240), (1, 10, 40), (1, 6, 24)],
)
def test_many_leases_are_listed_less_often_but_while_a_deleted_one_may_be_restored(
    leases: int, patience_s: float, seconds: float
) -> None:
    assert Timing(patience_s=patience_s).listed_after_s(leases) == seconds
