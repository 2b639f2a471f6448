"""A lease store in this process's memory, for tests and simulations."""

from __future__ import annotations

import asyncio

from leasehold.leases.errors import StoreConflict, StoreMissing
from leasehold.leases.store import ChangedDocuments, LeaseStore, Stored


class MemoryStore(LeaseStore):
    """Hosts that share this object share the container. Every call lets other tasks run once, then acts in one step."""

    def __init__(self) -> None:
        self._documents: dict[str, Stored] = {}
        self._last_etag = 0

    async def list(self, prefix: str) -> list[Stored]:
        await asyncio.sleep(0)
        return [stored for name, stored in sorted(self._documents.items()) if name.startswith(prefix)]

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """ETags are given out in the order of the writes, so the last one covers all writes so far."""
        await asyncio.sleep(0)
        last = self._last_etag
        if since is None:
            return ChangedDocuments((), f"memory-{last}")
        number = since.removeprefix("memory-")
        if number == since or not (number.isdecimal() and number.isascii()) or int(number) > last:
            return None
        found = [stored for name, stored in self._documents.items() if name.startswith(prefix)]
        return ChangedDocuments([stored for stored in found if int(stored.etag) > int(number)], f"memory-{last}")

    async def count(self, prefix: str) -> int | None:
        await asyncio.sleep(0)
        return sum(name.startswith(prefix) for name in self._documents)

    async def read(self, id: str) -> Stored:
        await asyncio.sleep(0)
        return self._found(id)

    async def create(self, id: str, body: str) -> str:
        await asyncio.sleep(0)
        if id in self._documents:
            raise StoreConflict(f"document '{id}' exists already: read it")
        return self._put(id, body)

    async def replace(self, id: str, body: str, etag: str) -> str:
        await asyncio.sleep(0)
        self._match(id, etag)
        return self._put(id, body)

    async def delete(self, id: str, etag: str) -> None:
        await asyncio.sleep(0)
        self._match(id, etag)
        del self._documents[id]

    async def close(self) -> None:
        """Nothing to close."""

    def _put(self, id: str, body: str) -> str:
        self._last_etag += 1
        stored = Stored(id, body, str(self._last_etag))
        self._documents[id] = stored
        return stored.etag

    def _found(self, id: str) -> Stored:
        try:
            return self._documents[id]
        except KeyError:
            raise StoreMissing(f"document '{id}' does not exist: it was deleted, or never created") from None

    def _match(self, id: str, etag: str) -> None:
        if self._found(id).etag != etag:
            raise StoreConflict(f"document '{id}' was changed by another writer: read it again")
