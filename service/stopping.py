"""Waiting that ends when a stop is requested."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def run_unless_stopped(stopping: asyncio.Event, step: Coroutine[Any, Any, None]) -> bool:
    """Wait for `step`, or until `stopping` is set: False then, and `step` is cancelled where it has not ended.

    Raises what `step` raises.
    """
    tasks = (asyncio.create_task(step), asyncio.create_task(stopping.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not tasks[0].cancelled():
        tasks[0].result()
    return not stopping.is_set()


async def sleep_unless_stopped(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until `stopping` is set: False then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return not stopping.is_set()
