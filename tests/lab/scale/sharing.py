"""What the hosts of one process may share without knowing: what a document says, and what a scan of all leases shows.

Each real host parses for itself. Hundreds of them in one process would parse the same documents hundreds of times, and hold
them as often. What they share is pure: the same text always parses to the same values.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from leasehold.leases import balance, host_record, host_watch, tenure
from leasehold.leases import keeper as keepers
from leasehold.leases.balance import Distribution, Kept, Peer, Steps
from leasehold.leases.bootstrap import Bootstrap, RoundFindings
from leasehold.leases.document import decode_lease
from leasehold.leases.host_record import Tenant
from leasehold.leases.keeper import Keeper, Read, Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.lineage import Partition
from leasehold.leases.store import Stored
from leasehold.leases.tenure import VersionedLease
from leasehold.service import partitions

T = TypeVar("T")
DISTRIBUTION_OF = balance.distribution_of
AUDIT_OF = Bootstrap._audit_leases
SCOPES_OF = partitions.scopes_of  # type: ignore[attr-defined]
VERSIONED = tenure.versioned
READABLE, UNREADABLE = keepers._readable, keepers._unreadable
SCANS_KEPT = 32
READS_KEPT = 8
DISTRIBUTIONS_KEPT = 32
CHECKED_EVERY = 500
"""After so many shared scans, one is compared with what the host itself has read."""
COMPUTED = ("leases", "shape", "lineage", "by_tenant", "tenants", "requested", "by_pipeline")
"""What a scan finds out once, and keeps."""


class Sharing:
    """Leases are not deleted here, and ETags are increasing numbers. So the last write that a scan shows says all about it."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.decode: Callable[[str, str], Lease] = lru_cache(maxsize=400_000)(decode_lease)
        self._scans: OrderedDict[int, Scan] = OrderedDict()
        self._reads: OrderedDict[tuple[int, int], Read] = OrderedDict()
        self._shared = 0
        self._before: Scan | None = None
        """The scan that was computed last."""
        self._audited: object = None
        """What shows the leases that lack nothing."""
        self._places: dict[LeaseKey, int] = {}
        """The place of a lease in every scan."""
        self._distributions: deque[tuple[Any, tuple[Any, ...], Distribution]] = deque(maxlen=DISTRIBUTIONS_KEPT)
        tenure.decode_lease = self.decode  # type: ignore[attr-defined]
        pure = host_record.decode_host
        host_watch.decode_host = lru_cache(maxsize=8192)(  # type: ignore[attr-defined]
            getattr(pure, "__wrapped__", pure)
        )

        balance.distribution_of = self._distribution_of if is_on else DISTRIBUTION_OF
        share = self.audit

        async def audit_of(bootstrap: Bootstrap, *given: Any) -> RoundFindings:
            return await share(bootstrap, *given)

        Bootstrap._audit_leases = audit_of if is_on else AUDIT_OF  # type: ignore[method-assign]
        keepers.versioned = lru_cache(maxsize=400_000)(VERSIONED) if is_on else VERSIONED  # type: ignore[attr-defined]
        # The feed here keeps no scopes.
        partitions.scopes_of = (lambda leases: {}) if is_on else SCOPES_OF  # type: ignore[attr-defined]
        keepers._readable = _once(READABLE) if is_on else READABLE
        keepers._unreadable = _once(UNREADABLE) if is_on else UNREADABLE

    def _distribution_of(
        self,
        leases: Any,
        able: Mapping[str, Peer],
        seeing: Mapping[str, Peer],
        expired: Collection[LeaseKey],
        paused: Collection[str],
        benched: Collection[str],
        kept: frozenset[Kept],
    ) -> Steps[Distribution]:
        """The leases that a scan shows are one list for all hosts. Who is new counts if leases have expired."""
        peers = [(each.name, each.pipelines, each.leases_max, each.draining) for each in able.values()]
        asked = (peers, seeing.keys() if expired else (), expired, paused, benched, kept)
        for known, key, distribution in self._distributions:
            if known is leases and key == asked:
                return distribution
        distribution = yield from DISTRIBUTION_OF(leases, able, seeing, expired, paused, benched, kept)
        self._distributions.append((leases, asked, distribution))
        return distribution

    async def audit(
        self,
        bootstrap: Bootstrap,
        partitions: Sequence[Partition],
        leases: Any,
        unreadable: Any,
        scan: Scan,
        *more: Any,
    ) -> RoundFindings:
        """The first one of leases that lack nothing is the one of every host."""
        if scan.lineage is self._audited and not (unreadable or bootstrap._is_unused):
            return RoundFindings()
        audit = await AUDIT_OF(bootstrap, partitions, leases, unreadable, scan, *more)
        if audit == RoundFindings():
            self._audited = scan.lineage
        return audit

    def keeper(self, store: Any, **settings: Any) -> Keeper:
        return SharedKeeper(self, store, **settings) if self.is_on else Keeper(store, **settings)

    async def read(self, shown: int, documents: Sequence[object], parse: Callable[[], Any]) -> Read:
        """What a keeper makes of documents. shown: the last write among them: with their number, it says which they are."""
        key = shown, len(documents)
        if key not in self._reads:
            self._reads[key], _ = await parse()
            if len(self._reads) > READS_KEPT:
                self._reads.popitem(last=False)
        self._reads.move_to_end(key)
        return self._reads[key]

    def scan(self, made: Scan, shown: int) -> Scan:
        """A host's scan with the values of the first one that showed the same."""
        known = self._scans.get(shown)
        if known is None:
            known = self._scans[shown] = self._computed(made)
            if len(self._scans) > SCANS_KEPT:
                self._scans.popitem(last=False)
        self._scans.move_to_end(shown)
        self._shared += 1
        if self._shared % CHECKED_EVERY == 0:
            compare(known, made)
        scan = replace(made, seen=known.seen, unreadable=known.unreadable)
        scan.__dict__.update({name: known.__dict__[name] for name in COMPUTED}, shown=shown)
        return scan

    def _computed(self, made: Scan) -> Scan:
        """With all that a scan finds out; only what differs from the scan before is computed."""
        before = self._before
        if before is None or made.unreadable or before.unreadable or len(made.seen) != len(before.seen):
            self._before = made
            self._places = {key: n for n, key in enumerate(made.seen)}
            for computed in COMPUTED:
                getattr(made, computed)  # kept in the scan, once for all
            return made
        earlier = before.seen
        changed = [
            key
            for (key, each), other in zip(made.seen.items(), earlier.values(), strict=True)
            if each is not other and each != other
        ]
        part = replace(made, seen={key: made.seen[key] for key in changed})
        scan = self._before = replace(made, seen={**earlier, **part.seen})
        places = [self._places[key] for key in changed]
        left = replace(before, seen={key: earlier[key] for key in changed})
        others = [lease for lease in before.requested if lease.key not in part.seen]
        scan.__dict__.update(
            leases=_patched(before.leases, places, part.leases),
            shape=tuple(_patched(before.shape, places, part.shape)),
            lineage=before.lineage if left.lineage == part.lineage else replace(scan).lineage,
            by_tenant=(by_tenant := _moved(before, part)),
            tenants=frozenset(by_tenant),
            requested=sorted([*others, *part.requested], key=lambda lease: self._places[lease.key]),
            by_pipeline={
                name: {**leases, **part.by_pipeline.get(name, {})} for name, leases in before.by_pipeline.items()
            },
        )
        return scan


