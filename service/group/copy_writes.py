"""Many writes into one lease store that must all succeed: bounded, repeated while the store refuses, and reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.store import LeaseStore, Stored
from leasehold.service.group.copied_documents import is_same, read_document
from leasehold.service.group.migration import Say

T = TypeVar("T")
AT_ONCE_MAX = 1000
"""How many writes have a task at a time; fewer of them are under way (`run_side_by_side`)."""
REFUSALS_MAX = 8
PAUSES = Backoff(first_s=0.2, max_s=10.0)
SAID_EVERY_S = 10.0


class ProgressReport:
    """Reports how far a long step is, at most every SAID_EVERY_S seconds."""

    def __init__(self, say: Say, clock: Clock, what: str, total: int) -> None:
        self._say = say
        self._clock = clock
        self._what = what
        self._total = total
        self._done = 0
        self._said_at = clock.monotonic()

    def advance(self) -> None:
        self._done += 1
        if (now := self._clock.monotonic()) - self._said_at >= SAID_EVERY_S:
            self._said_at = now
            self._say(f"{self._done:,} of {self._total:,} {self._what}")


class Writes:
    """count: documents that were written or removed."""

    def __init__(self, store: LeaseStore, clock: Clock) -> None:
        self.count = 0
        self._store = store
        self._clock = clock

    async def put(self, document: str, body: str, etag: str | None) -> None:
        """Create the document, or replace the version `etag`. A document that already has the wanted contents counts, too.

        Raises StoreError: StoreConflict if another process has written it.
        """

        async def write() -> None:
            try:
                if etag is None:
                    await self._store.create(document, body)
                else:
                    await self._store.replace(document, body, etag)
            except (StoreAmbiguous, StoreConflict) as error:
                now = await read_document(self._store, document)
                if now is not None and now.etag != etag and is_same(document, now.body, body):
                    return
                if isinstance(error, StoreAmbiguous) and (None if now is None else now.etag) == etag:
                    raise StoreUnavailable(str(error)) from error  # it is not written yet, and may be repeated
                raise

        await self._retry(write)
        self.count += 1

    async def remove(self, stored: Stored) -> None:
        """Raises StoreError."""

        async def delete() -> None:
            try:
                await self._store.delete(stored.id, stored.etag)
            except StoreMissing:
                return

        await self._retry(delete)
        self.count += 1

    async def run_all(
        self, items: Sequence[T], step: Callable[[T], Coroutine[Any, Any, None]], progress: ProgressReport
    ) -> None:
        """Run the step for all items, in portions, because each has a task. Raises the first error; what was written stays."""
        for first in range(0, len(items), AT_ONCE_MAX):
            portion = items[first : first + AT_ONCE_MAX]
            await run_side_by_side(portion, step, doing="writing", then=lambda item, result: progress.advance())

    async def _retry(self, write: Callable[[], Awaitable[None]]) -> None:
        for refusals in range(1, REFUSALS_MAX + 1):
            try:
                await write()
                return
            except StoreUnavailable as error:
                if refusals == REFUSALS_MAX:
                    raise
                await self._clock.sleep(PAUSES.pause_s(refusals, 0.0, retry_after_s(error)))
