"""Who was told to end, and who met a cancellation that nobody asked for."""

from __future__ import annotations

import asyncio


def is_cancelled(error: BaseException) -> bool:
    """Whether this very task was told to end. A cancellation that nobody asked for is a fault like any other: code that is not
    ours may let one out, and a task that ends by it ends without a word."""
    task = asyncio.current_task()
    assert task is not None
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0
