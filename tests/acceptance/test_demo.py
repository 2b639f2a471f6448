"""`leasehold demo`, as a user runs it: whole processes, and balances that a computation of this file's own confirms."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import sqlite3
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from patience import PATIENCE_S, until
from plugins_cli import Command, Commands, leases_in
from plugins_pg import directory_for_all

from leasehold.service.cli.demo.postgres import start_server

pytestmark = pytest.mark.xdist_group("demo")

COLUMNS = ["transaction_id", "account", "kind", "amount", "occurred_at"]
LAST_LINE = "balances match: 5 accounts, 1000 transactions, 0 lost, 0 duplicated"


@pytest.fixture(scope="module")
def interrupted() -> Iterator[tuple[Path, Command]]:
    """A directory, with a name that is no plain word, in which a demo was stopped by Ctrl-C while Spark started."""
    with directory_for_all() as base:
        directory = base / "bänk"
        demo = Command("demo", "--dir", directory, cwd=base)
        try:
            until(lambda: demo.has_java() or demo.process.poll() is not None, "Spark starts")
            demo.interrupt()
            demo.ended()
            yield directory, demo
        finally:
            demo.end()


@pytest.fixture(scope="module")
def kept(interrupted: tuple[Path, Command]) -> Iterator[tuple[Path, str]]:
    """That directory once the demo has been run to its end, and what it printed."""
    directory, _ = interrupted
    demo = Command("demo", "--dir", directory, cwd=directory.parent)
    try:
        url = _answering(demo)
        with urllib.request.urlopen(f"{url}/api/pipelines", timeout=PATIENCE_S) as answer:
            pipelines = [item["name"] for item in json.load(answer)["items"]]
        assert sorted(pipelines) == ["balances", "generate", "transform"]
        assert demo.ended() == 0, demo.err
        assert demo.out.splitlines()[-1] == LAST_LINE
        assert demo.err == ""
        assert demo.left_behind() + _of(directory) == []
        yield directory, demo.out
    finally:
        demo.end()


def _answering(demo: Command) -> str:
    """Where the API of a demo that is under way answers."""
    until(
        lambda: demo.found(r"dashboard: (http://[\d.:]+)/") or demo.process.poll() is not None,
        "the API's address",
    )
    url = demo.found(r"dashboard: (http://[\d.:]+)/")
    assert url is not None, demo.err

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=PATIENCE_S):
                return True
        except OSError:
            return False

    until(is_ready, "a demo that is ready")
    return url


def test_ctrl_c_ends_it_and_leaves_nothing_running(interrupted: tuple[Path, Command]) -> None:
    directory, demo = interrupted
    assert demo.process.returncode == 1
    assert demo.err == "leasehold: stopped before the bank was finished; with --dir, it continues where it stopped\n"
    assert demo.left_behind() + _of(directory) == []


def test_running_it_again_in_its_directory_changes_nothing(kept: tuple[Path, str], leasehold: Commands) -> None:
    directory, _ = kept
    before = _state(directory)
    again = leasehold("demo", "--dir", directory, "--json")
    assert again.ended() == 0, again.err
    assert _state(directory) == before
    assert len(before["history"]) >= 4
    result = json.loads(again.out)
    assert again.out.count("\n") == 1
    assert list(result) == ["balances", "transactions", "lost", "duplicated", "seconds"]
    assert result["balances"] == {name: str(balance) for name, balance, _ in before["balances"]}
    assert result["balances"] == _computed(directory.glob("transactions-*.csv"))
    assert len(result["balances"]) == 5
    assert (result["transactions"], result["lost"], result["duplicated"]) == (1000, 0, 0)
    assert result["seconds"] > 0
    assert again.err.splitlines()[-1] == LAST_LINE


def test_its_last_lines_name_a_command_that_shows_the_balances(kept: tuple[Path, str], leasehold: Commands) -> None:
    directory, out = kept
    command = shlex.split(out.splitlines()[-2])
    assert command[0] == "leasehold"
    rows = leasehold(*command[1:])
    assert rows.ended() == 0, rows.err
    for name, balance in _computed(directory.glob("transactions-*.csv")).items():
        assert re.search(rf"^ {name} +\| +{balance} \| +\d+$", rows.out, re.MULTILINE), rows.out
    assert rows.left_behind() + _of(directory) == []


def test_balances_of_a_users_own_transactions_are_exact_to_the_cent(
    tmp_path: Path, open_directory: Path, leasehold: Commands
) -> None:
    file, temporary = tmp_path / "mine.csv", open_directory
    rng = random.Random(7)
    names = _names(300, rng)
    with file.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, quoting=csv.QUOTE_ALL)
        rows.writerow(COLUMNS)
        for number in range(20_000):
            amount = f"{rng.randrange(10 ** rng.randint(1, 18))}.{rng.randrange(100):02}"
            name = names[number] if number < len(names) else rng.choice(names)
            kind = rng.choice(["deposit", "withdrawal"])
            rows.writerow([f"id-{number}", name, kind, amount, "2026-02-03T04:05:06+01:00"])
    demo = leasehold("demo", "--transactions", file, "--json", env={"TMPDIR": str(temporary)})
    assert demo.ended(2 * PATIENCE_S) == 0, demo.err
    result = json.loads(demo.out)
    assert result["balances"] == _computed([file])
    assert len(result["balances"]) == 300
    assert (result["transactions"], result["lost"], result["duplicated"]) == (20_000, 0, 0)
    assert not list(temporary.glob("leasehold-bank-*")), "the state goes where no directory was named"


def test_a_killed_event_generator_loses_and_repeats_nothing(open_directory: Path, leasehold: Commands) -> None:
    demo = leasehold("demo", "--fail", "event-generator-crash", env={"TMPDIR": str(open_directory)})
    assert demo.ended(2 * PATIENCE_S) == 0, demo.out + demo.err
    assert demo.out.splitlines()[-1] == LAST_LINE
    stored, known = map(int, _found(r"(\d+) of 1,000 transactions are stored, and the leases know of (\d+):", demo.out))
    assert stored > known, "it died between its output and its checkpoint"
    [recovered] = _found(r"recovered: .*, (\d+) of them by the demo's host", demo.out)
    assert stored + int(recovered) == 1000
    assert demo.left_behind() == []


def _found(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found is not None, text
    return found.groups()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,account,kind\n", "line 1: the header lacks transaction_id, amount, occurred_at"),
        (",".join(COLUMNS) + "\n1,Ada,deposit,1.239,2026-01-01\n", "line 2: column amount: '1.239' has to be digits"),
        (
            ",".join(COLUMNS) + '\n1,"Ada\nLovelace",deposit,1,2026-01-01\n2,Ada,gift,1,2026-01-01\n',
            "line 4: column kind: 'gift' has to be deposit or withdrawal",
        ),
    ],
)
def test_a_broken_file_of_transactions_is_told_by_line_and_column(
    tmp_path: Path, leasehold: Commands, text: str, said: str
) -> None:
    file = tmp_path / "broken.csv"
    file.write_text(text)
    demo = leasehold("demo", "--transactions", file, "--json")
    assert demo.ended() == 2
    assert demo.out == ""
    assert demo.err.startswith(f"leasehold: '{file}', {said}")
    assert demo.err.count("\n") == 1


# What the demo is checked against


def _names(count: int, rng: random.Random) -> list[str]:
    """Of the whole of Unicode: what CSV, JSON, SQL and terminals take for something else comes first."""
    names = [
        'O\'Brien, "Bob"',
        "two\nlines",
        "\r",
        " ",
        "\t",
        "👩‍👩‍👧‍👦 🏦",
        "שלום עולם",
        "‮ltr",
        "a\x85b\x1c\u2028c",
        "\\n",
        "${HOME}",
    ]
    names += [
        "Zo\u00eb",
        "Zoe\u0308",
        "NULL",
        "null",
        "-1",
        "=1+1",
        "\x01",
        "\ufeffbom",
        "😀" * 50,
        "'; DROP TABLE balances; --",
    ]
    while len(names) < count:
        points = (
            rng.choice([rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)]) for _ in range(rng.randint(1, 12))
        )
        name = "".join(map(chr, points))
        if name not in names:
            names.append(name)
    return names


def _rows(files: Any) -> Iterator[dict[str, str]]:
    for file in files:
        with Path(file).open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)


def _computed(files: Any) -> dict[str, str]:
    """account -> balance: in whole cents, with integers alone."""
    cents: defaultdict[str, int] = defaultdict(int)
    for row in _rows(files):
        whole, _, part = row["amount"].partition(".")
        sign = {"deposit": 1, "withdrawal": -1}[row["kind"]]
        cents[row["account"]] += sign * (int(whole) * 100 + int(part.ljust(2, "0")))
    return {name: f"{'-' * (sum_ < 0)}{abs(sum_) // 100}.{abs(sum_) % 100:02}" for name, sum_ in cents.items()}


# What it keeps


class _postgres:  # noqa: N801  # a context manager
    """The kept bank's database, while no demo runs."""

    def __init__(self, directory: Path) -> None:
        self._server = start_server(directory / "postgres")
        self._connection = psycopg.connect(self._server.get_uri(), autocommit=True)

    def __enter__(self) -> psycopg.Connection[Any]:
        return self._connection

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        self._server.cleanup()


def _state(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Balances, history and positions, the events of both logs, and where the leases stand."""
    with _postgres(directory) as bank:
        state = {
            "balances": bank.execute("SELECT account, balance, events FROM balances ORDER BY account").fetchall(),
            "history": bank.execute("SELECT * FROM leasehold_history ORDER BY 1, 2, 3, 4").fetchall(),
        }
    for log in ("raw-event", "transformed-event"):
        for file in sorted((directory / log).glob("*.db")):
            state[f"{log}/{file.name}"] = _select(file, "SELECT first, events, body FROM blocks ORDER BY first")
    leases = leases_in(directory / "leases.db", "generate", "transform", "balances")
    state["continuations"] = sorted((lease.key, lease.continuation) for lease in leases)
    assert len(leases) == 12
    return state


def _select(file: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def _of(directory: Path) -> list[str]:
    """Processes that work in this directory, whoever started them."""
    return [
        " ".join(process.info["cmdline"])[:200]
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(directory) in argument for argument in process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
