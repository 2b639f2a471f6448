"""Waits that end when a stop is requested."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def run_unless_stopped(stopping: asyncio.Event, step: Coroutine[Any, Any, None]) -> bool:
    """Wait until `step` ends or `stopping` is set. Returns False if `stopping` is set; a `step` that still runs is cancelled.

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
    """Wait for this many seconds, or until `stopping` is set. Returns False if it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
    return not stopping.is_set()
