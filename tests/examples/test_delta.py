"""docs/delta-sink.md: its example runs as it is written, and the readers that it lists read the tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars
import pytest
from delta_readers import query, read_rows
from deltalake import DeltaTable
from pages import examples, lines_of, shell
from patience import PATIENCE_S
from plugins_cli import Command, Commands


def test_tables_are_written_read_compacted_and_vacuumed_as_the_page_says(
    tmp_path: Path, leasehold: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = examples("delta-sink.md", tmp_path)
    monkeypatch.chdir(tmp_path)

    def typed(word: str) -> Command:
        command = leasehold(*lines_of(page, word)[0].split()[1:])
        assert command.ended() == 0, command.err
        return command

    shell(lines_of(page, "printf")[0], tmp_path)
    typed("leasehold run")
    read = shlex.split(lines_of(page, "polars.read_delta")[0])[1:]
    shown = subprocess.run(
        [sys.executable, *read], cwd=tmp_path, check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE
    )
    assert shown.stdout.decode().count("15.00") == shown.stdout.decode().count("20.00") == 1

    with (tmp_path / "transactions-1.jsonl").open("a") as file:
        file.write('{"account": "ann", "balance": 7.5}\n')
    typed("leasehold run")
    assert balances(tmp_path / "lake/balances") == [("ann", 7.5), ("bob", 20)]
    everything = [("ann", 7.5), ("ann", 10), ("ann", 15), ("bob", 20)]
    assert balances(tmp_path / "lake/transactions") == everything
    assert {name: sums(called) for name, called in readings(page).items()} == dict.fromkeys(
        ("Polars", "DuckDB", "deltalake"), (4, 52.5)
    )

    files = DeltaTable(tmp_path / "lake/transactions").file_uris()
    assert len(files) == 2
    typed("leasehold files compact")
    assert len(DeltaTable(tmp_path / "lake/transactions").file_uris()) == 1
    lock = tmp_path / "lake/transactions/_leasehold/compaction"
    assert not lock.exists()
    lock.write_text("process 7 on another host")
    refused = leasehold(*lines_of(page, "leasehold files compact")[0].split()[1:])
    assert refused.ended() == 1
    assert "another compaction is running (process 7 on another host), and two at once would double rows" in refused.err
    typed("leasehold files vacuum")
    assert all(Path(file).exists() for file in files), "their version is not a week old"
    assert balances(tmp_path / "lake/transactions") == everything


def balances(table: Path) -> list[tuple[str, float]]:
    return [(row["account"], float(row["balance"])) for row in read_rows(table, "account", "balance")]


def readings(page: str) -> dict[str, Any]:
    """What the calls of the page's table return, without Spark's, which `make interop` has."""
    calls = dict(re.findall(r"^\| (\w+) \| `([^`]+)`", page, re.MULTILINE))
    return {
        name: query(call) if call.startswith("SELECT") else eval(call, {"polars": polars, "DeltaTable": DeltaTable})
        for name, call in calls.items()
    }


def sums(table: Any) -> tuple[int, float]:
    return len(table), sum(float(str(balance)) for balance in table["balance"])
