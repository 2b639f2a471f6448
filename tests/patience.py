"""How tests wait: for a state, with one patience for all of them, and never for a time.

A test that gives up says what it saw last. TEST_PATIENCE multiplies the patience, for machines that are slower still.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Event

PATIENCE_S = 120 * float(os.environ.get("TEST_PATIENCE", "1"))
"""A process that gets a tenth of a core starts its Spark in this time."""

CHANCE_S = 0.2
"""How long a fault has time to show, where nothing may happen. A slow machine finds fewer faults so, and never fails for it."""


class Failed(AssertionError):
    """What was waited for did not come about."""


def until(condition: Callable[[], object], what: str = "", seen: Callable[[], object] | None = None) -> float:
    """Wait until the condition holds. Returns how long that took, in seconds. Raises Failed.

    what: the condition in words. seen: what to show if it does not come about; by default, what the condition returned.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began
        if waited_s > PATIENCE_S:
            give_up(what, found if seen is None else seen())
        Event().wait(pause_s(waited_s))
    return time.monotonic() - began


async def until_async(
    condition: Callable[[], object | Awaitable[object]], what: str = "", seen: Callable[[], object] | None = None
) -> float:
    """The same in a coroutine, for conditions that may be coroutines."""
    began = time.monotonic()
    while not (found := await _value(condition)):
        waited_s = time.monotonic() - began
        if waited_s > PATIENCE_S:
            give_up(what, found if seen is None else seen())
        await asyncio.sleep(pause_s(waited_s))
    return time.monotonic() - began


async def rhythm(every_s: float) -> AsyncIterator[int]:
    """The turns of a load that goes on beside a test, which waits for what comes of it."""
    for turn in itertools.count():
        yield turn
        await asyncio.sleep(every_s)


def give_up(what: str, seen: object) -> None:
    raise Failed(f"not within {PATIENCE_S:g} s: {what or 'the condition'}. Seen last: {seen!r}")


def pause_s(waited_s: float) -> float:
    """Until the next look: a fiftieth of the wait, because a look takes time from the one who is waited for."""
    return min(max(waited_s / 50, 0.01), 0.25)


async def _value(condition: Callable[[], object | Awaitable[object]]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found
