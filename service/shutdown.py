"""The last steps of a worker: each is tried, within its time, even if an earlier one failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.cancellation import await_shielded, is_cancelled
from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.errors import StoreError

CLOSING_TIMEOUT_S = 5.0
"""How long cancelled work may take to end, and then a close, a last checkpoint and a release each. If the lease is not released,
another host takes it after a request that gets no answer."""
PAUSES = Backoff(first_s=0.1, max_s=60.0)


async def run_within(doing: str, step: Coroutine[Any, Any, None], log: Log) -> None:
    """Run a step, and log its failure: the following steps still run, because a connector's fault must not keep a lease."""
    try:
        async with asyncio.timeout(CLOSING_TIMEOUT_S):
            await step
    except (Exception, asyncio.CancelledError) as error:
        if is_cancelled(error):
            raise
        why = f"took longer than {CLOSING_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
        log.warning(f"{doing} failed", error=why or type(error).__name__)


async def retry_until_answered(step: Callable[[], Awaitable[None]], clock: Clock, log: Log) -> None:
    """Repeat a step while the container refuses it: a lease that is not released stands still until another host takes it."""
    failures = 0
    while True:
        try:
            return await step()
        except StoreError as error:
            failures += 1
            pause_s = PAUSES.pause_s(failures, 0.0, retry_after_s(error))
            log.warning("closing failed, retrying", error=str(error), in_s=pause_s)
        await clock.sleep(pause_s)


async def run_uninterrupted(step: Coroutine[Any, Any, None]) -> None:
    """Finish the call in spite of one cancellation, which is raised afterwards. A second one ends it."""
    task = asyncio.create_task(step)
    try:
        await await_shielded(task)
    except asyncio.CancelledError:
        await task
        raise
