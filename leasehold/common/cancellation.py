"""Distinguish a requested cancellation of this task from one that other code raises, and let no code swallow one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
AGAIN_S = 1.0
"""Code that has not ended after this time is cancelled once more."""


def is_cancelled(error: BaseException) -> bool:
    """Whether this task was cancelled on request, or its coroutine closed, as Python does if no loop runs it any longer. Any
    other cancellation is a fault: third-party code may raise one, and a task that it ends seems to end without an error."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    assert task is not None
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0


async def await_shielded(task: asyncio.Future[T]) -> T:
    """Await a task that continues if the caller is cancelled. Others then handle its outcome.

    `asyncio.shield` does the same, but since Python 3.14 it also reports an error of that task as never retrieved.
    """
    await asyncio.wait({task})
    return task.result()


async def heeding(awaitable: Awaitable[T]) -> T:
    """Await code that is not ours. Our cancellation, or a timeout's, is raised once that code has ended, in whatever way.

    Before Python 3.12, `asyncio.wait_for` forgets a cancellation that arrives together with the result
    (https://github.com/python/cpython/issues/86296), and other code catches it. A loop around such code would never end.
    """
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    try:
        return await awaitable
    finally:
        if task.cancelling() > asked:
            raise asyncio.CancelledError


async def insisting(awaitable: Awaitable[T]) -> T:
    """As `heeding`, for code that contains such a loop: it is cancelled again and again until it ends."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await await_shielded(task)
    finally:
        while not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):  # ours is on its way already
                await asyncio.wait({task}, timeout=AGAIN_S)
        if not task.cancelled():
            task.exception()  # retrieve it: no other caller does if it arrived together with our cancellation
