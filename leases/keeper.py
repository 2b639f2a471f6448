"""Read, change, replace if the ETag still matches: the only writer of leases.

`Keeper` scans all leases, and takes, requests and creates single ones. `OwnedLease` is one tenure: the owner makes all
its writes through it, one at a time, so that renewals and checkpoints never conflict with each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from leasehold.common.clock import Clock
from leases.document import advised, decode_lease, encode_lease, lease_id, lease_prefix, partition_of
from leases.errors import InvalidDocument, LeaseLost, LeaseReset, StoreAmbiguous, StoreConflict, StoreMissing
from leases.expiry import Mark
from leases.lease import Child, Lease, LeaseKey
from leases.session import Session, Tenant
from leases.side_by_side import rounds_of, run_side_by_side
from leases.store import LeaseStore, Stored
from leases.timing import Timing

CONFLICTS_MAX = 8
"""How often a change starts over because another writer was first. More than a few in a row mean a program that writes
in a loop.
"""

Shape = tuple[tuple[object, ...], ...]
"""Scans with equal shapes lead to equal plans."""
Ticks = dict[LeaseKey, int]
"""By lease, the highest tick that this incarnation may have written."""
Claimed = Callable[[str], str]
"""The sink's pure part of a claim: the last tenure's sink state -> the next one's."""


class VersionedLease(NamedTuple):
    """A lease as it was read, with the ETag that a change must match."""

    lease: Lease
    etag: str


