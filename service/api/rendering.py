"""Renders the samples of a host's taps in one thread that all taps share, within bounds.

Parsing and masking hold Python's interpreter lock, so a thread alone would still delay the loop that renews leases. The bytes
that all taps together parse in a second are therefore bounded, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

PARSED_BYTES_PER_S = 512 * 1024
"""How much all taps of a host may parse. This takes up to a fifth of a core."""
WAITING_BYTES_MAX = 1024 * 1024
"""How much waits for the thread. Later samples are left out."""
Texts = Sequence[bytes]


class Allowance:
    """An allowance of `per_s` a second, and never more than one second's at once."""

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = now

    def left(self, now: float) -> int:
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        return max(0, int(self._left))

    def spend(self, amount: float) -> None:
        self._left -= amount


class Renderer:
    """Renders samples in a thread, which starts with the first one."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._bytes = Allowance(PARSED_BYTES_PER_S, monotonic())
        self._waiting_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taps")

    def has_room(self) -> bool:
        return self._waiting_bytes < WAITING_BYTES_MAX and self._bytes.left(self._monotonic()) > 0

    def spend(self, cost: int) -> None:
        """Account for a row that will be rendered. cost: in bytes."""
        self._bytes.spend(cost)
        self._waiting_bytes += cost

    def render(self, work: Callable[[], Texts], done: Callable[[Texts], None], cost: int) -> None:
        """Call `work`, which raises nothing, in the thread, and `done` with its result in the loop. cost: its rows', in bytes."""

        def finish(future: asyncio.Future[Texts]) -> None:
            self._waiting_bytes -= cost
            if not future.cancelled():
                done(future.result())

        asyncio.get_running_loop().run_in_executor(self._thread, work).add_done_callback(finish)
