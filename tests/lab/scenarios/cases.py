"""What scenarios share: which crash points a sink has, a host displaced while it is frozen, a table of cases and their ends."""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol, TypeVar

from lab.scenarios.host import Process
from lab.scenarios.place import say
from patience import Failed, until

from leasehold.leases.lease import Lease
from leasehold.pipeline.crash_point import POINTS

REQUESTS = ("before submit", "submitted", "before flush", "flushed")
FILES = ("partition claimed", "before file", "file put", "entry put", "folded")
DELTA = ("record put", "before commit", "commit written", "table claimed")
MERGED = (*DELTA, "before link")
POINTS_OF_SINK = {
    "log": ("before append", "appended"),
    "eventhubs": ("before publish", "published"),
    "nats": ("before put", "put"),
    "kafka": ("before put", "transaction filled", "put"),
    "pulsar": ("producer attached", "before entry", "entry stored"),
    "postgres": ("batch staged", "committed"),
    "http": REQUESTS,
    "cosmos": REQUESTS,
    "files": (*FILES, "before link"),
    "blobs": FILES,
    "handlers": ("before call", "called", "before flush", "flushed", "event parked"),
    "delta": (*MERGED, "before data file", "data file put"),
    "delta-blobs": (*DELTA, "before data file", "data file put"),
    "delta-merged": MERGED,
    "delta-blobs-merged": DELTA,
    "box": ("letters put",),
    "executors": ("ranges staged",),
}
"""Of sinks, of a box with dead letters beside one, and of executors that read. All others are points of every host."""


def points_of_sink(sink: str) -> list[str]:
    """All that a host reaches with such a sink."""
    others = {point for points in POINTS_OF_SINK.values() for point in points} - set(POINTS_OF_SINK[sink])
    return [point for point in POINTS if point not in others]


class Stage(Protocol):
    """Where hosts are run, and what they leave is looked at."""

    def running(self, name: str, *roles: str, armed: str | None = None) -> AbstractContextManager[Process]: ...

    def see_end(self, host: Process) -> None:
        """Raises Failed where it is not a good one."""
        ...

    def leases(self, role: str) -> list[Lease]: ...

    def locked(self) -> list[str]:
        """What nobody can write to at this moment."""
        ...


def displaced(stage: Stage, armed: str, role: str, *beside: str) -> None:
    """A host of the role freezes as it is armed to until another, with what is beside, has all that it owned; then it goes on.

    Raises Failed.
    """
    with stage.running("a", role, armed=armed) as a:
        a.frozen()
        if locked := stage.locked():
            raise Failed(f"frozen inside a transaction of {', '.join(locked)}")
        with stage.running("b", role, *beside) as b:
            until(lambda: b.process.poll() is not None or not _owned(stage, role, "a"), "host b takes over")
            a.send(signal.SIGCONT)
            stage.see_end(a)
            stage.see_end(b)


def _owned(stage: Stage, role: str, host: str) -> list[str]:
    return [lease.partition for lease in stage.leases(role) if lease.owner == host]


class Case(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Case)


def named(only: str, every: Sequence[C], parser: argparse.ArgumentParser) -> list[C]:
    """Those whose name contains the word. Where none does, the process ends with code 2, and says what there is."""
    wanted = [case for case in every if only in case.name]
    if not wanted:
        words = dict.fromkeys(word for case in every for word in re.split(r"\s{2,}", case.name.strip()))
        parser.error(f"no case's name contains {only!r}; there are: {'; '.join(words)}")
    return wanted


def table(verdict: Callable[[C], str], wanted: Sequence[C], *, at_a_time: int, good: str) -> int:
    """Runs the cases and prints a line for each, in their order; of how many the verdict begins as a good one does."""

    def run(case: C) -> tuple[str, float]:
        began = time.monotonic()
        return verdict(case), time.monotonic() - began

    count = 0
    threads = ThreadPoolExecutor(at_a_time)
    try:
        for case, (result, took_s) in zip(wanted, threads.map(run, wanted), strict=True):
            count += result.startswith(good)
            say(f"{case.name}{result}  ({took_s:.0f} s)")
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    return count


def exit_code(wanted: Sequence[Case], good: int) -> int:
    return 0 if wanted and good == len(wanted) else 1


def told_to_end(number: int, frame: object) -> NoReturn:
    """As Ctrl-C: what was started is ended."""
    raise KeyboardInterrupt
