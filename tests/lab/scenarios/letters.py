"""`make letters`: hosts with dead letters under way, killed and frozen at crash points: letters and output are their feed.

No Spark: what is tried is what comes behind the transform. Each case is a process that dies, or freezes until another one has
its leases, and one that comes after it, and whose transform and batches may judge otherwise: what was decided stays so. With
sinks of at least once the output may repeat, and letters do not.

Which points? Killed: all that a host passes, for sinks and boxes on this machine. Where letters go to a hub, or output to an
endpoint or a container, the steps are the same but for those of that system, and those around them (BESIDE): all others would
only be tried once more. Frozen: where something is half done that the next owner has to know of, or to fence off (HALF_DONE);
elsewhere a process that goes on finds its lease lost, as `make scenarios` shows.

Exit code 1 where an event is lost, doubled, or in both places, or where a point is not reached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from lab.scenarios.cases import POINTS_OF_SINK, displaced, exit_code, named, table, told_to_end
from lab.scenarios.grounds import is_locked
from lab.scenarios.host import Process
from lab.scenarios.letters_host import LEASES, Order
from lab.scenarios.letters_kinds import KINDS, NAME, SERVED, Address, Where
from lab.scenarios.place import place, say
from patience import Failed
from plugins_cli import leases_in

from leasehold.leases.lease import Lease
from leasehold.pipeline.connectors.log import append
from leasehold.pipeline.crash_point import POINTS
from leasehold.pipeline.dead_letters.box import read_kept

KILLED, FROZEN = "killed", "frozen"
PARTITIONS = ("0", "1")
EVENTS = 60
"""Of a partition: six batches, four of them with letters."""
EXACT = "exact"
AT_A_TIME = 2
ONCE = frozenset(
    (
        "lease acquired",
        "partition claimed",
        "sink claimed",
        "position written",
        "before flush",
        "flushed",
        "before checkpoint",
        "checkpointed",
        "before release",
        "released",
    )
)
"""Of each partition, or of the whole; all other points are reached again and again, and taken the third time."""
NEVER = frozenset(("folded",))
"""What so few batches do not come to."""
BESIDE = frozenset(("sink claimed", "position written", "before write", "checkpointed"))
HALF_DONE = frozenset(
    (
        *("before write", "letters put", "before append", "appended", "before publish", "published"),
        *("batch staged", "committed", "file put", "entry put", "before submit", "submitted"),
        *("before call", "called", "event parked"),
    )
)


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    point: str
    fault: str = KILLED

    @property
    def name(self) -> str:
        return f"{self.kind:30}{self.fault:8}{self.point:20}"

    @property
    def times(self) -> int:
        return 1 if self.point in ONCE else 3


def cases(only: str = "") -> list[Case]:
    found = [
        Case(kind, point, fault)
        for kind in KINDS
        for fault in (KILLED, FROZEN)
        for point in POINTS
        if point in (killed_at(kind) if fault == KILLED else HALF_DONE & killed_at(kind))
    ]
    return [case for case in found if only in case.name]


def killed_at(kind: str) -> set[str]:
    special = {point for points in POINTS_OF_SINK.values() for point in points}
    own = {point for system in KINDS[kind].systems for point in POINTS_OF_SINK[system]}
    return (own | (set(POINTS) - special if KINDS[kind].server is None else BESIDE)) - NEVER


def written(directory: Path, *, refuses: bool) -> Counter[bytes]:
    """The feed. Some events are poison (!), some are refused by the sink (?), and two batches of six are clean."""
    everything: Counter[bytes] = Counter()
    for partition in PARTITIONS:
        bodies = [f"{partition}-{n}{_mark(n, refuses)}".encode() for n in range(EVENTS)]
        append(directory / "feed", partition, bodies)
        everything.update(bodies)
    return everything


def _mark(n: int, refuses: bool) -> str:
    if n // 10 in (1, 4):
        return ""
    return "!" if n % 10 in (0, 4, 5) else "?" if refuses and n % 20 == 9 else ""


MENDED = f"{PARTITIONS[0]}-5! {PARTITIONS[1]}-24!"
"""What the second process would let pass; where the first one buried it, it stays buried."""


class Scene:
    """One case's directory, database and server, and its hosts."""

    def __init__(self, case: Case, where: Where) -> None:
        self.where = where
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[2:4]))}
        self._case = case

    @property
    def directory(self) -> Path:
        return self.where.directory

    def happens(self) -> None:
        """Raises Failed."""
        armed = f"{self._case.point}:{self._case.times}"
        if self._case.fault == FROZEN:
            displaced(self, f"{armed}:SIGSTOP", NAME)
            return
        with self.running("a", armed=armed) as host:
            if (code := host.ended()) != -signal.SIGKILL:
                raise Failed(f"the point was not reached: exit code {code}: {host.words}")
        with self.running("a", mended=MENDED) as host:
            self.see_end(host)

    @contextmanager
    def running(self, name: str, *roles: str, armed: str | None = None, mended: str = "") -> Iterator[Process]:
        """Under its own name it is the same host once more; under another one it would let pass more."""
        mended = MENDED if name == "b" else mended
        where = self.where
        order = Order(name=name, directory=str(where.directory), dsn=where.dsn, server=where.server, mended=mended)
        command = [sys.executable, "-m", "lab.scenarios.letters_host", self._case.kind, order.encoded()]
        host = Process(self, name, command, armed)
        try:
            yield host
        finally:
            host.end()

    def see_end(self, host: Process) -> None:
        if (code := host.ended()) != 0:
            raise Failed(f"host {host.name} ended with {code}: {host.words}")

    def leases(self, role: str) -> list[Lease]:
        return leases_in(self.directory / LEASES, role)

    def locked(self) -> list[str]:
        return [LEASES] if is_locked(self.directory / LEASES) else []

    async def outcome(self) -> tuple[Counter[bytes], Counter[bytes]]:
        """Output and letters."""
        kind = KINDS[self._case.kind]
        box = kind.box(self.where)
        letters = Counter([kept.letter.body or b"" async for kept in read_kept(box, NAME)])
        await box.close()
        output = Counter([body async for body in kind.arrived(self.where)])
        return Counter(set(output)) if kind.repeats else output, letters


