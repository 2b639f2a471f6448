"""Whose leases move while they are watched: how a process without a host tells owners that live from those long gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

from leases.clock import Clock
from leases.timing import Timing

K = TypeVar("K", bound=Hashable)


class Held(NamedTuple):
    """owner: who has it. mark: what the owner moves to show that it lives."""

    owner: str
    mark: tuple[object, ...]


async def alive(look: Callable[[], Awaitable[Mapping[K, Held]]], *, clock: Clock, timing: Timing) -> dict[K, str]:
    """The owner of each that moved within the lease duration. What was released meanwhile is nobody's.

    No clock of another machine is asked (docs/protocol.md), so those long gone cost the whole duration. Raises what `look` does.
    """
    before = await look()
    ends = clock.monotonic() + timing.duration_s
    undecided = dict(before)
    found: dict[K, str] = {}
    while undecided and (left := ends - clock.monotonic()) > 0:
        await clock.sleep(min(timing.handoff_poll_s, left))
        now = await look()
        undecided = {key: held for key, held in undecided.items() if now.get(key) == held}
        found = {key: now[key].owner for key in before.keys() - undecided.keys() if key in now}
    return found
