"""`make letters`: a host with dead letters under way, killed at every crash point; its letters and its output are its feed.

No Spark: what is tried is what comes behind the transform. Each case is a process that dies and one that comes after it, and
whose transform and batches may judge otherwise: what was decided stays so. Exit code 1 where an event is lost, doubled, or in
both places, or where a point is not reached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from pipeline.connectors.filesink import Directory, snapshot_of
from pipeline.connectors.log import LogFeed, append
from pipeline.crash_point import POINTS, VARIABLE
from pipeline.dead_letters.box import kept_in, until_now
from scenarios.cases import POINTS_OF_SINK, exit_code, table, told_to_end
from scenarios.host import Failed
from scenarios.letters_host import KINDS, NAME, Where
from scenarios.place import place, say

PARTITIONS = ("0", "1")
EVENTS = 60
"""Of a partition: six batches, four of them with letters."""
END_S = 300
EXACT = "exact"
AT_A_TIME = 2
ONCE = frozenset(
    (
        "lease acquired",
        "partition claimed",
        "sink claimed",
        "position written",
        "before checkpoint",
        "checkpointed",
        "before release",
        "released",
    )
)
"""Of each partition, or of the whole; all other points are reached again and again, and taken the third time."""
NEVER = frozenset(("folded",))
"""What so few batches do not come to."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    point: str

    @property
    def name(self) -> str:
        return f"{self.kind:30}{self.point:20}"


def cases(only: str = "") -> list[Case]:
    special = {point for points in POINTS_OF_SINK.values() for point in points}
    found = []
    for kind, each in KINDS.items():
        own = {point for system in each.systems for point in POINTS_OF_SINK[system]} - NEVER
        found += [Case(kind, point) for point in POINTS if point in own or point not in special]
    return [case for case in found if only in case.name]


def written(directory: Path, *, refuses: bool) -> Counter[bytes]:
    """The feed. Some events are poison (!), some are refused by the table (?), and two batches of six are clean."""
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
    """One case's directory and database."""

    def __init__(self, directory: Path, server: Any, number: int) -> None:
        self._database = f"letters{number}"
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._database}")
        self.where = Where(directory / str(number), server.get_uri(database=self._database))
        self.where.directory.mkdir()

    def run(self, kind: str, *, armed: str | None = None, mended: str = "") -> int:
        """The exit code."""
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        process = subprocess.run(
            [sys.executable, "-m", "scenarios.letters_host", str(self.where.directory), kind, self.where.dsn, mended],
            env={**environment, **({VARIABLE: armed} if armed else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=END_S,
            check=False,
        )
        self.words = process.stdout.decode(errors="replace")[-400:]
        return process.returncode

    async def outcome(self, kind: str) -> tuple[Counter[bytes], Counter[bytes]]:
        """Output and letters."""
        box = KINDS[kind].box(self.where)
        letters = Counter([kept.letter.body or b"" async for kept in kept_in(box, NAME)])
        await box.close()
        return Counter([body async for body in self._output(kind.split()[0])]), letters

    async def _output(self, sink: str) -> AsyncIterator[bytes]:
        if sink == "postgres":
            with psycopg.connect(self.where.dsn) as connection:
                for (body,) in connection.execute("SELECT body FROM outcome").fetchall():
                    yield bytes(body)
        elif sink == "files":
            for body in snapshot_of(Directory(self.where.directory / "outcome")).table()["body"].to_pylist():
                yield body
        else:
            feed = LogFeed(self.where.directory / "outcome")
            for partition in await feed.partitions():
                async for page in until_now(feed, partition.name):
                    for body in page.events["body"].to_pylist():
                        yield body
            await feed.close()


def verdict(scene: Scene, case: Case) -> str:
    kind = KINDS[case.kind]
    everything = written(scene.where.directory, refuses=kind.refuses)
    times = 1 if case.point in ONCE else 3
    try:
        if (code := scene.run(case.kind, armed=f"{case.point}:{times}")) != -signal.SIGKILL:
            raise Failed(f"the point was not reached: exit code {code}: {scene.words}")
        if (code := scene.run(case.kind, mended=MENDED)) != 0:
            raise Failed(f"the host that came after ended with {code}: {scene.words}")
    except (Failed, subprocess.TimeoutExpired) as failed:
        return str(failed)
    return told(everything, *asyncio.run(scene.outcome(case.kind)))


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
def scenes() -> Iterator[Callable[[Case], Scene]]:
    """For each case one of its own."""
    numbers = count()
    with place("letters") as (directory, server):
        yield lambda case: Scene(directory, server, next(numbers))


def main() -> int:
    parser = argparse.ArgumentParser(description="A host with dead letters under way, killed at every crash point.")
    parser.add_argument("--only", default="", help="part of a kind's or a point's name")
    wanted = cases(parser.parse_args().only)
    signal.signal(signal.SIGTERM, told_to_end)
    began = time.monotonic()
    with suppress(KeyboardInterrupt), scenes() as scene_of:
        exact = table(lambda case: verdict(scene_of(case), case), wanted, at_a_time=AT_A_TIME, good=EXACT)
        say(f"\n{exact} of {len(wanted)} exact, in {(time.monotonic() - began) / 60:.0f} min")
        return exit_code(wanted, exact)
    return 1


if __name__ == "__main__":
    sys.exit(main())
