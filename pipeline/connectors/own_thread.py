"""A thread for each client that blocks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")


class Closeable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closeable)


class OwnThread(ABC):
    """name: of the thread."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def leave(self) -> None:
        """Close it, and end the thread, after the calls that it was given. Does not wait."""
        self._thread.submit(self.close)
        self._thread.shutdown(wait=False)

    @abstractmethod
    def close(self) -> None:
        """Called on the thread."""


@asynccontextmanager
async def reading_with(
    name: str, make: Callable[[], C], read: Callable[[C], T]
) -> AsyncGenerator[Callable[[], Awaitable[T]], None]:
    """Make all calls of a reader on a thread of that name, which ends soon after the context."""
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        made = thread.submit(make)
        try:
            reader = await asyncio.wrap_future(made)
            yield lambda: loop.run_in_executor(thread, read, reader)
        finally:
            thread.submit(_close_made, made)
    finally:
        thread.shutdown(wait=False)


def _close_made(made: Future[C]) -> None:
    """Close the reader, even if its caller has left."""
    if not made.cancelled() and made.exception() is None:
        made.result().close()
