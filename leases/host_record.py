"""The document that every host keeps of itself: host <-> JSON text, and how one process keeps such a document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from leasehold.leases.balance import Peer
from leasehold.leases.document import NAME_BYTES_MAX, Fields, to_json
from leasehold.leases.errors import DuplicateHost, InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing
from leasehold.leases.expiry import Mark
from leasehold.leases.store import LeaseStore, Stored

HOSTS_PREFIX = "_hosts/"
"""No pipeline name begins with an underscore, so listing hosts never lists a pipeline's documents."""
VERSION = 1
SESSIONS = 1
"""The version of the sessions that a host understands; hosts without sessions lack the field."""
PIPELINES_MAX = 1024

_FIELDS = frozenset(
    (
        *("version", "host", "incarnation", "tick", "pipelines", "leasesMax", "draining"),
        *("leaseDurationS", "startedAt", "activity", "contestedBy", "sessions"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host process, according to its document."""

    name: str
    incarnation: str
    tick: int = 0
    pipelines: tuple[str, ...] = ()
    leases_max: int | None = None
    draining: bool = False
    lease_duration_s: float = 0.0
    started_at: str = ""
    contested_by: str | None = None
    has_session: bool = False
    activity: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def mark(self) -> Mark:
        return self.incarnation, self.tick

    def peer(self, *, is_new: bool) -> Peer:
        return Peer(
            name=self.name,
            pipelines=frozenset(self.pipelines),
            leases_max=self.leases_max,
            draining=self.draining,
            is_new=is_new,
            has_session=self.has_session,
        )


def host_id(name: str) -> str:
    return HOSTS_PREFIX + name


def encode_host(host: HostRecord) -> str:
    body: dict[str, object] = {
        **host.unknown,
        "version": VERSION,
        "host": host.name,
        "incarnation": host.incarnation,
        "tick": host.tick,
        "pipelines": list(host.pipelines),
        "leasesMax": host.leases_max,
        "draining": host.draining,
        "leaseDurationS": host.lease_duration_s,
        "startedAt": host.started_at,
        "contestedBy": host.contested_by,
        **({"sessions": SESSIONS} if host.has_session else {}),
        "activity": dict(host.activity),
    }
    return to_json(body)


def decode_host(id: str, body: str) -> HostRecord:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    host = HostRecord(
        name=fields.text("host", NAME_BYTES_MAX),
        incarnation=fields.text("incarnation", NAME_BYTES_MAX),
        tick=fields.integer("tick"),
        pipelines=fields.texts("pipelines", NAME_BYTES_MAX, PIPELINES_MAX),
        leases_max=fields.optional_integer("leasesMax"),
        draining=fields.boolean("draining"),
        lease_duration_s=fields.number("leaseDurationS"),
        started_at=fields.text("startedAt", NAME_BYTES_MAX),
        contested_by=fields.optional_text("contestedBy", NAME_BYTES_MAX),
        has_session=fields.has("sessions") and fields.integer("sessions") > 0,
        activity=fields.mapping("activity"),
        unknown=fields.unknown(_FIELDS),
    )
    if id != host_id(host.name):
        fields.refuse("host", f"is {host.name!r}, which belongs under another id")
    return host


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
