"""What the hosts of one process may share without knowing: what a document says, and what a listing of leases shows.

Each real host parses for itself. Hundreds of them in one process would parse the same documents hundreds of times, and hold
them as often. What they share is pure: the same text always parses to the same values.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import Context
from dataclasses import replace
from functools import lru_cache
from typing import Any

from leases import balance, membership, session_watch, tenure
from leases import keeper as keepers
from leases.balance import Peer, Standing
from leases.document import decode_lease
from leases.keeper import Keeper, Scan
from leases.lease import Lease, LeaseKey
from leases.store import Stored
from leases.stores.memory import MemoryStore

STANDING_OF = balance.standing_of
LISTINGS_KEPT = 8
STANDINGS_KEPT = 8
COMPUTED = ("leases", "shape", "lineage", "marks", "tenants", "requested", "by_pipeline")
"""What a scan finds out once, and keeps."""


class Sharing:
    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.decode: Callable[[str, str], Lease] = lru_cache(maxsize=400_000)(decode_lease)
        self._scans: OrderedDict[int, tuple[list[Stored], asyncio.Task[Scan]]] = OrderedDict()
        self._reader: Keeper | None = None
        self._lineage: Any = None
        self._standings: deque[tuple[tuple[Any, ...], Standing]] = deque(maxlen=STANDINGS_KEPT)
        tenure.decode_lease = self.decode  # type: ignore[attr-defined]
        for module, name in ((session_watch, "decode_session"), (membership, "decode_host")):
            pure = getattr(module, name)
            setattr(module, name, lru_cache(maxsize=8192)(getattr(pure, "__wrapped__", pure)))

        balance.standing_of = self._standing_of if is_on else STANDING_OF

    def _standing_of(
        self,
        leases: Any,
        able: Mapping[str, Peer],
        seeing: Mapping[str, Peer],
        expired: Collection[LeaseKey],
        paused: Collection[str],
    ) -> Standing:
        """The leases that a listing shows are one list for all hosts."""
        for known, standing in self._standings:
            if known[0] is leases and known[1:] == (able, seeing, expired, paused):
                return standing
        standing = STANDING_OF(leases, able, seeing, expired, paused)
        self._standings.append(((leases, able, seeing, expired, paused), standing))
        return standing

    def keeper(self, store: Any, **settings: Any) -> Keeper:
        return SharedKeeper(self, store, **settings) if self.is_on else Keeper(store, **settings)

    async def scan(self, keeper: Keeper, listed: list[Stored]) -> Scan:
        """What a keeper makes of a listing; parsed once for all."""
        known = self._scans.get(id(listed))
        if known is None:
            if self._reader is None:
                self._reader = Keeper(_Shelf(), host="", incarnation="", clock=keeper._clock, timing=keeper.timing)
            task = asyncio.get_running_loop().create_task(self._read(listed), context=Context())
            known = self._scans[id(listed)] = (listed, task)
            if len(self._scans) > LISTINGS_KEPT:
                self._scans.popitem(last=False)
        return await asyncio.shield(known[1])

    async def _read(self, listed: list[Stored]) -> Scan:
        assert self._reader is not None, "made by the caller"
        shelf: Any = self._reader.store
        shelf.listed = listed
        scan = await self._reader.scan(["bank"])
        if self._lineage == scan.lineage:
            scan.__dict__["lineage"] = self._lineage  # one value, which every host compares with itself
        self._lineage = scan.lineage
        for computed in COMPUTED:
            getattr(scan, computed)  # kept in the scan, once for all
        return scan


class _Shelf(MemoryStore):
    listed: list[Stored]

    async def list(self, prefix: str) -> list[Stored]:
        return self.listed


class SharedKeeper(Keeper):
    def __init__(self, sharing: Sharing, store: Any, **settings: Any) -> None:
        super().__init__(store, **settings)
        self._sharing = sharing

    async def scan(self, pipelines: Iterable[str], since: Scan | None = None) -> Scan:
        """It lists: what hosts read of changes could not be shared."""
        started = self._clock.monotonic()
        listed = await self.store.list(keepers.lease_prefix("bank"))
        shared = await self._sharing.scan(self, listed)
        scan = replace(shared, started=started, ended=self._clock.monotonic())
        for computed in COMPUTED:
            if computed in shared.__dict__:
                scan.__dict__[computed] = shared.__dict__[computed]
        return scan
