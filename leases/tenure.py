"""One tenure of one lease: the owner's writes, and how the lease is kept until it is lost.

The owner makes all its writes through `OwnedLease`, one at a time, so that they never conflict with each other. A write
that fails is retried with the old ETag.

A lease needs no renewals. After each lapse of its host's trust it is won again by one write: meanwhile the owner is
suspended, not dead, and either resumes or learns that it lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.document import advised, decode_lease, encode_lease, lease_id
from leasehold.leases.errors import (
    InvalidDocument,
    LeaseReset,
    OwnershipLost,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
)
from leasehold.leases.lease import Child, Lease
from leasehold.leases.session import WON_AGAIN_PER_S, Session
from leasehold.leases.store import Hint, LeaseStore, Stored

CONFLICTS_MAX = 8
"""How often a change starts over because another writer was first. More than a few in a row mean a program that writes
in a loop.
"""
WINNING = Backoff(first_s=0.1, max_s=4.0, spread=0.1)
"""The pauses between attempts to win a lease again."""


class VersionedLease(NamedTuple):
    """A lease as it was read, with the ETag that a change must match."""

    lease: Lease
    etag: str


class Began(NamedTuple):
    """When a write was begun (Clock seconds), and the host's term then, 0 for none."""

    at: float
    term: int


def begin(clock: Clock, session: Session) -> Began:
    return Began(clock.monotonic(), session.term)


class OwnedLease:
    """One tenure of one lease. Every method raises OwnershipLost once the tenure has ended; it cannot be resumed.

    The lease is trusted while its host is, if it was written in the host's present term: by a write that was *begun* in it.
    Otherwise the owner sends nothing and keeps trying to write with its old ETag, until it either resumes or learns that it
    lost the lease.
    """

    def __init__(
        self,
        store: LeaseStore,
        lease: Lease,
        etag: str,
        began: Began,
        clock: Clock,
        session: Session,
    ) -> None:
        assert lease.owner is not None, "only an owner has a tenure"
        self._store = store
        self._lease = lease
        self._etag = etag
        self._clock = clock
        self._lock = asyncio.Lock()
        self.session = session
        self._unsettled_since: Began | None = None
        self._raising_to: int | None = None
        self._lost: OwnershipLost | None = None
        self._written = began
        self.is_doubted = False
        self.changed = asyncio.Event()

    @property
    def lease(self) -> Lease:
        """The lease as this tenure last wrote or read it."""
        return self._lease

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def renewed_at(self) -> float:
        """When the last successful write was begun."""
        return self._written.at

    @property
    def won_term(self) -> int:
        """The host's term when that write was begun; 0 for none."""
        return self._written.term

    @property
    def is_trusted(self) -> bool:
        return self._lost is None and self.won_term > 0 and self.session.term == self.won_term

    @property
    def must_be_won(self) -> bool:
        """Whether the host is trusted again after a lapse, and this lease must first be written."""
        return self._lost is None and self.session.must_win(self.won_term)

    async def wait_until_must_be_won(self) -> None:
        while not self.session.must_win(self.won_term):
            await self.session.wait_for_turn()

    async def renew(self) -> None:
        """Win the lease again, by a write. Raises OwnershipLost, StoreUnavailable, StoreAmbiguous, StoreConflict."""
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
        self.session.hints.add(Hint(self._lease.handoff_to, self._lease.pipeline))
        self._lose(OwnershipLost(f"{name_of(self._lease)} was released by this host"))

    async def end(self, continuation: str | None, children: tuple[Child, ...]) -> None:
        """The partition has ended: close the lease, so that its children may start. Raises as `renew` does."""
        await self._change(lambda lease: lease.ended(continuation, children))
        self.session.hints.add(Hint(None, self._lease.pipeline))
        self._lose(OwnershipLost(f"{name_of(self._lease)} is closed: its partition has ended"))

    def leave(self) -> None:
        """End this tenure, which then sends nothing more, whether or not the lease could be released."""
        self._lose(OwnershipLost(f"{name_of(self._lease)} was left by this host"))

    def doubt(self, seen: VersionedLease | None, started: float) -> None:
        """If a listing that began at `started` does not show this tenure, note that a write has to find out whether it lasts.

        seen: None if the listing has no readable document. Without this, an idle owner would not notice that an operator
        released its lease. A restored document may have a lower epoch, so the epoch does not count.
        """
        if self._lost is not None or started <= self.renewed_at:
            return
        if seen is None or seen.lease.tenant != self._lease.tenant:
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
        began, before = begin(self._clock, self.session), self._lease
        try:
            etag = await self._store.replace(id_of(wanted), encode_lease(wanted), self._etag)
        except (StoreConflict, StoreMissing, StoreAmbiguous, asyncio.CancelledError) as error:
            if isinstance(error, StoreAmbiguous | asyncio.CancelledError):  # it may have been written
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
            self._lose(OwnershipLost(f"{name_of(wanted)}: its document is missing or unreadable ({why})"))
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
            tick = max(now.lease.tick, before.tick)  # lower if the document was put back; no tick is used twice
            self._adopt(replace(now.lease, tick=tick), now.etag, first_try if written else self._written)
        return False

    def _adopt(self, lease: Lease, etag: str, began: Began) -> None:
        noticed = lease.handoff_to != self._lease.handoff_to
        self._lease, self._etag = lease, etag
        self._unsettled_since = self._raising_to = None
        self.is_doubted = False
        self._written = max(self._written, began)
        if noticed:
            self.changed.set()

    def _lose(self, why: OwnershipLost) -> None:
        if self._lost is None:
            self._lost = why
            self.changed.set()
            self.session.ring()


