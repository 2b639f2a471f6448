"""The programs of docs/examples/programs, as users run them, against the emulators and PostgreSQL.

One is killed midway, and another goes on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from azure.cosmos import CosmosClient
from patience import PATIENCE_S, until
from plugins_cli import Commands
from plugins_pg import Postgres

PROGRAMS = Path(__file__).parents[2] / "docs/examples/programs"
LINES_MAX = 25


class Program:
    """One that writes its lines into a file, so that those written before a kill are there."""

    def __init__(self, name: str, number: int, folder: Path, env: Mapping[str, str]) -> None:
        self._out, self._log = folder / f"{number}.out", folder / f"{number}.log"
        with self._out.open("w") as out, self._log.open("w") as log:
            command = [sys.executable, PROGRAMS / name]
            self.process = subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=out, stderr=log)

    @property
    def lines(self) -> list[list[str]]:
        """The words of each whole line."""
        return [line.split() for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log


@pytest.fixture
def program(open_directory: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(name: str, **env: str) -> Program:
        programs.append(Program(name, len(programs), open_directory, env))
        return programs[-1]

    yield start
    for each in programs:
        each.kill()


def emulated(leasehold: Commands, kind: str, *options: str) -> dict[str, Any]:
    """What the emulator prints of itself."""
    emulator = leasehold("emulate", kind, "--json", "--port", "0", "--control-port", "0", *options)
    until(lambda: emulator.out.endswith("\n"), "the emulator serves", lambda: emulator.err)
    said: dict[str, Any] = json.loads(emulator.out)
    return said


def by_partition(program: Program) -> dict[str, list[int]]:
    """The numbers that it printed."""
    found: dict[str, list[int]] = {}
    for partition, number in (line for line in program.lines if line[0] != "closed"):
        found.setdefault(partition, []).append(int(number))
    return found


def repeats(killed: Program, survivor: Program) -> dict[str, list[int]]:
    """What both printed, each in order and once, and the survivor where it began."""
    before, after = by_partition(killed), by_partition(survivor)
    for numbers in (*before.values(), *after.values()):
        assert numbers == sorted(set(numbers))
    both = {partition: sorted({*before.get(partition, ())} & {*numbers}) for partition, numbers in after.items()}
    for partition, numbers in both.items():
        assert numbers == before.get(partition, [])[len(before.get(partition, [])) - len(numbers) :]
        assert numbers == after[partition][: len(numbers)]
    return both


def test_orders_of_a_container_reach_a_function_and_only_a_batch_in_progress_repeats(
    program: Callable[..., Program], leasehold: Commands
) -> None:
    account = emulated(leasehold, "cosmos", "--ranges", "2", "--container", "shop/orders:/customer")
    container = (
        CosmosClient(account["endpoint"], account["key"]).get_database_client("shop").get_container_client("orders")
    )
    written: list[int] = []

    def write(count: int) -> None:
        for number in range(len(written), len(written) + count):
            container.create_item({"id": str(number), "customer": f"c{number % 11}"})
            written.append(number)

    write(150)
    killed = program("orders.py", SHOP_COSMOS=account["connection_string"])
    until(lambda: len(killed.lines) >= 40, "the first orders", lambda: killed.log)
    write(100)
    killed.kill()
    survivor = program("orders.py", SHOP_COSMOS=account["connection_string"])
    write(100)

    def seen() -> set[int]:
        return {int(line[1]) for line in (*killed.lines, *survivor.lines)}

    until(lambda: seen() >= {*written}, "all orders", lambda: survivor.log)
    survivor.stop()
    assert seen() == {*written}
    assert all(len(numbers) <= 20 for numbers in repeats(killed, survivor).values()), "a batch of each partition"


def test_readings_of_a_hub_go_on_behind_the_last_checkpoint_by_hand_and_the_handler_hears_why_it_is_closed(
    program: Callable[..., Program], leasehold: Commands
) -> None:
    hub = emulated(leasehold, "eventhubs", "--hub", "readings:2")
    written: list[int] = []

    def write(count: int) -> None:
        for partition in ("0", "1"):
            numbers = range(len(written), len(written) + count)
            order = {"hub": "readings", "partition": partition, "bodies": [json.dumps({"n": n}) for n in numbers]}
            httpx.post(hub["control"] + "append", json=order, trust_env=False).raise_for_status()
            written.extend(numbers)

    def seen(*programs: Program) -> Counter[int]:
        return Counter(int(line[1]) for each in programs for line in each.lines if line[0] != "closed")

    write(120)
    killed = program("readings.py", HUB=hub["connection_string"])
    until(lambda: seen(killed).keys() >= {*written}, "the first readings", lambda: killed.log)
    survivor = program("readings.py", HUB=hub["connection_string"])
    until(
        lambda: ["closed", "0", "shutdown"] in killed.lines or ["closed", "1", "shutdown"] in killed.lines, "a handoff"
    )
    assert [line[2] for line in killed.lines if line[0] == "closed"] == ["shutdown"]
    write(120)
    until(lambda: len(seen(killed)) > 240 and len(seen(survivor)), "both work", lambda: survivor.log)
    write(500)
    killed.kill()
    write(120)
    until(lambda: seen(killed, survivor).keys() >= {*written}, "all readings", lambda: survivor.log)
    survivor.stop()
    assert sorted(line[1:] for line in survivor.lines if line[0] == "closed") == [["0", "shutdown"], ["1", "shutdown"]]
    assert seen(killed, survivor).keys() == {*written}
    repeated = repeats(killed, survivor)
    assert sum(map(len, repeated.values())) <= 50, "of one partition, what was behind its last checkpoint"


def test_totals_in_postgresql_are_exact(
    program: Callable[..., Program], postgres: Postgres, open_directory: Path
) -> None:
    expected: Counter[str] = Counter()

    def sell(file: str, count: int) -> None:
        path = open_directory / f"sales-{file}.csv"
        is_new = not path.exists()
        with path.open("a") as sales:
            sales.write("customer,amount\n" * is_new)
            for number in range(count):
                sales.write(f"c{number % 5},{number}\n")
                expected[f"c{number % 5}"] += number

    def totals() -> dict[str, int]:
        try:
            return dict(postgres.fetch("SELECT customer, total FROM totals"))
        except psycopg.errors.UndefinedTable:
            return {}

    sell("1", 2000)
    killed = program("totals.py", LEASEHOLD_POSTGRES_DSN=postgres.dsn)
    until(lambda: totals(), "the first totals", lambda: killed.log)
    first = totals()
    sell("1", 3000)
    sell("2", 3000)
    until(lambda: totals() != first, "more", lambda: killed.log)
    killed.kill()
    sell("2", 1000)
    survivor = program("totals.py", LEASEHOLD_POSTGRES_DSN=postgres.dsn)
    until(lambda: totals() == expected, "all", lambda: (totals(), expected, survivor.log))
    survivor.stop()
    assert totals() == expected


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.name)
def test_a_program_is_short(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= LINES_MAX


ONE = """
import asyncio
from leasehold import FilesFeed, Pipeline, Processor, SqliteLeases

