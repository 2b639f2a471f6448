"""One thread for code that may block, such as a program's own callbacks, away from the event loop that sends heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

Outcome = tuple[object, BaseException | None]
"""What a call returned, and what it raised."""


class _QueuedCall(NamedTuple):
    function: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Outcome]


class CallbackThread:
    """Runs calls one at a time, in order. The thread starts with the first call.

    The thread is a daemon: neither a stop nor the end of the process waits for a call that blocks for ever.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_QueuedCall | None] = SimpleQueue()
        self._is_started = False

    async def run(self, function: Callable[[], object]) -> object:
        """Return the function's result. Raises what it raises; an exit becomes a RuntimeError. A cancellation does not end the
        call itself.

        Raises RuntimeError if the thread does not start. The next call tries to start it again.
        """
        if not self._is_started:
            Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            self._is_started = True  # only now: if the thread does not start, the next call tries again
        loop = asyncio.get_running_loop()
        call = _QueuedCall(function, loop, loop.create_future())
        self._calls.put(call)
        result, error = await call.outcome
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise RuntimeError(f"it raised {type(error).__name__}: {error}")
        return result

    def close(self) -> None:
        """End the thread after all queued calls."""
        self._calls.put(None)


def _work(calls: SimpleQueue[_QueuedCall | None]) -> None:
    while (call := calls.get()) is not None:
        outcome = _outcome(call.function)
        with suppress(RuntimeError):  # the loop is closed, and no task waits
            call.loop.call_soon_threadsafe(_settle, call.outcome, outcome)


def _outcome(function: Callable[[], object]) -> Outcome:
    try:
        return function(), None
    except BaseException as error:  # no error ends the thread
        return None, error


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
