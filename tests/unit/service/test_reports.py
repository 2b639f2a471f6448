"""Conditions that every round finds again: once in the log, and bounded in memory."""

from __future__ import annotations

import pytest

from leasehold.service import reports
from leasehold.service.reports import Reports


class Standing:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


def test_a_condition_that_lasts_is_reported_once() -> None:
    found = Reports(Standing(), None)
    assert [found.is_due("lease", "a", "unreadable") for _ in range(3)] == [True, False, False]
    assert found.is_due("lease", "b", "unreadable")
    assert found.is_due("host", "a", "unreadable")


def test_another_text_of_the_same_condition_is_reported_again_soon() -> None:
    clock = Standing()
    found = Reports(clock, None)
    assert found.is_due("lease", "a", "not JSON")
    clock.now += 13
    assert found.is_due("lease", "a", "too large")
    assert not found.is_due("lease", "a", "too large")


def test_a_text_that_changes_each_time_grows_neither_the_log_nor_the_memory() -> None:
    clock = Standing()
    found, reported = Reports(clock, None), 0
    for n in range(40_000):  # a week of rounds
        reported += found.is_due("lease", "a", f"refused, TrackingId:{n}")
        clock.now += 17
    assert len(found) == 1
    assert 10 < reported < 25


def test_the_subjects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORTS_MAX", 3)
    found = Reports(Standing(), None)
    for name in "abacd":  # b was not found again for longest
        found.is_due("lease", name, "unreadable")
    assert len(found) == 3
    assert [found.is_due("lease", name, "unreadable") for name in "acdb"] == [False, False, False, True]
