"""Hosts for tests of leases: each has a document of its own, and may be trusted."""

from __future__ import annotations

import asyncio

from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable
from leasehold.leases.host_record import HostRecord, decode_host, host_id
from leasehold.leases.keeper import Keeper
from leasehold.leases.session import Session
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing

TIMING = Timing()


class BeatStore(MemoryStore):
    """outcomes: of the next writes of hosts: seconds until it is answered, an error, or what becomes of it.

    lost: carried out without an answer; ghost: neither; black hole: neither, for ever; ("late answer", s): carried out at once,
    and answered after s seconds.

    attempts: when writes began. reads_late_s: how long reads take; None: they are not answered.
    """

    def __init__(self, *outcomes: float | StoreError | str | tuple[str, float]) -> None:
        super().__init__()
        self.outcomes = list(outcomes)
        self.attempts: list[float] = []
        self.reads_late_s: float | None = 0.0

    async def read(self, id: str) -> Stored:
        if self.reads_late_s is None:
            await asyncio.Event().wait()
        await asyncio.sleep(self.reads_late_s or 0.0)
        return await super().read(id)

    async def create(self, id: str, body: str) -> str:
        return await self._late(id, lambda: super(BeatStore, self).create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._late(id, lambda: super(BeatStore, self).replace(id, body, etag))

    async def _late(self, id: str, write) -> str:  # type: ignore[no-untyped-def]
        if not id.startswith("_"):
            return await write()  # type: ignore[no-any-return]
        self.attempts.append(VirtualClock().monotonic())
        outcome = self.outcomes.pop(0) if self.outcomes else 0.0
        if isinstance(outcome, StoreError):
            raise outcome
        if outcome == "ghost":
            raise StoreAmbiguous("no answer")
        if outcome == "black hole":
            await asyncio.Event().wait()
        if isinstance(outcome, float | int):
            await asyncio.sleep(outcome)
            return await write()  # type: ignore[no-any-return]
        if outcome == "down":
            raise StoreUnavailable("down")
        etag: str = await write()
        if isinstance(outcome, tuple):
            await asyncio.sleep(outcome[1])
            return etag
        raise StoreAmbiguous("no answer")


def session_of(
    store: LeaseStore,
    name: str = "a",
    incarnation: str = "1",
    *,
    timing: Timing = TIMING,
    clock: VirtualClock | None = None,
) -> Session:
    return Session(store, HostRecord(name=name, incarnation=incarnation), clock=clock or VirtualClock(), timing=timing)


async def trusted_keeper(store: LeaseStore, host: str = "a", *, clock: VirtualClock | None = None) -> Keeper:
    """Of a host that has just begun its first term."""
    clock = clock or VirtualClock()
    session = session_of(store, host, f"{host}-1", clock=clock)
    await session.open()
    return Keeper(store, host=host, incarnation=f"{host}-1", clock=clock, timing=TIMING, session=session)


async def stored_host(store: MemoryStore, name: str = "a") -> HostRecord:
    found = await MemoryStore.read(store, host_id(name))
    return decode_host(found.id, found.body)
