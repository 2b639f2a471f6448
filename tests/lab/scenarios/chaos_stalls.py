"""When the machine itself stood still under chaos: no fault of its plan, and no fault of a host."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lab.scenarios.chaos_ranges import Spans

LOOK_S = 0.25
STALL_S = 0.5
"""A lease file that is locked for so long is an error to a host."""


class Stalls:
    """Looks again and again how long the disk of a directory and a thread's turn take. spans: of those above STALL_S."""

    def __init__(
        self, directory: Path, sync: Callable[[int], None] = os.fsync, now_s: Callable[[], float] = time.time
    ) -> None:
        self._path = directory / "stalls"
        self._sync = sync
        self._now_s = now_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._spans: list[tuple[float, float]] = []

    @property
    def spans(self) -> Spans:
        return tuple(self._spans)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._ended.is_set():
                began = self._now_s()
                file.write(b".")
                self._sync(file.fileno())
                self._ended.wait(LOOK_S)
                if (ended := self._now_s()) - began > LOOK_S + STALL_S:
                    self._spans.append((began, ended))
