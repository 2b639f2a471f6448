"""An event loop on virtual time: instead of waiting, it jumps to the next timer.

Nothing in it may wait for the outside world: no threads, sockets or processes. A run is as fast as its code, and two runs
with the same seed are the same to the last step: timers of one moment go off in the order in which they were set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    """What stands in for a process's threads: calls made on them take virtual time."""

    def called(self, call: Callable[[], Any]) -> asyncio.Future[Any]: ...


class Handle(list[float]):
    """What asyncio uses of its Handle and TimerHandle. It holds when it is due, or nothing once it is cancelled: lists are made
    and emptied without a call of Python's, and most timers are timeouts that are cancelled."""

    __slots__ = ()
    cancel = list.clear

    def cancelled(self) -> bool:
        return not self

    def when(self) -> float:
        return self[0]


Step = tuple[Context, Callable[..., Any], tuple[Any, ...], Handle | None]
"""What is called next, in whose context, and by what it may be called off."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own scheduling without select, debugging and objects that compare themselves: most of a run is spent here.

    Its callbacks are of any kind: asyncio's types of them say more than can be kept with handles of our own.
    """

    _ready: Any
    _stopping: bool
    get_debug = staticmethod(bool)
    """Asked for every future: bool() is False, and no call of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self._now = 0.0
        self._timers: list[tuple[float, int, Step]] = []
        self._set = 0
        self.task_numbers = count()
        self.done: asyncio.Future[None] = self.create_future()
        self.done.set_result(None)
        self.stopped: set[object] = set()
        self.holds: Callable[[Step, bool], bool] = lambda step, is_timer: False
        """While something is stopped: whether a step, which is a timer's or not, has to wait for it, and is kept by it."""

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        if context is not None:  # asyncio's futures and tasks, which call nothing off
            self._ready.append((context, callback, args, None))
            return None
        handle = Handle((self._now,))
        self._ready.append((copy_context(), callback, args, handle))
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """There are no threads; asyncio closes forgotten generators by it."""
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle((when,))
        self._set += 1
        context = copy_context() if context is None else context
        heappush(self._timers, (when, self._set, (context, callback, args, handle)))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        when = self._now + delay
        handle = Handle((when,))
        self._set += 1
        context = copy_context() if context is None else context
        heappush(self._timers, (when, self._set, (context, callback, args, handle)))
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        threads: Threads = executor
        return threads.called(lambda: func(*args))

    def resumed(self, steps: Iterable[Step]) -> None:
        """What was kept takes place now."""
        self._ready.extend(steps)

    def _run_once(self) -> None:  # noqa: C901  # in one piece: a call for every moment would be a tenth of the time
        """Until it is to stop."""
        ready, timers, stopped = self._ready, self._timers, self.stopped
        while not self._stopping:
            if not ready:
                while timers and not timers[0][2][3]:
                    heappop(timers)
                if not timers:
                    raise RuntimeError("everything waits for something that will never happen")
                self._now = max(self._now, timers[0][0])
            now = self._now
            while timers and timers[0][0] <= now:
                step = heappop(timers)[2]
                if not stopped or not self.holds(step, True):
                    ready.append(step)
            for _ in range(len(ready)):
                step = ready.popleft()
                context, callback, args, handle = step
                if (handle is not None and not handle) or (stopped and self.holds(step, False)):
                    continue
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"exception in {callback!r}", "exception": error})


class Timeout:
    """asyncio.timeout on a VirtualLoop, in a quarter of the time: every call of a store has one, and hardly one expires."""

    __slots__ = ("_delay", "_handle", "_is_expiring", "_task")

    def __init__(self, delay: float | None) -> None:
        self._delay = delay
        self._is_expiring = False
        self._handle: Any = None

    def __aenter__(self) -> asyncio.Future[None]:
        loop: Any = asyncio.get_running_loop()
        self._task: Any = asyncio.current_task()
        if self._delay is not None:
            expire = self._expire
            self._handle = loop.call_later(self._delay, expire) if self._delay > 0 else loop.call_soon(expire)
        done: asyncio.Future[None] = loop.done
        return done

    def __aexit__(self, kind: type[BaseException] | None, *_: object) -> asyncio.Future[None]:
        if self._handle is not None:
            self._handle.cancel()
        if self._is_expiring and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError
        done: asyncio.Future[None] = asyncio.get_running_loop().done  # type: ignore[attr-defined]  # a VirtualLoop
        return done

    def expired(self) -> bool:
        return self._is_expiring

    def _expire(self) -> None:
        self._task.cancel()
        self._is_expiring = True


class VirtualClock:
    """leasehold.common.clock.Clock on the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