async def keep_won(
    owned: OwnedLease,
    *,
    clock: Clock,
    rng: random.Random,
    failed: Callable[[StoreError, int], None] = lambda error, attempt: None,
    tried: Callable[[float, StoreError | None], None] = lambda took_s, error: None,
) -> None:
    """Win the lease again after each lapse of trust. Never returns: it is cancelled, or raises OwnershipLost.

    - tried: called after every attempt, with its error if it failed.
    - failed: called after a failed attempt, with the number of failures in a row.
    """
    attempt = 0
    while True:
        await owned.wait_until_must_be_won()
        await owned.session.turn.wait(WON_AGAIN_PER_S)
        if not owned.must_be_won:
            continue  # a checkpoint has won it again meanwhile, or there was another lapse
        began = clock.monotonic()
        try:
            await owned.renew()
            attempt = 0
            tried(clock.monotonic() - began, None)
        except StoreError as error:
            attempt += 1
            failed(error, attempt)
            tried(clock.monotonic() - began, error)
            await clock.sleep(WINNING.pause_s(attempt, rng.random(), retry_after_s(error)))


def versioned(stored: Stored) -> VersionedLease:
    """Raises InvalidDocument."""
    return VersionedLease(decode_lease(stored.id, stored.body), stored.etag)


def id_of(lease: Lease) -> str:
    return lease_id(lease.pipeline, lease.partition)


def _is_written(now: Lease, wanted: Lease) -> bool:
    """Whether `now` is `wanted`, apart from what other hosts have requested or added since."""
    return replace(now, handoff_to=wanted.handoff_to, unknown=wanted.unknown) == wanted


def _lost(ours: Lease, theirs: Lease) -> OwnershipLost:
    if theirs.generation != ours.generation:
        return LeaseReset(f"{name_of(ours)} was reset by an operator (generation {theirs.generation}): taking it again")
    holder = f"held by '{theirs.owner}'" if theirs.owner else "closed" if theirs.closed else "available"
    return OwnershipLost(
        f"{name_of(ours)} (epoch {ours.epoch}) is now {holder} (epoch {theirs.epoch}): stopping its work here",
        taken_by=theirs.owner,
    )


def name_of(lease: Lease) -> str:
    """For people."""
    return f"lease '{lease.partition}' of pipeline '{lease.pipeline}'"
