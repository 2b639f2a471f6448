"""What a sink has made safe, and when that is written into the lease (R4 of docs/protocol.md).

If the sink holds the position, the one in the lease may be older by `checkpoint_s`, otherwise by `unkept_s`. A partition that
has nothing to do gets its checkpoint soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from leasehold.common.clock import Clock
from leasehold.leases.errors import StoreError
from leasehold.leases.tenure import OwnedLease
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.pump.progress import Progress
from leasehold.service.pipeline import PipelineParts
from leasehold.service.stats import Stats

IDLE_S = 0.5
"""How long a partition has had nothing to do when it gets its checkpoint."""


class Checkpoints:
    """The checkpoints of one tenure. failed: called after a failure, returns the seconds to wait.

    kept: called after each written checkpoint.
    """

    def __init__(
        self,
        owned: OwnedLease,
        pipeline: PipelineParts,
        progress: Progress,
        *,
        clock: Clock,
        stats: Stats,
        failed: Callable[[StoreError], float],
        kept: Callable[[], None],
    ) -> None:
        self._owned = owned
        self._pipeline = pipeline
        self._progress = progress
        self._clock = clock
        self._stats = stats
        self._failed = failed
        self._was_kept = kept
        self._safe: tuple[str | None, str] | None = None
        self._dirty = asyncio.Event()
        self._keeping = asyncio.Lock()
        self._checkpointed_at = self._spared_until = clock.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether output in a sink that holds no position has gone without a checkpoint for as long as it may (`unkept_s`)."""
        return self._safe is not None and self._clock.monotonic() >= self._checkpointed_at + self._pipeline.unkept_s

    def has_moved(self, position: str | None, state: str) -> bool:
        """Note the sink's position. Returns False if the lease has it already: several batches became safe at once, and the
        first one's checkpoint covered all."""
        safe, lease = (position, state), self._owned.lease
        if safe == (lease.continuation, lease.sink_state):
            return False
        self._safe = safe
        self._dirty.set()
        return True

    async def keep(self) -> None:
        """Write what is safe into the lease. Raises LeaseLost, StoreUnavailable, StoreAmbiguous, StoreConflict."""
        async with self._keeping:  # one write is enough for concurrent callers
            safe = self._safe
            if safe is None:
                return
            crash_point("before checkpoint")
            began = self._clock.monotonic()
            await self._owned.checkpoint(*safe)
            crash_point("checkpointed")
            self._checkpointed_at = self._clock.monotonic()
            self._stats.record_checkpoint(self._owned.lease, self._checkpointed_at - began)
            self._spared_until = self._checkpointed_at + self._pipeline.spared_s
            if self._safe == safe:
                self._safe = None
                self._dirty.clear()
            self._was_kept()

    async def keep_lazily(self) -> NoReturn:
        """Keep writing checkpoints: each `lag_s` after the last one, or sooner if the partition is idle. Raises LeaseLost."""
        while True:
            await self._dirty.wait()
            left = self._due_at - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(min(left, IDLE_S))
                continue
            try:
                await self.keep()
            except StoreError as error:
                await self._clock.sleep(self._failed(error))

    @property
    def _due_at(self) -> float:
        due = self._checkpointed_at + self._pipeline.lag_s
        if self._progress.idle_since is None:
            return due
        return min(due, max(self._progress.idle_since + IDLE_S, self._spared_until))
