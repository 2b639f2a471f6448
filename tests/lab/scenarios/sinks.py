"""`make scenarios SINK=...`: a host over that sink killed, again and again, and frozen, at every crash point.

Nothing may be missing in the end, what belongs in order has to be in order, and no more may come again than docs/sinks.md says:
nothing at all in files. Prints a table. Exit code 1 where an end is another one, or where a point is never reached.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import yaml
from lab.scenarios.cases import displaced, exit_code, named, points_of_sink, table, told_to_end
from lab.scenarios.outlets import LINES, SINKS, MakeOutlet, Outlet, outlets
from lab.scenarios.place import say
from lab.scenarios.room import LEASES, HostRoom
from patience import Failed

ROLE = "deliver"
ACCOUNTS = ("a", "b")
"""A file each, and so a partition."""
EVENTS = 500
"""In each of them."""
LIVES = 3
OFTEN, SELDOM = 7, 2
"""At which time a point is reached a host ends for the first time: amidst its work, or with its second partition."""
REQUESTS_BEFORE = {"before submit": 30, "submitted": 30}
"""The same of points that each batch passes several times: there have to be checkpoints behind it, which may be wrong."""
RARE = (
    *(
        "page read",
        "lease acquired",
        "partition claimed",
        "table claimed",
        "sink claimed",
        "position written",
        "folded",
    ),
    *("before flush", "flushed", "before checkpoint", "checkpointed", "before release", "released"),
)
WITH_OUTPUT = ("table claimed",)
"""Points that a host comes to only if there is output already."""
ROOMS = 2
AS_PROMISED = "as promised"


def times_of(point: str) -> int:
    return SELDOM if point in RARE else REQUESTS_BEFORE.get(point, OFTEN)


class Room(HostRoom):
    """Two files, a host or two, and where they deliver to."""

    def __init__(self, directory: Path, make: MakeOutlet, *, events: int = EVENTS) -> None:
        super().__init__(directory, {})
        self.events = events
        self.outlet: Outlet = make(directory)

    def begin(self) -> None:
        """As if nothing had been."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self.outlet.empty()
        for account in ACCOUNTS:
            lines = (json.dumps(event_of(account, number)) + "\n" for number in range(1, self.events + 1))
            (self.directory / f"{account}.jsonl").write_text("".join(lines))

    def settings(self, host: str) -> Path:
        batch = self.outlet.batch
        feed = {"type": "files", "path": str(self.directory / "*.jsonl"), "key": "line", "poll_interval_s": 0.1}
        settings = {
            "host": {"name": host},
            "log": {"format": "json", "file": f"{host}.log"},
            "api": {"port": 0},
            "leases": LEASES,
            "pipelines": [{"name": ROLE, "feed": feed, "sink": self.outlet.sink(), "batch_events_max": batch}],
        }
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def verdict(self, incidents: int) -> str:
        outlet = self.outlet
        found = outlet.arrived()
        return judged(found, incidents=incidents, again_max=outlet.again_max, lines=outlet.lines, events=self.events)


def event_of(account: str, number: int) -> dict[str, object]:
    return {"id": f"{account}-{number}", "account": account, "n": number, "line": f"line-{number % LINES}"}


def crash(room: Room, point: str, *, lives: int = LIVES) -> int:
    """The host dies at the point, and in its next lives again, a little later; then it is left in peace. How often it died.

    Raises Failed.
    """
    for life in range(lives):
        with room.running("a", armed=f"{point}:{times_of(point) + life}") as host:
            code = host.ended()
        if code == 0 and life:
            return life  # there was not so much left to do
        if code != -signal.SIGKILL:
            raise Failed(f"the point was not reached: exit code {code}: {host.words}")
    with room.running("a") as host:
        room.see_end(host)
    return lives


def freeze(room: Room, point: str) -> int:
    """The host freezes at the point until another one has its leases; then it goes on. Raises Failed."""
    displaced(room, f"{point}:{times_of(point)}:SIGSTOP", ROLE)
    return 1


