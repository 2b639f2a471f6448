"""A look into the lease container from a process that runs no host: what `leasehold leases` and `leasehold lag` stand on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from leases.clock import BootClock
from leases.keeper import Keeper
from leases.store import TimedStore
from service.settings import Settings
from service.view import View
from service.wiring import pipelines_of, store_of

T = TypeVar("T")
Read = Callable[[View, Keeper], Awaitable[T]]


async def looked_in(settings: Settings, read: Read[T]) -> T:
    """What `read` finds; nothing is started, and everything is closed again. Raises LeasesError, PipelineError, StartFailed."""
    clock, timing = BootClock(), settings.leases.timing
    store = TimedStore(store_of(settings.leases), timing.call_timeout_s)
    pipelines = pipelines_of(settings)
    keeper = Keeper(store, host="leasehold", incarnation=uuid.uuid4().hex, clock=clock, timing=timing)
    try:
        return await read(View(keeper, pipelines, clock=clock, now=lambda: datetime.now(UTC)), keeper)
    finally:
        closing = [part.close() for pipeline in pipelines for part in (pipeline.feed, pipeline.sink)]
        await asyncio.gather(*closing, return_exceptions=True)
        await store.close()
