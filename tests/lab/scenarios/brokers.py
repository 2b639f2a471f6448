"""What banks share whose logs are at a broker that is a process of its own: it can be killed, and frozen, under their hosts."""

from __future__ import annotations

import json
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lab.scenarios.bank import Bank
from lab.scenarios.grounds import (
    MADE,
    PARTITIONS,
    Breakage,
    Embedded,
    Logs,
    behind,
    forget_leases,
    paged_files,
    slow_postgres,
    spread,
)
from patience import until

from leasehold.pipeline.connectors.targets import target_of

TARGETS = tuple(map(str, range(PARTITIONS)))
FILES = spread(TARGETS, lambda name: target_of(name, TARGETS, None))
TIMEOUT_S = 3
"""Of hosts to the broker."""
FROZEN_S = 4
"""So that an answer is given up, and comes all the same; less than a lease."""


class Machine(Protocol):
    def kill(self) -> None: ...

    def start(self) -> None: ...

    def await_serving(self) -> None: ...

    def send(self, number: signal.Signals) -> None: ...


class Stored(NamedTuple):
    """An event in a log, and the number that the broker gave it."""

    number: int
    body: bytes


class OverBroker(Embedded):
    """Both logs are at `machine`, the rest is as embedded. name: of the bank."""

    files = tuple(FILES.values())
    full = 0.75

    def __init__(self, directory: Path, name: str, machine: Machine, *, with_spark: bool) -> None:
        super().__init__(directory, with_spark=with_spark)
        self.machine = machine
        self.logs = Logs(name, self.make_log)
        broken = {how: partial(breakage, machine) for how, breakage in BREAKAGES.items()}
        self.breakages: Mapping[str, Breakage] = {**self.breakages, **broken}

    @abstractmethod
    def make_log(self, name: str) -> None: ...

    @abstractmethod
    def side(self, log: str, side: str) -> dict[str, Any]:
        """The settings of this log as a feed or a sink. side: "feed" or "sink"."""

    @abstractmethod
    def stored(self, log: str) -> dict[str, list[Stored]]:
        """Partition -> what is in it, as a foreign client reads it."""

    @abstractmethod
    def is_behind(self, number: int, position: str | None) -> bool:
        """Whether a position of a partition is after the event of that number."""

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        for pipeline in settings["pipelines"]:
            for side in ("feed", "sink"):
                if pipeline[side]["type"] == "log":
                    pipeline[side] = self.side(self.logs[pipeline[side]["path"]], side)
        return settings

    def open(self) -> None:
        self.logs.open()

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        for role in roles:
            forget_leases(stage / "leases.db", role)

    def put_back(self, roles: Sequence[str]) -> None:
        self.logs.put_back(roles)

    def events(self, log: str) -> dict[str, list[Any]]:
        """Partitions without events are left out, as an embedded log has none of them."""
        found = self.stored(self.logs[log])
        return {FILES[target]: [json.loads(each.body) for each in events] for target, events in found.items() if events}

    def counted(self, positions: Iterable[tuple[str, str | None]]) -> dict[str, int]:
        last = self.stored(self.logs["transformed-event"])
        return {
            FILES[target]: sum(self.is_behind(each.number, position) for each in last[target])
            for target, position in positions
        }

    def replaced(self, feed: dict[str, Any], kind: str, **more: Any) -> dict[str, Any]:
        """A feed with pages of its own; files are read by theirs."""
        return paged_files(self._directory, feed, more["page_events_max"]) or {**feed, "type": kind, **more}

    def slowed(self, sink: dict[str, Any], kind: str, gate: Path) -> dict[str, Any]:
        return slow_postgres(sink, gate) or {**sink, "type": kind, "gate": str(gate)}


# Faults of the broker


@contextmanager
def _killed(machine: Machine) -> Iterator[None]:
    machine.kill()
    try:
        yield
    finally:
        machine.start()
        machine.await_serving()


@contextmanager
def _frozen(machine: Machine) -> Iterator[None]:
    machine.send(signal.SIGSTOP)
    try:
        yield
    finally:
        machine.send(signal.SIGCONT)


BREAKAGES: Mapping[str, Callable[[Machine], AbstractContextManager[None]]] = {
    "broker killed": _killed,
    "broker frozen": _frozen,
}


def survived(bank: Bank, role: str, how: str) -> None:
    """Every partition has a batch, and is given the next while the broker is away: it comes to the same end. Raises Failed."""
    with bank.running("a", role, *behind(role), slow=True) as host:
        bereaved(bank, role, how)
        bank.see_end(host)


def bereaved(bank: Bank, role: str, how: str) -> None:
    """A slow host has delivered a batch of every partition: the broker goes away, the host goes on, the broker comes back."""
    ground = bank.ground
    assert isinstance(ground, OverBroker), "there is a broker"
    delivered = partial(ground.events, MADE[role]) if role in MADE else bank.viewed
    until(lambda: len(delivered()) == PARTITIONS, f"{role} delivers a batch of every partition")
    with BREAKAGES[how](ground.machine):
        bank.gate.touch()
        threading.Event().wait(FROZEN_S)
