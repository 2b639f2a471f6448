"""Which hosts are alive: every host has one document, whose tick it moves as often as it renews a lease.

Other hosts judge it by that tick, as they judge leases: on their own clock. A host without leases counts, a draining
one does not. The document also describes the host's activity for people; no decision uses that part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from leasehold.common.clock import Clock
from leases.balance import Peer
from leases.errors import DuplicateHost, InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing
from leases.expiry import Watch
from leases.host_record import HOSTS_PREFIX, HostRecord, decode_host, encode_host, host_id
from leases.pause_orders import GROUP_PREFIX, NO_CONTROLS, Controls, controls_in
from leases.store import LeaseStore, Stored
from leases.timing import Timing

DEAD_AFTER = 10
"""After this many lease durations without a change, a host's document is removed."""


@dataclass(frozen=True, slots=True)
class HostScan:
    """The hosts seen by one scan."""

    hosts: Mapping[str, HostRecord]
    live: frozenset[str]
    new: frozenset[str] = frozenset()
    dead: tuple[Stored, ...] = ()
    invalid: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    controls: Controls = NO_CONTROLS

    @property
    def peers(self) -> list[Peer]:
        return [self.hosts[name].peer(is_new=name in self.new) for name in sorted(self.live)]


class Membership:
    """This host's own document, and its view of the other hosts."""

    def __init__(self, store: LeaseStore, me: HostRecord, *, clock: Clock, timing: Timing) -> None:
        self._store = store
        self._me = me
        self._etag: str | None = None
        self._clock = clock
        self._timing = timing
        self._watch: Watch[str] = Watch()
        self._met: Watch[str] = Watch()
        self._scanned_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def me(self) -> HostRecord:
        return self._me

    async def announce(self, activity: Mapping[str, object], *, draining: bool = False) -> None:
        """Create the document, or move its tick.

        The first announcement replaces the document of an earlier incarnation. Raises DuplicateHost if another process
        has taken over the name since, StoreUnavailable, StoreAmbiguous.
        """
        async with self._lock:
            wanted = replace(
                self._me, tick=self._me.tick + 1, draining=draining or self._me.draining, activity=activity
            )
            try:
                self._etag = await self._write(wanted)
            except (StoreConflict, StoreMissing):
                await self._reread(wanted)
            except StoreAmbiguous:
                self._me = wanted  # the next announcement conflicts if this one arrived, and reads again
                raise
            else:
                self._me = wanted

    async def leave(self) -> None:
        """Remove the document, so that other hosts need not wait for it to expire. Keeps a namesake's. Raises
        StoreError.
        """
        async with self._lock:
            if self._me.tick == 0:
                return  # never announced
            try:
                stored = await self._store.read(host_id(self._me.name))
            except StoreMissing:
                return
            found = _decoded(stored)
            if found is not None and found.incarnation == self._me.incarnation:
                await self._store.delete(stored.id, stored.etag)

    async def scan(self) -> HostScan:
        """Raises StoreUnavailable."""
        started = self._clock.monotonic()
        listed = await self._store.list(GROUP_PREFIX)
        documents = [stored for stored in listed if stored.id.startswith(HOSTS_PREFIX)]
        controls = controls_in(listed)
        hosts: dict[str, HostRecord] = {}
        invalid: dict[str, InvalidDocument] = {}
        for stored in documents:
            try:
                host = decode_host(stored.id, stored.body)
                hosts[host.name] = host
            except InvalidDocument as error:
                invalid[stored.id] = error
        ended = self._clock.monotonic()
        marks = {name: host.mark for name, host in hosts.items()}
        self._watch = self._watch.scanned(marks, started, ended, self._timing)
        incarnations = {name: (host.incarnation,) for name, host in hosts.items()}
        self._met = self._met.scanned(incarnations, started, ended, self._timing)
        self._scanned_at = started
        hosts[self._me.name] = self._me
        live = frozenset(hosts) - self._watch.expired(started, self._timing) | {self._me.name}
        buried = {host_id(name) for name in self._watch.still_for(DEAD_AFTER * self._timing.duration_s, started) - live}
        dead = tuple(stored for stored in documents if stored.id in buried)
        known = self._met.still_for(self._timing.duration_s - self._timing.newcomer_slack_s, started)
        return HostScan(hosts, live, live - known, dead, {**invalid, **controls.unreadable}, controls)

    async def clear_away(self, roll: HostScan) -> None:
        """Remove the documents of long-dead hosts. Raises StoreConflict or StoreMissing if one was alive after all."""
        for stored in roll.dead:
            await self._store.delete(stored.id, stored.etag)

    @property
    def next_expiry(self) -> float:
        """When the next host that the last scan saw alive would be dead (Clock seconds), if it stopped now."""
        return self._watch.next_expiry(self._scanned_at, self._timing)

    async def _write(self, wanted: HostRecord) -> str:
        body = encode_host(wanted)
        if self._etag is None:
            return await self._store.create(host_id(wanted.name), body)
        return await self._store.replace(host_id(wanted.name), body, self._etag)

    async def _reread(self, wanted: HostRecord) -> None:
        """Another write changed our document: an earlier incarnation's, our own after a lost answer, or a namesake's."""
        document = host_id(wanted.name)
        try:
            stored = await self._store.read(document)
        except StoreMissing:
            self._etag = await self._store.create(document, encode_host(wanted))
            self._me = wanted
            return
        found = _decoded(stored)
        theirs = found.incarnation if found else None
        if self._etag is not None and theirs not in (None, wanted.incarnation):
            await self._give_way(stored)
            raise DuplicateHost(
                f"another process (incarnation {theirs}) runs as host '{wanted.name}': this one stops;"
                " give every process a host.name of its own"
            )
        if found and theirs == wanted.incarnation:
            wanted = replace(wanted, contested_by=found.contested_by)
        self._etag = await self._store.replace(document, encode_host(wanted), stored.etag)
        self._me = wanted

    async def _give_way(self, stored: Stored) -> None:
        """Leave a note in the namesake's document, so that it reports the clash too."""
        namesake = replace(decode_host(stored.id, stored.body), contested_by=self._me.incarnation)
        await self._store.replace(stored.id, encode_host(namesake), stored.etag)


def mismatched(hosts: Collection[HostRecord], duration_s: float) -> list[HostRecord]:
    """Hosts whose leases have another duration than ours: they would take leases too early or too late."""
    return [host for host in hosts if host.lease_duration_s != duration_s]


def _decoded(stored: Stored) -> HostRecord | None:
    try:
        return decode_host(stored.id, stored.body)
    except InvalidDocument:
        return None  # unreadable: ours to replace
