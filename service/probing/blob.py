"""Questions to Blob Storage, about blobs in the lease container that are created for them and removed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from leasehold.common.clock import Clock
from leasehold.leases.document import lease_id, lease_prefix
from leasehold.leases.errors import StoreConflict, StoreError
from leasehold.leases.store import LeaseStore
from leasehold.service.probing.report import Finding, Question, judged

RACERS = 10
WRITES = 20
COSTS = "writes and lists about 10 small blobs there some 80 times, and removes them at the end"


class BlobPlace:
    """group: a name that no pipeline has. The blobs are its leases."""

    def __init__(self, store: LeaseStore, group: str, *, clock: Clock) -> None:
        self.notes: list[str] = []
        self.clock = clock
        self.store = store
        self.group = group
        self._numbers = count(1)

    async def open(self) -> None:
        """Raises StoreError: the container cannot be read or written to."""
        await self.store.create(self.new_id(), "{}")

    async def settle(self) -> None:
        """Nothing is left open."""

    async def remove(self, within_s: float) -> str | None:
        """Remove the blobs. Returns why some may still exist."""
        try:
            async with asyncio.timeout(within_s):
                for each in await self.store.list(lease_prefix(self.group)):
                    await self.store.delete(each.id, each.etag)
        except (StoreError, TimeoutError) as error:
            return str(error) or f"no answer within {within_s:g} s"
        return None

    async def close(self) -> None:
        await self.store.close()

    def new_id(self) -> str:
        return lease_id(self.group, str(next(self._numbers)))

    async def note_outcome(self, what: str, call: Awaitable[object]) -> str:
        """`done` or `refused`. Raises StoreError for anything but a conflict."""
        try:
            await call
            outcome = "done"
        except StoreConflict:
            outcome = "refused"
        self.notes.append(f"{what} -> {outcome}")
        return outcome


async def ask_for_compare_and_swap(place: BlobPlace) -> Finding:
    store, name = place.store, place.new_id()
    first = await store.create(name, '{"n": 0}')
    again = await place.note_outcome("create again", store.create(name, '{"n": 1}'))
    racers = [store.replace(name, f'{{"n": {n}}}', first) for n in range(RACERS)]
    raced = await asyncio.gather(*(place.note_outcome(f"replace {n}", each) for n, each in enumerate(racers)))
    stale = await place.note_outcome("delete with the old ETag", store.delete(name, first))
    won = raced.count("done")
    answer = f"create again: {again}; of {RACERS} replaces with one ETag: {won} done; delete with an old ETag: {stale}"
    return judged(answer, (again, won, stale) == ("refused", 1, "refused"))


async def ask_for_listing(place: BlobPlace) -> Finding:
    name = place.new_id()
    etag = await place.store.create(name, "{}")
    late = 0
    for number in range(WRITES):
        etag = await place.store.replace(name, f'{{"n": {number}}}', etag)
        listed = [each.etag for each in await place.store.list(lease_prefix(place.group)) if each.id == name]
        late += listed != [etag]
        place.notes.append(f"write {number} -> ETag {etag}; listed: {listed}")
    return judged(f"{WRITES - late} of {WRITES} listings show the write before them", not late)


def _question(id: str, text: str, assumed: str, ask: Callable[[BlobPlace], Awaitable[Finding]]) -> Question[BlobPlace]:
    return Question(id=f"blob-{id}", text=text, assumed=assumed, ask=ask)


QUESTIONS: Sequence[Question[BlobPlace]] = (
    _question(
        "compare-and-swap",
        "Are Set Blob Metadata with `If-Match` and Put Blob with `If-None-Match` compare-and-swaps?",
        "yes",
        ask_for_compare_and_swap,
    ),
    _question("listing", "Does List Blobs show what was written before it?", "yes", ask_for_listing),
)
