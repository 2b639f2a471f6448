"""Which tests one process runs, and in what order: what may take longest comes first, so that it is not all that is left in the
end, and what is dear to start is started once.

Unit tests are shared out by their files (`make unit`).
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "test_spark_cluster.py": "cluster",
    "test_spark_kubernetes.py": "cluster",
    "test_spark_columns.py": "spark-1",
    "test_spark_sharing.py": "spark-1",
    "test_spark_kept.py": "spark-2",
    "test_spark_jobs.py": "spark-2",
    "test_demo.py": "demo",
    "test_eventhubs_bank.py": "hubs",
    "test_chaos.py": "chaos",
    "test_jetstream_bank.py": "streams",
    "test_scenarios.py": "scenarios",
    "test_letters.py": "letters",
}
"""Files of integration and acceptance tests that share what is dear to start, the longest first."""
REST = "spark-3"
"""Who runs the other files with Spark: a process for each would start a Spark for each."""
APART = ("::test_balances_of_a_users_own_transactions_are_exact_to_the_cent",)
"""These share nothing with their file, and are long themselves."""
LONG = (
    "test_app_openapi.py",
    "test_sink_crashes.py",
    "test_host.py",
    "test_queries.py",
    "test_writer_runner.py",
    "test_server.py",
)
"""Files of unit tests that take from ten to thirty seconds, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _Spread(config, log) if config.getvalue("dist") == "loadscope" else None


class _Spread(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if "/dashboard/" in file:
            return "dashboard"  # one browser for all of them
        return _together(nodeid) or (nodeid if _is_of_hosts(nodeid) else file)


def _place(nodeid: str) -> int:
    """Before others: what is long or together in the orders above, then single tests of whole hosts."""
    if nodeid.startswith("tests/unit/"):
        name = _name(nodeid)
        return LONG.index(name) if name in LONG else len(LONG)
    together = _together(nodeid)
    order = [REST, *dict.fromkeys(TOGETHER.values())]
    return order.index(together) if together else len(order) + (not _is_of_hosts(nodeid))


def _together(nodeid: str) -> str | None:
    if nodeid.endswith(APART):
        return None
    name = _name(nodeid)
    if name.startswith("test_spark_"):
        return TOGETHER.get(name, REST)
    return TOGETHER.get(name) if _is_of_hosts(nodeid) else None


def _is_of_hosts(nodeid: str) -> bool:
    return nodeid.startswith("tests/acceptance/")


def _name(nodeid: str) -> str:
    """Of the file."""
    return nodeid.partition("::")[0].rpartition("/")[2]