@dataclass(frozen=True)
class Scan:
    """All leases of some pipelines, read between `started` and `ended` (Clock seconds)."""

    seen: Mapping[LeaseKey, VersionedLease]
    invalid: tuple[InvalidDocument, ...]
    started: float
    ended: float
    unreadable: Mapping[LeaseKey, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))
    listings: int = 1

    def without_sessions(self) -> Scan:
        """The scan for a host without a session, which can neither judge nor own a lease that sessions judge."""
        judged = {key: seen for key, seen in self.seen.items() if seen.lease.by_session}
        if not judged:
            return self
        unreadable = {
            key: InvalidDocument(
                f"{_name(lease)} is judged by sessions, and this host has none: start it with sessions (`Timing.session`), as the"
                " hosts that wrote the lease were"
            )
            for key, (lease, _) in judged.items()
        }
        seen = {key: each for key, each in self.seen.items() if key not in judged}
        return replace(self, seen=seen, unreadable={**self.unreadable, **unreadable})

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

    @property
    def marks(self) -> dict[LeaseKey, Mark]:
        """What to watch for expiry: the owned leases that are not judged by a session."""
        return {
            key: (lease.owner, lease.incarnation, lease.epoch, lease.tick)
            for key, (lease, _) in self.seen.items()
            if lease.owner is not None and not lease.by_session
        }

    @property
    def tenants(self) -> frozenset[Tenant]:
        """The owners of the other leases."""
        return frozenset(lease.tenant for lease in self.leases if lease.by_session and lease.tenant is not None)


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
    ) -> None:
        """session: of this host, if it has one; without, every lease is kept alive by itself."""
        self.store = store
        self.host = host
        self.incarnation = incarnation
        self.timing = timing
        self.session = session
        self._clock = clock
        self._known: dict[str, tuple[Stored, VersionedLease]] = {}
        self._ticks: Ticks = {}

    async def scan(self, pipelines: Iterable[str]) -> Scan:
        """Raises StoreUnavailable. A document that has not changed since the last scan is not parsed again."""
        started = self._clock.monotonic()
        names = tuple(pipelines)
        found_of = await run_side_by_side(
            names, lambda name: self.store.list(lease_prefix(name)), doing="listing leases of"
        )
        documents = [(name, stored) for name, found in zip(names, found_of, strict=True) for stored in found]
        seen: dict[LeaseKey, VersionedLease] = {}
        unreadable: dict[LeaseKey, InvalidDocument] = {}
        known: dict[str, tuple[Stored, VersionedLease]] = {}
        for n, (name, stored) in enumerate(documents):
            if n and n % PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)  # renewals do not wait until thousands are parsed
            before = self._known.get(stored.id)
            try:
                found = before[1] if before is not None and before[0] == stored else _seen(stored)
                known[stored.id] = stored, found
                seen[found.lease.key] = found
            except InvalidDocument as error:
                partition = partition_of(stored.id)
                unreadable[LeaseKey(name, partition)] = advised(error, name, partition)
        self._known = known
        ended = self._clock.monotonic()
        return Scan(seen, tuple(unreadable.values()), started, ended, unreadable, rounds_of(len(names)))

    async def read(self, pipeline: str, partition: str) -> VersionedLease:
        """Raises StoreMissing, StoreUnavailable, InvalidDocument."""
        return _seen(await self.store.read(lease_id(pipeline, partition)))

    async def take(self, seen: VersionedLease, claimed: Claimed) -> OwnedLease | None:
        """Acquire the lease that was seen; None if another host was faster.

        The tick starts above all that this incarnation wrote, even if the document was restored to an earlier state.
        Otherwise, a host that had seen an earlier one of these ticks would take the new one for it, and the lease for
        expired.

        An ambiguous answer is resolved by reading: the lease is ours if it has our epoch. Raises StoreUnavailable,
        StoreAmbiguous (reading failed too: the next scan shows the lease as ours, from an earlier attempt).
        """
        assert self.session is not None or not seen.lease.by_session, "sessions judge it, and this host has none"
        began = begin(self._clock, self.session)
        earlier = replace(seen.lease, tick=max(seen.lease.tick, self._ticks.get(seen.lease.key, 0)))
        wanted = agreed(earlier.acquired(self.host, self.incarnation, claimed(seen.lease.sink_state)), self.session)
        self._ticks[wanted.key] = wanted.tick
        try:
            etag = await self.store.replace(_id(wanted), encode_lease(wanted), seen.etag)
        except (StoreConflict, StoreMissing):
            return None
        except StoreAmbiguous:
            now = await self.read(*wanted.key)
            if not now.lease.is_same_tenure(wanted):
                return None
            wanted, etag = now.lease, now.etag
        self._ring()
        return OwnedLease(self.store, wanted, etag, began, self._clock, self.timing, self._ticks, self.session)

    async def ask(self, seen: VersionedLease) -> None:
        """Write this host's name into `handoff_to`. Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous."""
        wanted = seen.lease.handoff_requested(self.host)
        await self.store.replace(_id(wanted), encode_lease(wanted), seen.etag)
        self._ring()

    async def forget(self, seen: VersionedLease) -> None:
        """Remove a closed lease. Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous."""
        assert seen.lease.closed, "the children of a closed lease know where to begin; those of an open one do not"
        await self.store.delete(_id(seen.lease), seen.etag)
        self._ring()

    async def rewrite(self, seen: VersionedLease, wanted: Lease) -> VersionedLease:
        """Write an operator's change (a release, a reset, `leases.import_.plan`), and return the lease as stored.

        The owner notices at its next write or scan. Raises as `ask` does.
        """
        written = VersionedLease(wanted, await self.store.replace(_id(wanted), encode_lease(wanted), seen.etag))
        self._ring()
        return written

    async def create(self, lease: Lease) -> bool:
        """False if it exists already. Raises StoreUnavailable, StoreAmbiguous."""
        try:
            await self.store.create(_id(lease), encode_lease(lease))
        except StoreConflict:
            return False
        self._ring()
        return True

    def _ring(self) -> None:
        if self.session is not None:
            self.session.ring()


class Began(NamedTuple):
    """When a write was begun (Clock seconds), and the host's term then: trust that was over returns with another term."""

    at: float
    term: int | None


def begin(clock: Clock, session: Session | None) -> Began:
    return Began(clock.monotonic(), None if session is None else session.term)


def agreed(lease: Lease, session: Session | None) -> Lease:
    """The lease as its owner writes it: its session judges it once all hosts of the group can read that."""
    return lease if session is None or not session.is_agreed else replace(lease, by_session=True)