class SharedKeeper(Keeper):
    """It sends what a Keeper sends, and its scans are a Keeper's: only their values are those of an equal scan."""

    def __init__(self, sharing: Sharing, store: Any, **settings: Any) -> None:
        super().__init__(store, **settings)
        self._sharing = sharing
        self._shown = 0

    async def scan(self, pipelines: Iterable[str], since: Scan | None = None, *, counting: bool = False) -> Scan:
        self._shown = 0 if since is None else since.__dict__["shown"]
        made = await super().scan(pipelines, since, counting=counting)
        return self._sharing.scan(made, self._shown)

    async def _parse(
        self, documents: Sequence[tuple[str, Stored]]
    ) -> tuple[Read, dict[str, tuple[Stored, VersionedLease]]]:
        """All hosts know together what need not be parsed again."""
        shown = max((int(stored.etag) for _, stored in documents), default=0)
        self._shown = max(self._shown, shown)
        return await self._sharing.read(shown, documents, lambda: super(SharedKeeper, self)._parse(documents)), {}


def compare(shared: Scan, made: Scan) -> None:
    """Raises AssertionError if a host would not have read what it was given."""
    plain = replace(made)  # has computed nothing
    for name in ("seen", "unreadable", *COMPUTED):
        if _unordered(getattr(shared, name)) != _unordered(getattr(plain, name)):
            raise AssertionError(f"the shared scan has other {name} than a keeper has read")


def _unordered(found: Any) -> Any:
    """A host that has seen leases begin knows them in another order than one that has listed them."""
    if isinstance(found, Mapping):
        return {key: _unordered(each) if isinstance(each, tuple) else each for key, each in found.items()}
    return sorted(found, key=repr) if isinstance(found, list | tuple) else found


def _moved(before: Scan, part: Scan) -> Mapping[Tenant, frozenset[LeaseKey]]:
    """The leases by owner, where those of a part may have another owner than before."""
    found = dict(before.by_tenant)
    left = replace(before, seen={key: before.seen[key] for key in part.seen})
    for tenant, keys in left.by_tenant.items():
        found[tenant] -= keys
    for tenant, keys in part.by_tenant.items():
        found[tenant] = found.get(tenant, frozenset()) | keys
    return {tenant: keys for tenant, keys in found.items() if keys}


def _patched(rows: Sequence[T], places: Iterable[int], others: Iterable[T]) -> list[T]:
    found = list(rows)
    for place, row in zip(places, others, strict=True):
        found[place] = row
    return found


def _once(pure: Callable[[Read], Any]) -> Callable[[Read], Any]:
    """The results for the mappings that were given last, which callers must not change."""
    results: deque[tuple[Read, Any]] = deque(maxlen=READS_KEPT)

    def found(read: Read) -> Any:
        for known, result in results:
            if known is read:
                return result
        results.append((read, pure(read)))
        return results[-1][1]

    return found
