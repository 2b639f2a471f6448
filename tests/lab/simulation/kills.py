"""Hosts whose handlers are called side by side, or checkpoint by hand, are killed again and again while they work.

Nothing else goes wrong, so that kills fill the time. I9, I13 and I14 hold for all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from lab.simulation import run
from lab.simulation.hub import on_virtual_time
from lab.simulation.loop import run_virtual
from lab.simulation.setup import TIGHT, Setup
from lab.simulation.world import World, narrowed

from leasehold.pipeline.limits import ParallelLimits

KILLS = 200
BETWEEN_S = 12.0
"""On average: takeovers take longer, so that hosts also die while they take over."""
SETTLING_S = 300.0


def killed(*, seed: int, parallel: ParallelLimits | None = None, manual: int | None = None) -> run.Verdict:
    """Three hosts. One of them is killed and started again 200 times."""
    size = replace(TIGHT, appends_every_s=4.0)
    setup = replace(
        Setup.drawn(seed, size),
        sink="python",
        operator="away",
        splits=False,
        ill=0.0,
        sink_s=0.5,
        store_s=0.0,
        transform_s=0.02,
        batch_events_max=10,
        filters=False,
        has_quota=False,
        opens_slowly=False,
        lags=False,
        leases_max=None,
        document_faults=0,
        restores=False,
        ranges=None,
        parallel=parallel,
        manual=manual,
    )
    with narrowed(), on_virtual_time():
        return run_virtual(_killed(setup))


async def _killed(setup: Setup) -> run.Verdict:
    world, rng = World(setup), random.Random(f"{setup.seed} kills")
    with suppress(run.Ended):
        await _lived(world, rng)
    for running in world.hosts:
        await running.kill()
    onlooker = world.onlooker
    repeated = sum(place.repeated for place in onlooker.arrived.values())
    counts = onlooker.counts + Counter(kills=world.faults.get("kill", 0), repeated=repeated)
    return run.Verdict(setup.seed, tuple(onlooker.found), "", tuple(world.trace), counts, world.now)


async def _lived(world: World, rng: random.Random) -> None:
    for number in range(world.setup.size.hosts):
        world.started(f"host-{number}")
    flow = asyncio.create_task(run._flow(world))
    for number in range(KILLS):
        await run._pause(world, rng.expovariate(1 / BETWEEN_S))
        victim = rng.choice(sorted(world.alive, key=lambda running: running.name))
        await victim.kill()
        world.faults["kill"] = number + 1
        world.started(victim.name)
    flow.cancel()
    await run._settled(world, SETTLING_S)
    world.onlooker.check_end()
