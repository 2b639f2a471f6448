"""What befalls beats: writes that fail while reads succeed, edited documents, and answers that are old when they arrive.

Their random source is their own, so that all other faults of a seed stay as they are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lab.simulation.group import Running
from lab.simulation.skies import Cut, Hold, Snare
from lab.simulation.weather import Ends, Fate, Request

from leasehold.leases.document import lease_id
from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.store import READS
from leasehold.leases.timing import Timing

if TYPE_CHECKING:
    from lab.simulation.world import World

Fault = Callable[["World", random.Random, Timing], str | None]
"""Says what it did; None if there was nothing to do it to."""

WRITES = ("create", "replace", "delete")


def is_write(request: Request) -> bool:
    return request.where == "store" and request.operation in WRITES


def is_of_hosts(request: Request) -> bool:
    return is_write(request) and request.id.startswith(HOSTS_PREFIX)


def is_of_leases(request: Request) -> bool:
    return is_write(request) and "/leases/" in request.id


def is_read(request: Request) -> bool:
    return request.where == "store" and request.operation in READS


KINDS = {"writes": is_write, "hosts": is_of_hosts, "leases": is_of_leases, "reads": is_read}


def partial_outage(world: World, rng: random.Random, timing: Timing) -> str | None:
    """Some requests of one host, or of all, are refused, vanish, or lose their answers, while all others go well."""
    host = rng.choice(("", *(running.name for running in world.alive)))
    kind = rng.choice(sorted(KINDS))
    mode: Ends = rng.choice(("refused", "ghost", "lost"))
    for_s = timing.duration_s * rng.choice((0.5, 1.0, 3.0)) * (0.3 + rng.random())
    hangs_s = timing.beat_timeout_s * (1 + rng.random()) if mode == "ghost" else 0.0
    cut = Cut(host, KINDS[kind], Fate(0.01 + hangs_s, mode))
    world.skies.cuts.insert(0, cut)  # before those that let requests pass slowly
    is_dark = host == "" and kind in ("writes", "hosts") and mode != "lost"  # then a read shows that they arrive
    if is_dark:
        world.onlooker.writes_fail(True)

    def over() -> None:
        if cut in world.skies.cuts:
            world.skies.cuts.remove(cut)
            if is_dark:
                world.onlooker.writes_fail(False)

    asyncio.get_running_loop().call_later(for_s, over)
    return f"{kind} of {host or 'all'}: {mode} for {for_s:.1f} s"


def edited_host(world: World, rng: random.Random, timing: Timing) -> str | None:
    """A host's document is deleted or garbled, or put back later as it was."""
    documents = world.documents(HOSTS_PREFIX)
    if not documents:
        return None
    chosen = rng.choice(documents)
    what = rng.choice(("garbled", "deleted", "put back"))
    if what == "garbled":
        world.store.edit_host(chosen.id, chosen.body[: rng.randint(0, max(0, len(chosen.body) - 1))])
    elif what == "deleted":
        world.store.edit_host(chosen.id, None)
    else:
        later_s = timing.duration_s * 1.5 * rng.random()
        asyncio.get_running_loop().call_later(later_s, _put_back, world, chosen.id, chosen.body)
    return f"{chosen.id} is {what}"


def _put_back(world: World, id: str, body: str) -> None:
    if not world.skies.is_calm and any(stored.id == id for stored in world.documents(HOSTS_PREFIX)):
        world.store.edit_host(id, body)


def stopped_look(world: World, rng: random.Random, timing: Timing) -> str | None:
    """A host is stopped right after it asks for a listing, or for a write."""
    operation = rng.choice(("list", "list", "changes", "count", "replace"))
    for_s = timing.duration_s * rng.choice((0.3, 1.0, 2.0)) * (0.5 + rng.random())

    def springs(host: Running) -> None:
        if not world.skies.is_calm and not host.task.done() and not host.process.is_stopped:
            host.process.stop()
            asyncio.get_running_loop().call_later(for_s, host.process.resume)

    host = rng.choice([running.name for running in world.alive] or [""])
    world.skies.snares.append(Snare(host, [frozenset((operation,))], springs, None))
    return f"{host} for {for_s:.1f} s after its next {operation}"


