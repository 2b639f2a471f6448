"""What a host may conclude from its beats: trust, terms, and how long it asks others to wait. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.timing import CALM_S, LASTS_S_MAX, MARGIN
from leasehold.leases.trust import LATE_MAX_S, Attempt, Encounter, Pace, Trust, encountered

D = 7.0
T = D * (1 - MARGIN)


def begun(trust: Trust, tick: int, at: float, lasts_s: float = D) -> Trust:
    return trust.begun(Attempt(tick=tick, began=at, lasts_s=lasts_s, term=trust.term_to_name(at)))


def started() -> Trust:
    """In its first term: one beat at 0 without a term, and one at 1 that names it."""
    return begun(begun(Trust(), 1, 0.0).arrived(1, 0.5), 2, 1.0).arrived(2, 1.5)


def test_before_anything_has_arrived_nothing_is_trusted_and_no_term_is_named() -> None:
    assert (Trust().until, Trust().term_to_name(0.0), Trust().may_send(0.0)) == (-inf, 0, False)


def test_the_first_beat_that_arrives_in_time_lets_the_next_one_name_a_term_and_that_one_begins_it() -> None:
    first = begun(Trust(), 1, 0.0).arrived(1, 0.5)
    assert (first.term, first.may_send(0.6), first.term_to_name(0.6)) == (0, False, 1)
    second = begun(first, 2, 1.0)
    assert not second.may_send(1.2), "a document that names the term may not have arrived"
    assert second.arrived(2, 1.5).may_send(1.6)


def test_trust_counts_from_the_start_of_an_attempt_however_late_it_is_known_to_have_arrived() -> None:
    trust = begun(started(), 3, 4.0).arrived(3, 7.0)
    assert (trust.term, trust.until) == (1, 4.0 + T)


def test_what_is_known_at_or_after_the_end_of_trust_is_a_lapse() -> None:
    trust = begun(started(), 3, 4.0)
    lapsed = trust.arrived(3, 1.0 + T)
    assert (lapsed.term, lapsed.known) == (0, trust.open[0])
    assert lapsed.term_to_name(1.0 + T) == 2
    assert not begun(lapsed, 4, 8.0).arrived(4, 8.0 + T).term, "the beat that names the new term arrived too late"
    assert begun(lapsed, 4, 8.0).arrived(4, 8.1).term == 2


def test_an_attempt_that_begins_without_trust_names_no_term() -> None:
    late = begun(started(), 3, 1.0 + T)
    assert (late.open[-1].term, late.term) == (0, 0)


def test_a_shorter_duration_binds_once_it_is_asked_for_and_a_longer_one_once_it_has_arrived() -> None:
    long = begun(started(), 3, 2.0, 4 * D)
    assert long.until == 1.0 + T
    long = long.arrived(3, 2.5)
    assert long.until == 2.0 + 4 * T
    short = begun(long, 4, 5.0)
    assert short.until == 5.0 + T, "others may see it"
    assert begun(short, 5, 6.0).arrived(5, 6.5).until == 6.0 + T, "a later one has arrived"
    assert short.failed(4).until == 2.0 + 4 * T, "it has certainly not arrived"


def test_without_a_term_or_with_another_process_in_its_place_a_host_sends_nothing() -> None:
    assert not started().ended().may_send(2.0)
    assert started().ended().term_to_name(2.0) == 2
    assert (started().lost().until, started().lost().term_to_name(2.0)) == (-inf, 0)


def test_a_term_that_is_to_begin_with_another_document_does_not_begin_with_one_that_is_under_way() -> None:
    lapsed = begun(started(), 3, 1.0 + T).arrived(3, 1.1 + T)
    naming = begun(lapsed, 4, 1.2 + T)
    assert naming.open[-1].term == 2
    assert naming.ended().arrived(4, 1.3 + T).term == 0
    assert begun(naming.ended(), 5, 1.4 + T).arrived(5, 1.5 + T).term == 3


def test_attempts_that_are_too_old_to_matter_are_forgotten() -> None:
    trust = started()
    for tick in range(3, 200):
        trust = begun(trust, tick, float(tick))
    assert len(trust.open) <= LATE_MAX_S + 1


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.booleans(), st.sampled_from([D, 2 * D])), max_size=30))
def test_trust_never_outlasts_what_others_may_have_seen(steps: list[tuple[float, bool, float]]) -> None:
    """Of all attempts that may have arrived last, the one that asks others to wait least decides."""
    trust, now, tick = Trust(), 0.0, 0
    arrived: list[Attempt] = []
    for pause, is_known, lasts_s in steps:
        now, tick = now + pause, tick + 1
        trust = begun(trust, tick, now, lasts_s)
        arrived.append(trust.open[-1])
        if is_known:
            trust = trust.arrived(tick, now + pause / 2)
            arrived = arrived[-1:]
        if trust.known in arrived:
            assert trust.until <= min(each.trusted_until for each in arrived) + 1e-9


def test_a_slow_host_asks_for_more_time_before_its_beats_take_a_third_of_it() -> None:
    pace = Pace(lasts_s=D, setting_s=D, calm_since=0.0)
    assert pace.measured(1.6, 5.0).lasts_s == D
    assert pace.measured(2.0, 5.0).lasts_s == 2 * D
    assert pace.measured(D / 3, 5.0).lasts_s == 2 * D
    assert pace.measured(10.0, 5.0).lasts_s == 8 * D
    assert pace.measured(1000.0, 5.0).lasts_s == LASTS_S_MAX
    assert Pace(lasts_s=90.0, setting_s=90.0, calm_since=0.0).measured(50.0, 5.0).lasts_s == 90.0


def test_a_host_asks_for_less_time_after_a_minute_in_which_no_beat_was_slow_and_never_below_its_setting() -> None:
    pace = Pace(lasts_s=4 * D, setting_s=D, calm_since=0.0)
    assert pace.measured(0.1, CALM_S - 1) == replace(pace, took_s=0.1)
    shrunk = pace.measured(0.1, CALM_S)
    assert (shrunk.lasts_s, shrunk.calm_since) == (2 * D, CALM_S)
    assert pace.measured(0.1 * 4 * D, CALM_S - 1).calm_since == CALM_S - 1
    assert shrunk.measured(0.1, 2 * CALM_S).measured(0.1, 3 * CALM_S).lasts_s == pytest.approx(D)


def test_a_foreign_document_that_moves_is_a_namesakes_and_one_that_stands_still_is_a_relic() -> None:
    met = Encounter("other", 7, D, since=100.0)
    assert encountered(met, None, is_first=False, is_replaced=False) == "wait"
    for found, decision in (
        (met._replace(since=100.0 + D - 0.1), "wait"),
        (met._replace(since=100.0 + D), "replace"),
        (met._replace(since=101.0, tick=8), "give way"),
        (met._replace(since=101.0, tick=6), "give way"),
        (met._replace(since=101.0, incarnation="third"), "give way"),
    ):
        assert encountered(found, met, is_first=False, is_replaced=False) == decision
        assert encountered(found, met, is_first=True, is_replaced=False) == "replace"
        assert encountered(found, met, is_first=False, is_replaced=True) == "replace"
