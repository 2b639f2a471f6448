"""Who was told to end, and who met a cancellation that nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def is_cancelled(error: BaseException) -> bool:
    """Whether this very task was told to end. A cancellation that nobody asked for is a fault like any other: code that is not
    ours may let one out, and a task that ends by it ends without a word."""
    task = asyncio.current_task()
    assert task is not None
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0


async def heeding(awaitable: Awaitable[T]) -> T:
    """Await code that is not ours: a cancellation of ours, a timeout's too, goes on whatever that code makes of it.

    Before Python 3.12 `asyncio.wait_for` forgets one that comes together with what it waits for
    (https://github.com/python/cpython/issues/86296), and a loop around it then never ends.
    """
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    try:
        return await awaitable
    finally:
        if task.cancelling() > asked:
            raise asyncio.CancelledError