async def {name}(changes, context):
    for event in changes:
        print(context.partition, event.json()["n"], flush=True)

feed, leases = FilesFeed(path="*.jsonl"), SqliteLeases(path="leases.db")
if __name__ == "__main__":
    asyncio.run(Processor(Pipeline("numbers", feed=feed, handler={name}), leases=leases).run())
"""
MOVED = """
import asyncio
from leasehold import FilesFeed, Pipeline, Processor, SqliteLeases
from work.handlers import Numbers

feed, leases = FilesFeed(path="*.jsonl"), SqliteLeases(path="leases.db")
asyncio.run(Processor(Pipeline("numbers", feed=feed, handler=Numbers), leases=leases).run())
"""
A_CLASS = """
from leasehold import Handler

class Numbers(Handler):
    async def process(self, changes, context):
        for event in changes:
            print(context.partition, event.json()["n"], flush=True)
"""
IN_A_FILE = """
leases: {type: sqlite, path: leases.db}
api: {enabled: false}
pipelines:
  - {name: numbers, feed: {type: files, path: "*.jsonl"}, sink: {type: python, handler: "work.handlers:Numbers"}}
"""


def test_a_handler_that_is_renamed_moved_and_started_otherwise_goes_on_where_it_was(
    tmp_path: Path, leasehold: Commands
) -> None:
    (tmp_path / "work").mkdir()
    files = {
        "one.py": ONE.format(name="on_numbers"),
        "two.py": ONE.format(name="renamed"),
        "work/__init__.py": "",
        "work/handlers.py": A_CLASS,
        "work/__main__.py": MOVED,
        "numbers.yaml": IN_A_FILE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    numbers = iter(range(100))

    def append(count: int) -> list[list[str]]:
        """The lines to be printed."""
        added = [next(numbers) for _ in range(count)]
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write("".join(json.dumps({"n": number}) + "\n" for number in added))
        return [["a.jsonl", str(number)] for number in added]

    for command in (["one.py"], ["two.py"], ["-m", "two"], ["-m", "work"], ["one.py"]):
        expected = append(3)
        program = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert [program.stdout.readline().split() for _ in expected] == expected, command
        program.send_signal(signal.SIGTERM)
        rest, _ = program.communicate(timeout=PATIENCE_S)
        assert (rest, program.returncode) == ("", 0), command
    expected = append(3)
    host = leasehold("run", "--until-idle", "numbers.yaml")
    assert host.ended() == 0, host.err
    assert [line.split() for line in host.out.splitlines()][:3] == expected
