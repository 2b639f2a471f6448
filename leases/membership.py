"""Which hosts are alive: every host has one document, whose tick it moves as often as it renews a lease.

Other hosts judge it by that tick, as they judge leases: on their own clock. A host without leases counts, a draining
one does not. The document also describes the host's activity for people; no decision uses that part.

A host that has a session is judged by the session instead (leasehold.leases.session_watch). Once all live hosts have one, leases
are judged by it, too (docs/protocol.md, Sessions).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from leasehold.common.clock import Clock
from leasehold.leases.balance import Peer
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Watch
from leasehold.leases.host_record import HOSTS_PREFIX, HostRecord, OwnDocument, decode_host, encode_host, host_id
from leasehold.leases.pause_orders import GROUP_PREFIX, NO_CONTROLS, Controls, controls_in
from leasehold.leases.session import LOOK_PREFIX, Session, SessionRecord, Tenant, session_id
from leasehold.leases.session_watch import SessionWatch
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.timing import SessionTiming, Timing

DEAD_AFTER = 10
"""After this many lease durations without a change, a host's document is removed."""


@dataclass(frozen=True, slots=True)
class HostScan:
    """The hosts seen by one scan. sessions: those that have not expired, by host. is_agreed: every live host has one."""

    hosts: Mapping[str, HostRecord]
    live: frozenset[str]
    new: frozenset[str] = frozenset()
    dead: tuple[Stored, ...] = ()
    invalid: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    controls: Controls = NO_CONTROLS
    sessions: Mapping[str, SessionRecord] = field(default_factory=lambda: MappingProxyType({}))
    is_agreed: bool = False

    @property
    def peers(self) -> list[Peer]:
        """A session is newer than the document of its host."""
        return [
            (self.sessions.get(name) or self.hosts[name]).peer(is_new=name in self.new) for name in sorted(self.live)
        ]

    @property
    def live_records(self) -> list[HostRecord]:
        """The documents of live hosts; one that has a session may lack its document for a while."""
        return [self.hosts[name] for name in self.live if name in self.hosts]


class Membership:
    """This host's own document, and its view of the other hosts.

    session: this host's, if it has one. sessions: all sessions, as this host has seen them so far.
    """

    def __init__(
        self, store: LeaseStore, me: HostRecord, *, clock: Clock, timing: Timing, session: Session | None = None
    ) -> None:
        self.session = session
        self.sessions = SessionWatch()
        self._store = store
        me = replace(me, has_session=session is not None)
        self._own = OwnDocument(store, host_id(me.name), me, host=me.name, encode=encode_host, decode=decode_host)
        self._clock = clock
        self._timing = timing
        self._watch: Watch[str] = Watch()
        self._met: Watch[str] = Watch()
        self._unread: Watch[str] = Watch()
        self._scanned_at = 0.0

    @property
    def me(self) -> HostRecord:
        record: HostRecord = self._own.record
        return record

    @property
    def intervals(self) -> Timing:
        """Once sessions show who lives, hosts' documents are read at audits alone: the time between two of them counts."""
        session = self.session
        is_rare = session is not None and session.is_agreed
        return replace(self._timing, balance_s=session.timing.audit_s) if session and is_rare else self._timing

    async def announce(self, activity: Mapping[str, object], *, draining: bool = False) -> None:
        """Create the document, or move its tick. Raises as `OwnDocument.write` does."""
        namesake = None if self.session is None else self.session.record.contested_by
        await self._own.write(
            lambda me: replace(
                me, draining=draining or me.draining, contested_by=me.contested_by or namesake, activity=activity
            )
        )

    async def leave(self) -> None:
        """Remove the document and the session, so that other hosts need not wait for them to expire. Keeps a namesake's.
        Raises StoreError.
        """
        try:
            await self._own.remove()
        finally:
            if self.session is not None:
                await self.session.end()

    async def look(self, named: Collection[Tenant]) -> None:
        """Read the sessions and the bell alone. named: the owners that leases name. Raises StoreUnavailable."""
        started = self._clock.monotonic()
        listed = await self._store.list(LOOK_PREFIX)
        self._see(listed, named, started)

    async def scan(self, named: Collection[Tenant] = ()) -> HostScan:
        """Read the documents of all hosts, the sessions and the operators' orders. Raises StoreUnavailable."""
        started = self._clock.monotonic()
        listed = await self._store.list(GROUP_PREFIX)
        self._see(listed, named, started)
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
        self._watch = self._watch.scanned(marks, started, ended, self.intervals)
        unread = {stored.id: (stored.etag,) for stored in documents if stored.id in invalid}
        self._unread = self._unread.scanned(unread, started, ended, self.intervals)
        incarnations = {name: (host.incarnation,) for name, host in hosts.items()}
        self._met = self._met.scanned(incarnations, started, ended, self.intervals)
        self._scanned_at = started
        hosts[self.me.name] = self.me
        live = frozenset(hosts) - self._watch.expired(started, self._timing) | {self.me.name}
        buried = {host_id(name) for name in self._watch.still_for(DEAD_AFTER * self._timing.duration_s, started) - live}
        dead = tuple(stored for stored in documents if stored.id in buried)
        known = self._met.still_for(self._timing.duration_s - self._timing.newcomer_slack_s, started)
        scan = HostScan(hosts, live, live - known, dead, {**invalid, **controls.unreadable}, controls)
        if self.session is None:
            return scan
        scan = self._with_sessions(scan, listed, self.session.timing)
        self.session.is_agreed = scan.is_agreed
        return scan

    def _see(self, listed: Sequence[Stored], named: Collection[Tenant], started: float) -> None:
        """Unless this host cannot write: then it must not judge others, and the time does not count."""
        if (session := self.session) is not None and session.may_judge:
            unread_s, ended = session.take_unread_s(), self._clock.monotonic()
            self.sessions = self.sessions.seen(listed, named, started, ended, session.timing, unread_s)

    def _with_sessions(self, scan: HostScan, listed: Sequence[Stored], timing: SessionTiming) -> HostScan:
        """Hosts that have sessions are judged by them."""
        sessions = self.sessions.live(timing)
        without = frozenset(name for name in scan.live if not scan.hosts[name].has_session)
        live = without | sessions.keys() | {self.me.name}
        unread = self._unread.sightings.keys() - self._unread.expired(self._scanned_at, self._timing)
        is_agreed = self.sessions.began > -inf and not (without or unread)  # it may be of a host without a session
        known = {host for host, _ in self.sessions.known(timing)}
        long_gone = {session_id(host) for host, _ in self.sessions.long_gone(DEAD_AFTER * self._timing.duration_s)} - {
            session_id(name) for name in live
        }
        return replace(
            scan,
            live=live,
            new=live - known if is_agreed else scan.new & live,
            dead=(*scan.dead, *(stored for stored in listed if stored.id in long_gone)),
            invalid={**scan.invalid, **self.sessions.invalid},
            sessions=sessions,
            is_agreed=is_agreed,
        )

    async def clear_away(self, roll: HostScan) -> None:
        """Remove the documents of long-dead hosts. Raises StoreConflict or StoreMissing if one was alive after all."""
        for stored in roll.dead:
            await self._store.delete(stored.id, stored.etag)

    @property
    def next_expiry(self) -> float:
        """When the next host that the last scan saw alive would be dead (Clock seconds), if it stopped now."""
        return self._watch.next_expiry(self._scanned_at, self._timing)


def mismatched(hosts: Collection[HostRecord], duration_s: float) -> list[HostRecord]:
    """Hosts whose leases have another duration than ours: they would take leases too early or too late."""
    return [host for host in hosts if host.lease_duration_s != duration_s]
