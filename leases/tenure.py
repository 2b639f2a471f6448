"""One tenure of one lease: the owner's writes, and how the lease is kept until it is lost.

The owner makes all its writes through `OwnedLease`, one at a time, so that renewals and checkpoints never conflict with
each other.

A renewal that fails for any other reason is retried with the old ETag. While its trust has expired, the owner is
suspended, not dead, and either resumes or learns that it lost. Only a successful write extends trust.

A lease that is judged by its owner's session needs no renewals: it is won again, by one write, after each lapse of the
session.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from leasehold.common.clock import Clock
from leasehold.leases.document import advised, decode_lease, encode_lease, lease_id
from leasehold.leases.errors import (
    InvalidDocument,
    LeaseLost,
    LeaseReset,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.lease import Child, Lease, LeaseKey
from leasehold.leases.session import WON_AGAIN_PER_S, Session
from leasehold.leases.store import Hint, LeaseStore, Stored
from leasehold.leases.timing import Timing

CONFLICTS_MAX = 8
"""How often a change starts over because another writer was first. More than a few in a row mean a program that writes
in a loop.
"""
Ticks = dict[LeaseKey, int]
"""By lease, the highest tick that this incarnation may have written."""


class VersionedLease(NamedTuple):
    """A lease as it was read, with the ETag that a change must match."""

    lease: Lease
    etag: str


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

    async def wait_until_must_be_won(self) -> None:
        """Returns also if the session no longer judges the lease: a document that was put back may say so."""
        while (session := self.session) is not None and not session.must_win(self.won_term):
            await session.wait_for_turn()

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
        if self._session is not None:
            self._session.hints.add(Hint(self._lease.handoff_to, self._lease.pipeline))
        self._lose(LeaseLost(f"{name_of(self._lease)} was released by this host"))

    async def end(self, continuation: str | None, children: tuple[Child, ...]) -> None:
        """The partition has ended: close the lease, so that its children may start. Raises as `renew` does."""
        await self._change(lambda lease: lease.ended(continuation, children))
        if self._session is not None:
            self._session.hints.add(Hint(None, self._lease.pipeline))
        self._lose(LeaseLost(f"{name_of(self._lease)} is closed: its partition has ended"))

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
                    f"{name_of(self._lease)} was written {CONFLICTS_MAX} times, and no write was answered"
                )
            raise StoreConflict(
                f"{name_of(self._lease)} was changed by others {CONFLICTS_MAX} times in a row: look for a program that writes it"
            )

    async def _replace(self, wanted: Lease) -> bool:
        """Whether `wanted` is now stored; False if the lease is still ours but has changed meanwhile."""
        began = begin(self._clock, self._session)
        before, wanted = self._lease, agreed(wanted, self._session)
        self._is_agreeing |= wanted.by_session
        self._ticks[wanted.key] = max(self._ticks.get(wanted.key, 0), wanted.tick)
        try:
            etag = await self._store.replace(id_of(wanted), encode_lease(wanted), self._etag)
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
            now = versioned(await self._store.read(id_of(wanted)))
        except (StoreMissing, InvalidDocument) as error:
            why = advised(error, *wanted.key) if isinstance(error, InvalidDocument) else error
            self._lose(LeaseLost(f"{name_of(wanted)}: its document is missing or unreadable ({why})"))
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
        noticed, judging = lease.handoff_to != self._lease.handoff_to, self.session
        self._lease, self._etag = lease, etag
        if judging is not None and not lease.by_session:
            judging.wake()
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


async def keep_renewed(
    owned: OwnedLease,
    *,
    clock: Clock,
    timing: Timing,
    rng: random.Random,
    failed: Callable[[StoreError, int], None] = lambda error, attempt: None,
    tried: Callable[[float, StoreError | None], None] = lambda took_s, error: None,
) -> None:
    """Never returns: it is cancelled, or raises LeaseLost.

    - tried: called after every attempt, with its error if it failed.
    - failed: called after a failed attempt, with the number of failures in a row.
    """
    attempt, is_settled = 0, False
    while True:
        renewed_at = owned.renewed_at
        jitter = rng.random()
        if (session := owned.session) is not None and attempt == 0:
            await owned.wait_until_must_be_won()
            await session.turn.wait(WON_AGAIN_PER_S)
            if not session.must_win(owned.won_term):
                continue  # a checkpoint has won it again meanwhile, or there was another lapse
        else:
            pause = pause_before(renewed_at, clock.monotonic(), attempt, timing, jitter, is_settled=is_settled)
            await clock.sleep(pause)
            is_settled = attempt == 0
            if owned.renewed_at > renewed_at:
                attempt = 0
                continue  # a checkpoint has renewed meanwhile
        began = clock.monotonic()
        try:
            await owned.renew()
            attempt = 0
            tried(clock.monotonic() - began, None)
        except StoreError as error:
            attempt += 1
            failed(error, attempt)
            tried(clock.monotonic() - began, error)
            if isinstance(error, StoreUnavailable) and error.retry_after_s is not None:
                await clock.sleep(min(error.retry_after_s, timing.renew_s))
            elif isinstance(error, StoreConflict):
                attempt = max(attempt, 3)  # another writer writes in a loop: give way


def pause_before(
    renewed_at: float, now: float, attempt: int, timing: Timing, jitter: float, *, is_settled: bool = False
) -> float:
    """Seconds until the next attempt.

    Jitter (0..1) takes off up to a half before the first renewal and before the first one after a failure, so that a
    host's leases do not all renew together. From then on they are spread out, and more jitter would only cost writes.
    """
    if attempt == 0:
        return max(0.0, renewed_at + timing.renew_s * (1.0 if is_settled else 1 - 0.5 * jitter) - now)
    return timing.renewal_backoff.pause_s(attempt, jitter)


def versioned(stored: Stored) -> VersionedLease:
    """Raises InvalidDocument."""
    return VersionedLease(decode_lease(stored.id, stored.body), stored.etag)


def id_of(lease: Lease) -> str:
    return lease_id(lease.pipeline, lease.partition)


def _is_written(now: Lease, wanted: Lease) -> bool:
    """Whether `now` is `wanted`, apart from what other hosts have requested or added since."""
    return replace(now, handoff_to=wanted.handoff_to, unknown=wanted.unknown) == wanted


def _lost(ours: Lease, theirs: Lease) -> LeaseLost:
    if theirs.generation != ours.generation:
        return LeaseReset(f"{name_of(ours)} was reset by an operator (generation {theirs.generation}): taking it again")
    holder = f"held by '{theirs.owner}'" if theirs.owner else "closed" if theirs.closed else "available"
    return LeaseLost(
        f"{name_of(ours)} (epoch {ours.epoch}) is now {holder} (epoch {theirs.epoch}): stopping its work here",
        taken_by=theirs.owner,
    )


def name_of(lease: Lease) -> str:
    """For people."""
    return f"lease '{lease.partition}' of pipeline '{lease.pipeline}'"
