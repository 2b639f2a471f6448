"""When a session has expired, as another host sees it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.session import BELL_ID, SessionRecord, Tenant, encode_session, session_id
from leasehold.leases.session_watch import SessionWatch
from leasehold.leases.store import Stored
from leasehold.leases.timing import SessionTiming

TIMING = SessionTiming(duration_s=7.0, beat_s=2.5, look_s=2.5)  # whole looks of these tests
D = TIMING.duration_s
A: Tenant = ("a", "1")


def document(host: str = "a", incarnation: str = "1", tick: int = 1, duration_s: float = D) -> Stored:
    record = SessionRecord(host=host, incarnation=incarnation, tick=tick, duration_s=duration_s)
    return Stored(session_id(host), encode_session(record), f"etag {tick}")


def looked(
    watch: SessionWatch, at: float, *documents: Stored, named: tuple[Tenant, ...] = (), unread_s: float = 0.0
) -> SessionWatch:
    return watch.seen(documents, named, at, at, TIMING, unread_s)


def regularly(*documents: Stored, until: float, begins: float = 0.0, named: tuple[Tenant, ...] = ()) -> SessionWatch:
    watch, at = SessionWatch(), begins
    while at <= until:
        watch = looked(watch, at, *documents, named=named)
        at += 0.5
    return watch


def test_a_session_expires_once_its_tick_has_stood_still_for_its_duration() -> None:
    assert regularly(document(), until=D - 0.5).expired(TIMING) == frozenset()
    assert regularly(document(), until=D).expired(TIMING) == {A}


def test_a_look_judges_no_lease_that_was_read_after_it_began() -> None:
    watch = regularly(document(), until=D)
    assert watch.expired_owners([A, ("b", "1")], watch.began, TIMING) == {A}
    assert watch.expired_owners([A], watch.began + 0.01, TIMING) == frozenset()


def test_a_session_that_never_had_a_document_expires_after_its_first_sight() -> None:
    assert regularly(until=D - 0.5, named=(A,)).expired(TIMING) == frozenset()
    assert regularly(until=D, named=(A,)).expired(TIMING) == {A}


def test_a_document_that_cannot_be_read_shows_life_as_long_as_it_changes() -> None:
    watch, at = SessionWatch(), 0.0
    while at <= 2 * D:
        watch = looked(watch, at, Stored(session_id("a"), "{", f"etag {at}"), named=(A,))
        at += 0.5
    assert A not in watch.expired(TIMING)
    for half_seconds in range(int(2 * D) + 1):
        watch = looked(watch, at + half_seconds / 2, Stored(session_id("a"), "{", "the same"), named=(A,))
    assert A in watch.expired(TIMING)


@pytest.mark.parametrize("change", [[document(tick=2)], [document(tick=0)], [], [document(incarnation="2")]])
def test_any_change_starts_the_time_again_also_to_no_document(change: list[Stored]) -> None:
    watch = looked(regularly(document(), until=D - 0.5), D, *change, named=(A,))
    assert A not in watch.expired(TIMING)
    for half_seconds in range(int(2 * D)):
        assert A not in watch.expired(TIMING)
        watch = looked(watch, D + half_seconds / 2, *change, named=(A,))
    assert A in looked(watch, 2 * D, *change, named=(A,)).expired(TIMING)


def test_a_document_that_is_put_back_as_it_was_starts_the_time_again() -> None:
    watch = regularly(document(), until=D - 0.5)
    put_back = document()._replace(etag="another etag")
    watch = looked(watch, D, put_back)
    assert watch.expired(TIMING) == frozenset(), "a heartbeat may have been written in between"


def test_a_document_that_cannot_be_read_is_none() -> None:
    broken = Stored(session_id("a"), "{", "etag")
    watch = looked(SessionWatch(), 0, broken)
    assert [*watch.invalid] == [broken.id]
    assert watch.present == frozenset()


def test_a_session_that_wants_longer_is_given_longer_and_one_that_wants_less_is_not() -> None:
    assert regularly(document(duration_s=2 * D), until=D).expired(TIMING) == frozenset()
    assert regularly(document(duration_s=2 * D), until=2 * D).expired(TIMING) == {A}
    assert regularly(document(duration_s=0.1), until=D - 0.5).expired(TIMING) == frozenset()


def test_time_without_looks_does_not_count_and_some_good_looks_come_first() -> None:
    watch = regularly(document(), until=D - 0.5)
    back_at = D + 60
    watch = looked(watch, back_at, document())
    assert watch.expired(TIMING) == frozenset()
    assert watch.next_expiry(TIMING) == pytest.approx(back_at + TIMING.grace_s)


def test_time_in_which_this_host_could_not_write_does_not_count() -> None:
    watch = regularly(document(), until=5.0)
    watch = looked(watch, 5.5, document(), unread_s=4.0)
    assert watch.next_expiry(TIMING) == pytest.approx(max(D + 4.0, 5.5 + TIMING.grace_s))


def test_a_live_session_whose_document_is_gone_still_plays_its_part_while_leases_name_it_until_it_expires() -> None:
    watch = looked(regularly(document(), until=1, named=(A,)), 1.5, named=(A,))
    assert [*watch.live(TIMING)] == ["a"]
    for half_seconds in range(4, 2 * int(2 + D) + 2):
        watch = looked(watch, half_seconds / 2, named=(A,))
    assert not watch.live(TIMING)


def test_a_session_whose_document_is_gone_and_that_no_lease_names_has_left() -> None:
    before = regularly(document(), until=1, named=(A,))
    gone = looked(before, 1.5, named=(A,))
    assert gone.signature != before.signature, "its leases may have changed hands"
    assert not looked(gone, 2.0).live(TIMING)
    again = looked(looked(gone, 2.0), 2.5, named=(A,))
    assert again.next_expiry(TIMING) == 2.5 + D, "a listing may have been old"


def test_of_two_incarnations_of_one_host_the_one_with_a_document_counts() -> None:
    watch = looked(looked(SessionWatch(), 0, document()), 0.5, document(incarnation="2"), named=(A,))
    assert watch.live(TIMING)["a"].incarnation == "2"


def test_a_session_is_known_a_duration_after_it_was_met() -> None:
    assert regularly(document(), until=D - 0.5).known(TIMING) == frozenset()
    assert regularly(document(), until=D).known(TIMING) == {A}


def test_documents_that_have_long_stood_still_can_be_cleared_away() -> None:
    assert regularly(document(), until=60).long_gone(60) == {A}
    assert regularly(document(), until=59).long_gone(60) == frozenset()
    assert regularly(until=60, named=(A,)).long_gone(60) == frozenset(), "there is nothing to clear away"


def test_without_sessions_nothing_expires() -> None:
    assert SessionWatch().next_expiry(TIMING) == inf
    assert SessionWatch().expired(TIMING) == frozenset()


@given(st.lists(st.tuples(st.floats(0.01, 4.0), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=40))
def test_nothing_expires_that_changed_within_its_duration(looks: list[tuple[float, int | None]]) -> None:
    watch, at, changed_at, before = SessionWatch(), 0.0, 0.0, object()
    for pause, tick in looks:
        at += pause
        if tick != before:
            changed_at, before = at, tick
        watch = looked(watch, at, *([] if tick is None else [document(tick=tick)]), named=(A,))
        if A in watch.expired(TIMING):
            assert at - changed_at >= D - 1e-9


def test_leases_may_have_changed_if_the_bell_has_whatever_it_holds() -> None:
    silent = looked(SessionWatch(), 0.0, document())
    rung = looked(silent, 1.0, document(), Stored(BELL_ID, "garbled", "1"))
    assert (
        len({silent.signature, rung.signature, looked(rung, 2.0, Stored(BELL_ID, "", "2"), document()).signature}) == 3
    )
    assert looked(rung, 2.0, document(tick=2), Stored(BELL_ID, "garbled", "1")).signature == rung.signature
    assert not rung.invalid