def crossing(world: World, rng: random.Random, timing: Timing) -> str | None:
    """A host is silent for about as long as it lasts and returns slowly, while others look and take slowly."""
    if len(world.alive) < 2:
        return None
    host = rng.choice(world.alive).name
    silent = Cut(host, is_of_hosts, Fate(timing.beat_timeout_s * 1.1, "ghost"))
    slow = Cut(host, is_of_hosts, Fate(0.9 * timing.beat_timeout_s * rng.random()), back_s=0.3 * rng.random())
    others = Cut("", is_read, Fate(0.5 * timing.beat_timeout_s * rng.random()), back_s=0.4 * timing.beat_timeout_s)
    silent_s = timing.duration_s * (0.72 + 0.4 * rng.random())
    cuts = world.skies.cuts
    cuts += [silent, others]

    def returns() -> None:
        if silent in cuts:
            cuts[cuts.index(silent)] = slow

    def over() -> None:
        cuts[:] = [cut for cut in cuts if cut not in (silent, slow, others)]

    loop = asyncio.get_running_loop()
    loop.call_later(silent_s, returns)
    loop.call_later(silent_s + timing.duration_s, over)
    for name in world.open_partitions():
        if world.feed._logs[name].children is None:
            loop.call_later(silent_s, partial(_pour, world, name))
    return f"{host} for {silent_s:.1f} s"


def held_heartbeat(world: World, rng: random.Random, timing: Timing) -> str | None:
    """A host is stopped until its trust is almost over, and again just before its next heartbeat goes out."""
    hosts = [each for each in world.alive if each.host.workers and not each.process.is_stopped]
    if not hosts:
        return None
    host = rng.choice(hosts)
    until_s = host.session.trusted_until - host.clock.monotonic() - rng.random()
    held_s = timing.beat_timeout_s * (0.4 + 0.7 * rng.random())
    if until_s <= 0:
        return None
    host.process.stop()

    def goes_on() -> None:
        if not world.skies.is_calm:
            world.skies.holds.append(Hold(host.name, is_of_hosts, held_s))
            host.process.resume()

    loop = asyncio.get_running_loop()
    loop.call_later(until_s, goes_on)
    for key in sorted(host.host.workers):
        _pour(world, key.partition)
        loop.call_later(until_s + held_s + 2 * rng.random(), _pour, world, key.partition)
    return f"{host.name} for {until_s:.1f} s and {held_s:.1f} s"


def held_write(world: World, rng: random.Random, timing: Timing) -> str | None:
    """A host is stopped just before or after it writes a lease. Others take its leases, which arrives when it continues."""
    hosts = [each for each in world.alive if each.host.workers and not each.process.is_stopped]
    if not hosts:
        return None
    host = rng.choice(hosts)
    ids = {lease_id(*key) for key in host.host.workers}
    stopped_s = timing.duration_s + 2.5 * rng.random()
    pours = [0.3 + 3 * rng.random() for _ in range(3)]
    arrives_s = 0.1 + 1.5 * rng.random()

    def springs(host: Running) -> None:
        if world.skies.is_calm or host.task.done():
            return
        world.tell("FAULT", f"{host.process.name} writes a lease and is stopped for {stopped_s:.2f} s")
        host.process.stop()
        comes_late(host)

    def comes_late(host: Running) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(stopped_s, host.process.resume)
        takes = Cut(
            "",
            lambda request: request.host != host.name and request.operation == "replace" and request.id in ids,
            Fate(0.01, "late"),
            arrives_at=world.now + stopped_s + arrives_s,
        )
        world.skies.cuts.insert(0, takes)
        loop.call_later(stopped_s + arrives_s, _remove, world.skies.cuts, takes)
        for later_s in pours:
            for key in sorted(host.host.workers):
                loop.call_later(stopped_s + later_s, _pour, world, key.partition)

    if rng.random() < 0.3:
        world.skies.holds.append(Hold(host.name, is_of_leases, stopped_s * rng.random()))
    else:
        world.skies.snares.append(Snare(host.name, [frozenset(("replace",))], springs, None, within="/leases/"))
    _pour(world, rng.choice(sorted(host.host.workers)).partition)
    return f"{host.name} for {stopped_s:.1f} s"


def _remove(cuts: list[Cut], cut: Cut) -> None:
    if cut in cuts:
        cuts.remove(cut)


def _pour(world: World, partition: str) -> None:
    if not world.skies.is_calm and world.feed._logs[partition].children is None:
        world.append(partition, 1)


FAULTS: tuple[Fault, ...] = (
    *(partial_outage, partial_outage, edited_host, stopped_look, crossing, crossing),
    *(held_heartbeat, held_heartbeat, held_write, held_write),
)


async def run_session_faults(world: World, until_s: float) -> None:
    timing = world.timing
    rng = random.Random(f"{world.setup.seed} sessions")
    for moment in sorted(rng.random() * until_s for _ in range(world.setup.faults)):
        await asyncio.sleep(max(0.0, moment - world.now))
        fault = rng.choice(FAULTS)
        if (did := fault(world, rng, timing)) is not None:
            name = fault.__name__.replace("_", " ")
            world.faults[name] = world.faults.get(name, 0) + 1
            world.tell("FAULT", f"{name}: {did}")
