"""`leasehold test` on the pages' examples with a real Spark, and planted bugs that it finds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages import examples, replace
from plugins_cli import Commands

MOST_S = 400
"""A busy machine takes ten times as long as an idle one."""

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples("first-pipeline.md", tmp_path)
    examples("testing.md", tmp_path)
    return tmp_path


def test_an_example_passes_without_the_secrets_of_its_connections(folder: Path, leasehold: Commands) -> None:
    for name in ("bank-cosmos.yaml", "bank-cosmos.cases.yaml"):
        shutil.copy(EXAMPLES / name, folder)
    command = leasehold("test", "bank-cosmos.yaml")
    assert command.ended(MOST_S) == 0, command.out + command.err
    assert command.out.endswith("2 cases: 2 passed, 0 failed\n")
    assert not (folder / "state").exists()
    assert command.left_behind() == []


def test_a_wrong_sign_in_the_sql_is_found_in_one_run(folder: Path, leasehold: Commands) -> None:
    replace(folder / "balances.yaml", "THEN -amount", "THEN amount")
    command = leasehold("test", "balances.yaml")
    assert command.ended(MOST_S) == 1, command.out + command.err
    (shown,) = re.findall(r"```text\n(FAILED balances.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    assert shown in command.out
    assert "! {account: alice, value: 100.00, events: 2} | {account: alice, value: 100.20, events: 2}" in shown
