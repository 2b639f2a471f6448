"""One thread that looks at everything that is waited for, and wakes whoever waits for what has changed.

A look costs some 25 microseconds and holds nothing. Where many wait, each is looked at less often, so that a thousand idle
partitions cost no more than a hundred: an eighth of a core.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

LOOKS_PER_S_MAX = 5_000


class Watch:
    """`changed` may be awaited on any event loop; the looking is done on the watch's own thread."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    async def changed(self, has_changed: Callable[[], bool]) -> None:
        """Returns within `interval_s` after `has_changed` is true, or later where many wait. It is called on the watch's thread
        and must not raise."""
        future = asyncio.get_running_loop().create_future()
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
                self._thread.start()
            self._waiting[future] = has_changed
            self._news.notify()
        try:
            await future
        finally:
            with self._news:
                self._waiting.pop(future, None)

    def close(self) -> None:
        """Blocks until the thread looks no more. Who still waits is not woken."""
        self._closed.set()
        with self._news:
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        waiting: list[tuple[asyncio.Future[None], Callable[[], bool]]] = []
        while not self._closed.wait(pause_s(self._interval_s, len(waiting))):
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed.is_set())
                waiting = list(self._waiting.items())
            for future, has_changed in waiting:
                if has_changed():
                    with suppress(RuntimeError):  # its loop was closed, and nobody waits any more
                        future.get_loop().call_soon_threadsafe(_wake, future)


def pause_s(interval_s: float, waiting: int) -> float:
    """Between one round of looks at everything that waits and the next."""
    return max(interval_s, waiting / LOOKS_PER_S_MAX)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
