"""Simulated processes: they can be stopped, continued and killed, as SIGSTOP, SIGCONT and SIGKILL do.

Every task belongs to the process in whose context it was made. A stopped process takes no step, whatever becomes due in the
meantime. A killed one takes none that anybody outside could notice: its tasks are cancelled, and what they ask of the outside
world while they end is never sent. What was sent before still arrives.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self._resumes: list[asyncio.Future[None]] = []

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_made)
        context = Context()
        context.run(_PROCESS.set, self)
        return loop.create_task(main, name=self.name, context=context)

    def stop(self) -> None:
        self.is_stopped = True

    def resume(self) -> None:
        self.is_stopped = False
        waiting, self._resumes = self._resumes, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def kill(self) -> None:
        self.is_dead = True
        self.resume()
        for _ in range(100):
            if not self.tasks:
                return
            for task in tuple(self.tasks):
                task.cancel()
            await asyncio.sleep(0)
        raise AssertionError(f"tasks of '{self.name}' that will not end: {self.tasks}")

    def resumed(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._resumes.append(future)
        return future


def current() -> Process | None:
    return _PROCESS.get()


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
    return await asyncio.shield(task)


async def _awaited(request: Callable[[], Awaitable[T]]) -> T:
    return await request()


def _seen(task: asyncio.Task[Any]) -> None:
    """Nobody may be waiting for the answer any more, and then an error is nobody's."""
    if not task.cancelled():
        task.exception()


def _made(loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None) -> asyncio.Task[Any]:
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is None:
        return _Task(coro, loop=loop, context=context)
    task = _Task(_stepped(coro, process), loop=loop, context=context)
    process.tasks.add(task)
    task.add_done_callback(process.tasks.discard)
    task.add_done_callback(lambda _: coro.close())  # cancelled before its first step, it was never awaited
    if process.is_dead:
        task.cancel()
    return task


class _Task(asyncio.Task[Any]):
    """asyncio keeps tasks in sets. Hashed by their number, not by their address, they have the same order in every run."""

    def __init__(self, coro: Any, *, loop: Any, **settings: Any) -> None:
        self._number = next(loop.__dict__.setdefault("_task_numbers", count()))
        super().__init__(coro, loop=loop, **settings)

    def __hash__(self) -> int:
        return self._number


async def _stepped(coro: Coroutine[Any, Any, T], process: Process) -> T:
    return await _steps(coro, process)


@types.coroutine
def _steps(coro: Coroutine[Any, Any, T], process: Process) -> Generator[Any, None, T]:
    """Runs a coroutine step by step, and none while its process is stopped."""
    error: BaseException | None = None
    while True:
        while process.is_stopped:
            try:
                yield from process.resumed()
            except asyncio.CancelledError as cancelled:
                error = cancelled  # it is told once it runs again
        try:
            awaited = coro.send(None) if error is None else coro.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        try:
            error = None
            yield awaited
        except BaseException as raised:
            error = raised
