"""Expiry by local observation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.expiry import Intervals, Watch

EVERY = Intervals(gap_max_s=20.0, took_max_s=20.0, grace_s=17.0)
D = 60.0


def watched(*scans: tuple[float, dict[str, tuple[object, ...]]]) -> Watch[str]:
    watch: Watch[str] = Watch()
    for at, marks in scans:
        watch = watch.scanned(marks, at, at, EVERY)
    return watch


def regular(mark: dict[str, tuple[object, ...]], until: float) -> list[tuple[float, dict[str, tuple[object, ...]]]]:
    return [(float(at), mark) for at in range(0, int(until) + 1, 13)]


def test_what_stands_still_for_the_duration_has_expired() -> None:
    watch = watched(*regular({"x": ("a", 1)}, 65))
    assert watch.still_for(D, 65) == {"x"}
    assert watch.still_for(D, 59) == frozenset()
    assert watch.still_for({"x": 70.0}.__getitem__, 65) == frozenset()


def test_every_move_starts_the_time_again() -> None:
    watch = watched((0, {"x": ("a", 1)}), (13, {"x": ("a", 2)}))
    assert watch.still_for(D, 72) == frozenset()
    assert watch.still_for(D, 73) == {"x"}


def test_a_mark_seen_for_the_first_time_counts_from_now_however_old_it_is() -> None:
    assert watched((1000, {"x": ("a", 1)})).still_for(D, 1000) == frozenset()


def test_time_counts_from_the_end_of_the_scan_that_saw_the_move() -> None:
    watch: Watch[str] = Watch()
    watch = watch.scanned({"x": (1,)}, 0, 4, EVERY)
    assert watch.still_for(D, 63) == frozenset()
    assert watch.still_for(D, 64) == {"x"}


def test_time_without_successful_reads_does_not_count() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 26), (56, mark))
    assert watch.still_for(D, 60) == frozenset()
    assert watch.still_for(D, 90) == {"x"}


def test_after_an_outage_a_grace_of_reads_comes_first() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 65), (500, mark))
    assert watch.still_for(D, 516.9) == frozenset()
    assert watch.still_for(D, 517) == {"x"}


def test_a_machine_that_slept_in_the_middle_of_a_scan_holds_nobody_for_dead() -> None:
    mark = {"x": ("a", 1)}
    watch = watched(*regular(mark, 26)).scanned(mark, 39, 3600, EVERY)
    watch = watch.scanned(mark, 3601, 3601, EVERY)
    assert watch.still_for(D, 3601) == frozenset()
    assert watch.still_for(D, 3631) == {"x"}


def test_a_host_whose_scans_take_long_sees_dead_owners_all_the_same() -> None:
    watch: Watch[str] = Watch()
    started = 0.0
    while not watch.still_for(D, started):
        started = 0.0 if watch.read_at is None else watch.read_at + 1
        assert started < 4 * D, "never seen dead"
        watch = watch.scanned({"x": ("a", 1)}, started, started + 20, EVERY)


def test_what_is_no_longer_there_is_forgotten() -> None:
    assert not watched((0, {"x": (1,)}), (13, {})).sightings


@given(st.lists(st.tuples(st.floats(0.1, 200), st.booleans()), min_size=1, max_size=60))
def test_an_owner_that_moves_in_time_whenever_the_store_answers_never_expires(steps: list[tuple[float, bool]]) -> None:
    """Steps of time in which the store answers or does not; the owner moves every 17 s, and soon after an outage."""
    watch: Watch[str] = Watch()
    now, tick, moved = 0.0, 0, 0.0
    for length, answers in steps:
        end = now + length
        while now < end:
            now = min(now + 1.0, end)
            if answers:
                if now - moved >= 17:
                    tick, moved = tick + 1, now
                if watch.read_at is None or now - watch.read_at >= 13:
                    watch = watch.scanned({"x": (tick,)}, now, now, EVERY)
                    assert not watch.still_for(D, now)
