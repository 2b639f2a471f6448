"""How a command makes sure that no host of a lease store is alive: it watches the documents that live hosts rewrite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from leasehold.common.clock import Clock
from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import HOSTS_PREFIX, found_host
from leasehold.leases.keeper import Keeper
from leasehold.leases.pause_orders import GROUP_PREFIX
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.timing import LASTS_S_MAX
from leasehold.service.errors import NotNow
from leasehold.service.group.import_sources import Holder, find_alive
from leasehold.service.group.migration import Say
from leasehold.service.texts import noun

SAID_EVERY_S = 15.0
HOSTS_SHOWN_MAX = 8


async def read_hosts(store: LeaseStore) -> dict[str, Stored]:
    """The documents that hosts rewrite with each heartbeat."""
    return {stored.id: stored for stored in await store.list(HOSTS_PREFIX)}


async def _read_owners(store: LeaseStore) -> set[str]:
    """The owners of the leases of all pipelines, including pipelines that FILE does not have."""
    owners = set[str]()
    for stored in await store.list(""):
        if lease_prefix("") in stored.id and not stored.id.startswith(GROUP_PREFIX):
            try:
                owner = decode_lease(stored.id, stored.body).owner
            except InvalidDocument:
                continue
            if owner is not None:
                owners.add(owner)
    return owners


def names_of(documents: Iterable[str]) -> list[str]:
    return sorted({name.partition("/")[2] for name in documents})


def listed(hosts: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in hosts[:HOSTS_SHOWN_MAX])
    more = f" and {len(hosts) - HOSTS_SHOWN_MAX} more" if len(hosts) > HOSTS_SHOWN_MAX else ""
    return f"{noun(len(hosts), 'host')} {shown}{more}"


async def watch_hosts(keeper: Keeper, clock: Clock, say: Say) -> Collection[Stored]:
    """The documents of dead hosts. Raises NotNow as soon as one moves, is replaced or appears; StoreUnavailable."""
    first = await read_hosts(keeper.store)
    owners = await _read_owners(keeper.store)
    found = {name: found_host(stored.id, stored.body) for name, stored in first.items()}
    needed = [LASTS_S_MAX if record is None else record.lasts_s for record in found.values()]
    needed += [LASTS_S_MAX for _ in owners - {name.removeprefix(HOSTS_PREFIX) for name in first}]
    if not needed:
        return first.values()
    for_s = max(needed)
    ends, last = clock.monotonic() + for_s, first
    said_at = clock.monotonic()
    say(f"watching for {for_s:g} s whether a host is alive: {listed(sorted({*names_of(first), *owners}))}")

    async def look() -> Mapping[str, Holder]:
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
        return {name: Holder(name, ()) for name in (*last, *owners)}

    await find_alive(look, clock=clock, timing=keeper.timing, lasts_s=for_s)
    return last.values()
