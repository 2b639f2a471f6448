"""A host's own document: no tick is written twice, whatever becomes of a write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable
from leasehold.leases.host_record import HostRecord, OwnDocument, decode_host, encode_host, host_id
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore


class Store(MemoryStore):
    """outcomes: of the next calls. lost: carried out without an answer; ghost: neither; down: refused. ticks: as written."""

    def __init__(self, outcomes: list[str]) -> None:
        super().__init__()
        self.outcomes = outcomes
        self.ticks: list[int] = []

    async def read(self, id: str) -> Stored:
        if self._next() != "ok":
            raise StoreUnavailable("away")
        return await super().read(id)

    async def create(self, id: str, body: str) -> str:
        return await self._written(super().create(id, body), id, body)

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._written(super().replace(id, body, etag), id, body)

    async def _written(self, write, id: str, body: str) -> str:  # type: ignore[no-untyped-def]
        outcome = self._next()
        if outcome in ("down", "ghost"):
            write.close()
            raise StoreUnavailable("down") if outcome == "down" else StoreAmbiguous("no answer")
        etag: str = await write
        self.ticks.append(decode_host(id, body).tick)
        if outcome == "lost":
            raise StoreAmbiguous("no answer")
        return etag

    def _next(self) -> str:
        return self.outcomes.pop(0) if self.outcomes else "ok"


@given(st.lists(st.sampled_from(["ok", "lost", "ghost", "down"]), max_size=16))
async def test_whatever_answers_are_lost_every_write_that_arrives_has_a_higher_tick(outcomes: list[str]) -> None:
    store = Store(["ok", *outcomes])
    await store.create(host_id("a"), encode_host(HostRecord(name="a", incarnation="0", tick=7)))
    store.ticks.clear()
    own = OwnDocument(
        store, host_id("a"), HostRecord(name="a", incarnation="1"), host="a", encode=encode_host, decode=decode_host
    )
    for _ in range(20):
        try:
            await own.write(lambda me: me)
        except StoreError:
            continue
    assert len(store.ticks) > 3
    assert store.ticks == sorted(set(store.ticks))
