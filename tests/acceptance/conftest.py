"""For tests of whole processes: those that may take longest come first, so that none of them is all that is left in the end."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    *("test_chaos.py", "test_demo.py", "test_eventhubs_bank.py", "test_jetstream_bank.py"),
    "test_scenarios.py",
)
"""Files whose tests share what is dear to start; those of the others are spread over the processes one by one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_timeout_s, reverse=True)


def _timeout_s(item: pytest.Item) -> float:
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Spread(config, log)


class _Spread(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith(TOGETHER) else nodeid
