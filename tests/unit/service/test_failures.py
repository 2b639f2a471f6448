"""How long a partition that failed is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.leases.lease import Lease, LeaseKey
from leasehold.service.failures import HOLD_OFF, Failure, Failures, Streak, verdict

KEY = LeaseKey("bank", "7")
ERROR = ValueError("a body that does not fit")


class Standing:
    """A clock that is moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


@pytest.fixture
def clock() -> Standing:
    return Standing()


@pytest.fixture
def failures(clock: Standing) -> Failures:
    return Failures(clock)


def test_it_is_left_alone_for_twice_as_long_each_time_and_a_minute_at_most(failures: Failures, clock: Standing) -> None:
    pauses = []
    for _ in range(8):
        failures.record_failure(KEY, ERROR)
        pauses.append(failures[KEY].until - clock.now)
    assert pauses == [1, 2, 4, 8, 16, 32, HOLD_OFF.max_s, HOLD_OFF.max_s]
    assert failures[KEY].count == 8


def test_it_is_held_off_until_its_time_and_no_longer(failures: Failures, clock: Standing) -> None:
    failures.record_failure(KEY, ERROR)
    clock.now += 0.999
    assert failures.held_off == [KEY]
    clock.now += 0.001
    assert (failures.held_off, failures.holds_off(KEY), list(failures)) == ([], False, [KEY])


def test_what_would_fail_is_left_alone_for_as_long_as_any_and_has_not_failed_once_more(
    failures: Failures, clock: Standing
) -> None:
    failures.record_failure(KEY, ERROR)
    failures.record_failure(KEY, ERROR)
    failures.would_fail(KEY, ERROR)
    assert (failures[KEY].until - clock.now, failures[KEY].count) == (HOLD_OFF.max_s, 2)


@pytest.mark.parametrize("how", ["recovered", "nobody's any more"])
def test_after_it_has_recovered_the_pauses_begin_anew(failures: Failures, clock: Standing, how: str) -> None:
    other = LeaseKey("bank", "8")
    for key in (KEY, KEY, other):
        failures.record_failure(key, ERROR)
    if how == "recovered":
        failures.record_recovery(KEY)
        failures.record_recovery(KEY)
    else:
        failures.forget(KEY)
    assert (list(failures), failures.holds_off(KEY)) == ([other], False)
    failures.record_failure(KEY, ERROR)
    assert failures[KEY].until - clock.now == 1


def test_what_its_worker_tries_again_is_not_held_off_and_does_not_lengthen_the_next_pause(
    failures: Failures, clock: Standing
) -> None:
    for _ in range(9):
        failures.record_retry(KEY, ERROR, 30.0, "7")
    assert (failures[KEY].count, failures[KEY].until - clock.now, failures.held_off) == (9, 30, [])
    failures.record_failure(KEY, ERROR, "7")
    assert (failures[KEY].count, failures[KEY].until - clock.now, failures.held_off) == (10, 1, [KEY])


def test_what_another_host_gets_on_with_has_not_recovered_here(failures: Failures, clock: Standing) -> None:
    for _ in range(3):
        failures.record_failure(KEY, ERROR)
    failures.record_recovery(KEY, by="host-b")
    assert (list(failures), failures.held_off) == ([], [KEY])
    clock.now += 10
    failures.record_failure(KEY, ERROR)
    ended = failures.ended[KEY]
    assert (ended.count, ended.since, ended.until) == (4, clock.now - 10, clock.now + 8)
    failures.record_recovery(KEY)
    assert (failures.ended, failures.held_off) == ({}, [])


def test_a_lease_that_failed_here_is_left_to_others_for_longer_each_time_it_was_requested(
    failures: Failures, clock: Standing
) -> None:
    failures.note_request(KEY)
    pauses = []
    for _ in range(7):
        failures.record_failure(KEY, ERROR)
        pauses.append(failures.ended[KEY].left_until - clock.now)
        failures.note_request(KEY)
    assert pauses == [60, 120, 240, 480, 960, 1800, 1800]


