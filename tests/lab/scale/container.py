"""A lease store in memory that costs what Cosmos DB and Blob Storage cost, and that counts: requests, documents and bytes.

A listing takes one request for each page, one after another. Pages are as small as those of Cosmos DB; how many
there would have been in Blob Storage is counted, too. Documents lie in rooms by the folder of their id, so that a listing
of some documents does not walk through all others.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from lab.simulation.process import current
from lab.simulation.weather import Fate, Request, Weather, answered

from leasehold.leases.document import decode_lease
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.store import READS, ChangedDocuments, LeaseStore, Stored

T = TypeVar("T")
COSMOS_PAGE, BLOB_PAGE = 1000, 5000
COSMOS_PAGE_BYTES = 4 * 1024 * 1024
"""A page of Cosmos DB ends there even if it has fewer documents."""
FASTEST_S, SLOWEST_S = 0.005, 0.035
SNAPSHOT_S = 0.25
"""Listings that take at least that long may share one state of the documents, if all of them were under way at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """requests: with pages of Cosmos DB. blob_requests: with those of Blob Storage. bytes: of bodies, both ways."""

    requests: int = 0
    blob_requests: int = 0
    read: int = 0
    written: int = 0
    lease_writes: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def __sub__(self, other: Cost) -> Cost:
        return Cost(**{name: value - getattr(other, name) for name, value in asdict(self).items()})


