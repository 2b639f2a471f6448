"""For all tests: fixtures, a Java that is quick to start, and reports that can cross from one process to another."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# While tests are imported nothing becomes garbage, and looking for it takes a third of the time.
gc.disable()

pytest_plugins = [
    "plugins_cosmos",
    "plugins_endpoint",
    "plugins_eventhubs",
    "plugins_nats",
    "plugins_node",
    "plugins_kafka",
    "plugins_pulsar",
    "plugins_pg",
    "plugins_bank",
    "plugins_cli",
    "plugins_cluster",
    "plugins_hosts",
    "plugins_interrupt",
    "plugins_spark",
    "plugins_report",
    "plugins_virtual",
]

# No test runs long enough to earn back what Java's second compiler costs: half of a Spark's start. The archive saves
# another third; `make` builds it (tests/java_archive.py), and Java does without one that does not fit, and says nothing.
JAVA = "-XX:TieredStopAtLevel=1"
ARCHIVE = Path(__file__).parents[1] / "build" / "spark.jsa"
if ARCHIVE.exists():
    JAVA += f" -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))}"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA)

# Each process that imports pydantic would look through all packages for plugins of it, of which there are none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

# Times are no matter to a property: other processes may have the machine. `make test` tries the same examples each time,
# so that it fails for a change and not for a draw; `make thorough` looks for new ones.
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From here on there is garbage: among what tests make, not among what was imported."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """At exit, Python releases only what it may collect: DuckDB would report the rest as leaked."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """What a test has logged may be no UTF-8, and could not be handed to the process that reports it."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
