"""Intervals that fit together, whatever of them is set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.timing import SESSION_S_MAX, SessionTiming, Timing, derived_session, derived_timing

DURATIONS = st.floats(min_value=0.1, max_value=10 * 365 * 86_400.0)
"""What `leases.duration_s` may be."""


def test_intervals_that_are_derived_from_the_default_are_the_defaults() -> None:
    assert derived_timing() == Timing()


@given(DURATIONS)
def test_intervals_that_are_derived_fit_together(duration_s: float) -> None:
    timing = derived_timing(duration_s)
    assert timing.problems() == []
    assert timing.duration_s == duration_s
    assert timing.renew_s <= 17
    assert timing.balance_s <= 13
    assert timing.call_timeout_s <= 5
    assert timing.margin_s <= 5
    assert timing.renew_s + timing.call_timeout_s < timing.trust_s / 2, "one renewal may fail and be tried again"


@given(DURATIONS, st.floats(min_value=0.01, max_value=1.0))
def test_a_renew_interval_that_fits_needs_nothing_else(duration_s: float, share: float) -> None:
    renew_s = share * 0.7 * duration_s
    timing = derived_timing(duration_s, renew_s=renew_s)
    assert timing.renew_s == renew_s
    assert timing.problems() == []


def test_what_is_set_is_held_to_the_rules_and_what_is_not_is_named_as_a_default() -> None:
    (late,) = derived_timing(balance_s=18).problems({"renew_s"})
    assert late.startswith("balance_s = 18 is above renew_s = 17 by default,")
    (slow,) = derived_timing(6, renew_s=5).problems({"call_timeout_s", "margin_s"})
    assert slow == (
        "renew_s + call_timeout_s is 6, and must be below duration_s - margin_s = 5.5, or one slow renewal would lose the"
        " lease: renew more often, or let leases last longer"
        " (duration_s = 6, renew_s = 5, call_timeout_s = 1 by default, margin_s = 0.5 by default)"
    )


def test_the_intervals_of_sessions_fit_together_and_promise_a_takeover_within_ten_seconds() -> None:
    session = SessionTiming()
    assert session.problems() == []
    assert (session.look_s + session.duration_s) * 1.03 <= 9.9, "clocks may differ in speed, and three requests follow"
    assert session.beat_s + session.judging_s <= session.trust_s, "an outage of writes makes no owner look dead"


@pytest.mark.parametrize("duration_s", [0.1, 2.0, 7.0, 13.0, 3600.0])
def test_a_session_of_any_length_has_intervals_that_fit(duration_s: float) -> None:
    session = derived_session(duration_s)
    assert session.problems() == []
    assert session.duration_s == duration_s
    assert session.audit_s <= 60


def test_a_session_that_others_would_refuse_is_refused() -> None:
    assert SessionTiming(duration_s=SESSION_S_MAX + 1).problems()


def test_a_session_lasts_no_longer_than_a_lease_unless_that_is_asked_for() -> None:
    assert derived_timing(3).session == derived_session(3, 0.5)
    assert derived_timing(60).session == derived_timing(600).session == SessionTiming()
    assert derived_timing(3, session_s=13).session == derived_session(13, 0.5)
    assert derived_timing(3, sessions=False).session is None


def test_heartbeats_that_are_somewhat_late_are_no_outage() -> None:
    session = SessionTiming()
    assert session.judging_s >= 1.25 * session.beat_s
    assert any("count as an outage" in each for each in replace(session, beat_s=3.25, call_timeout_s=1.0).problems())


def test_in_the_grace_after_an_outage_a_heartbeat_that_hung_ends_and_another_is_answered() -> None:
    session = SessionTiming()
    assert session.grace_s >= 2 * session.call_timeout_s + session.retry_s


def test_trust_in_a_session_ends_before_the_session_does() -> None:
    session = SessionTiming()
    assert session.trust_s == session.duration_s - 0.5
    assert session.trust_s * 1.03 < session.duration_s * 0.98, "clocks may differ in speed"


@given(st.floats(0.1, 60), st.floats(0.1, 60), st.floats(0.1, 60))
def test_sessions_that_one_slow_heartbeat_would_end_are_refused(
    duration_s: float, beat_s: float, call_s: float
) -> None:
    timing = SessionTiming(duration_s=duration_s, beat_s=beat_s, call_timeout_s=call_s)
    if beat_s + timing.retry_s + 2 * call_s >= timing.trust_s or timing.judging_s <= 0:
        assert timing.problems()
        assert Timing(session=timing).problems()


@pytest.mark.parametrize(
    ("leases", "duration_s", "seconds"),
    [(0, 60, 60), (10_000, 60, 60), (20_000, 60, 120), (40_000, 60, 240), (100_000, 60, 240), (1, 10, 40), (1, 6, 24)],
)
def test_many_leases_are_listed_less_often_but_while_a_deleted_one_may_be_restored(
    leases: int, duration_s: float, seconds: float
) -> None:
    assert SessionTiming().listed_after_s(leases, duration_s) == seconds
