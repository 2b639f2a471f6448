"""How soon leases have a new owner after a pause, a kill, a stop and a start (tests/day.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from day import Day, lived

from leasehold.leases.timing import Timing

pytestmark = pytest.mark.timeout(1800)

TIMING = Timing(balance_s=2)
TAKEOVER_S = 10
"""docs/protocol.md, S8: while calls take 0.1 s."""
SHARED_S = 2 * TIMING.balance_s


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    with lived(tmp_path_factory.mktemp("bank"), postgres_of_module, TIMING) as day:
        yield day


def test_what_a_host_releases_at_its_stop_is_taken_within_two_balance_intervals(day: Day) -> None:
    assert day.took["b has what a released"] <= SHARED_S


def test_nothing_was_lost_applied_twice_or_delivered_out_of_turn(day: Day) -> None:
    day.bank.assert_exact()


def test_a_newcomer_has_its_share_within_two_balance_intervals(day: Day) -> None:
    assert day.took["b shares"] <= SHARED_S


def test_what_a_paused_host_owned_is_taken_in_time(day: Day) -> None:
    assert day.took["b has a's leases while a is paused"] <= TAKEOVER_S


def test_what_a_killed_host_owned_is_taken_in_time(day: Day) -> None:
    assert day.took["c has what b left"] <= TAKEOVER_S


def test_a_host_that_restarts_under_its_name_has_its_leases_back_at_once(day: Day) -> None:
    assert day.took["c has its own leases again"] <= SHARED_S
