"""Reads the lease store from a process that runs no host, for `leasehold leases` and `leasehold lag`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

from leasehold.common.clock import BootClock
from leasehold.leases.bell import Bell
from leasehold.leases.errors import InvalidDocument, StoreError, StoreMissing
from leasehold.leases.keeper import Keeper
from leasehold.leases.store import TimedStore
from leasehold.service.config.kinds import AnyLeases
from leasehold.service.config.settings import Settings
from leasehold.service.group.status import GroupStatus
from leasehold.service.group.view import View
from leasehold.service.wiring.build import pipelines_of, store_of

T = TypeVar("T")
Warn = Callable[[str], None]
Read = Callable[[View, Keeper], Awaitable[T]]


async def look_into(
    settings: Settings,
    read: Read[T],
    pipeline: str | None = None,
    *,
    creates: bool = False,
    heeds: bool = True,
    warn: Warn = lambda why: None,
) -> T:
    """What `read` finds; nothing is started, and everything is closed again. creates: whether to create a missing container.

    heeds: whether a container without leases (of `pipeline`, if it is given) is an error.

    warn: called if hosts will notice later than usual what `read` has changed.

    Raises LeasesError, PipelineError, StartFailed; StoreMissing if `heeds` and there are no leases yet, because that would look
    like finished leases.
    """
    async with open_group(settings, creates=creates, warn=warn) as (view, keeper):
        if heeds:
            _heed(await view.read_group(), settings.leases, pipeline)
        return await read(view, keeper)


@asynccontextmanager
async def open_group(
    settings: Settings, *, creates: bool = False, warn: Warn = lambda why: None, call_timeout_s: float | None = None
) -> AsyncIterator[tuple[View, Keeper]]:
    """The view and the keeper for `look_into`. call_timeout_s: of calls to the store; by default that of a host."""
    clock, timing = BootClock(), settings.leases.timing
    pipelines = pipelines_of(settings)
    store = TimedStore(store_of(settings, pipelines, creates=creates), call_timeout_s or timing.call_timeout_s)
    bell = Bell(store)
    keeper = Keeper(store, host="leasehold", incarnation=uuid.uuid4().hex, clock=clock, timing=timing, bell=bell)
    try:
        yield View(keeper, pipelines, clock=clock, now=lambda: datetime.now(UTC)), keeper
    finally:
        try:
            await bell.write()
        except StoreError as error:
            warn(
                f"the change was made, and hosts notice it a minute later than usual: they could not be notified ({error})"
            )
        parts = [part for each in pipelines for part in (each.feed, each.sink, each.outside_checkpoints)]
        closing = [part.close() for part in parts if part is not None]
        await asyncio.gather(*closing, return_exceptions=True)
        await store.close()


def _heed(group: GroupStatus, leases: AnyLeases, pipeline: str | None) -> None:
    if any(pipeline in (None, name) for name, _ in (*group.leases, *group.unreadable)):
        return
    if group.problems:
        raise InvalidDocument("\n".join(group.problems))
    place = leases.place
    if pipeline is None:
        raise StoreMissing(
            f"no leases yet in {place}: no host has run this configuration, or its feeds have no partitions yet"
        )
    raise StoreMissing(
        f"no leases of pipeline '{pipeline}' yet in {place}: no host has run it, or its feed has no partitions yet"
    )
