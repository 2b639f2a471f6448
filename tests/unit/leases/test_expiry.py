"""Expiry by local observation."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.expiry import Watch
from leasehold.leases.timing import Timing

TIMING = Timing()


def watched(*scans: tuple[float, dict[str, tuple[object, ...]]]) -> Watch[str]:
    watch: Watch[str] = Watch()
    for at, marks in scans:
        watch = watch.scanned(marks, at, at, TIMING)
    return watch


def regular(mark: dict[str, tuple[object, ...]], until: float) -> list[tuple[float, dict[str, tuple[object, ...]]]]:
    return [(float(at), mark) for at in range(0, int(until) + 1, 13)]


def test_what_stands_still_for_the_duration_has_expired() -> None:
    watch = watched(*regular({"x": ("a", 1)}, 65))
    assert watch.expired(65, TIMING) == {"x"}
    assert watch.expired(59, TIMING) == frozenset()


def test_every_move_starts_the_time_again() -> None:
    watch = watched((0, {"x": ("a", 1)}), (13, {"x": ("a", 2)}))
    assert watch.expired(72, TIMING) == frozenset()
    assert watch.next_expiry(13, TIMING) == 73


def test_a_mark_seen_for_the_first_time_counts_from_now_however_old_it_is() -> None:
    assert watched((1000, {"x": ("a", 1)})).expired(1000, TIMING) == frozenset()


def test_time_counts_from_the_end_of_the_scan_that_saw_the_move() -> None:
    watch: Watch[str] = Watch()
    watch = watch.scanned({"x": (1,)}, 0, 4, TIMING)
    assert watch.next_expiry(4, TIMING) == 64


def test_time_without_successful_reads_does_not_count() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 26), (56, mark))
    assert watch.expired(60, TIMING) == frozenset()
    assert watch.expired(90, TIMING) == {"x"}


def test_after_an_outage_one_full_renew_interval_of_reads_comes_first() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 52), (500, mark))
    assert watch.expired(500 + TIMING.renew_s - 0.1, TIMING) == frozenset()
    assert watch.expired(500 + TIMING.renew_s, TIMING) == {"x"}


def test_an_owner_that_moves_after_the_outage_is_not_expired() -> None:
    watch = watched(*regular({"x": (1,)}, 52), (500, {"x": (1,)}), (513, {"x": (2,)}))
    assert watch.expired(520, TIMING) == frozenset()


def test_a_lease_that_expired_long_ago_does_not_hide_when_the_next_one_will() -> None:
    watch = watched((0, {"x": (1,)}), (13, {"x": (1,), "y": (1,)}))
    assert watch.expired(60, TIMING) == {"x"}
    assert watch.next_expiry(60, TIMING) == 73


@given(st.floats(0, 1e9), st.floats(0, 120))
def test_what_has_not_expired_is_always_waited_for(first: float, later: float) -> None:
    """Rounding included: neither expired nor due is what nobody would look at again."""
    watch = watched((first, {"x": (1,)}))
    assert watch.expired(first + later, TIMING) or watch.next_expiry(first + later, TIMING) == first + TIMING.duration_s


def test_a_machine_that_slept_in_the_middle_of_a_scan_holds_nobody_for_dead() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 26)).scanned(mark, 39, 3600, TIMING)
    watch = watch.scanned(mark, 3601, 3601, TIMING)
    assert watch.expired(3601, TIMING) == frozenset()
    assert watch.expired(3600 + TIMING.renew_s + 13, TIMING) == {"x"}


@pytest.mark.parametrize("scan_s", [20.0, 40.0])
def test_a_host_whose_scans_take_long_sees_dead_owners_all_the_same(scan_s: float) -> None:
    """As long as its listings may take: here eight, one after another."""
    watch: Watch[str] = Watch()
    started = 0.0
    while not watch.expired(started, TIMING):
        started = 0.0 if watch.read_at is None else watch.read_at + 1
        assert started < 4 * TIMING.duration_s, "never seen dead"
        watch = watch.scanned({"x": ("a", 1)}, started, started + scan_s, TIMING, listings=8)


def test_a_machine_that_slept_in_the_middle_of_long_listings_holds_nobody_for_dead() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 26)).scanned(mark, 39, 39 + 41, TIMING, listings=8)
    assert watch.expired(41 + TIMING.duration_s - 1, TIMING) == frozenset()
    assert watch.expired(41 + TIMING.duration_s, TIMING) == {"x"}


def test_what_is_no_longer_there_is_forgotten() -> None:
    assert watched((0, {"x": (1,)}), (13, {})).next_expiry(13, TIMING) == inf


@given(
    st.lists(st.tuples(st.floats(0.1, 200), st.booleans()), min_size=1, max_size=60),
)
def test_an_owner_that_renews_in_time_whenever_the_container_answers_never_expires(
    steps: list[tuple[float, bool]],
) -> None:
    """Steps of time in which the container answers or does not; the owner renews every 17 s, and soon after an outage."""
    watch: Watch[str] = Watch()
    now, tick, renewed = 0.0, 0, 0.0
    for length, answers in steps:
        end = now + length
        while now < end:
            now = min(now + 1.0, end)
            if answers:
                if now - renewed >= TIMING.renew_s:
                    tick, renewed = tick + 1, now
                if watch.read_at is None or now - watch.read_at >= TIMING.balance_s:
                    watch = watch.scanned({"x": (tick,)}, now, now, TIMING)
                    assert not watch.expired(now, TIMING)
