"""An event loop on virtual time: instead of waiting, it jumps to the next timer.

Nothing in it may wait for the outside world: no threads, sockets or processes. A run is as fast as its code, and two runs
with the same seed are the same to the last step: timers of one moment go off in the order in which they were set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    """What stands in for a process's threads: calls made on them take virtual time."""

    def called(self, call: Callable[[], Any]) -> asyncio.Future[Any]: ...


class Handle:
    """What asyncio uses of its Handle and TimerHandle."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def context(self) -> Context:
        return self._context

    def when(self) -> float:
        return self._when


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own scheduling without select, debugging and objects that compare themselves: most of a run is spent here.

    Its callbacks are of any kind: asyncio's types of them say more than can be kept with handles of our own.
    """

    _ready: Any

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, Handle]] = []
        self._set = 0
        self.holds: Callable[[Handle, bool], bool] | None = None
        """Where something is stopped: whether a step, which is a timer's or not, has to wait for it, and is kept by it."""

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(callback, args, context, self._now)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(callback, args, context, when)
        self._set += 1
        heappush(self._timers, (when, self._set, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        threads: Threads = executor
        return threads.called(lambda: func(*args))

    def resumed(self, handles: Iterable[Handle]) -> None:
        """What was kept takes place now."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not ready:
            if not timers:
                raise RuntimeError("everything waits for something that will never happen")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heappop(timers)[2]
            if self.holds is None or not self.holds(handle, True):
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled or (self.holds is not None and self.holds(handle, False)):
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"exception in {handle._callback!r}"
                self.call_exception_handler({"message": message, "exception": error})


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
