"""Named places where a process can be made to die or freeze, so that tests can show that nothing is lost or applied twice.

`LEASEHOLD_CRASH_POINT=NAME`, `NAME:3` (the third time it is reached) or `NAME:3:SIGSTOP` (the default is SIGKILL) arms one point
of a process when the process starts. If nothing is armed, a point costs one comparison. Points are between steps, and never
inside a transaction of SQLite: a frozen process would hold its lock until it continues. Other threads may be in a transaction
when a point is reached, so SIGSTOP waits for a moment in which no thread runs code that uses SQLite. SIGKILL does not wait:
SQLite undoes what a dead process has begun.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import count
from types import FrameType

VARIABLE = "LEASEHOLD_CRASH_POINT"
POINTS = {
    "lease acquired": "the lease store has the new owner, which has not used the lease yet",
    "sink claimed": "the sink knows the new epoch; the lease does not have the sink's position yet",
    "position written": "the lease has the sink's position; nothing is read yet",
    "page read": "the first events are in memory",
    "batch transformed": "output is in memory",
    "ranges staged": "executors have processed a batch, and staged its output if it is large; nothing of it counts yet",
    "before write": "the sink is about to get a batch",
    "letters put": "(dead letters in a box) the box has the batch's letters; its output is not sent",
    "before call": "(handlers) a call counts as begun, but has not begun",
    "called": "(handlers) the handler has returned; the writer does not know yet",
    "event parked": "(handlers) the box has the letter of an event; its key is not parked, and the event counts as open",
    "before append": "(log) numbers are chosen, nothing is sent",
    "appended": "(log) the batch is stored; its producer does not know yet",
    "before publish": "(Event Hubs) numbers are chosen, nothing is sent",
    "published": "(Event Hubs) the batch is stored; its writer does not know yet",
    "before put": "(Kafka, NATS) messages are in memory, nothing is sent",
    "transaction filled": "(Kafka) a batch or a claim is in a transaction that is not committed",
    "put": "(Kafka, NATS) the batch and its position are stored; the run does not know yet",
    "producer attached": "(Pulsar) earlier producers are shut out; what they published is not read yet",
    "before entry": "(Pulsar) messages are in memory, nothing is sent",
    "entry stored": "(Pulsar) the batch is stored; its writer does not know yet",
    "batch staged": "(PostgreSQL) rows are in a transaction that has not merged them",
    "committed": "(PostgreSQL) merge and position are committed; the writer does not know yet",
    "partition claimed": "(files) the claim's entry is stored; what earlier owners left is not cleared",
    "before file": "(files) output is in memory, nothing of it is written",
    "before link": "(files, in a directory) a file is written, and does not have its final name yet",
    "file put": "(files) a batch's file is stored, and no entry names it",
    "entry put": "(files) the manifest has the batch's entry; the writer does not know yet",
    "table claimed": "(Delta) the claim's commit is stored; what earlier owners left is not cleared",
    "before data file": "(Delta) output is in memory, nothing of it is written",
    "data file put": "(Delta) a batch's file is stored, and no commit names it",
    "record put": "(Delta) the record of a position is stored, and no commit names it",
    "before commit": "(Delta) the log was read, and the commit fits it; it is not sent",
    "commit written": "(Delta) the log has the commit of a claim or a batch; its owner does not know yet",
    "folded": "(files) many entries are folded into one, and still exist next to it",
    "before submit": "(requests) entries count as on their way, but are not",
    "submitted": "(requests) the destination has answered; the writer does not know yet",
    "before flush": "(requests, handlers) nothing more is taken, and what was taken is on its way",
    "flushed": "(requests, handlers) all that was taken is acknowledged; the lease does not know yet",
    "after write": "the sink has the batch; the host has not counted it",
    "before checkpoint": "the lease is behind the sink, and about to be written",
    "checkpointed": "the lease has the newest position",
    "before release": "all is delivered and checkpointed; the lease is still owned",
    "released": "the lease has no owner; the host still lives",
}
"""Name -> what holds when it is reached."""
PAUSE_S = 0.001
KEPT_S = 60.0
"""How long a thread that wants the interpreter waits before it requests it."""


class _Armed:
    """Counts how often one point is reached, and sends this process a signal at the wanted occurrence."""

    def __init__(self, spec: str) -> None:
        """Raises ValueError."""
        name, _, rest = spec.partition(":")
        times, _, number = rest.partition(":")
        if name not in POINTS:
            raise ValueError(f"there is no crash point '{name}'; there are {', '.join(map(repr, POINTS))}")
        if not (times or "1").isdecimal() or int(times or 1) < 1:
            raise ValueError(f"'{times}' of '{spec}' must be 1 or more: the occurrence to stop at")
        if (number or "SIGKILL") not in signal.Signals.__members__:
            raise ValueError(f"'{spec}' names the signal '{number}', which does not exist; use SIGKILL or SIGSTOP")
        self._name = name
        self._times = int(times or 1)
        self._signal = signal.Signals[number or "SIGKILL"]
        self._reached = count(1)

    def reach(self, name: str) -> None:
        if name == self._name and next(self._reached) == self._times:
            with _no_thread_in_sqlite() if self._signal == signal.SIGSTOP else nullcontext():
                # `os.kill` may reach another thread, and take effect later.
                signal.pthread_kill(get_ident(), self._signal)


@contextmanager
def _no_thread_in_sqlite() -> Iterator[None]:
    """Between the check and the signal no other thread begins anything, because this one keeps the interpreter to itself."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(KEPT_S)
    try:
        while any(map(_is_in_sqlite, sys._current_frames().values())):  # noqa: SLF001  # no public function has them
            select.select((), (), (), PAUSE_S)
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _is_in_sqlite(frame: FrameType | None) -> bool:
    """Whether the frame, or one of its callers, is code of a module that imports sqlite3."""
    while frame is not None and "sqlite3" not in frame.f_globals:
        frame = frame.f_back
    return frame is not None


def _armed(environment: Mapping[str, str]) -> _Armed | None:
    """Exits if the variable is invalid: a test that arms nothing would prove nothing."""
    spec = environment.get(VARIABLE)
    try:
        return _Armed(spec) if spec else None
    except ValueError as error:
        raise SystemExit(f"{VARIABLE}: {error}") from None


class _Observed:
    def __init__(self, reach: Callable[[str], None]) -> None:
        self.reach = reach


_ARMED: _Armed | _Observed | None = _armed(os.environ)


@contextmanager
def watch_points(reach: Callable[[str], None]) -> Iterator[None]:
    """Within this context, call `reach` with the name of every point that this process reaches. No armed point has an effect.

    It may be called on any thread. What it raises ends the step that has reached the point.
    """
    global _ARMED
    before, _ARMED = _ARMED, _Observed(reach)
    try:
        yield
    finally:
        _ARMED = before


def crash_point(name: str) -> None:
    """Does nothing unless this point is armed, or `watch_points` is in use."""
    if _ARMED is not None:
        _ARMED.reach(name)
