"""What the demo says where balances are not as a plain computation has them."""

from __future__ import annotations

import json
from decimal import Decimal
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from service import demo
from service.cli import main
from service.demo import DemoOptions, DemoResult, Ledger

EXPECTED = Ledger(
    {"Ada": Decimal("1.00"), "Björn": Decimal("2.50"), "Chioma": Decimal("-3.00"), "Dmitri": Decimal(0)},
    {"Ada": 10, "Björn": 20, "Chioma": 30, "Dmitri": 40},
)
WRONG = Ledger(
    {"Ada": Decimal("1.01"), "Björn": Decimal("2.50"), "Dmitri": Decimal(0), "[b]Mallory\x1b": Decimal(1)},
    {"Ada": 10, "Björn": 17, "Dmitri": 40, "[b]Mallory\x1b": 2},
)


def reported(found: Ledger) -> list[str]:
    screen = Console(file=StringIO(), width=100)
    demo._report(DemoResult(found, EXPECTED, 1.5), screen)
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

    monkeypatch.setattr(demo, "demo", done)
    assert CliRunner().invoke(main, ["demo"]).exit_code == code
