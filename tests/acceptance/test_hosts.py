"""A day at the bank, with leases that last long enough for a busy machine: every balance stays exact (tests/day.py)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from day import Day, lived

from leasehold.leases.timing import Timing

pytestmark = pytest.mark.xdist_group("hosts")

LASTS_S = 15
"""A host that gets a tenth of a core keeps its session."""


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    with lived(tmp_path_factory.mktemp("bank"), postgres_of_module, Timing(duration_s=LASTS_S, balance_s=2)) as day:
        yield day


def test_a_handoff_is_asked_for_and_answered(day: Day) -> None:
    assert day.hosts["b"].has_logged("handoff requested")
    assert day.hosts["a"].has_logged("handoff request received")


def test_a_host_that_wakes_without_its_leases_finds_out_and_delivers_nothing_under_its_old_epoch(day: Day) -> None:
    assert day.reasons("a") & {"stolen", "lost"}
    for partition, epoch in day.epochs_when_paused.items():
        taken_at = min(
            (int(s.start or -1) for s in day.steps if s.partition == partition and s.epoch >= epoch), default=None
        )
        late = [s for s in day.steps if s.partition == partition and s.epoch < epoch and int(s.to) > (taken_at or 0)]
        assert taken_at is None or not late


def test_a_host_that_is_told_to_stop_exits_with_0_and_its_leases_move_once(day: Day) -> None:
    assert day.exits["a"] == 0, day.hosts["a"].errors
    assert day.exits["c again"] == 0
    assert {lease.owner for lease in day.bank.leases} == {None}


def test_a_second_signal_ends_the_process_at_once(day: Day) -> None:
    assert day.exits["c"] in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_nothing_was_lost_applied_twice_or_delivered_out_of_turn(day: Day) -> None:
    day.bank.assert_exact()


def test_every_host_delivered(day: Day) -> None:
    assert {step.owner for step in day.steps} == {"a", "b", "c"}


def test_any_host_answers_for_the_group(day: Day) -> None:
    for answers in day.answers.values():
        assert sorted(item["name"] for item in answers["hosts"]["items"]) == ["a", "b"]
        assert {item["owner"] for item in answers["leases"]["items"]} == {"a", "b"}
        assert answers["ready"]