def test_a_recovery_is_reported_once_with_all_attempts_since_the_first_failure(clock: Standing) -> None:
    reported: list[tuple[LeaseKey, dict[str, object]]] = []
    failures = Failures(clock, lambda key, failure, fields: reported.append((key, fields)))
    failures.record_failure(KEY, ERROR)
    clock.now += 10
    failures.record_retry(KEY, ERROR, 1.0, None)
    clock.now += 2.04
    failures.record_recovery(KEY, by="host-b")
    failures.record_recovery(KEY)
    assert reported == [(KEY, {"after_attempts": 2, "failing_for_s": 12.0, "by": "host-b"})]


def test_what_is_forgotten_is_no_recovery(clock: Standing) -> None:
    failures = Failures(clock, lambda key, failure, fields: pytest.fail("nothing recovered"))
    failures.record_failure(KEY, ERROR)
    failures.forget(KEY)
    failures.record_recovery(KEY)


def test_each_failure_is_reported_and_what_was_not_tried_again_is_not(clock: Standing) -> None:
    reported: list[tuple[int, bool]] = []
    failures = Failures(clock, failed=lambda key, failure: reported.append((failure.count, failure.is_retried)))
    failures.record_retry(KEY, ERROR, 1.0, None)
    failures.record_failure(KEY, ERROR)
    failures.would_fail(KEY, ERROR)
    assert reported == [(1, True), (2, False)]
    failures.forget(KEY)
    failures.would_fail(KEY, ERROR)
    assert reported[2:] == [(1, False)]


def test_a_streak_ends_once(clock: Standing) -> None:
    streak = Streak(clock)
    assert streak.end() is None
    streak.count_failure()
    clock.now += 3
    streak.count_failure()
    assert streak.end() == {"after_attempts": 2, "failing_for_s": 3.0}
    assert streak.end() is None


LEASE = Lease(pipeline="bank", partition="7", owner="me", incarnation="1", epoch=3, continuation="10")


@pytest.mark.parametrize(
    ("change", "now", "is_idle", "found"),
    [
        ({}, 105.0, False, "failing"),
        ({}, 105.0, True, "recovered"),
        ({"continuation": "11"}, 105.0, False, "failing"),  # its worker says when it has delivered
        ({"owner": None}, 105.0, False, "failing"),
        ({"owner": None}, 900.0, False, "failing"),
        ({"owner": None, "continuation": "11"}, 105.0, False, "over"),
        ({"owner": "other"}, 105.0, False, "failing"),
        ({"owner": "other"}, 163.9, False, "failing"),
        ({"owner": "other"}, 164.0, False, "over"),
        ({"owner": "other", "continuation": "11"}, 105.0, False, "recovered"),
        ({"owner": None, "closed": True}, 105.0, False, "over"),
    ],
)
def test_a_failure_lasts_until_the_partition_moves_or_is_done_with(
    change: dict[str, object], now: float, is_idle: bool, found: str
) -> None:
    failure = Failure(error=ERROR, count=3, since=90.0, at=100.0, until=104.0, position="10")
    lease = replace(LEASE, **change)
    assert verdict(failure, lease, "me", now=now, grace_s=60.0, is_idle=is_idle) == found
    assert verdict(failure, None, "me", now=now, grace_s=60.0, is_idle=is_idle) == "over"


def test_a_streak_reports_its_first_failure_and_then_one_in_an_interval_that_doubles(clock: Standing) -> None:
    streak, reported = Streak(clock), list[float]()
    began = clock.now
    for _ in range(2000):
        if streak.count_failure():
            reported.append(clock.now - began)
        clock.now += 0.5
    assert reported == [0, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert streak.end() == {"after_attempts": 2000, "failing_for_s": 1000.0}
    assert streak.count_failure()  # the next streak begins
