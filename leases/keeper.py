"""Read, change, replace if the ETag still matches: every write of a lease, except its owner's (`leasehold.leases.tenure`)
and those of a copy to another lease store.

`Keeper` scans all leases, and takes, requests and creates single ones. A scan may also read only what changed since an earlier
one (docs/protocol.md, Changes).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import TypeVar

from leasehold.common.clock import Clock
from leasehold.leases.bell import Bell
from leasehold.leases.document import advised, encode_lease, lease_id, lease_prefix, partition_of
from leasehold.leases.errors import (
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import Tenant
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.session import Session
from leasehold.leases.side_by_side import rounds_of, run_side_by_side
from leasehold.leases.store import Hint, LeaseStore, OutcomesStore, Stored
from leasehold.leases.tenure import Began, OwnedLease, VersionedLease, begin, id_of, versioned
from leasehold.leases.timing import Timing

T = TypeVar("T")
Shape = tuple[tuple[object, ...], ...]
"""Scans with equal shapes lead to equal plans."""
Read = Mapping[tuple[str, str], VersionedLease | InvalidDocument]
"""(pipeline, id) -> the lease in a document that was read, or what is wrong with the document."""
Claimed = Callable[[str], str]
"""The sink's pure part of a claim: the last tenure's sink state -> the next one's."""


