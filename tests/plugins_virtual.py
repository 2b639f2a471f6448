"""`@pytest.mark.virtual`: a test that is a coroutine runs in virtual time, on a loop of its own (simulation.loop.run_virtual)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from lab.simulation.loop import run_virtual


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual: runs in virtual time, in which nothing waits and no process answers")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    """Put a plain function in its place, before pytest-asyncio gives it a loop in real time."""
    if any(mark.name == "virtual" for mark in getattr(obj, "pytestmark", ())):
        if hasattr(obj, "hypothesis"):
            obj.hypothesis.inner_test = in_virtual_time(obj.hypothesis.inner_test)
        else:
            setattr(collector.obj, name, in_virtual_time(obj))


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    assert inspect.iscoroutinefunction(test), f"{test} is marked as virtual, and not a coroutine"

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run
