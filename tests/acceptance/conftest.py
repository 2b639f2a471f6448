"""For tests of whole processes: those that may take longest come first, so that none of them is all that is left in the end."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_timeout_s, reverse=True)


def _timeout_s(item: pytest.Item) -> float:
    timeout = item.get_closest_marker("timeout")
    return timeout.args[0] if timeout else 0