@dataclass(frozen=True)
class Scan:
    """All leases of some pipelines, read between `started` and `ended` (Clock seconds).

    It shows every write that was answered before `started`. If only changes were read, deletions are an exception: a lease
    that the listing or an earlier change showed may be gone.

    base_at: if changes were added to a listing, when that listing began, or a later count that gave the same number of
    leases; otherwise None.

    token: the store's token from which the next scan reads changes; None if it must list.
    """

    seen: Mapping[LeaseKey, VersionedLease]
    started: float
    ended: float
    unreadable: Mapping[LeaseKey, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    listings: int = 1
    base_at: float | None = None
    token: str | None = None

    @property
    def listed_at(self) -> float:
        """When the last listing or count began: a lease that was deleted after that may still be shown."""
        return self.started if self.base_at is None else self.base_at

    def changed(self, read: Read, started: float, ended: float, token: str) -> Scan:
        """This scan, with the changed documents that were read between `started` and `ended`."""
        invalid, found = _unreadable(read), _readable(read)
        known = {LeaseKey(pipeline, partition_of(document)) for pipeline, document in read}
        kept = {key: error for key, error in self.unreadable.items() if key not in known}
        seen = self.seen
        if invalid:  # what was read of them before no longer counts
            seen = {key: each for key, each in seen.items() if (key.pipeline, lease_id(*key)) not in read}
        if found:
            seen = {**seen, **found}
        return replace(
            self,
            seen=seen,
            started=started,
            ended=ended,
            unreadable={**kept, **invalid},
            listings=1,
            base_at=self.listed_at,
            token=token,
        )

    @cached_property
    def leases(self) -> list[Lease]:
        return [seen.lease for seen in self.seen.values()]

    @cached_property
    def shape(self) -> Shape:
        """Everything that decides which host gets which lease; without ticks, epochs and positions, which change all
        the time.
        """
        return tuple(
            (
                *(lease.pipeline, lease.partition, lease.owner, lease.handoff_to),
                *(lease.closed, lease.tombstone, lease.scope, lease.children),
            )
            for lease in self.leases
        )

    @cached_property
    def lineage(self) -> Mapping[str, Shape]:
        """By pipeline, everything that decides which leases should exist. Owners do not."""
        return {
            pipeline: tuple(
                (
                    *(lease.partition, lease.closed, lease.tombstone),
                    *(lease.scope, lease.parents, lease.children),
                )
                for lease in leases.values()
            )
            for pipeline, leases in self.by_pipeline.items()
        }

    @cached_property
    def by_pipeline(self) -> Mapping[str, Mapping[str, Lease]]:
        """pipeline -> partition -> its lease."""
        found: dict[str, dict[str, Lease]] = {}
        for lease in self.leases:
            found.setdefault(lease.pipeline, {})[lease.partition] = lease
        return found

    @cached_property
    def requested(self) -> list[Lease]:
        """The leases that a host has requested."""
        return [lease for lease in self.leases if lease.handoff_to is not None]

    @cached_property
    def by_tenant(self) -> Mapping[Tenant, frozenset[LeaseKey]]:
        """The owned leases, by owner."""
        found: defaultdict[Tenant, list[LeaseKey]] = defaultdict(list)
        for lease in self.leases:
            if (tenant := lease.tenant) is not None:
                found[tenant].append(lease.key)
        return {tenant: frozenset(keys) for tenant, keys in found.items()}

    @cached_property
    def tenants(self) -> frozenset[Tenant]:
        return frozenset(self.by_tenant)


def _prefix_of(pipelines: Sequence[str]) -> str:
    """The prefix of the changes to read. Reading them once for all pipelines costs as much as for one."""
    return lease_prefix(pipelines[0]) if len(pipelines) == 1 else ""


def _unreadable(read: Read) -> dict[LeaseKey, InvalidDocument]:
    return {
        LeaseKey(pipeline, partition_of(document)): each
        for (pipeline, document), each in read.items()
        if isinstance(each, InvalidDocument)
    }


def _readable(read: Read) -> dict[LeaseKey, VersionedLease]:
    return {each.lease.key: each for each in read.values() if isinstance(each, VersionedLease)}


ASKED_MAX = 4
"""How often a host tries to write one request for a lease."""
PARSED_AT_ONCE = 256
"""How many lease documents of a scan are parsed before the event loop gets a turn."""


class Keeper:
    """Reads and writes leases for one host process. Its store must bound the time of every call (`TimedStore`)."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        host: str,
        incarnation: str,
        clock: Clock,
        timing: Timing,
        session: Session | None = None,
        bell: Bell | None = None,
    ) -> None:
        """session: of a process with a host; only such a process takes leases. bell: of any other process that changes leases."""
        self.store = self.outcomes = OutcomesStore(store, clock)
        self.host = host
        self.incarnation = incarnation
        self.timing = timing
        self.session = session
        self._bell = bell
        self._clock = clock
        self._known: dict[str, tuple[Stored, VersionedLease]] = {}
        self._tokens: dict[str, str] = {}
        """By prefix, the token up to which changes were read. It stays valid after a listing: some changes then show twice."""
        self._missed_at = -inf
        """When this host last found that a document from a scan was missing, or deleted a document."""
        self.can_count = True
        """False once the store has answered that it does not count, and from a count that failed until the next listing."""
        self._counts = True

    async def scan(self, pipelines: Iterable[str], since: Scan | None = None, *, counting: bool = False) -> Scan:
        """Read all leases of these pipelines. A document that has not changed since the last scan is not parsed again.

        since: an earlier scan of the same pipelines. Only what changed since is read and added to it, if the store offers
        that, and if no lease that the scan shows has turned out to be gone.

        counting: whether to count the leases, too, and to list them if some have been deleted. A count that fails
        changes only `can_count`.

        Raises StoreUnavailable.
        """
        names = tuple(pipelines)
        if since is not None and since.token is not None and since.listed_at > self._missed_at:
            counted_at = self._clock.monotonic()
            count = await self._count(names) if counting else None
            scan = await self._scan_changes(names, since, since.token)
            if scan is not None and count is None:
                return scan
            if scan is not None and count == len(scan.seen) and not scan.unreadable:
                return replace(scan, base_at=counted_at)
        started = self._clock.monotonic()
        token = await self._begin_changes(names)
        found_of = await run_side_by_side(
            names, lambda name: self.store.list(lease_prefix(name)), doing="listing leases of"
        )
        documents = [(name, stored) for name, found in zip(names, found_of, strict=True) for stored in found]
        read, self._known = await self._parse(documents)
        self.can_count = self._counts
        ended = self._clock.monotonic()
        seen, unreadable = _readable(read), _unreadable(read)
        listings = rounds_of(len(names)) + self._follows_changes
        return Scan(seen, started, ended, unreadable, listings, token=token)

    @property
    def _follows_changes(self) -> bool:
        """Whether this process runs a host, which reads changes between listings. Any other process lists in each scan."""
        return self.session is not None

    async def _begin_changes(self, names: Sequence[str]) -> str | None:
        """The present token; None if the store offers no changes, or cannot answer now. The listing follows in any case."""
        if not self._follows_changes:
            return None
        prefix = _prefix_of(names)
        if prefix not in self._tokens:
            with suppress(StoreUnavailable):
                begun = await self.store.read_changes(prefix)
                if begun is not None:
                    self._tokens[prefix] = begun.token
        return self._tokens.get(prefix)

    async def _count(self, names: Sequence[str]) -> int | None:
        """How many lease documents there are; None if the store does not count, or is slow: takeovers wait meanwhile.

        A scan that reads changes afterwards shows all of these. So if it shows as many leases, it shows only these, and no
        lease that was deleted before the count began.
        """
        assert self.session is not None, "only a host reads changes"
        self.can_count = False
        try:
            async with asyncio.timeout(self.session.timing.beat_timeout_s):
                counts = await run_side_by_side(
                    names, lambda name: self.store.count(lease_prefix(name)), doing="counting leases of"
                )
        except (StoreUnavailable, TimeoutError):
            return None
        self.can_count = self._counts = None not in counts
        return sum(each for each in counts if each is not None) if self._counts else None

    async def _scan_changes(self, names: Sequence[str], since: Scan, token: str) -> Scan | None:
        """None if the host must list instead."""
        started, prefix = self._clock.monotonic(), _prefix_of(names)
        changes = await self.store.read_changes(prefix, token)
        if changes is None:
            self._tokens.pop(prefix, None)
            return None
        self._tokens[prefix] = changes.token
        prefixes = {name: lease_prefix(name) for name in names}
        documents = [
            (name, stored)
            for stored in changes.documents
            for name, prefix in prefixes.items()
            if stored.id.startswith(prefix)
        ]
        read, known = await self._parse(documents)
        self._known.update(known)
        return since.changed(read, started, self._clock.monotonic(), changes.token)

    async def _parse(
        self, documents: Sequence[tuple[str, Stored]]
    ) -> tuple[Read, dict[str, tuple[Stored, VersionedLease]]]:
        """Parse documents, given with their pipelines. Returns them as `Read`, and those that need not be parsed again."""
        read: dict[tuple[str, str], VersionedLease | InvalidDocument] = {}
        known: dict[str, tuple[Stored, VersionedLease]] = {}
        for n, (name, stored) in enumerate(documents):
            if n and n % PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)  # beats do not wait until thousands are parsed
            before = self._known.get(stored.id)
            try:
                found = before[1] if before is not None and before[0] == stored else versioned(stored)
                known[stored.id] = stored, found
                read[name, stored.id] = found
            except InvalidDocument as error:
                read[name, stored.id] = advised(error, name, partition_of(stored.id))
        return read, known

    async def read(self, pipeline: str, partition: str) -> VersionedLease:
        """Raises StoreMissing, StoreUnavailable, InvalidDocument."""
        return versioned(await self.store.read(lease_id(pipeline, partition)))

    async def take(self, seen: VersionedLease, claimed: Claimed) -> OwnedLease | None:
        """Acquire the lease that was seen; None if another host was faster.

        After an ambiguous answer, the lease is read: it is ours if it shows our tenure. If this reading fails too, the next
        scan may show the lease as ours, left by an earlier attempt.

        Raises StoreUnavailable; StoreMissing or InvalidDocument from that reading.
        """
        assert self.session is not None, "only a host takes leases"
        began = begin(self._clock, self.session)
        wanted = seen.lease.acquired(self.host, self.incarnation, claimed(seen.lease.sink_state))
        try:
            etag = await self._replace(wanted, seen)
        except (StoreConflict, StoreMissing):
            return None
        except StoreAmbiguous:
            now = await self.read(*wanted.key)
            if not now.lease.is_same_tenure(wanted):
                return None
            # An earlier attempt may have written it, so it must be won again.
            wanted, etag, began = now.lease, now.etag, Began(began.at, 0)
        self.ring()
        return OwnedLease(self.store, wanted, etag, began, self._clock, self.session)

    async def probe(self, seen: VersionedLease) -> None:
        """Check that leases can be read and written, by a write that the store must refuse because of its ETag.

        Raises StoreUnavailable, StoreAmbiguous.
        """
        assert self.session is not None, "only a host probes"
        with suppress(StoreConflict, StoreMissing):
            await self.store.read(id_of(seen.lease))
            await self.store.replace(id_of(seen.lease), encode_lease(seen.lease), self.session.own_etag)

    async def ask(self, seen: VersionedLease) -> None:
        """Write this host's name into `handoff_to`. Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous.

        A busy owner writes often, so a request is written again if only a checkpoint was written in between.
        """
        for tries_left in reversed(range(ASKED_MAX)):
            try:
                with self.ringing(Hint(seen.lease.owner, seen.lease.pipeline)):
                    await self._replace(seen.lease.handoff_requested(self.host), seen)
                return
            except StoreConflict:
                if not tries_left:
                    raise
                now = await self._note_missing(self.read(*seen.lease.key))
                is_unasked = now.lease.handoff_to == seen.lease.handoff_to
                if not (is_unasked and now.lease.is_same_tenure(seen.lease)):
                    raise
                seen = now

    async def forget(self, seen: VersionedLease) -> None:
        """Remove a closed lease. Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous."""
        assert seen.lease.closed, "the children of a closed lease know where to begin; those of an open one do not"
        try:
            with self.ringing():
                await self.store.delete(id_of(seen.lease), seen.etag)
        finally:  # also if the answer is lost
            self._missed_at = self._clock.monotonic()

    async def rewrite(self, seen: VersionedLease, wanted: Lease) -> VersionedLease:
        """Write an operator's change (a release, a reset, `leasehold.leases.import_.plan`), and return the lease as stored.

        The owner notices at its next write or scan. Raises as `ask` does.
        """
        with self.ringing(Hint(wanted.owner, wanted.pipeline)):
            return VersionedLease(wanted, await self._replace(wanted, seen))

    async def create(self, lease: Lease) -> bool:
        """False if it exists already. Raises StoreUnavailable, StoreAmbiguous."""
        try:
            with self.ringing():
                await self.store.create(id_of(lease), encode_lease(lease))
        except StoreConflict:
            return False
        return True

    def ring(self, hint: Hint | None = None) -> None:
        """Note that leases or orders have changed: all hosts read them soon, and the host of the hint at once."""
        for each in (self.session, self._bell):
            if each is not None:
                each.ring()
                if hint is not None:
                    each.hints.add(hint)

    @contextmanager
    def ringing(self, hint: Hint | None = None) -> Iterator[None]:
        """Rings after a write that all hosts must notice, also if its answer was lost: it may have been carried out.

        hint: names the host that has to act. None if no host has to act at once.
        """
        try:
            yield
        except StoreAmbiguous:
            self.ring(hint)
            raise
        self.ring(hint)

    async def _replace(self, wanted: Lease, seen: VersionedLease) -> str:
        return await self._note_missing(self.store.replace(id_of(wanted), encode_lease(wanted), seen.etag))

    async def _note_missing(self, call: Awaitable[T]) -> T:
        """Await a call. If its document is missing, the next scan lists: changes do not show that a lease was deleted."""
        try:
            return await call
        except StoreMissing:
            self._missed_at = self._clock.monotonic()
            raise
