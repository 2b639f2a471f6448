"""Named places where a process can be made to die or to freeze, so that tests can see nothing lost and nothing applied twice.

`LEASEHOLD_CRASH_POINT=NAME`, `NAME:3` (the third time it is reached) or `NAME:3:SIGSTOP` (else SIGKILL) arms one point of a
process when it starts. Where nothing is armed a point is one comparison. Points stand between steps, and never inside a
transaction of SQLite: a frozen process would hold its lock for ever, which no real pause between two steps can do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from itertools import count

VARIABLE = "LEASEHOLD_CRASH_POINT"
POINTS = {
    "lease acquired": "the lease container has the new owner, and nothing is done with it yet",
    "sink claimed": "the sink knows the new epoch; the lease does not have the sink's position yet",
    "position written": "the lease has the sink's position; nothing is read yet",
    "page read": "the first events are in memory",
    "batch transformed": "output is in memory",
    "before write": "the sink is about to be given a batch",
    "before append": "(log) numbers are chosen, nothing is sent",
    "appended": "(log) the batch is stored; its producer does not know yet",
    "batch staged": "(PostgreSQL) rows are in a transaction that has not merged them",
    "committed": "(PostgreSQL) merge and position are committed; the writer does not know yet",
    "after write": "the sink has the batch; the host has not counted it",
    "before checkpoint": "the lease is behind the sink, and about to be written",
    "checkpointed": "the lease has the newest position",
    "before release": "all is delivered and checkpointed; the lease is still owned",
    "released": "the lease has no owner; the host still lives",
}
"""Name -> what holds when it is reached."""


class _Armed:
    """Counts how often one point was reached, and sends this process a signal at the wanted one."""

    def __init__(self, spec: str) -> None:
        name, _, rest = spec.partition(":")
        times, _, number = rest.partition(":")
        if name not in POINTS:
            raise SystemExit(f"{VARIABLE}: there is no crash point '{name}'; there are {', '.join(map(repr, POINTS))}")
        self._name = name
        self._times = int(times or 1)
        self._signal = signal.Signals[number or "SIGKILL"]
        self._reached = count(1)

    def reach(self, name: str) -> None:
        if name == self._name and next(self._reached) == self._times:
            os.kill(os.getpid(), self._signal)


def _armed(environment: Mapping[str, str]) -> _Armed | None:
    spec = environment.get(VARIABLE)
    return _Armed(spec) if spec else None


_ARMED = _armed(os.environ)


def crash_point(name: str) -> None:
    """Nothing, but where this very point is armed."""
    if _ARMED is not None:
        _ARMED.reach(name)
