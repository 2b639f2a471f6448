"""For tests of whole processes: those that may take longest come first, so that none of them is all that is left in the end."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "test_demo.py",
    "test_eventhubs_bank.py",
    "test_chaos.py",
    "test_jetstream_bank.py",
    "test_scenarios.py",
    "test_letters.py",
)
"""Files whose tests share what is dear to start, the longest first; those of the others are spread over processes one by one."""
APART = ("::test_balances_of_a_users_own_transactions_are_exact_to_the_cent",)
"""These share nothing with their file, and are long themselves."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (_place(item.nodeid), -_timeout_s(item)))


def _place(nodeid: str) -> int:
    """That of its file in TOGETHER, or behind all of them."""
    file = nodeid.partition("::")[0]
    found = (place for place, name in enumerate(TOGETHER) if file.endswith(name) and not nodeid.endswith(APART))
    return next(found, len(TOGETHER))


def _timeout_s(item: pytest.Item) -> float:
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Spread(config, log)


class _Spread(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if _place(nodeid) < len(TOGETHER) else nodeid