MakeScene = Callable[[Case, Address], Scene]


def verdict(scene_of: MakeScene, case: Case) -> str:
    kind = KINDS[case.kind]
    with SERVED[kind.server]() as server:
        scene = scene_of(case, server)
        everything = written(scene.directory, refuses=kind.refuses)
        try:
            scene.happens()
        except Failed as failed:
            return str(failed)
        return told(everything, *asyncio.run(scene.outcome()))


def told(everything: Counter[bytes], output: Counter[bytes], letters: Counter[bytes]) -> str:
    """ "exact", or what is wrong."""
    marked = {body for body in everything if body[-1:] in b"!?"}
    mended = set(MENDED.encode().split())
    wrong = {
        "lost": everything - output - letters,
        "doubled": output + letters - everything,
        "dead without a reason": letters.keys() - marked,
        "delivered though dead": output.keys() & (marked - mended),
    }
    found = [f"{what}: {sorted(each)[:5]}" for what, each in wrong.items() if each]
    return "; ".join(found) or EXACT


@contextmanager
def scenes() -> Iterator[MakeScene]:
    """For each case one of its own."""
    numbers = count()
    with place("letters") as (directory, server):

        def scene_of(case: Case, address: Address) -> Scene:
            number = next(numbers)
            database = _database(server, f"letters{number}")
            (directory / str(number)).mkdir()
            return Scene(case, Where(directory / str(number), database, address))

        yield scene_of


def _database(server: Any, name: str) -> str:
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(server.get_uri(database=name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Hosts with dead letters under way, killed and frozen at crash points."
    )
    parser.add_argument("--only", default="", help="part of a case's name, like `frozen`, a kind's or a point's")
    wanted = named(parser.parse_args().only, cases(), parser)
    signal.signal(signal.SIGTERM, told_to_end)
    began = time.monotonic()
    with suppress(KeyboardInterrupt), scenes() as scene_of:
        exact = table(lambda case: verdict(scene_of, case), wanted, at_a_time=AT_A_TIME, good=EXACT)
        say(f"\n{exact} of {len(wanted)} exact, in {(time.monotonic() - began) / 60:.0f} min")
        return exit_code(wanted, exact)
    return 1


if __name__ == "__main__":
    sys.exit(main())
