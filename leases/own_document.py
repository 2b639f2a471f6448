"""A document that one process keeps under its host's name, and that shows when another process uses that name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from leases.errors import DuplicateHost, InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing
from leases.store import LeaseStore, Stored

R = TypeVar("R")
"""A frozen dataclass with the fields `incarnation`, `tick` and `contested_by`."""


class OwnDocument(Generic[R]):
    """record: as last written, or as it may have been written if the answer was lost."""

    def __init__(
        self,
        store: LeaseStore,
        id: str,
        record: R,
        *,
        host: str,
        encode: Callable[[R], str],
        decode: Callable[[str, str], R],
    ) -> None:
        """decode: raises InvalidDocument."""
        self.record: Any = record
        self._store = store
        self._id = id
        self._host = host
        self._encode: Callable[[Any], str] = encode
        self._decode: Callable[[str, str], Any] = decode
        self._etag: str | None = None
        self._lock = asyncio.Lock()

    async def write(self, change: Callable[[R], R]) -> None:
        """Create the document, or store what `change` makes of it, with the next tick.

        The first write replaces the document of an earlier incarnation. Raises DuplicateHost if another process has taken
        over the name since, StoreUnavailable, StoreAmbiguous.
        """
        async with self._lock:
            wanted: Any = change(replace(self.record, tick=self.record.tick + 1))
            self.record = replace(self.record, tick=wanted.tick)  # whatever becomes of it: no tick is written twice
            try:
                await self._store_or_reread(wanted)
            except StoreAmbiguous:
                self.record = wanted  # the next write conflicts if this one arrived, and reads again
                raise

    async def _store_or_reread(self, wanted: Any) -> None:
        try:
            if self._etag is None:
                self._etag = await self._store.create(self._id, self._encode(wanted))
            else:
                self._etag = await self._store.replace(self._id, self._encode(wanted), self._etag)
        except (StoreConflict, StoreMissing):
            await self._reread(wanted)
        else:
            self.record = wanted

    async def remove(self) -> None:
        """So that other hosts need not wait until it expires. Keeps a namesake's. Raises StoreError."""
        async with self._lock:
            if self.record.tick == 0:
                return  # never written
            try:
                stored = await self._store.read(self._id)
            except StoreMissing:
                return
            found = self._found(stored)
            if found is not None and found.incarnation == self.record.incarnation:
                await self._store.delete(stored.id, stored.etag)

    async def _reread(self, wanted: Any) -> None:
        """Another write changed our document: an earlier incarnation's, our own after a lost answer, or a namesake's."""
        try:
            stored = await self._store.read(self._id)
        except StoreMissing:
            self._etag = await self._store.create(self._id, self._encode(wanted))
            self.record = wanted
            return
        found = self._found(stored)
        theirs = found.incarnation if found else None
        if self._etag is not None and theirs not in (None, wanted.incarnation):
            await self._give_way(stored)
            raise DuplicateHost(
                f"another process (incarnation {theirs}) runs as host '{self._host}': this one stops;"
                " give every process a host.name of its own"
            )
        if found and theirs == wanted.incarnation:
            wanted = replace(wanted, contested_by=found.contested_by, tick=max(wanted.tick, found.tick + 1))
        self._etag = await self._store.replace(self._id, self._encode(wanted), stored.etag)
        self.record = wanted

    async def _give_way(self, stored: Stored) -> None:
        """Leave a note in the namesake's document, so that it reports the clash too."""
        namesake = replace(self._decode(stored.id, stored.body), contested_by=self.record.incarnation)
        await self._store.replace(stored.id, self._encode(namesake), stored.etag)

    def _found(self, stored: Stored) -> Any:
        try:
            return self._decode(stored.id, stored.body)
        except InvalidDocument:
            return None  # unreadable: ours to replace
