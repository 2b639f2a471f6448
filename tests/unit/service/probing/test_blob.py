"""What the questions to Blob Storage find in stores that behave otherwise than assumed."""

from __future__ import annotations

from contextlib import suppress

import pytest

from leasehold.common.clock import LoopClock
from leasehold.leases.errors import StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.service.probing.blob import QUESTIONS, BlobPlace
from leasehold.service.probing.report import ask_all


class LastWriterWins(MemoryStore):
    async def replace(self, id: str, body: str, etag: str) -> str:
        while True:
            with suppress(StoreConflict):
                return await super().replace(id, body, (await self.read(id)).etag)


class ListsLate(MemoryStore):
    """Shows what there was before the last write."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[Stored] = []

    async def replace(self, id: str, body: str, etag: str) -> str:
        self._before = await super().list("")
        return await super().replace(id, body, etag)

    async def list(self, prefix: str) -> list[Stored]:
        return self._before


class WithoutRights(MemoryStore):
    async def delete(self, id: str, etag: str) -> None:
        raise StoreUnavailable("no right to delete")


async def found_in(store: MemoryStore) -> dict[str, tuple[str, str]]:
    place = BlobPlace(store, "leasehold-probe-1", clock=LoopClock())
    await place.open()
    answers = await ask_all(place, QUESTIONS, LoopClock(), lambda _: None)
    return {answer.id: (answer.verdict, answer.answer) for answer in answers}


async def test_a_store_as_assumed() -> None:
    assert await found_in(MemoryStore()) == {
        "blob-compare-and-swap": (
            "holds",
            "create again: refused; of 10 replaces with one ETag: 1 done; delete with an old ETag: refused",
        ),
        "blob-listing": ("holds", "20 of 20 listings show the write before them"),
    }


async def test_a_store_that_overwrites_is_found() -> None:
    verdict, answer = (await found_in(LastWriterWins()))["blob-compare-and-swap"]
    assert verdict == "fails"
    assert "10 done" in answer


async def test_a_listing_that_is_late_is_found() -> None:
    assert (await found_in(ListsLate()))["blob-listing"] == ("fails", "0 of 20 listings show the write before them")


async def test_everything_is_removed_or_reported() -> None:
    store = MemoryStore()
    place = BlobPlace(store, "leasehold-probe-1", clock=LoopClock())
    await place.open()
    assert await place.remove(1.0) is None
    assert await store.list("") == []
    stuck = BlobPlace(WithoutRights(), "leasehold-probe-1", clock=LoopClock())
    await stuck.open()
    assert await stuck.remove(1.0) == "no right to delete"
    with pytest.raises(StoreMissing):
        await store.read("leasehold-probe-1/leases/1")
