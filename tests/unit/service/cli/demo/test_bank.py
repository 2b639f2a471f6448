"""What the demo says where balances are not as a plain computation has them."""

from __future__ import annotations

import json
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from leasehold.service.cli.demo import bank
from leasehold.service.cli.demo.bank import DemoOptions, DemoResult, Ledger
from leasehold.service.cli.main import main
from leasehold.service.cli.tables import stopped

EXPECTED = Ledger(
    {"Ada": Decimal("1.00"), "Björn": Decimal("2.50"), "Chioma": Decimal("-3.00"), "Dmitri": Decimal(0)},
    {"Ada": 10, "Björn": 20, "Chioma": 30, "Dmitri": 40},
)
WRONG = Ledger(
    {"Ada": Decimal("1.01"), "Björn": Decimal("2.50"), "Dmitri": Decimal(0), "[b]Mallory\x1b": Decimal(1)},
    {"Ada": 10, "Björn": 17, "Dmitri": 40, "[b]Mallory\x1b": 2},
)


def reported(found: Ledger, kept: Path | None = None) -> list[str]:
    screen = Console(file=StringIO(), width=100)
    bank._report(DemoResult(found, EXPECTED, 1.5), kept, screen)
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue().splitlines()


def test_accounts_that_differ_in_balance_or_number_of_events_are_named_alone() -> None:
    lines = reported(WRONG)
    assert lines[-1] == "balances DIFFER in 4 accounts: 4 accounts, 100 transactions, 33 lost, 2 duplicated"
    for name in ("Ada", "Björn", "Chioma", r'"[b]Mallory\u001b"'):
        assert any(line.strip().startswith(name) for line in lines), lines
    assert not any("Dmitri" in line for line in lines)


def test_balances_that_match_are_shown_and_said() -> None:
    lines = reported(EXPECTED)
    assert lines[-1] == "balances match: 4 accounts, 100 transactions, 0 lost, 0 duplicated"
    assert all(any(name in line for line in lines) for name in EXPECTED.balances)


def test_what_is_kept_is_named_with_the_command_that_looks_into_the_database() -> None:
    assert reported(EXPECTED, Path("state/demo"))[-3:-1] == [
        "everything is kept in state/demo: bank.yaml, a template for settings of your own, and its database:",
        '  leasehold postgres state/demo/postgres --query "SELECT * FROM balances"',
    ]
    assert any(line.startswith("nothing is kept; `--dir DIRECTORY` keeps everything") for line in reported(EXPECTED))


def test_the_json_form_has_balances_as_decimals() -> None:
    assert json.loads(DemoResult(WRONG, EXPECTED, 1.23456).as_json) == {
        "balances": {"Ada": "1.01", "Björn": "2.50", "Dmitri": "0", "[b]Mallory\x1b": "1"},
        "transactions": 100,
        "lost": 33,
        "duplicated": 2,
        "seconds": 1.235,
    }


@pytest.mark.parametrize(("found", "code"), [(EXPECTED, 0), (WRONG, 1)])
def test_the_exit_code_tells_whether_they_match(monkeypatch: pytest.MonkeyPatch, found: Ledger, code: int) -> None:
    async def done(options: DemoOptions) -> DemoResult:
        return DemoResult(found, EXPECTED, 1.0)

    monkeypatch.setattr(bank, "run_demo", done)
    assert CliRunner().invoke(main, ["demo"]).exit_code == code


# What it refuses before it writes anything


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, where the demo is called."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def refused(place: Path, *arguments: str) -> str:
    before = sorted(place.rglob("*"))
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert sorted(place.rglob("*")) == before
    return result.stderr


@pytest.mark.parametrize("name", ["with space", "it's", "a;b", "new/$HOME"])
def test_a_directory_that_postgresql_cannot_live_in_is_refused_and_not_made(place: Path, name: str) -> None:
    said = f"leasehold: the embedded PostgreSQL cannot live in '{place}/{name}': name a directory without spaces"
    assert refused(place, "--dir", name).startswith(said)


def test_so_is_a_directory_for_temporary_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = place / "with space"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert f"cannot live in '{temporary}': name a directory" in refused(place)


@pytest.mark.parametrize("option", ["--dir", "--transactions"])
def test_an_empty_name_is_not_taken_for_this_directory(place: Path, option: str) -> None:
    assert f"Invalid value for '{option}': the name is empty: name a" in refused(place, option, "")


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read (no such file or directory)"), ("account\n", "line 1: the header lacks transaction_id")],
)
def test_transactions_that_cannot_be_used_are_bad_usage(place: Path, content: str | None, said: str) -> None:
    if content is not None:
        (place / "mine.csv").write_text(content)
    assert said in refused(place, "--transactions", "mine.csv", "--dir", "bank")


def test_a_directory_is_no_file_of_transactions(place: Path) -> None:
    assert "is a directory" in refused(place, "--transactions", ".", "--dir", "bank")


# What it says in the end


def test_no_transactions_are_not_told_as_processed_before() -> None:
    assert bank._nothing_done(Ledger({}, {})) == "there are no transactions to process"
    assert bank._nothing_done(EXPECTED) == "everything had been processed before"


def test_a_partition_that_stopped_is_named_once() -> None:
    assert stopped("bank", "a.jsonl", "partition 'a.jsonl', sequence 2 (file a.jsonl, line 3): no number") == (
        "pipeline 'bank', partition 'a.jsonl' stopped: sequence 2 (file a.jsonl, line 3): no number"
    )
    other = "partition 'b.jsonl', sequence 2: no number"
    assert stopped("bank", "a.jsonl", other) == f"pipeline 'bank', partition 'a.jsonl' stopped: {other}"
