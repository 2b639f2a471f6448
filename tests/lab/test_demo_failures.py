"""`leasehold demo --fail`, each failure with whole processes: the balances match, and the failure has happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from patience import PATIENCE_S
from plugins_cli import Commands

pytestmark = pytest.mark.xdist_group("demo")

LAST_LINE = "balances match: 5 accounts, 1000 transactions, 0 lost, 0 duplicated"


@pytest.mark.parametrize("name", ["stream-processor-crash", "view-generator-crash"])
def test_a_killed_part_loses_and_repeats_nothing(name: str, open_directory: Path, leasehold: Commands) -> None:
    demo = leasehold("demo", "--fail", name, env={"TMPDIR": str(open_directory)})
    assert demo.ended(4 * PATIENCE_S) == 0, demo.out + demo.err
    assert demo.out.splitlines()[-1] == LAST_LINE
    found = re.search(r"(\d+) of 1,000 transactions are stored, and the leases know of (\d+):", demo.out)
    assert found is not None, demo.out
    assert int(found[1]) > int(found[2]), "it died between its output and its checkpoint"


def test_a_frozen_consumer_that_continues_changes_nothing(open_directory: Path, leasehold: Commands) -> None:
    demo = leasehold("demo", "--fail", "duplicated-consumer", env={"TMPDIR": str(open_directory)})
    assert demo.ended(4 * PATIENCE_S) == 0, demo.out + demo.err
    assert demo.out.splitlines()[-1] == LAST_LINE
    assert "stream-processor continues (SIGCONT) with its old batch: its partitions have new owners" in demo.out
    assert "stream-processor has ended: nothing of its old batch was stored" in demo.out


def test_a_directory_in_which_all_is_done_shows_no_failure(open_directory: Path, leasehold: Commands) -> None:
    directory = open_directory / "bank"
    done = leasehold("demo", "--dir", directory)
    assert done.ended(2 * PATIENCE_S) == 0, done.err
    again = leasehold("demo", "--dir", directory, "--fail", "event-generator-crash")
    assert again.ended(2 * PATIENCE_S) == 1
    assert "event-generator ended with exit code 0 before it could fail: use an empty directory" in again.err
