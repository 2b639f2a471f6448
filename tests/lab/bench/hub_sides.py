"""One side of one measurement on an event hub, as a process of its own: what it imports and leaves behind costs no other.

A side is a program of this directory with its order, in JSON, as its argument. It may say lines of JSON on its way, some of which
have to be answered before it goes on; the last one is its result.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
SIDE_S = 120
BODY_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """side: whose way. events: of each partition. size: what this side may choose (prefetch, or events of a batch)."""

    side: str
    connection_string: str
    hub: str
    partitions: int = 1
    events: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """events in seconds and cpu_s, from the end of the first table or batch on; first_s: until then, from the client's making."""

    events: int
    seconds: float
    cpu_s: float
    first_s: float

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """Per event."""
        return 1_000_000 * self.cpu_s / self.events


class Watch:
    """Begins when it is made, just before the client is. CPU time is that of all threads."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self._first: tuple[int, float, float] | None = None

    def saw(self, events: int) -> None:
        if self._first is None:
            self._first = (events, time.perf_counter(), cpu_s())

    def took(self, events: int) -> Took:
        """events: in all, the first table's or batch's included."""
        assert self._first is not None
        first, at, cpu_at = self._first
        return Took(
            events=events - first,
            seconds=time.perf_counter() - at,
            cpu_s=cpu_s() - cpu_at,
            first_s=at - self._made,
        )


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@contextmanager
def started(program: str, order: Order) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / program), json.dumps(asdict(order))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2])])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def took(program: str, order: Order) -> Took:
    """Raises RuntimeError where the side fails or does not end."""
    with started(program, order) as process:
        try:
            said, _ = process.communicate(timeout=SIDE_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{program} {order.side} did not end within {SIDE_S} s") from None
        if process.returncode:
            raise RuntimeError(f"{program} {order.side} failed")
    return Took(**json.loads(said.splitlines()[-1]))


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(sides: dict[str, Callable[[Order], Took | Coroutine[Any, Any, Took]]]) -> None:
    order = Order(**json.loads(sys.argv[1]))
    result = sides[order.side](order)
    say(asdict(result if isinstance(result, Took) else asyncio.run(result)))
