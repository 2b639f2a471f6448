"""An event loop on virtual time: instead of waiting, it jumps to the next timer.

Nothing in it may wait for the outside world: no threads, sockets or processes. A run is as fast as its code, and two runs
with the same seed are the same to the last step.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class _NullSelector(selectors.SelectSelector):
    """Waits for nothing, and tells the loop how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits for something that will never happen")
        self.waited += max(timeout, 0.0)
        return []


class Threads(Protocol):
    """What stands in for a process's threads: calls made on them take virtual time."""

    def called(self, call: Callable[[], Any]) -> asyncio.Future[Any]: ...


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._null = _NullSelector()
        super().__init__(self._null)

    def time(self) -> float:
        return self._null.waited

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        threads: Threads = executor
        return threads.called(lambda: func(*args))


class VirtualClock:
    """leases.clock.Clock on the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
