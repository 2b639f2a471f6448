"""What `leasehold leases downgrade` does: see that no host is alive, and put the leases back for a release without sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from leasehold.common.clock import Clock
from leasehold.leases.document import advised, lease_prefix, partition_of
from leasehold.leases.errors import (
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HOSTS_PREFIX, decode_host
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.pause_orders import GROUP_PREFIX
from leasehold.leases.session import SESSIONS_PREFIX, decode_session
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.tenure import VersionedLease, name_of, versioned
from leasehold.leases.timing import SessionTiming, Timing
from leasehold.pipeline.feed import Start
from leasehold.service.errors import NotNow
from leasehold.service.group.import_sources import Held, find_alive
from leasehold.service.group.migration import AGAIN, TRIES, Say
from leasehold.service.texts import noun

STARTS: Mapping[str, Start] = {"earliest": "earliest", "latest": "latest"}
SAID_EVERY_S = 15.0
HOSTS_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """leases: as they were, those that were put back. unchanged: how many of each pipeline earlier releases could read already.

    removed: documents of dead hosts. problems: what is left to do.
    """

    leases: tuple[Lease, ...]
    unchanged: Mapping[str, int]
    removed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


async def downgrade(keeper: Keeper, *, clock: Clock, say: Say) -> Downgrade:
    """Put all leases of the container back to version 1, without an owner, and remove the documents of dead hosts.

    Raises NotNow if a host is alive, StoreUnavailable.
    """
    dead = await watch_hosts(keeper, clock, say)
    found, problems = await _read_all(keeper.store)
    judged = [seen for seen in found if seen.lease.by_session]
    written: list[Lease] = []

    async def put_back(seen: VersionedLease) -> None:
        try:
            await _put_back(keeper, seen, clock)
        except StoreError as error:
            problems.append(f"{name_of(seen.lease)} was not written ({error}): {AGAIN}")
        else:
            written.append(seen.lease)

    await run_side_by_side(judged, put_back, doing="putting back")
    removed: list[str] = []
    try:
        removed += [stored.id for stored in dead if await _remove(keeper.store, stored)]
        if late := names_of((await read_hosts(keeper.store)).keys()):
            problems.append(f"{listed(late)} started meanwhile: stop all hosts, and run the command again")
    except StoreError as error:
        problems.append(f"documents of dead hosts may be left ({error}): {AGAIN}")
    unchanged = Counter(seen.lease.pipeline for seen in found if not seen.lease.by_session)
    return Downgrade(
        leases=tuple(sorted(written, key=lambda lease: lease.key)),
        unchanged=unchanged,
        removed=tuple(sorted(removed)),
        problems=tuple(problems),
    )


async def _read_all(store: LeaseStore) -> tuple[list[VersionedLease], list[str]]:
    """The leases of all pipelines, also of those that FILE does not have, and what is wrong with the others."""
    found, problems = list[VersionedLease](), list[str]()
    for stored in await store.list(""):
        pipeline, separator, _ = stored.id.partition(lease_prefix(""))
        if not separator or stored.id.startswith(GROUP_PREFIX):
            continue
        try:
            found.append(versioned(stored))
        except InvalidDocument as error:
            problems.append(str(advised(error, pipeline, partition_of(stored.id))))
    return found, problems


async def _put_back(keeper: Keeper, seen: VersionedLease, clock: Clock) -> None:
    """Raises StoreError."""
    for tries_left in range(TRIES - 1, -1, -1):
        try:
            await keeper.rewrite(seen, seen.lease.downgraded())
            return
        except StoreAmbiguous:
            if (await keeper.read(*seen.lease.key)).lease.by_session:
                raise
            return
        except StoreUnavailable as error:
            if not tries_left or error.retry_after_s is None:
                raise
            await clock.sleep(error.retry_after_s)


async def _remove(store: LeaseStore, stored: Stored) -> bool:
    """Whether this removed the document of a dead host: not if it has changed. Raises StoreUnavailable, StoreAmbiguous."""
    try:
        await store.delete(stored.id, stored.etag)
    except (StoreConflict, StoreMissing):
        return False
    return True


async def read_hosts(store: LeaseStore) -> dict[str, Stored]:
    """The documents by which hosts show that they live: sessions, and those of hosts without one."""
    return {
        stored.id: stored
        for stored in await store.list(GROUP_PREFIX)
        if stored.id.startswith((HOSTS_PREFIX, SESSIONS_PREFIX))
    }


def names_of(documents: Iterable[str]) -> list[str]:
    return sorted({name.partition("/")[2] for name in documents})


def listed(hosts: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in hosts[:HOSTS_SHOWN_MAX])
    more = f" and {len(hosts) - HOSTS_SHOWN_MAX} more" if len(hosts) > HOSTS_SHOWN_MAX else ""
    return f"{noun(len(hosts), 'host')} {shown}{more}"


async def watch_hosts(keeper: Keeper, clock: Clock, say: Say) -> Collection[Stored]:
    """The documents of dead hosts. Raises NotNow as soon as one moves, is replaced or appears; StoreUnavailable."""
    first = await read_hosts(keeper.store)
    leases, _ = await _read_all(keeper.store)
    owners = {seen.lease.owner for seen in leases if seen.lease.by_session and seen.lease.owner is not None}
    for_s = _watched_s(first.values(), owners, keeper.timing)
    if not for_s:
        return first.values()
    ends, last = clock.monotonic() + for_s, first
    said_at = clock.monotonic()
    say(f"watching for {for_s:g} s whether a host is alive: {listed(sorted({*names_of(first), *owners}))}")

    async def look() -> Mapping[str, Held]:
        nonlocal last, said_at
        last = await read_hosts(keeper.store)
        alive = [name for name, stored in last.items() if name not in first or first[name].etag != stored.etag]
        if alive:
            names = names_of(alive)
            raise NotNow(
                f"{listed(names)} {noun(len(names), 'is', 'are')} alive, so nothing was changed: stop all hosts of the group,"
                " and run the command again"
            )
        if (now := clock.monotonic()) - said_at >= SAID_EVERY_S:
            said_at = now
            say(f"{max(0.0, ends - now):.0f} s left")
        return {name: Held(name, ()) for name in (*last, *owners)}

    await find_alive(look, clock=clock, timing=replace(keeper.timing, duration_s=for_s))
    return last.values()


def _watched_s(documents: Iterable[Stored], owners: Collection[str], timing: Timing) -> float:
    """How long it takes to see that none of these hosts is alive. 0 if there are none.

    A host that has a session shows it by that alone. Others move their own document as often as they renew a lease.
    """
    session_s = (timing.session or SessionTiming()).duration_s
    needed = [session_s for _ in owners]
    for stored in documents:
        try:
            if stored.id.startswith(SESSIONS_PREFIX):
                needed.append(max(session_s, decode_session(stored.id, stored.body).duration_s))
            else:
                needed.append(session_s if decode_host(stored.id, stored.body).has_session else timing.duration_s)
        except InvalidDocument:
            needed.append(timing.duration_s)
    return max(needed, default=0.0)
