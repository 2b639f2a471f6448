"""Which leases move while they are watched: how a process without a host distinguishes live owners from dead ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

from leasehold.common.clock import Clock
from leases.errors import StoreUnavailable
from leases.timing import Timing

K = TypeVar("K", bound=Hashable)
FAILED_LOOKS_MAX = 5
"""In a row. One that fails is made again, as the watch may be a minute old by then."""


class Held(NamedTuple):
    """owner: who has it. mark: what the owner moves to show that it lives."""

    owner: str
    mark: tuple[object, ...]


async def find_alive(look: Callable[[], Awaitable[Mapping[K, Held]]], *, clock: Clock, timing: Timing) -> dict[K, str]:
    """The owner of each lease that moved within the lease duration. Leases that were released meanwhile have none.

    No clock of another machine is used (docs/protocol.md), so dead owners cost the whole duration. Time in which nothing
    could be read does not count. Raises what `look` raises, and StoreUnavailable after FAILED_LOOKS_MAX failures.
    """
    before = await look()
    read_at = clock.monotonic()
    ends, failures = read_at + timing.duration_s, 0
    undecided = dict(before)
    found: dict[K, str] = {}
    while undecided and (left := ends - clock.monotonic()) > 0:
        await clock.sleep(min(timing.handoff_poll_s, left))
        try:
            now = await look()
        except StoreUnavailable:
            failures += 1
            if failures == FAILED_LOOKS_MAX:
                raise
            read_at, ends = clock.monotonic(), ends + clock.monotonic() - read_at
            continue
        read_at, failures = clock.monotonic(), 0
        undecided = {key: held for key, held in undecided.items() if now.get(key) == held}
        found = {key: now[key].owner for key in before.keys() - undecided.keys() if key in now}
    return found
