"""How long a partition that failed is left alone."""

from __future__ import annotations

import pytest

from service.failures import HOLD_OFF_MAX_S, Failures

KEY = ("bank", "7")
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
        failures.failed(KEY, ERROR)
        pauses.append(failures[KEY].until - clock.now)
    assert pauses == [1, 2, 4, 8, 16, 32, HOLD_OFF_MAX_S, HOLD_OFF_MAX_S]
    assert failures[KEY].count == 8


def test_it_is_held_off_until_its_time_and_no_longer(failures: Failures, clock: Standing) -> None:
    failures.failed(KEY, ERROR)
    clock.now += 0.999
    assert failures.held_off == [KEY]
    clock.now += 0.001
    assert (failures.held_off, failures.holds_off(KEY), list(failures)) == ([], False, [KEY])


def test_what_would_fail_is_left_alone_for_as_long_as_any_and_has_not_failed_once_more(
    failures: Failures, clock: Standing
) -> None:
    failures.failed(KEY, ERROR)
    failures.failed(KEY, ERROR)
    failures.would_fail(KEY, ERROR)
    assert (failures[KEY].until - clock.now, failures[KEY].count) == (HOLD_OFF_MAX_S, 2)


@pytest.mark.parametrize("how", ["recovered", "nobody's any more"])
def test_after_it_has_recovered_the_pauses_begin_anew(failures: Failures, clock: Standing, how: str) -> None:
    other = ("bank", "8")
    for key in (KEY, KEY, other):
        failures.failed(key, ERROR)
    if how == "recovered":
        failures.recovered(KEY)
        failures.recovered(KEY)
    else:
        failures.keep(lambda key: key == other)
    assert (list(failures), failures.holds_off(KEY)) == ([other], False)
    failures.failed(KEY, ERROR)
    assert failures[KEY].until - clock.now == 1
