"""Simulated processes: they can be stopped, continued and killed, as SIGSTOP, SIGCONT and SIGKILL do.

Every step belongs to the process in whose context it was asked for. A stopped process takes none, whatever becomes due in the
meantime. A killed one takes none that anybody outside could notice: its tasks are cancelled, and what they ask of the outside
world while they end is never sent. What was sent before still arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from lab.simulation.loop import Step, VirtualLoop

from leasehold.common.cancellation import await_shielded

T = TypeVar("T")
TASKS_MAX = 1000

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.host = name.rsplit("-", 1)[0]
        self.is_stopped = False
        self.is_dead = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = TASKS_MAX
        self._due: list[Step] = []
        self._steps: list[Step] = []

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "processes are simulated on virtual time"
        self._loop = loop
        loop.set_task_factory(_made)
        context = Context()
        context.run(_PROCESS.set, self)
        return loop.create_task(main, name=self.name, context=context)

    def stop(self) -> None:
        self.is_stopped = True
        self._loop.holds = _is_held
        self._loop.stopped.add(self)

    def resume(self) -> None:
        """Timers that went off meanwhile come before anything that arrived, as asyncio has it after a long wait."""
        self.is_stopped = False
        self._loop.stopped.discard(self)
        self._loop.resumed((*self._due, *self._steps))
        self._due, self._steps = [], []

    def hold(self, step: Step, is_timer: bool) -> None:
        (self._due if is_timer else self._steps).append(step)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Those that have ended are let go of now and then: a callback for each would cost a step."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks_max = TASKS_MAX + 2 * len(self.tasks)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks

    async def kill(self) -> None:
        self.is_dead = True
        self.resume()
        for _ in range(100):
            if not (tasks := self.tasks):
                return
            for task in tuple(tasks):
                task.cancel()
            await asyncio.sleep(0)
        raise AssertionError(f"tasks of '{self.name}' that will not end: {self.tasks}")


OUTSIDE = Context()
"""Where what belongs to no process takes place: messages on their way, timers of the world."""


current = _PROCESS.get
"""The process that asks; None outside of any."""


def incarnation() -> str:
    """Of the process that asks; "" outside of any."""
    process = _PROCESS.get()
    return process.name if process else ""


async def sent(request: Callable[[], Awaitable[T]]) -> T:
    """Ask something of the outside world. Once sent it arrives, whatever becomes of the process and its patience."""
    process = current()
    if process is not None and process.is_dead:
        raise asyncio.CancelledError("a dead process sends nothing")
    task = asyncio.get_running_loop().create_task(_awaited(request), context=Context())
    task.add_done_callback(_seen)
    return await await_shielded(task)


def held(for_s: float, send: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
    """Stop the process that asks, and send when it continues; its timers go off first. A killed one sends nothing."""
    process, context, loop = _PROCESS.get(), copy_context(), asyncio.get_running_loop()
    assert process is not None, "only a process can be stopped"
    answer: asyncio.Future[T] = loop.create_future()

    def goes_on() -> None:
        if not process.is_dead:
            process.resume()
            loop.call_soon(goes_out, context=context)

    def goes_out() -> None:
        if not process.is_dead:
            send().add_done_callback(arrives, context=OUTSIDE)

    def arrives(sent: asyncio.Future[T]) -> None:
        error = sent.exception()
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(sent.result())

    process.stop()
    loop.call_later(for_s, goes_on, context=OUTSIDE)
    return answer


async def _awaited(request: Callable[[], Awaitable[T]]) -> T:
    return await request()


def _seen(task: asyncio.Task[Any]) -> None:
    """Nobody may be waiting for the answer any more, and then an error is nobody's."""
    if not task.cancelled():
        task.exception()


def _is_held(step: Step, is_timer: bool) -> bool:
    process = step[0].get(_PROCESS)
    if process is None or not process.is_stopped:
        return False
    process.hold(step, is_timer)
    return True


def _made(
    loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None, **settings: Any
) -> asyncio.Task[Any]:
    """settings: all others of `create_task`, such as the name, which loops hand on since Python 3.13.3."""
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    task = _Task(coro, loop=loop, context=context, **settings)
    if process is not None:
        process.keep(task)
        if process.is_dead:
            task.cancel()
    return task


class _Task(asyncio.Task[Any]):
    """asyncio keeps tasks in sets. Hashed by their number, not by their address, they have the same order in every run."""

    def __init__(self, coro: Any, *, loop: Any, **settings: Any) -> None:
        self._number: int = next(loop.task_numbers)
        super().__init__(coro, loop=loop, **settings)

    def __hash__(self) -> int:
        return self._number
