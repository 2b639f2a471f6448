"""What the sinks of a directory or a container share: their threads, and what an error of files means to a host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from leasehold.pipeline.connectors.files.sink.storage import (
    Check,
    FilesDamaged,
    FilesError,
    FilesNowhere,
    FilesRefused,
    FilesUnavailable,
    Storage,
)
from leasehold.pipeline.errors import SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import CloseReason, Permit, Sink, SinkWriter, checked_until_cancelled

T = TypeVar("T")


class PlaceSink(Sink):
    """place: a Directory or a BlobContainer; the sink closes it. `Permit.check` is also called on a thread."""

    holds_position = True

    def __init__(self, place: Storage, threads: int) -> None:
        self._place = place
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="files-sink")

    def claimed(self, state: str) -> str:
        """The place holds everything; the lease keeps how far it has seen the place, to notice a deletion."""
        return state

    async def prepare(self) -> None:
        """At the start, waiting does not help with a refusal or an address that leads nowhere. Later it may: roles take time."""
        try:
            await self.run(self._prepare)
        except SinkUnavailable as error:
            if isinstance(error.__cause__, FilesRefused):
                raise SinkRejected(str(error)) from error
            if isinstance(error.__cause__, FilesNowhere):
                raise SinkNotFound(str(error)) from error
            raise

    def _prepare(self) -> None:
        self._place.prepare()

    async def close(self) -> None:
        await self.run(self._place.close)
        self._threads.shutdown(wait=False)

    async def run(self, call: Callable[[], T]) -> T:
        """Call it on a thread. Raises SinkRejected, SinkUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FilesDamaged as error:
            raise SinkRejected(str(error)) from error
        except FilesUnavailable as error:
            raise SinkUnavailable(str(error), retry_after_s=error.retry_after_s) from error
        except FilesError as error:  # uncertain: it is tried again under another name, or counts only once it is named
            raise SinkUnavailable(str(error)) from error


class PlaceWriter(SinkWriter):
    """A cancelled write that does not count yet never will once the partition is claimed again."""

    position: str | None = None
    state: str = ""

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""


async def send_on_thread(sink: PlaceSink, permit: Permit, send: Callable[[Check], T]) -> T:
    """send: gets the check that it has to call before it sends."""
    permit.check()
    with checked_until_cancelled(permit) as check:
        return await sink.run(lambda: send(check))
