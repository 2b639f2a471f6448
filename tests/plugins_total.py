"""One total of several test runs: each run writes its counts (`--total`), and `python tests/plugins_total.py FILE ...` adds them.

A run that wrote nothing has crashed, and counts as one failure.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

KINDS = {"passed": ("passed", "xpassed"), "failed": ("failed", "error"), "skipped": ("skipped", "xfailed")}
"""What is counted together, in pytest's words."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--total", metavar="FILE", type=Path, help="write this run's counts, for a total of several runs")


def pytest_terminal_summary(terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if path := config.getoption("--total"):
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {name: len(reports) for name, reports in terminalreporter.stats.items()}
        path.write_text(json.dumps(counted(found, exitstatus)))


def counted(found: dict[str, int], exitstatus: int) -> Counter[str]:
    """A run that ended badly without a failed test, because it was interrupted for example, has one failure."""
    counts = Counter({kind: sum(found.get(name, 0) for name in names) for kind, names in KINDS.items()})
    counts["failed"] = counts["failed"] or int(exitstatus != pytest.ExitCode.OK)
    return counts


def read(file: Path) -> Counter[str]:
    try:
        return Counter(json.loads(file.read_text()))
    except (OSError, ValueError):
        sys.stderr.write(f"{file.stem}: the run did not finish\n")
        return Counter(failed=1)


def main(files: Iterable[str]) -> int:
    total = sum((read(Path(file)) for file in files), Counter[str]())
    sys.stdout.write(", ".join(f"{total[kind]} {kind}" for kind in KINDS) + "\n")
    return int(total["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
