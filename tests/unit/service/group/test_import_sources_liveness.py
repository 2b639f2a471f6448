"""Whether owners live, seen by a process that only looks: also where it cannot always look."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.timing import Timing
from leasehold.service.group.import_sources import FAILED_LOOKS_MAX, Holder, find_alive


class Container:
    """One lease that lives and moves at each look, and one that does not; `away` are the looks that fail, by their number."""

    def __init__(self, clock: VirtualClock, away: range) -> None:
        self.looks = 0
        self._clock = clock
        self._away = away

    async def look(self) -> Mapping[str, Holder]:
        self.looks += 1
        if self.looks in self._away:
            await self._clock.sleep(5)
            raise StoreUnavailable("listing took longer than 5 s")
        return {"0": Holder("living", (self.looks,)), "1": Holder("dead", (0,))}


@pytest.mark.virtual
async def test_a_look_that_fails_is_made_again_and_its_time_does_not_count() -> None:
    clock = VirtualClock()
    container = Container(clock, range(2, 2 + FAILED_LOOKS_MAX - 1))
    assert await find_alive(container.look, clock=clock, timing=Timing(), lasts_s=60.0) == {"0": "living"}
    assert clock.monotonic() >= 60 + 5 * (FAILED_LOOKS_MAX - 1)


@pytest.mark.virtual
async def test_nobody_is_taken_for_dead_who_could_not_be_looked_at_in_the_end() -> None:
    clock = VirtualClock()
    container = Container(clock, range(55, 55 + FAILED_LOOKS_MAX - 1))
    assert await find_alive(container.look, clock=clock, timing=Timing(), lasts_s=60.0) == {"0": "living"}
    assert container.looks > 55 + FAILED_LOOKS_MAX


@pytest.mark.virtual
async def test_a_container_that_stays_away_is_told() -> None:
    clock = VirtualClock()
    container = Container(clock, range(2, 1000))
    with pytest.raises(StoreUnavailable):
        await find_alive(container.look, clock=clock, timing=Timing(), lasts_s=60.0)
    assert container.looks == 1 + FAILED_LOOKS_MAX


@pytest.mark.virtual
async def test_after_an_outage_a_host_is_watched_until_it_has_had_time_for_a_heartbeat() -> None:
    clock, timing = VirtualClock(), Timing()
    looks, beats_from = 0, timing.duration_s + 2.5 + timing.looks.grace_s - 1

    async def look() -> Mapping[str, Holder]:
        nonlocal looks
        looks += 1
        if looks in (7, 8):
            await clock.sleep(1.5)
            raise StoreUnavailable("listing took longer than 1.5 s")
        shown = "2" if clock.monotonic() >= beats_from else "1"
        return {"0": Holder("living", (), shown, timing.duration_s)}

    assert await find_alive(look, clock=clock, timing=Timing(), lasts_s=60.0) == {"0": "living"}
