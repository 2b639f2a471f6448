"""This host's view of the others: which hosts are alive, and what operators have ordered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from leasehold.common.clock import Clock
from leasehold.leases.balance import Peer
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import LOOK_PREFIX, HostRecord, Tenant
from leasehold.leases.host_watch import HostWatch
from leasehold.leases.pause_orders import GROUP_PREFIX, NO_CONTROLS, Controls, controls_in
from leasehold.leases.session import Session
from leasehold.leases.store import LeaseStore, Stored

DEAD_AFTER = 10
"""A host's document is removed after it has not changed for this many times `patience_s`."""


@dataclass(frozen=True, slots=True)
class HostScan:
    """The hosts seen by one scan, by name. new: those that may not know yet who is dead. dead: documents of the long dead."""

    hosts: Mapping[str, HostRecord]
    live: frozenset[str]
    new: frozenset[str] = frozenset()
    dead: Sequence[Stored] = ()
    invalid: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    controls: Controls = NO_CONTROLS

    @property
    def peers(self) -> list[Peer]:
        return [self.hosts[name].peer(is_new=name in self.new) for name in sorted(self.live)]

    @property
    def live_records(self) -> list[HostRecord]:
        return [self.hosts[name] for name in self.live]


class Membership:
    """watch: the documents of all hosts, as this host has seen them so far."""

    def __init__(self, store: LeaseStore, session: Session, *, clock: Clock) -> None:
        self.session = session
        self.watch = HostWatch()
        self._store = store
        self._clock = clock

    async def look(self, named: Collection[Tenant]) -> None:
        """Read only the documents of hosts, and the bell. named: the owners that leases name. Raises StoreUnavailable."""
        started = self._clock.monotonic()
        self._see(await self._store.list(LOOK_PREFIX), named, started)

    async def scan(self, named: Collection[Tenant] = ()) -> HostScan:
        """Read the documents of all hosts and the operators' orders. Raises StoreUnavailable."""
        started = self._clock.monotonic()
        listed = await self._store.list(GROUP_PREFIX)
        self._see(listed, named, started)
        controls, watch, me = controls_in(listed), self.watch, self.session.record
        live = {**watch.live(), me.name: me}
        known = {name for name, _ in watch.known(self.session.timing.duration_s)}
        return HostScan(
            {**{each.name: each for each in watch.present_records}, **live},
            frozenset(live),
            frozenset(live) - known,
            watch.long_gone(DEAD_AFTER * self.session.timing.patience_s),
            {**watch.invalid, **controls.unreadable},
            controls,
        )

    def _see(self, listed: Sequence[Stored], named: Collection[Tenant], started: float) -> None:
        """Update `watch`, unless this host cannot write: then it must not judge others, and the time does not count."""
        if (session := self.session).may_judge:
            unread_s, ended = session.take_unread_s(), self._clock.monotonic()
            self.watch = self.watch.seen(listed, named, started, ended, session.timing, unread_s)

    async def clear_away(self, roll: HostScan) -> None:
        """Remove the documents of long-dead hosts.

        Raises StoreConflict (one was alive after all), StoreMissing (another host removed it), StoreUnavailable,
        StoreAmbiguous.
        """
        for stored in roll.dead:
            await self._store.delete(stored.id, stored.etag)