class Calm(Weather):
    """Requests take 5 to 35 ms each. refused: which requests are refused now."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.refused: Callable[[Request], bool] = lambda request: False
        self.pages_of: Callable[[str], int] = lambda prefix: 1
        self._rng = rng

    def fate(self, request: Request) -> Fate:
        pages = self.pages_of(request.id) if request.operation == "list" else 1
        late_s = sum(self._rng.uniform(FASTEST_S, SLOWEST_S) for _ in range(pages))
        return Fate(late_s, "refused" if self.refused(request) else "ok")


class Room:
    """The documents of one folder."""

    def __init__(self) -> None:
        self.documents: dict[str, Stored] = {}
        self.bytes = 0
        self._names: list[str] | None = None
        self._listed: list[Stored] | None = None
        self._listed_at = 0.0

    def put(self, stored: Stored) -> None:
        before = self.documents.get(stored.id)
        self.bytes += len(stored.body) - (0 if before is None else len(before.body))
        self.documents[stored.id] = stored
        self._listed = None if self._is_small else self._listed
        self._changed_at = asyncio.get_running_loop().time()
        if before is None:
            self._names = None

    def remove(self, id: str) -> None:
        self.bytes -= len(self.documents.pop(id).body)
        self._names = self._listed = None

    def listed(self, since: float) -> list[Stored]:
        """All of them, in the order of their ids, as they were at some time since then."""
        now = asyncio.get_running_loop().time()
        is_old = self._listed_at < max(since, now - SNAPSHOT_S) and self._changed_at >= self._listed_at
        if self._listed is None or is_old:
            if self._names is None:
                self._names = sorted(self.documents)
            self._listed = [self.documents[name] for name in self._names]
            self._listed_at = now
        return self._listed

    @property
    def _is_small(self) -> bool:
        return len(self.documents) <= COSMOS_PAGE

    _changed_at = 0.0


class MeteredContainer(LeaseStore):
    """cost: of all requests so far. by_kind: (operation, folder) -> requests.

    noticed: called with a lease before and after each write.
    """

    def __init__(self, weather: Calm, decode: Callable[[str, str], Lease] = decode_lease) -> None:
        self.cost = Cost()
        self.by_kind: Counter[tuple[str, str]] = Counter()
        self.noticed: Callable[[Lease | None, Lease | None], None] = lambda before, after: None
        self._weather = weather
        self._decode = decode
        self._rooms: dict[str, Room] = {}
        self._etags = count(1)
        self._newest = "0"
        self._by_write: OrderedDict[str, Stored] = OrderedDict()
        """All documents, those that were written last at the end."""
        weather.pages_of = lambda prefix: self._pages(self._under(prefix), COSMOS_PAGE, COSMOS_PAGE_BYTES)

    async def list(self, prefix: str) -> list[Stored]:
        since = asyncio.get_running_loop().time()
        return await self._soon("list", prefix, partial(self._listed, prefix, since))

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """As in Cosmos DB: the newest state of every document of the container that changed, by pages."""
        return await self._soon("changes", prefix, partial(self._changed, prefix, since))

    async def count(self, prefix: str) -> int | None:
        """Blob Storage cannot count. There, hosts list instead, as `_changed` has it: changes are read after each count."""
        return await self._soon("count", prefix, partial(self._count, prefix))

    async def read(self, id: str) -> Stored:
        return await self._soon("read", id, partial(self._found, id))

    async def create(self, id: str, body: str) -> str:
        return await self._soon("create", id, partial(self._created, id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._soon("replace", id, partial(self._replaced, id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._soon("delete", id, partial(self._deleted, id, etag))

    async def close(self) -> None:
        """Nothing to close."""

    def put_all(self, documents: Iterable[tuple[str, str]]) -> None:
        """Written before the first host starts; costs nothing."""
        for name, body in documents:
            self._put(name, body)

    def leases(self, prefix: str) -> list[Lease]:
        return [self._decode(stored.id, stored.body) for stored in self._room(prefix).documents.values()]

    def _soon(self, operation: str, id: str, call: Callable[[], T]) -> asyncio.Future[T]:
        process = current()
        lost = StoreUnavailable if operation in READS else StoreAmbiguous
        request = Request(process.host if process else "", "store", operation, id)
        return answered(self._weather, request, partial(self._counted, operation, id, call), StoreUnavailable, lost)

    def _counted(self, operation: str, id: str, call: Callable[[], T]) -> T:
        self.by_kind[operation, _folder(id)] += 1
        if operation not in ("list", "changes", "count"):
            self.cost += Cost(requests=1, blob_requests=1)
        return call()

    def _listed(self, prefix: str, since: float) -> list[Stored]:
        rooms = self._under(prefix)
        found = rooms[0].listed(since) if len(rooms) == 1 else [each for room in rooms for each in room.listed(since)]
        self.cost += Cost(
            requests=self._pages(rooms, COSMOS_PAGE, COSMOS_PAGE_BYTES),
            blob_requests=self._pages(rooms, BLOB_PAGE),
            read=len(found),
            bytes=sum(room.bytes for room in rooms),
        )
        return found

    def _changed(self, prefix: str, since: str | None) -> ChangedDocuments:
        """Blob Storage shows no changes: there, hosts list instead."""
        found: list[Stored] = []
        for stored in reversed(self._by_write.values()) if since is not None else ():
            if int(stored.etag) <= int(since or 0):
                break
            found.append(stored)
        size = sum(len(each.body) for each in found)
        self.cost += Cost(
            requests=max(1, -(-len(found) // COSMOS_PAGE), -(-size // COSMOS_PAGE_BYTES)),
            blob_requests=0 if since is None else self._pages(self._under(prefix), BLOB_PAGE),
            read=len(found),
            bytes=size,
        )
        return ChangedDocuments([each for each in found if each.id.startswith(prefix)], self._newest)

    def _count(self, prefix: str) -> int:
        self.cost += Cost(requests=1)
        return sum(len(room.documents) for room in self._under(prefix))

    def _under(self, prefix: str) -> Sequence[Room]:
        """Prefixes are those of whole folders."""
        return [self._rooms[name] for name in sorted(self._rooms) if name.startswith(prefix)]

    @staticmethod
    def _pages(rooms: Iterable[Room], documents_max: int, bytes_max: float = float("inf")) -> int:
        documents, size = sum(len(room.documents) for room in rooms), sum(room.bytes for room in rooms)
        return max(1, -(-documents // documents_max), int(-(-size // bytes_max)))

    def _found(self, id: str) -> Stored:
        stored = self._room(id).documents.get(id)
        self.cost += Cost(read=1, bytes=0 if stored is None else len(stored.body))
        if stored is None:
            raise StoreMissing(f"document '{id}' does not exist")
        return stored

    def _created(self, id: str, body: str) -> str:
        if id in self._room(id).documents:
            raise StoreConflict(f"document '{id}' exists already")
        return self._written(None, id, body)

    def _replaced(self, id: str, body: str, etag: str) -> str:
        return self._written(self._matched(id, etag), id, body)

    def _deleted(self, id: str, etag: str) -> None:
        before = self._matched(id, etag)
        self._room(id).remove(id)
        del self._by_write[id]
        self.cost += Cost(written=1)
        if "/leases/" in id:
            self.noticed(self._decode(id, before.body), None)

    def _matched(self, id: str, etag: str) -> Stored:
        stored = self._room(id).documents.get(id)
        if stored is None:
            raise StoreMissing(f"document '{id}' does not exist")
        if stored.etag != etag:
            raise StoreConflict(f"document '{id}' was changed by another writer")
        return stored

    def _written(self, before: Stored | None, id: str, body: str) -> str:
        is_lease = "/leases/" in id
        self.cost += Cost(written=1, lease_writes=int(is_lease), bytes=len(body))
        stored = self._put(id, body)
        if is_lease:
            self.noticed(None if before is None else self._decode(id, before.body), self._decode(id, body))
        return stored.etag

    def _put(self, id: str, body: str) -> Stored:
        stored = Stored(id, body, str(next(self._etags)))
        self._newest = stored.etag
        self._by_write[id] = stored
        self._by_write.move_to_end(id)
        self._room(id).put(stored)
        return stored

    def _room(self, id: str) -> Room:
        folder = _folder(id)
        room = self._rooms.get(folder)
        if room is None:
            room = self._rooms[folder] = Room()
        return room


def _folder(id: str) -> str:
    return id[: id.rfind("/") + 1]
