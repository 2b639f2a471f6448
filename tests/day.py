"""A day at the bank: hosts join, pause, leave and die while transactions keep coming.

Starting a host takes a Spark start, so the day is lived once, and every test of a file looks at one hour of it.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import until
from plugins_hosts import Bank, HostProcess, Step

from leasehold.leases.timing import Timing


@dataclass
class Day:
    """What was seen, hour by hour. took: seconds from what happened to when it showed."""

    bank: Bank
    hosts: dict[str, HostProcess] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    epochs_when_paused: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def start(self, name: str) -> HostProcess:
        host = self.hosts[name] = self.bank.run(name)
        until(lambda: host.has_logged("host started"), f"host {name} starts")
        return host

    def see(self, what: str, condition: Callable[[], bool]) -> None:
        self.took[what] = until(condition, what, self.bank.shares)

    def delivers(self, events: int = 200) -> None:
        before = self.bank.delivered()
        until(lambda: self.bank.delivered() > before + events, f"{events} more events delivered", self.bank.delivered)

    def epochs(self) -> dict[str, int]:
        return {lease.partition: lease.epoch for lease in self.bank.leases if lease.pipeline == "balances"}

    def reasons(self, name: str) -> set[str]:
        """Why leases were let go by a host."""
        return {event["reason"] for event in self.hosts[name].events if event["event"] == "lease released"}


@contextmanager
def lived(directory: Path, postgres: Any, timing: Timing) -> Iterator[Day]:
    bank = Bank(directory, postgres, timing)
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
    until(lambda: bank.owns_all("a"), "host a owns all leases", bank.shares)
    bank.keep_writing(100, every_s=0.5)
    day.delivers()
    day.start("b")
    day.see("b shares", lambda: bank.is_shared_evenly("a", "b"))
    day.delivers()
    day.answers = {name: _answers(day.hosts[name]) for name in "ab"}
    bank.freeze(a)
    day.see("b has a's leases while a is paused", lambda: bank.owns_all("b"))
    day.epochs_when_paused = day.epochs()
    day.delivers()
    a.send(signal.SIGCONT)
    day.see("a carries on", lambda: bank.is_shared_evenly("a", "b"))
    day.delivers()


def _afternoon(day: Day) -> None:
    """a goes home, c comes, b dies; c is told twice to stop, and comes back."""
    bank = day.bank
    day.hosts["a"].send(signal.SIGTERM)
    day.exits["a"] = day.hosts["a"].wait()
    day.see("b has what a released", lambda: bank.owns_all("b"))
    day.start("c")
    until(lambda: bank.is_shared_evenly("b", "c"), "c shares", bank.shares)
    day.hosts["b"].send(signal.SIGKILL)
    day.see("c has what b left", lambda: bank.owns_all("c"))
    day.delivers()
    c = day.hosts["c"]
    c.send(signal.SIGSTOP)  # both signals are there when it goes on
    c.send(signal.SIGTERM)
    c.send(signal.SIGINT)
    c.send(signal.SIGCONT)
    day.exits["c"] = c.wait()
    c = day.start("c")
    day.see("c has its own leases again", lambda: bank.owns_all("c"))
    day.delivers()
    bank.settle()
    c.send(signal.SIGTERM)
    day.exits["c again"] = c.wait()


def _answers(host: HostProcess) -> dict[str, Any]:
    url = next(event["url"] for event in host.events if "url" in event)
    paths = {"hosts": "/api/hosts", "leases": "/api/leases?pipeline=balances", "ready": "/health/ready"}
    return {name: _get(url + path) for name, path in paths.items()}


def _get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)