@dataclass(frozen=True, slots=True)
class Case:
    """fault: what happens, and how many times a partition lost its owner by it at most."""

    scenario: str
    point: str
    fault: Callable[[Room], int]

    @property
    def name(self) -> str:
        return f"{self.scenario:10}{self.point:20}"


def case_of(scenario: str, point: str, fault: Callable[[Room, str], int]) -> Case:
    return Case(scenario, point, partial(_at, fault, point))


def _at(fault: Callable[[Room, str], int], point: str, room: Room) -> int:
    if point not in WITH_OUTPUT:
        return fault(room, point)
    with room.running("a", armed="after write:1") as host:
        host.ended()
    return 1 + fault(room, point)


def cases(sink: str) -> list[Case]:
    faults = {"killed": crash, "frozen": freeze}
    return [case_of(name, point, fault) for name, fault in faults.items() for point in points_of_sink(sink)]


def judged(
    arrived: Mapping[str, Sequence[int]], *, incidents: int, again_max: int, lines: int | None, events: int = EVENTS
) -> str:
    """What came of so many numbers of each account. lines, again_max: see Outlet."""
    again = 0
    for account in ACCOUNTS:
        numbers = arrived.get(account, ())
        if missing := set(range(1, events + 1)) - set(numbers):
            return f"LOST: {len(missing)} of partition {account}, {min(missing)} the first of them"
        more = len(numbers) - events
        if more > again_max * incidents:
            return f"TOO OFTEN: {more} of partition {account} came again, after {incidents} incidents"
        if lines is not None and not is_in_order(numbers, lines):
            return f"OUT OF ORDER: partition {account}"
        again = max(again, more)
    return f"{AS_PROMISED}: {again} of a partition came again, at most {again_max * incidents}; incidents: {incidents}"


def is_in_order(numbers: Sequence[int], lines: int) -> bool:
    """Those of each line, as each came for the first time."""
    first = list(dict.fromkeys(numbers))
    return all(line == sorted(line) for line in ([n for n in first if n % lines == rest] for rest in range(lines)))


@dataclass(frozen=True, slots=True)
class Rooms:
    free: SimpleQueue[Room]

    def verdict(self, case: Case) -> str:
        room = self.free.get()
        try:
            room.begin()
            return room.verdict(case.fault(room))
        except Failed as failed:
            return str(failed)
        except Exception as error:
            return f"{type(error).__name__}: {error}"  # the other cases are still worth their time
        finally:
            self.free.put(room)


@contextmanager
def opened(count: int, sink: str, events: int = EVENTS) -> Iterator[Rooms]:
    with tempfile.TemporaryDirectory(prefix="leasehold-sinks-") as directory, outlets(sink) as make:
        rooms = [Room(Path(directory) / f"room{number}", make, events=events) for number in range(count)]
        free: SimpleQueue[Room] = SimpleQueue()
        for room in rooms:
            free.put(room)
        try:
            yield Rooms(free)
        finally:
            for room in rooms:
                room.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="A host over a sink, killed and frozen at every crash point.")
    parser.add_argument("--sink", choices=SINKS, required=True)
    parser.add_argument("--only", default="", help="part of a case's name, like `killed` or a point's")
    parser.add_argument("--rooms", type=int, default=ROOMS, help="how many cases at a time")
    given = parser.parse_args()
    wanted = named(given.only, cases(given.sink), parser)
    signal.signal(signal.SIGTERM, told_to_end)
    logging.getLogger("azure").addHandler(logging.NullHandler())  # a client closed after its one call says that it was
    began = time.monotonic()
    with suppress(KeyboardInterrupt), opened(given.rooms, given.sink) as rooms:
        good = table(rooms.verdict, wanted, at_a_time=given.rooms, good=AS_PROMISED)
        say(f"\n{good} of {len(wanted)} ends {AS_PROMISED}, in {(time.monotonic() - began) / 60:.0f} min")
        return exit_code(wanted, good)
    return 1


if __name__ == "__main__":
    sys.exit(main())
