"""`leasehold test --kill` on the pages' examples with a real Spark, and planted bugs that kills alone find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import examples, replace
from patience import until
from plugins_cli import Commands

MOST_S = 400
"""A busy machine takes ten times as long as an idle one."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples("first-pipeline.md", tmp_path)
    examples("testing.md", tmp_path)
    return tmp_path


def test_hosts_of_the_examples_are_killed_and_their_output_is_that_of_undisturbed_hosts(
    folder: Path, leasehold: Commands
) -> None:
    letters = leasehold("test", "letters.yaml", "--kill")
    assert letters.ended(MOST_S) == 0, letters.out + letters.err
    balances = leasehold("test", "balances.yaml", "--kill")
    assert balances.ended(MOST_S) == 0, balances.out + balances.err
    assert "deposits and withdrawals are added up: killed at 'committed'" in balances.err
    assert balances.out.endswith("2 cases: 2 passed, 0 failed\n")
    assert balances.left_behind() == []


def test_a_count_that_the_merge_assigns_is_found_by_kills_alone(folder: Path, leasehold: Commands) -> None:
    replace(folder / "balances.yaml", "events = balances.events + excluded.events", "events = excluded.events")
    command = leasehold("test", "balances.yaml", "--kill")
    assert command.ended(MOST_S) == 1, command.out + command.err
    assert "rows expected" not in command.out
    assert "the output depends on how events are cut into batches" in command.out
    assert '"events": 1, "account": "alice", "balance": 100.00' in command.out


def test_a_handler_that_adds_is_found_by_kills_alone(folder: Path, leasehold: Commands) -> None:
    assert leasehold("test", "handler.yaml").ended(MOST_S) == 0
    command = leasehold("test", "handler.yaml", "--kill")
    assert command.ended(MOST_S) == 1, command.out + command.err
    assert "FAILED handler.cases.yaml:2: amounts are added up (pipeline totals)" in command.out
    assert re.search(r"! \{alice: 3, bob: 5\} +\| ", command.out)


def test_an_interrupt_ends_it_and_leaves_nothing_behind(folder: Path, leasehold: Commands) -> None:
    command = leasehold("test", "balances.yaml", "--kill")
    until(lambda: command.found("(killed at)"), "a first kill")
    assert command.has_java()
    command.interrupt()
    assert command.ended(MOST_S) == 130, command.err
    assert command.left_behind() == []
