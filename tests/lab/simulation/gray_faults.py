"""What is neither well nor an outage: slow stores, requests that arrive without answers, hosts that cannot do one thing, and
backups of the hosts' documents that are put back.

They come among all other faults, and once more when all else is well: then work has to go on (`progressed`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from lab.simulation.session_faults import is_of_hosts, is_of_leases, is_write
from lab.simulation.skies import Cut
from lab.simulation.weather import Fate, Request

from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.store import READS

if TYPE_CHECKING:
    from lab.simulation.world import World

Meant = Callable[[Request], bool]
QUICK_S = 0.01
FOR_EVER_S = 1000.0


def is_of_store(request: Request) -> bool:
    return request.where == "store"


def is_listing(request: Request) -> bool:
    return request.where == "store" and request.operation in ("list", "changes", "count")


def is_read(request: Request) -> bool:
    return request.where == "store" and request.operation in READS


def is_of_sink(request: Request) -> bool:
    return request.where == "sink"


def is_of_feed(request: Request) -> bool:
    return request.where == "feed"


def is_of_output(request: Request) -> bool:
    return request.where == "sink" and request.operation == "write"


SLOW: tuple[Meant, ...] = (is_of_store, is_write, is_of_hosts, is_of_leases, is_read)
DISABLED: tuple[Meant, ...] = (is_listing, is_of_leases, is_of_sink, is_of_feed)


def slowed(rng: random.Random, host: str, most_s: float) -> Cut:
    """Requests of a host, or of all, take long to arrive, or their answers do; refusals may be quick."""
    seconds = most_s * rng.random() ** 2 + 0.1
    meant = rng.choice(SLOW)
    if rng.random() < 0.5:
        return Cut(host, meant, Fate(seconds))
    return Cut(host, meant, Fate(QUICK_S, is_quick_to_refuse=rng.random() < 0.5), back_s=seconds)


def one_way(rng: random.Random, host: str) -> list[Cut]:
    """Writes arrive, and their answers do not; reads may not be answered either."""
    cuts = [Cut(host, rng.choice((is_write, is_of_hosts)), Fate(QUICK_S, "lost"))]
    return cuts + [Cut(host, is_read, Fate(FOR_EVER_S, "ghost"))] * (rng.random() < 0.5)


def black_hole(rng: random.Random, host: str) -> Cut:
    return Cut(host, rng.choice(SLOW), Fate(FOR_EVER_S, "ghost"))


def disabled(rng: random.Random, host: str, *, retries_itself: bool = False) -> Cut:
    """retries_itself: whether the sink tries again and again, so that the host learns of it only after `batch_timeout_s`."""
    meant = [each for each in DISABLED if each is not is_of_sink or not retries_itself]
    return Cut(host, rng.choice(meant), Fate(QUICK_S, "refused"))


def rejected(host: str) -> Cut:
    """What a host writes is refused for good, though probes are answered: a batch ends its worker, and the lease is released."""
    return Cut(host, is_of_output, Fate(QUICK_S, "rejected"))


def grays(rng: random.Random, sick: str, way: str, slow_s: float, *, retries_itself: bool) -> list[Cut]:
    """slow_s: what a store takes that is slow for all. retries_itself: see `disabled`."""
    match way:
        case "slow":
            return [slowed(rng, sick, 4.0)]
        case "slow for all":
            return [slowed(rng, "", slow_s)]
        case "one way":
            return one_way(rng, sick)
        case "rejected":
            return [rejected(sick)]
        case _:
            return [disabled(rng, sick, retries_itself=retries_itself)]


async def run_gray_faults(world: World, until_s: float) -> None:
    rng = random.Random(f"{world.setup.seed} gray")
    for moment in sorted(rng.random() * until_s for _ in range(max(2, world.setup.faults // 2))):
        await asyncio.sleep(max(0.0, moment - world.now))
        world.backups.append({stored.id: stored.body for stored in world.documents(HOSTS_PREFIX)})
        host = rng.choice(("", *(running.name for running in world.alive)))
        what = rng.choice(("slow", "slow", "one way", "black hole", "disabled", "put back"))
        for_s = world.timing.duration_s * rng.choice((1.0, 4.0, 10.0)) * rng.random()
        match what:
            case "slow":
                cuts = [slowed(rng, host, 10.0)]
            case "one way":
                cuts = one_way(rng, host)
            case "black hole":
                cuts = [black_hole(rng, host)]
            case "disabled":
                cuts = [disabled(rng, host)]
            case _:
                cuts = []
                put_back(world, rng.choice(world.backups))
        world.skies.cuts[:0] = cuts
        asyncio.get_running_loop().call_later(for_s, over, world, cuts)
        if (
            what == "black hole"
            and not host
            and any(cut.is_meant(Request("", "store", "replace", f"{HOSTS_PREFIX}a")) for cut in cuts)
        ):
            world.onlooker.writes_fail(True)
            asyncio.get_running_loop().call_later(for_s, ended, world)
        world.faults[what] = world.faults.get(what, 0) + 1
        meant = ", ".join(cut.is_meant.__name__ for cut in cuts)
        world.tell("FAULT", f"gray: {what} for {host or 'all'}, {for_s:.1f} s ({meant})")


def put_back(world: World, backup: dict[str, str]) -> None:
    """The documents of hosts, as they were: of incarnations that may be gone, too."""
    for name, body in backup.items():
        world.store.edit_host(name, body)


def over(world: World, cuts: list[Cut]) -> None:
    world.skies.cuts[:] = [cut for cut in world.skies.cuts if not any(cut is each for each in cuts)]


def ended(world: World) -> None:
    if not world.skies.is_calm:
        world.onlooker.writes_fail(False)
