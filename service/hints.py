"""Begins a round as soon as another host hints that this one has something to do (`leasehold.leases.hints`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import aclosing

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.errors import StoreError
from leasehold.leases.store import Hint, LeaseStore
from leasehold.service.failures import Streak

GAP_S = 0.1
"""Pause between two rounds that hints begin: a host of a large group may get many hints a second."""

BACKOFF = Backoff(first_s=0.5, max_s=60.0)
"""Pauses between attempts to watch. A connection pooler that does not forward notifications never will."""


class HintWatch:
    """Watches the hints of all hosts. wake: called for those that concern this host, at most once per `GAP_S`."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        host: str,
        pipelines: Collection[str],
        wake: Callable[[], None],
        clock: Clock,
        rng: random.Random,
        log: Log,
    ) -> None:
        self._store = store
        self._host = host
        self._pipelines = pipelines
        self._wake = wake
        self._clock = clock
        self._rng = rng
        self._log = log
        self._is_hinted = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled; return at once if the store has no hints. Without hints, hosts look as usual."""
        waking = asyncio.create_task(self._keep_waking(), name="wake")
        try:
            await self._keep_watching()
        finally:
            waking.cancel()

    async def _keep_watching(self) -> None:
        streak = Streak(self._clock)
        while True:
            try:
                async with aclosing(self._store.watch()) as hints:
                    async for hint in hints:
                        streak.log_end(self._log, "hints from other hosts recovered")
                        if self._concerns(hint):
                            self._is_hinted.set()
                return
            except (StoreError, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                streak.log_failure(
                    self._log, "no hints from other hosts, leases are handed over at the usual looks", error
                )
                pause_s = BACKOFF.pause_s(streak.count, self._rng.random(), retry_after_s(error))
                await self._clock.sleep(pause_s)

    async def _keep_waking(self) -> None:
        while True:
            await self._is_hinted.wait()
            self._is_hinted.clear()
            self._wake()
            await self._clock.sleep(GAP_S)

    def _concerns(self, hint: Hint) -> bool:
        return hint.host in (None, self._host) and (hint.pipeline is None or hint.pipeline in self._pipelines)
