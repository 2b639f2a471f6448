"""The event loop of a program, on which its handlers run. Leases are renewed on another loop.

A handler that blocks its loop stops other handlers of the program, but no lease. The log then names the handler.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from leasehold.common.cancellation import await_shielded
from leasehold.pipeline.errors import SinkUnavailable

T = TypeVar("T")
_log = logging.getLogger(__name__)
PING_S = 2.0
"""A loop that does not answer for this long is blocked."""


class HandlerLoop:
    """loop: the program's; by default one in a thread of its own, which starts with the first call."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._is_own = loop is None
        self._is_blocked = False

    async def run(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the call returns on that loop. If this is cancelled, the call is cancelled and awaited. name: the handler's."""
        loop = self._started()
        if loop is asyncio.get_running_loop():
            return await call()
        running = _Call(call)
        _call_on(loop, running.begin)
        try:
            while not (await asyncio.wait({running.outcome}, timeout=PING_S))[0]:
                await self._ping(name, loop, running)
        except asyncio.CancelledError:
            with suppress(SinkUnavailable):
                _call_on(loop, running.cancel)
                await await_shielded(running.outcome)
            raise
        answer, error = running.outcome.result()
        if error is not None:
            raise error
        return answer

    def stop(self) -> None:
        if self._is_own and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="handlers", daemon=True).start()
        return self._loop

    async def _ping(self, name: str, loop: asyncio.AbstractEventLoop, running: _Call) -> None:
        """Log once that the loop is blocked. After it has answered, another block is logged again."""
        here, answered = asyncio.get_running_loop(), asyncio.Event()
        _call_on(loop, lambda: here.call_soon_threadsafe(answered.set))
        waiting = asyncio.ensure_future(answered.wait())
        await asyncio.wait({waiting}, timeout=PING_S)
        waiting.cancel()
        if answered.is_set():
            self._is_blocked = False
        elif not self._is_blocked:
            self._is_blocked = True
            _log.warning(
                "handler '%s' blocks the event loop of the program%s: await what takes a long time, or make it a plain function,"
                " which runs in a thread; leases are renewed meanwhile",
                name,
                running.where(),
            )


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Raises SinkUnavailable."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError as error:
        raise SinkUnavailable("the event loop of the program is closed, and the host ends soon") from error


class _Call:
    """outcome: what the call returned, and what it raised; set on the loop that waits for it."""

    def __init__(self, call: Callable[[], Awaitable[Any]]) -> None:
        self.outcome: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
        self._waiting = asyncio.get_running_loop()
        self._call = call
        self._task: asyncio.Task[tuple[Any, BaseException | None]] | None = None
        self._thread = 0

    def begin(self) -> None:
        self._thread = threading.get_ident()
        self._task = asyncio.ensure_future(self._made())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        assert self._task is not None, "it began before"
        self._task.cancel()

    def where(self) -> str:
        """The line that runs on the loop, for people."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - its documented name
        return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"

    async def _made(self) -> tuple[Any, BaseException | None]:
        """A task that raises an exit or an interrupt ends its event loop, and all handlers with it."""
        try:
            with calling():
                return await self._call(), None
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C
            return None, error

    def _end(self, task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        outcome = (None, error) if error is not None else task.result()
        self._waiting.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass(slots=True)
class _Running:
    """A call of a handler."""

    is_over: bool = False


@contextmanager
def calling() -> Iterator[None]:
    """Mark a call of a handler: in this context, and in the tasks and event loops that are started from it."""
    running = _Running()
    token = _CALLED.set(running)
    try:
        yield
    finally:
        running.is_over = True
        _CALLED.reset(token)


def call_plainly(function: Callable[..., T], *arguments: object) -> T:
    """What a plain handler returns."""
    with calling():
        return function(*arguments)


def is_in_call() -> bool:
    """Whether this code runs for a call of a handler that has not returned."""
    running = _CALLED.get()
    return running is not None and not running.is_over


_CALLED: ContextVar[_Running | None] = ContextVar("called", default=None)
PROGRAM: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("program", default=None)
"""The program's event loop, while the parts of its host are made."""
