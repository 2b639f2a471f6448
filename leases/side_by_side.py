"""Run many small requests to the container concurrently, within a limit: in sequence they would take minutes, and all at
once they would overload it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")
AT_ONCE_MAX = 16


async def run_side_by_side(
    items: Sequence[K],
    step: Callable[[K], Coroutine[Any, Any, T]],
    *,
    doing: str,
    then: Callable[[K, T], object] = lambda item, result: None,
) -> list[T]:
    """Run `step` for each item, at most AT_ONCE_MAX at a time. Returns the results in the order of the items.

    - then: called with each result in the same order, once the steps before it are done.
    - doing: names the tasks.

    Raises the error of the first step that fails; the others are cancelled.
    """
    gate = asyncio.Semaphore(AT_ONCE_MAX)

    async def begin(item: K) -> T:
        async with gate:
            return await step(item)

    tasks = [asyncio.create_task(begin(item), name=f"{doing} {item}") for item in items]
    results: list[T] = []
    try:
        for item, task in zip(items, tasks, strict=True):
            results.append(await task)
            then(item, results[-1])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


def rounds_of(items: int) -> int:
    """The least number of steps that run one after another."""
    return -(-items // AT_ONCE_MAX)
