"""Owners of a Delta table's leases that die or freeze at a step, and what the table has of their events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from delta_readers import read_replaced
from patience import PATIENCE_S
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in
from unit.pipeline.connectors.files.sink.places import Killed

from leasehold.pipeline.crash_point import watch_points

APPENDED: tuple[str, ...] = ()
MERGED = ("key",)
POINTS = (
    "record put",
    "before data file",
    "before link",
    "data file put",
    "before commit",
    "commit written",
    "table claimed",
)
MERGED_POINTS = ("record put", "before link", "before commit", "commit written", "table claimed")
CASES = [*((point, APPENDED) for point in POINTS), *((point, MERGED) for point in MERGED_POINTS)]


async def deliver(path: Path, epoch: int, upto: int, key: Sequence[str] = APPENDED) -> None:
    """One owner's life: it claims, and writes what is missing, an event a batch."""
    sink = sink_in(path, key=key)
    try:
        await sink.prepare()
        writer = await sink.open(claim(epoch))
        for number in range(int(writer.position or 0), upto):
            await writer.write(output(number, number + 1), Permit())
    finally:
        await sink.close()


def delivered_in(path: Path, key: Sequence[str]) -> list[int]:
    """The numbers of all events, in the order in which they came to the table. Of merged rows, its versions tell."""
    if not key:
        return numbers_in(path)
    versions = read_replaced(path, key, "sequence")
    assert all(versions), "a merge is repeated"
    return [row["sequence"] for rows in versions for row in rows]


@contextmanager
def ending_at(point: str, times: int) -> Iterator[list[str]]:
    """End at the n-th time that the point is reached. Yields the points that were reached."""
    reached: list[str] = []

    def reach(name: str) -> None:
        reached.append(name)
        if name == point and reached.count(point) == times:
            raise Killed

    with watch_points(reach):
        yield reached


class Frozen:
    """A thread that waits at a point until it is released."""

    def __init__(self, point: str, times: int) -> None:
        self._point = point
        self._times = times
        self._reached = 0
        self._lock = threading.Lock()
        self.is_there = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, name: str) -> None:
        with self._lock:
            self._reached += name == self._point
            is_it = name == self._point and self._reached == self._times
        if is_it:
            self.is_there.set()
            assert self.goes_on.wait(PATIENCE_S)


def displaced(path: Path, point: str, times: int, key: Sequence[str]) -> BaseException | None:
    """How the first owner ends that freezes at the point until a second one has written events 1 to 4. It would write a fifth."""
    frozen = Frozen(point, times)
    ends: list[BaseException | None] = []

    def own_first() -> None:
        try:
            asyncio.run(deliver(path, 1, 5, key))
            ends.append(None)
        except BaseException as error:
            ends.append(error)

    with watch_points(frozen):
        thread = threading.Thread(target=own_first)
        thread.start()
        assert frozen.is_there.wait(PATIENCE_S)
        asyncio.run(deliver(path, 2, 4, key))
        frozen.goes_on.set()
        thread.join(PATIENCE_S)
    [end] = ends
    return end
