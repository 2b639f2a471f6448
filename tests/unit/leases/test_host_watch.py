"""When a host is dead, as another host sees it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.host_record import BELL_ID, HostRecord, Tenant, encode_host, host_id
from leasehold.leases.host_watch import HostWatch
from leasehold.leases.store import Stored
from leasehold.leases.timing import LASTS_S_MAX, Timing

TIMING = Timing()
D = TIMING.duration_s
A: Tenant = ("a", "1")


def document(
    host: str = "a", incarnation: str = "1", tick: int = 1, duration_s: float = D, term: int = 1, fitness: str = ""
) -> Stored:
    record = HostRecord(
        name=host,
        incarnation=incarnation,
        tick=tick,
        lasts_s=duration_s,
        term=term,
        pipelines=("p", "q"),
        fitness=fitness,
    )
    return Stored(host_id(host), encode_host(record), f"etag {tick}")


def looked(
    watch: HostWatch, at: float, *documents: Stored, named: tuple[Tenant, ...] = (), unread_s: float = 0.0
) -> HostWatch:
    return watch.seen(documents, named, at, at, TIMING, unread_s)


def regularly(*documents: Stored, until: float, begins: float = 0.0, named: tuple[Tenant, ...] = ()) -> HostWatch:
    watch, at = HostWatch(), begins
    while at <= until:
        watch = looked(watch, at, *documents, named=named)
        at += 0.5
    return watch


def test_a_host_expires_once_its_tick_has_stood_still_for_its_duration() -> None:
    assert regularly(document(), until=D - 0.5).expired() == frozenset()
    assert regularly(document(), until=D).expired() == {A}


def test_a_look_judges_no_lease_that_was_read_after_it_began() -> None:
    watch = regularly(document(), until=D)
    assert watch.expired_owners([A, ("b", "1")], watch.began) == {A}
    assert watch.expired_owners([A], watch.began + 0.01) == frozenset()


def test_a_host_that_never_had_a_document_expires_after_its_first_sight() -> None:
    assert regularly(until=LASTS_S_MAX - 0.5, named=(A,)).expired() == frozenset(), "it may have asked for so long"
    assert regularly(until=LASTS_S_MAX, named=(A,)).expired() == {A}


def test_a_document_that_cannot_be_read_shows_life_as_long_as_it_changes() -> None:
    watch, at = HostWatch(), 0.0
    while at <= 2 * D:
        watch = looked(watch, at, Stored(host_id("a"), "{", f"etag {at}"), named=(A,))
        at += 0.5
    assert A not in watch.expired()
    for half_seconds in range(int(2 * LASTS_S_MAX) + 1):
        watch = looked(watch, at + half_seconds / 2, Stored(host_id("a"), "{", "the same"), named=(A,))
    assert A in watch.expired()


@pytest.mark.parametrize(
    ("change", "lasts_s"),
    [
        ([document(tick=2)], D),
        ([document(tick=0)], D),
        ([], LASTS_S_MAX),
        ([document(incarnation="2")], LASTS_S_MAX),
    ],
)
def test_any_change_starts_the_time_again_also_to_no_document(change: list[Stored], lasts_s: float) -> None:
    """Without a document, the last one may have asked for longer than the last one that was seen."""
    watch = looked(regularly(document(), until=D - 0.5), D, *change, named=(A,))
    assert A not in watch.expired()
    for half_seconds in range(int(2 * lasts_s)):
        assert A not in watch.expired()
        watch = looked(watch, D + half_seconds / 2, *change, named=(A,))
    assert A in looked(watch, D + lasts_s, *change, named=(A,)).expired()


def test_a_document_that_is_put_back_as_it_was_starts_the_time_again() -> None:
    watch = regularly(document(), until=D - 0.5)
    put_back = document()._replace(etag="another etag")
    watch = looked(watch, D, put_back)
    assert watch.expired() == frozenset(), "a heartbeat may have been written in between"


def test_a_document_that_cannot_be_read_is_none() -> None:
    broken = Stored(host_id("a"), "{", "etag")
    watch = looked(HostWatch(), 0, broken)
    assert [*watch.invalid] == [broken.id]
    assert not watch.present


def test_a_host_is_given_the_time_that_its_document_names() -> None:
    assert regularly(document(duration_s=2 * D), until=D).expired() == frozenset()
    assert regularly(document(duration_s=2 * D), until=2 * D).expired() == {A}
    assert regularly(document(duration_s=D / 2), until=D / 2 - 0.5).expired() == frozenset()
    assert regularly(document(duration_s=D / 2), until=D / 2).expired() == {A}


def moving(*, until: float, term: int) -> HostWatch:
    """A host whose document moves all the time."""
    watch = HostWatch()
    for n in range(int(2 * until) + 1):
        watch = looked(watch, n / 2, document(tick=n, term=term))
    return watch


def test_a_host_whose_documents_name_no_term_for_two_durations_is_dead_however_its_tick_moves() -> None:
    assert moving(until=2 * D - 0.5, term=0).expired() == frozenset()
    assert moving(until=2 * D, term=0).expired() == {A}
    assert moving(until=10 * D, term=1).expired() == frozenset()
    named = looked(moving(until=2 * D - 0.5, term=0), 2 * D, document(tick=999, term=1))
    assert looked(named, 2 * D + 0.5, document(tick=1000, term=0)).expired() == frozenset(), "it had one meanwhile"


def test_what_an_owner_has_renounced_is_shown_for_leases_that_were_read_before_the_look() -> None:
    watch = regularly(document(fitness="r-"), until=1.0)
    assert watch.renounced(watch.began) == {A: frozenset({"p"})}
    assert watch.renounced(watch.began + 0.01) == {}
    assert regularly(document(fitness="sf"), until=1.0).renounced(0.0) == {}


def test_time_without_looks_does_not_count_and_some_good_looks_come_first() -> None:
    watch = regularly(document(), until=D - 0.5)
    back_at = D + 60
    watch = looked(watch, back_at, document())
    assert watch.expired() == frozenset()
    assert watch.next_expiry() == pytest.approx(back_at + TIMING.looks.grace_s)


def test_a_look_that_was_due_by_a_longer_duration_ends_no_outage() -> None:
    slow = TIMING.lasting(2 * D)
    watch = HostWatch().seen([document()], (), 0.0, 0.0, slow)
    watch = watch.seen([document()], (), slow.look_s, slow.look_s, TIMING)
    assert looked(watch, D, document()).expired() == {A}, "this host asks for less time meanwhile"
    later = D + slow.look_s
    assert looked(looked(watch, D, document(tick=2)), later, document(tick=2))._watch.judges_from > later, "only once"


def test_time_in_which_this_host_could_not_write_does_not_count() -> None:
    watch = regularly(document(), until=5.0)
    watch = looked(watch, 5.5, document(), unread_s=4.0)
    assert watch.next_expiry() == pytest.approx(max(D + 4.0, 5.5 + TIMING.looks.grace_s))


def test_a_live_host_whose_document_is_gone_still_plays_its_part_while_leases_name_it_until_it_expires() -> None:
    watch = looked(regularly(document(), until=1, named=(A,)), 1.5, named=(A,))
    assert [*watch.live()] == ["a"]
    for half_seconds in range(4, 2 * int(2 + LASTS_S_MAX) + 2):
        watch = looked(watch, half_seconds / 2, named=(A,))
    assert not watch.live()


def test_a_host_whose_document_is_gone_and_that_no_lease_names_has_left() -> None:
    before = regularly(document(), until=1, named=(A,))
    gone = looked(before, 1.5, named=(A,))
    assert gone.signature != before.signature, "its leases may have changed hands"
    assert not looked(gone, 2.0).live()
    again = looked(looked(gone, 2.0), 2.5, named=(A,))
    assert again.next_expiry() == 2.5 + LASTS_S_MAX, "a listing may have been old"


def test_of_two_incarnations_of_one_host_the_one_with_a_document_counts() -> None:
    watch = looked(looked(HostWatch(), 0, document()), 0.5, document(incarnation="2"), named=(A,))
    assert watch.live()["a"].incarnation == "2"


def test_a_host_is_known_a_duration_after_it_was_met() -> None:
    assert regularly(document(), until=D - 0.5).known(D) == frozenset()
    assert regularly(document(), until=D).known(D) == {A}


def test_documents_that_have_long_stood_still_can_be_cleared_away() -> None:
    assert regularly(document(), until=60).long_gone(60) == [document()]
    assert regularly(document(), until=59).long_gone(60) == []
    assert regularly(until=60, named=(A,)).long_gone(60) == [], "there is nothing to clear away"


def test_without_hosts_nothing_expires() -> None:
    assert HostWatch().next_expiry() == inf
    assert HostWatch().expired() == frozenset()


@given(st.lists(st.tuples(st.floats(0.01, 4.0), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=40))
def test_nothing_expires_that_changed_within_its_duration(looks: list[tuple[float, int | None]]) -> None:
    watch, at, changed_at, before = HostWatch(), 0.0, 0.0, object()
    for pause, tick in looks:
        at += pause
        if tick != before:
            changed_at, before = at, tick
        watch = looked(watch, at, *([] if tick is None else [document(tick=tick)]), named=(A,))
        if A in watch.expired():
            assert at - changed_at >= D - 1e-9


def test_leases_may_have_changed_if_the_bell_has_whatever_it_holds() -> None:
    silent = looked(HostWatch(), 0.0, document())
    rung = looked(silent, 1.0, document(), Stored(BELL_ID, "garbled", "1"))
    assert (
        len({silent.signature, rung.signature, looked(rung, 2.0, Stored(BELL_ID, "", "2"), document()).signature}) == 3
    )
    assert looked(rung, 2.0, document(tick=2), Stored(BELL_ID, "garbled", "1")).signature == rung.signature
    assert not rung.invalid