class OwnedLease:
    """One tenure of one lease. Every method raises LeaseLost once the tenure has ended; it cannot be resumed.

    Trust runs from the *start* of the last successful write, because other hosts may have seen the tick from then on.
    After trust has expired, the owner sends nothing and keeps trying to renew with its old ETag, until it either
    resumes or learns that it lost the lease.

    A lease that is judged by the session is trusted while the session is, if it was written in the session's present term.
    """

    def __init__(
        self,
        store: LeaseStore,
        lease: Lease,
        etag: str,
        began: Began,
        clock: Clock,
        timing: Timing,
        ticks: Ticks,
        session: Session | None = None,
    ) -> None:
        assert lease.owner is not None, "only an owner has a tenure"
        self._store = store
        self._lease = lease
        self._etag = etag
        self._clock = clock
        self._timing = timing
        self._ticks = ticks
        self._lock = asyncio.Lock()
        self._session = session
        self._unsettled_since: Began | None = None
        self._raising_to: int | None = None
        self._is_agreeing = False
        self._lost: LeaseLost | None = None
        self._written = began
        self.is_doubted = False
        self.changed = asyncio.Event()

    @property
    def lease(self) -> Lease:
        """As last written or read by this tenure."""
        return self._lease

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def renewed_at(self) -> float:
        """When the last successful write was begun."""
        return self._written.at

    @property
    def won_term(self) -> int | None:
        """The term of the host in which that was; None for a host without a session."""
        return self._written.term

    @property
    def session(self) -> Session | None:
        """The session that judges this lease; None if its own tick does."""
        return self._session if self._lease.by_session else None

    @property
    def trusted_until(self) -> float:
        """Until a write that changes by what the lease is judged is settled, both bounds hold."""
        by_tick = inf if self._lease.by_session else self.renewed_at + self._timing.trust_s
        if not (self._lease.by_session or self._is_agreeing):
            return by_tick
        session = self._session
        return -inf if session is None or self.won_term != session.term else min(by_tick, session.trusted_until)

    @property
    def is_trusted(self) -> bool:
        return self._lost is None and self._clock.monotonic() < self.trusted_until

    @property
    def must_be_won(self) -> bool:
        """Whether the host's session is trusted again after a lapse, and this lease is not until it is written."""
        return self._lost is None and self.session is not None and self.session.must_win(self.won_term)

    async def renew(self) -> None:
        """Raises LeaseLost, StoreUnavailable, StoreAmbiguous, StoreConflict."""
        await self._change(Lease.renewed)

    async def checkpoint(self, continuation: str | None, sink_state: str) -> None:
        """Store a position up to which the sink has made everything durable. Raises as `renew` does."""
        await self._change(lambda lease: lease.checkpointed(continuation, sink_state))

    async def raise_epoch(self, above: int, claimed: Callable[[str], str]) -> None:
        """Fence this owner's own earlier writes. Raises as `renew` does.

        claimed: computes the new sink state from the stored one, which an earlier write of ours may have changed
        meanwhile.
        """
        await self._change(lambda lease: lease.epoch_raised(above, claimed(lease.sink_state)))

    async def release(self) -> None:
        """Give the lease back (to the host that requested it, if any). Raises as `renew` does."""
        await self._change(Lease.released)
        self._lose(LeaseLost(f"{_name(self._lease)} was released by this host"))

    async def end(self, continuation: str | None, children: tuple[Child, ...]) -> None:
        """The partition has ended: close the lease, so that its children may start. Raises as `renew` does."""
        await self._change(lambda lease: lease.ended(continuation, children))
        self._lose(LeaseLost(f"{_name(self._lease)} is closed: its partition has ended"))

    def doubt(self, seen: VersionedLease | None, started: float) -> None:
        """A listing that began at `started` does not show this tenure, as a session judges it: a write has to find out.

        seen: None if the listing has no readable document. Without this, an idle owner would not notice that an operator
        released its lease. A restored document may have a lower epoch, so the epoch does not count.
        """
        if self.session is None or self._lost is not None or started <= self.renewed_at:
            return
        if seen is None or seen.lease.tenant != self._lease.tenant or not seen.lease.by_session:
            self.is_doubted = True
            self.changed.set()

    def notice(self, seen: VersionedLease) -> None:
        """Apply what a scan saw of this lease. A listing may be stale, so only newer information counts."""
        theirs, ours = seen.lease, self._lease
        is_newer = theirs.epoch > ours.epoch and (theirs.owner, theirs.incarnation) != (ours.owner, ours.incarnation)
        if is_newer or theirs.generation > ours.generation:  # our own higher epoch is a raise that is still under way
            self._lose(_lost(ours, theirs))
        elif theirs.is_same_tenure(ours) and theirs.handoff_to is not None and ours.handoff_to is None:
            self._lease = replace(ours, handoff_to=theirs.handoff_to)
            self.changed.set()

    async def _change(self, transition: Callable[[Lease], Lease]) -> None:
        async with self._lock:
            for _ in range(CONFLICTS_MAX):
                if self._lost is not None:
                    raise self._lost
                if await self._replace(transition(self._lease)):
                    return
            if self._unsettled_since is not None:
                raise StoreAmbiguous(
                    f"{_name(self._lease)} was written {CONFLICTS_MAX} times, and no write was answered"
                )
            raise StoreConflict(
                f"{_name(self._lease)} was changed by others {CONFLICTS_MAX} times in a row: look for a program that writes it"
            )

    async def _replace(self, wanted: Lease) -> bool:
        """Whether `wanted` is now stored; False if the lease is still ours but has changed meanwhile."""
        began = begin(self._clock, self._session)
        before, wanted = self._lease, agreed(wanted, self._session)
        self._is_agreeing |= wanted.by_session
        self._ticks[wanted.key] = max(self._ticks.get(wanted.key, 0), wanted.tick)
        try:
            etag = await self._store.replace(_id(wanted), encode_lease(wanted), self._etag)
        except (StoreConflict, StoreMissing, StoreAmbiguous, asyncio.CancelledError) as error:
            if isinstance(error, StoreAmbiguous | asyncio.CancelledError):  # it may be written
                self._unsettled_since = self._unsettled_since or began
                self._raising_to = wanted.epoch if wanted.epoch > before.epoch else self._raising_to
            if isinstance(error, asyncio.CancelledError):
                raise
            return await self._settle(wanted, before, began)
        self._adopt(wanted, etag, began)
        return True

    async def _settle(self, wanted: Lease, before: Lease, began: Began) -> bool:
        """After a conflict or a lost answer: read again, and continue only if the tenure is still ours."""
        try:
            now = _seen(await self._store.read(_id(wanted)))
        except (StoreMissing, InvalidDocument) as error:
            why = advised(error, *wanted.key) if isinstance(error, InvalidDocument) else error
            self._lose(LeaseLost(f"{_name(wanted)}: its document is missing or unreadable ({why})"))
            raise self._lost from None  # type: ignore[misc]  # _lose has just set it
        first_try = self._unsettled_since or began
        if _is_written(now.lease, wanted):
            self._adopt(now.lease, now.etag, first_try)
            return True
        raised = before if self._raising_to is None else replace(before, epoch=self._raising_to)
        if not now.lease.is_same_tenure(before) and not now.lease.is_same_tenure(raised):
            self._lose(_lost(before, now.lease))
            raise self._lost  # type: ignore[misc]  # _lose has just set it
        if now.etag != self._etag:
            written = now.lease.tick > before.tick  # an earlier attempt of ours, whose answer was lost
            tick = max(now.lease.tick, before.tick)  # lower where the document was put back: no tick is given out twice
            self._adopt(replace(now.lease, tick=tick), now.etag, first_try if written else self._written)
        return False

    def _adopt(self, lease: Lease, etag: str, began: Began) -> None:
        noticed = lease.handoff_to != self._lease.handoff_to
        self._lease, self._etag = lease, etag
        self._unsettled_since = self._raising_to = None
        self.is_doubted = False
        self._written = max(self._written, began, key=lambda each: each.at)
        if noticed:
            self.changed.set()

    def _lose(self, why: LeaseLost) -> None:
        if self._lost is None:
            self._lost = why
            self.changed.set()
            if self._session is not None:
                self._session.ring()


def _seen(stored: Stored) -> VersionedLease:
    return VersionedLease(decode_lease(stored.id, stored.body), stored.etag)


def _id(lease: Lease) -> str:
    return lease_id(lease.pipeline, lease.partition)


def _is_written(now: Lease, wanted: Lease) -> bool:
    """Whether `now` is `wanted`, apart from what other hosts have requested or added since."""
    return replace(now, handoff_to=wanted.handoff_to, unknown=wanted.unknown) == wanted


def _lost(ours: Lease, theirs: Lease) -> LeaseLost:
    if theirs.generation != ours.generation:
        return LeaseReset(f"{_name(ours)} was reset by an operator (generation {theirs.generation}): taking it again")
    holder = f"held by '{theirs.owner}'" if theirs.owner else "closed" if theirs.closed else "available"
    return LeaseLost(
        f"{_name(ours)} (epoch {ours.epoch}) is now {holder} (epoch {theirs.epoch}): stopping its work here",
        taken_by=theirs.owner,
    )


def _name(lease: Lease) -> str:
    return f"lease '{lease.partition}' of pipeline '{lease.pipeline}'"
