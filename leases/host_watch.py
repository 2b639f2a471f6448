"""What this host sees of the documents of a group's hosts, and therefore which hosts are dead. Pure (docs/protocol.md, S4).

A host has expired if what this host sees of its document has not changed for the duration that the document names: its
ETag, or that there is no document of that incarnation. A document that cannot be read may be of any incarnation of its
host. Any write starts the time again, even one that puts an earlier state back, and so does a deletion: a beat may have
been written and overwritten in between.

A host whose documents name no term for two durations has expired, too: it gets no answers in time, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Watch
from leasehold.leases.host_record import BELL_ID, HOSTS_PREFIX, RENOUNCED, HostRecord, Tenant, decode_host
from leasehold.leases.store import Stored
from leasehold.leases.timing import LASTS_S_MAX, Timing

WITHOUT_TERM = 2
"""After this many durations without a term, a host counts as dead."""


@dataclass(frozen=True, slots=True)
class HostWatch:
    """records: hosts as last seen; one without a document stays until no lease names it.

    began: when the last look began. present: the documents of the hosts that have one. invalid: documents that cannot be read.
    """

    records: Mapping[Tenant, HostRecord] = field(default_factory=lambda: MappingProxyType({}))
    present: Mapping[Tenant, Stored] = field(default_factory=lambda: MappingProxyType({}))
    began: float = -inf
    invalid: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    setting_s: float = LASTS_S_MAX
    _watch: Watch[Tenant] = field(default_factory=Watch)
    _termless: Watch[Tenant] = field(default_factory=Watch)
    _met: Watch[Tenant] = field(default_factory=Watch)
    _bell: str | None = None
    _gap_max_s: float = 0.0
    """The longest gap by the duration that this host had at the last look, by which the next look was due."""

    def seen(
        self,
        documents: Iterable[Stored],
        named: Collection[Tenant],
        started: float,
        ended: float,
        timing: Timing,
        unread_s: float = 0.0,
    ) -> HostWatch:
        """The state after a look from `started` to `ended`.

        named: the owners that leases name. timing: this host's. unread_s: time since the last look that does not count.
        """
        found: dict[Tenant, HostRecord] = {}
        present: dict[Tenant, Stored] = {}
        unread: dict[str, str] = {}
        invalid: dict[str, InvalidDocument] = {}
        bell: str | None = None
        for stored in documents:
            if stored.id == BELL_ID:
                bell = stored.etag
            elif stored.id.startswith(HOSTS_PREFIX):
                try:
                    record = decode_host(stored.id, stored.body)
                    found[record.tenant], present[record.tenant] = record, stored
                except InvalidDocument as error:
                    invalid[stored.id] = error
                    unread[stored.id.removeprefix(HOSTS_PREFIX)] = stored.etag
        gone = self.records.keys() & frozenset(named)  # otherwise it has left
        etags: dict[Tenant, str | None] = {
            tenant: present[tenant].etag if tenant in present else unread.get(tenant[0])
            for tenant in {*found, *named, *gone}
        }
        termless = {
            tenant: ("",) if tenant in found and not found[tenant].term else (etag,) for tenant, etag in etags.items()
        }
        looks = timing.looks._replace(gap_max_s=max(timing.looks.gap_max_s, self._gap_max_s))
        return HostWatch(
            {**{tenant: self.records[tenant] for tenant in gone}, **found},
            present,
            started,
            invalid,
            max(timing.duration_s, LASTS_S_MAX),
            self._watch.scanned({each: (etag,) for each, etag in etags.items()}, started, ended, looks, unread_s),
            self._termless.scanned(termless, started, ended, looks, unread_s),
            self._met.scanned(dict.fromkeys(etags, ()), started, ended, looks),
            bell,
            timing.looks.gap_max_s,
        )

    def expired(self) -> frozenset[Tenant]:
        """The hosts that were dead when the last look began."""
        silent = self._watch.still_for(self._lasts_s, self.began)
        return silent | self._termless.still_for(lambda tenant: WITHOUT_TERM * self._lasts_s(tenant), self.began)

    def expired_owners(self, owners: Collection[Tenant], read_until: float) -> frozenset[Tenant]:
        """The dead among `owners`; empty if the last look began before `read_until`, when their leases had been read (S5)."""
        return self.expired().intersection(owners) if self.began >= read_until else frozenset()

    def renounced(self, read_until: float) -> Mapping[Tenant, frozenset[str]]:
        """By host, the pipelines that it has renounced; empty if the last look began before `read_until` (S5)."""
        if self.began < read_until:
            return {}
        found = {tenant: self.records[tenant].which_are(RENOUNCED) for tenant in self.present}
        return {tenant: pipelines for tenant, pipelines in found.items() if pipelines}

    def live(self) -> Mapping[str, HostRecord]:
        """The hosts that have not expired, by name. If two have one name, the one that has the document counts."""
        kept = sorted(self.records.keys() - self.expired(), key=lambda tenant: tenant in self.present)
        return {tenant[0]: self.records[tenant] for tenant in kept}

    @property
    def present_records(self) -> Sequence[HostRecord]:
        """The hosts that have a document, as the last look read it."""
        return [self.records[tenant] for tenant in self.present]

    @property
    def signature(self) -> frozenset[object]:
        """If this has changed, leases may have changed hands. Only the bell's ETag counts, and not what the bell contains."""
        rings = ((tenant, each.ring, each.draining, tenant in self.present) for tenant, each in self.records.items())
        return frozenset((self._bell, *rings))

    def known(self, for_s: float) -> frozenset[Tenant]:
        """The hosts that were first seen at least this long ago: they know by now who has expired."""
        return self._met.still_for(for_s, self.began)

    def next_expiry(self) -> float:
        """When the next host expires (Clock seconds) if no document changes."""
        ends = [seen.since + self._lasts_s(tenant) for tenant, seen in self._watch.sightings.items()]
        return max(min((end for end in ends if end > self.began), default=inf), self._watch.judges_from)

    def long_gone(self, seconds: float) -> Sequence[Stored]:
        """The documents that have not changed for this long."""
        still = self._watch.still_for(seconds, self.began)
        return [stored for tenant, stored in self.present.items() if tenant in still]

    def _lasts_s(self, tenant: Tenant) -> float:
        """What the document names. If there is none, LASTS_S_MAX, or this host's duration if that is longer."""
        return self.records[tenant].lasts_s if tenant in self.present else self.setting_s
