"""A day at the bank: hosts join, pause, leave and die while transactions keep coming, and every balance stays exact.

Starting a host takes a Spark start, so the day is lived once, and every test looks at one hour of it.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from plugins_cli import START_S, until
from plugins_hosts import TIMING, Bank, HostProcess, Step

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]

TAKEOVER_S = TIMING.duration_s + TIMING.renew_s + 2
"""docs/protocol.md: a dead owner's lease is taken within lease duration + renew interval + 2 s."""
SHARED_S = 2 * TIMING.balance_s


@dataclass
class Day:
    """What was seen, hour by hour. Times are in seconds, from what happened to when it showed."""

    bank: Bank
    hosts: dict[str, HostProcess] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    epochs_when_paused: dict[str, int] = field(default_factory=dict)
    epochs_before_stop: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def start(self, name: str) -> HostProcess:
        host = self.hosts[name] = self.bank.run(name)
        until(lambda: host.has_logged("host started"), START_S, f"host {name} starts")
        return host

    def see(self, what: str, condition: Any, within_s: float) -> None:
        self.took[what] = until(condition, within_s, what)

    def delivers(self, events: int = 200) -> None:
        before = self.bank.delivered()
        until(lambda: self.bank.delivered() > before + events, START_S, f"{events} more events delivered")

    def epochs(self) -> dict[str, int]:
        return {lease.partition: lease.epoch for lease in self.bank.leases if lease.pipeline == "balances"}

    def reasons(self, name: str) -> set[str]:
        """Why leases were let go by a host."""
        return {event["reason"] for event in self.hosts[name].events if event["event"] == "lease released"}


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    bank = Bank(tmp_path_factory.mktemp("bank"), postgres_of_module)
    day = Day(bank)
    try:
        _morning(day)
        _afternoon(day)
        bank.settle()
        day.steps = bank.steps()
        yield day
    finally:
        bank.close()


def _morning(day: Day) -> None:
    """a opens, b joins, a sleeps past its leases and wakes."""
    bank = day.bank
    a = day.start("a")
    bank.write(40)
    until(lambda: bank.owns_all("a"), START_S, "host a owns all leases")
    bank.keep_writing(100, every_s=0.5)
    day.delivers()
    day.start("b")
    day.see("b shares", lambda: bank.is_shared_evenly("a", "b"), within_s=60)
    day.delivers()
    day.answers = {name: _answers(day.hosts[name]) for name in "ab"}
    bank.freeze(a)
    day.see("b has a's leases while a is paused", lambda: bank.owns_all("b"), within_s=60)
    day.epochs_when_paused = day.epochs()
    day.delivers()
    a.send(signal.SIGCONT)
    day.see("a carries on", lambda: bank.is_shared_evenly("a", "b"), within_s=60)
    day.delivers()


def _afternoon(day: Day) -> None:
    """a goes home, c comes, b dies; c is told twice to stop, and comes back."""
    bank = day.bank
    day.epochs_before_stop = day.epochs()
    day.hosts["a"].send(signal.SIGTERM)
    day.exits["a"] = day.hosts["a"].wait(60)
    day.see("b has what a released", lambda: bank.owns_all("b"), within_s=60)
    day.start("c")
    until(lambda: bank.is_shared_evenly("b", "c"), 60, "c shares")
    day.hosts["b"].send(signal.SIGKILL)
    day.see("c has what b left", lambda: bank.owns_all("c"), within_s=60)
    day.delivers()
    c = day.hosts["c"]
    c.send(signal.SIGSTOP)  # both signals are there when it goes on
    c.send(signal.SIGTERM)
    c.send(signal.SIGINT)
    c.send(signal.SIGCONT)
    day.exits["c"] = c.wait(20)
    c = day.start("c")
    day.see("c has its own leases again", lambda: bank.owns_all("c"), within_s=60)
    day.delivers()
    bank.settle()
    c.send(signal.SIGTERM)
    day.exits["c again"] = c.wait(60)


def test_a_newcomer_has_its_share_within_two_balance_intervals(day: Day) -> None:
    assert day.took["b shares"] <= SHARED_S


def test_a_handoff_is_asked_for_and_answered(day: Day) -> None:
    assert day.hosts["b"].has_logged("handoff requested")
    assert day.hosts["a"].has_logged("handoff request received")


def test_what_a_paused_host_owned_is_taken_in_time(day: Day) -> None:
    assert day.took["b has a's leases while a is paused"] <= TAKEOVER_S


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
    assert day.took["b has what a released"] <= SHARED_S
    assert day.exits["c again"] == 0
    assert {lease.owner for lease in day.bank.leases} == {None}


def test_what_a_killed_host_owned_is_taken_in_time(day: Day) -> None:
    assert day.took["c has what b left"] <= TAKEOVER_S


def test_a_second_signal_ends_the_process_at_once(day: Day) -> None:
    assert day.exits["c"] in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_a_host_that_restarts_under_its_name_has_its_leases_back_at_once(day: Day) -> None:
    assert day.took["c has its own leases again"] <= SHARED_S


def test_nothing_was_lost_applied_twice_or_delivered_out_of_turn(day: Day) -> None:
    day.bank.assert_exact()


def test_every_host_delivered(day: Day) -> None:
    assert {step.owner for step in day.steps} == {"a", "b", "c"}


def test_any_host_answers_for_the_group(day: Day) -> None:
    for answers in day.answers.values():
        assert sorted(item["name"] for item in answers["hosts"]["items"]) == ["a", "b"]
        assert {item["owner"] for item in answers["leases"]["items"]} == {"a", "b"}
        assert answers["ready"]


def _answers(host: HostProcess) -> dict[str, Any]:
    url = next(event["url"] for event in host.events if "url" in event)
    paths = {"hosts": "/api/hosts", "leases": "/api/leases?pipeline=balances", "ready": "/health/ready"}
    return {name: _get(url + path) for name, path in paths.items()}


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)
