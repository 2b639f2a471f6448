"""What befalls documents that are no leases: orders to pause pipelines, hosts' documents, and what pipelines say of themselves.

Operators and text editors write them while all else goes wrong (simulation.faults). Which, and when, has a random source of its
own, so that all other faults of a seed stay as they are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.leases.bootstrap import decode_info, encode_info, info_id
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import HOSTS_PREFIX, decode_host
from leasehold.leases.pause_orders import Control, control_id, encode_control
from leasehold.leases.store import Stored

if TYPE_CHECKING:
    from lab.simulation.world import World

Fault = Callable[["World", random.Random], str | None]
"""Says what it did; None where there was nothing to do it to."""


def pause(world: World, rng: random.Random) -> str | None:
    """An operator pauses a pipeline, and resumes it later. Now and then nobody can read the order meanwhile, or it is deleted."""
    name = rng.choice(world.setup.pipelines)
    if name in world.paused:
        return None
    order_pause(world, name)
    for_s = world.timing.patience_s * rng.choice((0.1, 1.0, 2.0)) * rng.random()
    way = rng.choice((resume, resume, _delete_order))
    is_garbled = rng.random() < 0.3
    if is_garbled:
        body = encode_control(Control(pipeline=name, paused=True))
        world.put(control_id(name), body[: rng.randint(0, len(body) - 1)])
    asyncio.get_running_loop().call_later(for_s, way, world, name)
    return f"{name} for {for_s:.1f} s{', garbled' * is_garbled}"


def order_pause(world: World, pipeline: str) -> None:
    world.paused.add(pipeline)
    world.put(control_id(pipeline), encode_control(Control(pipeline=pipeline, paused=True, by="alice")))


def resume(world: World, pipeline: str) -> None:
    if pipeline in world.paused:
        world.paused.discard(pipeline)
        world.put(control_id(pipeline), encode_control(Control(pipeline=pipeline, paused=False, by="alice")))


def _delete_order(world: World, pipeline: str) -> None:
    if pipeline in world.paused:
        world.paused.discard(pipeline)
        world.remove(control_id(pipeline))


def host(world: World, rng: random.Random) -> str | None:
    """A host's document is garbled, deleted, or put back as it was a while ago; its host is to write it once more."""
    documents = world.documents(HOSTS_PREFIX)
    if not documents:
        return None
    chosen = rng.choice(documents)
    return _done(world, rng, chosen, lambda: _put_back_host(world, rng, chosen))


def _put_back_host(world: World, rng: random.Random, old: Stored) -> None:
    def put() -> None:
        now = {stored.id: stored for stored in world.documents(HOSTS_PREFIX)}.get(old.id)
        if now is not None and _incarnation(now) == _incarnation(old) != "":
            world.put(old.id, old.body)

    asyncio.get_running_loop().call_later(world.timing.balance_s * (1 + rng.random()), put)


def _incarnation(stored: Stored) -> str:
    """ "" if nobody can read it."""
    try:
        return decode_host(stored.id, stored.body).incarnation
    except InvalidDocument:
        return ""


def info(world: World, rng: random.Random) -> str | None:
    """A pipeline's own document is garbled, deleted, or put back as it was in the first round. A host that starts while nobody
    can read it ends."""
    found = world.documents(info_id(rng.choice(world.setup.pipelines)))
    if not found or found[0].id in world.infos:
        return None
    [stored] = found
    recorded = decode_info(stored.id, stored.body)
    if not recorded.complete:
        return None
    world.infos[stored.id] = stored.body
    asyncio.get_running_loop().call_later(world.timing.patience_s * rng.random(), _put_right, world, stored.id)
    early = encode_info(replace(recorded, complete=False))
    return _done(world, rng, stored, lambda: world.put(stored.id, early))


def _done(world: World, rng: random.Random, stored: Stored, put_back: Callable[[], None]) -> str:
    what = rng.choice(("garbled", "deleted", "put back"))
    if what == "garbled":
        world.put(stored.id, stored.body[: rng.randint(0, max(0, len(stored.body) - 1))])
    elif what == "deleted":
        world.remove(stored.id)
    else:
        put_back()
    return f"{stored.id} is {what}"


def _put_right(world: World, stored_under: str) -> None:
    """As it was, unless a host has made it again."""
    body = world.infos.pop(stored_under, None)
    if body is not None and not _is_readable(world, stored_under):
        world.put(stored_under, body)


def _is_readable(world: World, stored_under: str) -> bool:
    try:
        return all(decode_info(each.id, each.body) for each in world.documents(stored_under))
    except InvalidDocument:
        return False


FAULTS: tuple[Fault, ...] = (pause, pause, host, host, info)


async def run_document_faults(world: World, until_s: float) -> None:
    rng = random.Random(f"{world.setup.seed} documents")
    for moment in sorted(rng.random() * until_s for _ in range(world.setup.document_faults)):
        await asyncio.sleep(max(0.0, moment - world.now))
        fault = rng.choice(FAULTS)
        if (did := fault(world, rng)) is not None:
            name = f"{fault.__name__} document" if fault is not pause else "pause"
            world.faults[name] = world.faults.get(name, 0) + 1
            world.tell("FAULT", f"{name}: {did}")


def put_right(world: World) -> None:
    """Faults stop: everything can be read, and nothing is paused."""
    for pipeline in sorted(world.paused):
        resume(world, pipeline)
    for stored_under in sorted(world.infos):
        _put_right(world, stored_under)
