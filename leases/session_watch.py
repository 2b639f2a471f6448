"""What this host sees of the sessions of a group, and therefore which of them have expired. Pure.

A session has expired if what this host sees of it has not changed for the session's duration: its ETag, or that there
is no document of that incarnation. A document that cannot be read may be of any incarnation of its host. Any write
starts the time again, also one that puts an earlier state back, and so does the end of the document: a heartbeat may
have been written and overwritten in between (docs/protocol.md, S4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Watch
from leasehold.leases.session import BELL_ID, SESSIONS_PREFIX, SessionRecord, Tenant, decode_session
from leasehold.leases.store import Stored
from leasehold.leases.timing import SessionTiming


@dataclass(frozen=True, slots=True)
class SessionWatch:
    """records: sessions as last seen. If the document is gone, until the session expires or no lease names its owner.

    began: when the last look began. present: the sessions that have a document. invalid: documents that cannot be read.
    """

    records: Mapping[Tenant, SessionRecord] = field(default_factory=lambda: MappingProxyType({}))
    present: frozenset[Tenant] = frozenset()
    began: float = -inf
    invalid: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    _watch: Watch[Tenant] = field(default_factory=Watch)
    _met: Watch[Tenant] = field(default_factory=Watch)
    _bell: str | None = None

    def seen(
        self,
        documents: Iterable[Stored],
        named: Collection[Tenant],
        started: float,
        ended: float,
        timing: SessionTiming,
        unread_s: float = 0.0,
    ) -> SessionWatch:
        """The state after a look from `started` to `ended`.

        named: the owners that leases name. unread_s: time since the last look that does not count.
        """
        found: dict[Tenant, SessionRecord] = {}
        etags: dict[Tenant, str] = {}
        unread: dict[str, str] = {}
        invalid: dict[str, InvalidDocument] = {}
        bell: str | None = None
        for stored in documents:
            if stored.id == BELL_ID:
                bell = stored.etag
            elif stored.id.startswith(SESSIONS_PREFIX):
                try:
                    record = decode_session(stored.id, stored.body)
                    found[record.tenant], etags[record.tenant] = record, stored.etag
                except InvalidDocument as error:
                    invalid[stored.id] = error
                    unread[stored.id.removeprefix(SESSIONS_PREFIX)] = stored.etag
        gone = (self.records.keys() - self.expired(timing)) & frozenset(named)  # otherwise it has left
        marks = {tenant: (etags.get(tenant, unread.get(tenant[0])),) for tenant in {*found, *named, *gone}}
        return SessionWatch(
            {**{tenant: self.records[tenant] for tenant in gone}, **found},
            frozenset(found),
            started,
            invalid,
            self._watch.scanned(marks, started, ended, timing, unread_s=unread_s),
            self._met.scanned(dict.fromkeys(marks, ()), started, ended, timing),
            bell,
        )

    def expired(self, timing: SessionTiming) -> frozenset[Tenant]:
        """Those that have not moved for their duration, or for ours if that is longer, when the last look began."""
        return frozenset(
            tenant
            for tenant, seen in self._watch.sightings.items()
            if self.began >= seen.since + self._duration_s(tenant, timing)
        )

    def expired_owners(self, owners: Collection[Tenant], read_until: float, timing: SessionTiming) -> frozenset[Tenant]:
        """Those of the owners in leases that were read until then. If the look began before, a lease may have a new owner."""
        return self.expired(timing).intersection(owners) if self.began >= read_until else frozenset()

    def live(self, timing: SessionTiming) -> Mapping[str, SessionRecord]:
        """By host: the sessions that have not expired. If two have one name, the one that has the document."""
        expired = self.expired(timing)
        kept = sorted(self.records.keys() - expired, key=lambda tenant: tenant in self.present)
        return {tenant[0]: self.records[tenant] for tenant in kept}

    @property
    def present_records(self) -> Sequence[SessionRecord]:
        """Those that have a document, as it was read in the last look."""
        return [self.records[tenant] for tenant in self.present]

    @property
    def signature(self) -> frozenset[object]:
        """Leases may have changed hands if this has changed. Only the ETag of the bell counts, whatever it holds."""
        rings = ((tenant, each.ring, each.draining, tenant in self.present) for tenant, each in self.records.items())
        return frozenset((self._bell, *rings))

    def known(self, timing: SessionTiming) -> frozenset[Tenant]:
        """Those that were first seen a session's duration ago: they see by now who has expired."""
        return self._met.still_for(timing.duration_s, self.began)

    def next_expiry(self, timing: SessionTiming) -> float:
        """When the next one would have expired (Clock seconds), if none moves."""
        ends = [seen.since + self._duration_s(tenant, timing) for tenant, seen in self._watch.sightings.items()]
        return min((end for end in ends if end > self.began), default=inf)

    def long_gone(self, seconds: float) -> frozenset[Tenant]:
        """Those that have a document which has not moved for so long."""
        return self._watch.still_for(seconds, self.began) & self.present

    def _duration_s(self, tenant: Tenant, timing: SessionTiming) -> float:
        record = self.records.get(tenant)
        return timing.duration_s if record is None else max(timing.duration_s, record.duration_s)
