"""What a run of pytest reports to tests/tier.py (`--report FILE`): its counts, and the ids of the tests that failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

KINDS = {"passed": ("passed", "xpassed"), "failed": ("failed", "error"), "skipped": ("skipped", "xfailed")}
"""What is counted together, in pytest's words."""
WHOLE_HOSTS = ("tests/acceptance/", "tests/examples/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", metavar="FILE", type=Path, help="write this run's counts and failures")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs all tests of a file, which share what is dear to start. Those of whole hosts share nothing.

    A file whose tests share something with another file's, or with each other in these two folders, has the mark `xdist_group`.
    """
    for item in items:
        if not (item.nodeid.startswith(WHOLE_HOSTS) or any(item.iter_markers("xdist_group"))):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if path := config.getoption("--report"):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_grouped = config.getoption("dist", "no") == "loadgroup"
        path.write_text(json.dumps(counted(terminalreporter.stats, is_grouped=is_grouped)))


def counted(stats: Mapping[str, Iterable[Any]], *, is_grouped: bool) -> dict[str, Any]:
    """is_grouped: ids end with `@` and the group of the test, which pytest does not know."""
    found = {name: list(reports) for name, reports in stats.items()}
    counts = {kind: sum(len(found.get(name, ())) for name in names) for kind, names in KINDS.items()}
    full = (each.nodeid for name in KINDS["failed"] for each in found.get(name, ()))
    ids = (each.rpartition("@")[0] or each if is_grouped else each for each in full)
    return {**counts, "failures": list(dict.fromkeys(ids))}
