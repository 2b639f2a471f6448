"""What goes wrong in a simulation, and when. Each fault is a few lines; which ones come, and to whom, is drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from lab.simulation.documents import put_right
from lab.simulation.group import Running
from lab.simulation.quota import Quota
from lab.simulation.skies import Outage, Snare
from lab.simulation.weather import Where
from lab.simulation.world import World

from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.lease import Lease

Fault = Callable[[World], Awaitable[str | None]]
"""Says what it did; None where there was nothing to do it to."""


QUOTA = 2.0
"""How much more than a calm group's need."""
QUOTA_PAGES = 4
CLAIM = frozenset(("attach", "open"))
SEND = frozenset(("thread", "publish", "write", "process"))
ARRIVAL = SEND - {"thread"}
RECORD = frozenset(("replace",))


async def kill(world: World) -> str | None:
    if (host := _one(world, least=2)) is None:
        return None
    await host.kill()
    _restart_perhaps(world, host.name)
    return host.process.name


async def stop(world: World) -> str | None:
    """SIGSTOP, and SIGCONT after up to five lease durations."""
    if (host := _one(world)) is None or host.process.is_stopped:
        return None
    for_s = world.rng.choice((0.2, 1.0, 1.1, 2.0, 5.0)) * world.timing.patience_s * world.rng.random()
    _stopped(host, for_s)
    return f"{host.process.name} for {for_s:.1f} s"


async def snare(world: World) -> str | None:
    """A host is killed, is stopped or goes on, right after it claims, sends or records; what it asked may arrive late."""
    if (host := _one(world, least=2)) is None or host.process.is_stopped:
        return None
    return f"{host.process.name} {_snared(world, host.name, world.rng.choice(([CLAIM], [SEND], [ARRIVAL], [RECORD])))}"


async def succession(world: World) -> str | None:
    """A host is killed, and whoever claims a partition next is snared at that, or at what it sends there first."""
    if (host := _one(world, least=2)) is None:
        return None
    await host.kill()
    _restart_perhaps(world, host.name)
    return f"{host.process.name} dies, its heir {_snared(world, '', world.rng.choice(([CLAIM], [CLAIM, ARRIVAL])))}"


async def relay(world: World) -> str | None:
    """A host is killed. Its heir is too, right after what it sends first, and that arrives among the requests of the next heir,
    who has more to send by then; where somebody tampers, the lease is put back meanwhile as it was before the first heir's claim.
    """
    if (host := _one(world, least=2)) is None or not host.host.workers:
        return None
    left = sorted(key[1] for key in host.host.workers)
    await host.kill()
    world.started(host.name)
    _pour(world, left, 1)
    rng, before = world.rng, {name: world.lease(name) for name in left}
    is_put_back = world.setup.operator == "tampers" and world.setup.holds_position

    def springs(heir: Running) -> None:
        if world.skies.is_calm or heir.task.done():
            return
        world.tell("FAULT", f"{heir.process.name} is killed, and what it sent first arrives late")
        world.onlooker.counts["relays"] += 1
        asyncio.get_running_loop().create_task(_relayed(world, heir, before.get(laid.id) if is_put_back else None))
        _pour(world, [laid.id], 2 * world.setup.batch_events_max)

    laid = Snare("", [CLAIM, ARRIVAL], springs, world.skies.overtaken(rng, rng.choice((1, 2, 2, 2, 3))))
    world.skies.snares.append(laid)
    return f"{host.process.name} dies, its heir is to be killed at what it sends first"


async def _relayed(world: World, heir: Running, before: Lease | None) -> None:
    await heir.kill()
    now = world.lease(before.partition) if before is not None else None
    if before is not None and now is not None and not now.closed and now.generation == before.generation:
        _put_back(world, replace(before, owner=None, incarnation=None, handoff_to=None))
    if heir.name not in {running.name for running in world.alive}:
        world.started(heir.name)


def _pour(world: World, partitions: list[str], events_max: int) -> None:
    """More events, where a partition still takes any."""
    for name in partitions:
        if (log := world.feed._logs.get(name)) is not None and log.children is None:
            world.append(name, world.rng.randint(1, events_max))


def _snared(world: World, host: str, steps: list[frozenset[str]]) -> str:
    name, springs = world.rng.choice((("killed", _killed), ("stopped", _stopped_long), ("left alone", _left_alone)))
    fate = world.rng.choice((None, world.skies.overtaken(world.rng)))

    def springs_if_it_lives(host: Running) -> None:
        if not world.skies.is_calm and not host.task.done():
            world.tell("FAULT", f"{host.process.name} is {name}")
            world.onlooker.counts[f"snared and {name}"] += 1
            springs(world, host)

    at = ", then ".join("/".join(sorted(step)) for step in steps)
    world.skies.snares.append(Snare(host, steps, springs_if_it_lives, fate))
    return f"is to be {name} at {at}{', which arrives late' if fate else ''}"


async def leave(world: World) -> str | None:
    """SIGTERM."""
    if (host := _one(world, least=2)) is None:
        return None
    host.host.stop()
    _restart_perhaps(world, host.name)
    return host.process.name


async def join(world: World) -> str | None:
    if len(world.alive) >= world.setup.size.hosts + 2:
        return None
    return world.started(_new_name(world)).process.name


async def double(world: World) -> str | None:
    """A second live process under one name."""
    if len(world.alive) < 2 or world.rng.random() < 0.7:
        return None
    host = _one(world)
    return world.started(host.name).process.name if host else None


async def outage(world: World) -> str | None:
    """Store, feed or sink cannot be reached, by one host or by all; requests are refused, or vanish."""
    rng = world.rng
    where: Where = rng.choice(("store", "store", "feed", "sink"))
    host = rng.choice(("", *(running.name for running in world.alive)))
    mode: Outage = rng.choice(("refused", "silent"))
    for_s = rng.choice((0.3, 1.2, 2.5)) * world.timing.patience_s * rng.random()
    if (host, where) in world.skies.outages:
        return None
    world.skies.outages[host, where] = mode
    if (host, where) == ("", "store"):
        world.onlooker.dark(True)
        world.onlooker.writes_fail(True)
    asyncio.get_running_loop().call_later(for_s, over, world, host, where)
    return f"{where} is {mode} for {host or 'all'}, {for_s:.1f} s"


def over(world: World, host: str, where: Where) -> None:
    """The end of an outage."""
    mode = world.skies.outages.pop((host, where), None)
    if (host, where) == ("", "store") and mode is not None:
        world.onlooker.dark(False)
        world.onlooker.writes_fail(False)


async def fade(world: World) -> str | None:
    """A host's way to the store gets slow, and then ends for as long as its leases may be trusted; events come all the while."""
    timing, skies = world.timing, world.skies
    if (host := _one(world)) is None or (host.name, "store") in skies.outages or host.name in skies.slow:
        return None
    slow_s = timing.balance_s + timing.call_timeout_s

    async def fades() -> None:
        skies.slow.add(host.name)
        await asyncio.sleep(slow_s)
        skies.slow.discard(host.name)
        skies.outages.setdefault((host.name, "store"), "refused")
        await asyncio.sleep(timing.patience_s - timing.margin_s - slow_s)
        ends = world.now + slow_s + timing.call_timeout_s
        while world.now < ends and not skies.is_calm:
            _pour(world, [key[1] for key in host.host.workers], 1)
            await asyncio.sleep(timing.call_timeout_s * world.rng.random() / 4)
        over(world, host.name, "store")

    asyncio.get_running_loop().create_task(fades())
    return f"{host.name}, slow for {slow_s:.1f} s"


async def hang(world: World) -> str | None:
    """A host's transform and sink take what they are given, and never answer."""
    if (host := _one(world)) is None:
        return None
    world.skies.hanging.add(host.name)
    for_s = 0.5 * world.timing.patience_s * world.rng.random()
    asyncio.get_running_loop().call_later(for_s, world.skies.hanging.discard, host.name)
    return f"{host.name} for {for_s:.1f} s"


async def burst(world: World) -> str | None:
    partition = world.rng.choice(world.open_partitions() or [""])
    if not partition or world.feed._logs[partition].children is not None:
        return None
    world.append(partition, 10 * world.setup.batch_events_max)
    return partition


async def split(world: World) -> str | None:
    """One partition becomes two; now and then two become one, which half of the seeds have as one with two parts."""
    whole = [name for name in world.open_partitions() if world.feed._logs[name].children is None]
    if not world.setup.splits or len(whole) < 2 or len(world.feed._logs) > 2 * world.setup.size.leases:
        return None
    if world.rng.random() < 0.3:
        pair = world.rng.sample(whole, 2)
        if len({world.setup.pipeline_of(name) for name in pair}) > 1:
            return None
        if world.setup.seed % 2:
            world.feed.merge_in_parts(pair)
            return f"{pair} merge, and each goes on as its part"
        for parent in pair:
            world.feed.split(parent, ["+".join(pair)])
        return f"{pair} merge"
    parent = world.rng.choice(whole)
    world.feed.split(parent, [f"{parent}.0", f"{parent}.1"])
    return parent


async def revoke(world: World) -> str | None:
    """An operator's release, who does not ring."""
    return None if (lease := _any_lease(world)) is None else release(world, lease.partition)


def release(world: World, partition: str) -> str | None:
    if (lease := world.lease(partition)) is None or lease.owner is None:
        return None
    new = lease.revoked()
    _put(world, new)
    world.onlooker.edited(new, partition)
    return partition


async def reset(world: World) -> str | None:
    """An operator's new position, before or behind where the lease stands. Now and then the lease is closed for a while first."""
    if world.setup.operator != "resets" or (lease := _any_lease(world)) is None:
        return None
    log = world.feed._logs[lease.partition]
    to = world.rng.randint(0, log.end)
    if to % 3 == 0 and log.children is None:  # no draw of its own: other seeds stay as they are
        _put_back(world, lease.finished(lease.continuation, tombstone=True))
        for_s = world.timing.patience_s * (1 + to % 4) / 4
        world.reopening.add(lease.partition)
        asyncio.get_running_loop().call_later(for_s, move, world, lease.partition, to)
        return f"{lease.partition} is closed, and in {for_s:.1f} s opened at {to}"
    return move(world, lease.partition, to)


def move(world: World, partition: str, to: int) -> str | None:
    """An operator's reset."""
    world.reopening.discard(partition)
    if (lease := world.lease(partition)) is None:
        return None
    new = lease.reset(str(to) if to else None)
    _put(world, new)
    world.onlooker.edited(None, partition)
    world.onlooker.reset(new, to)
    return f"{partition} to {to}, generation {new.generation}"


async def rewrite(world: World) -> str | None:
    """Somebody's text editor: an older copy of the document is put back."""
    if world.setup.operator != "tampers" or (lease := _any_lease(world)) is None:
        return None
    rng = world.rng
    old = replace(
        lease,
        epoch=rng.randint(0, lease.epoch),
        tick=rng.randint(0, lease.tick),
        owner=None,
        incarnation=None,
        handoff_to=rng.choice((None, "nobody", lease.handoff_to)),
    )
    if world.setup.holds_position:  # which has no other position than the lease's
        begins = world.feed.start(lease.partition)  # no copy is older than that
        to = rng.randint(begins, int(lease.continuation or 0))
        old = replace(old, continuation=str(to) if to else None)
    if world.setup.sink == "eventhubs":  # which believes what a document says of its position and of the hub together
        copy = rng.choice(world.onlooker.history[lease.partition, lease.generation])
        old = replace(old, continuation=copy.continuation, sink_state=copy.sink_state)
    if rng.random() < 0.5:
        old = replace(old, sink_state="")
    _put_back(world, old)
    return f"{lease.partition}: epoch {old.epoch} at {old.continuation}"


def _put_back(world: World, old: Lease) -> None:
    _put(world, old)
    world.onlooker.edited(old, old.partition)


async def delete(world: World) -> str | None:
    if world.setup.operator != "tampers" or not world.setup.holds_position or (lease := _any_lease(world)) is None:
        return None
    world.remove(lease_id(*lease.key))
    world.onlooker.edited(None, lease.partition)
    return lease.partition


async def garble(world: World) -> str | None:
    """A document that nobody can read, until somebody deletes it."""
    if world.setup.operator != "tampers" or not world.setup.holds_position or (lease := _any_lease(world)) is None:
        return None
    stored_under = lease_id(*lease.key)
    world.put(stored_under, encode_lease(lease)[: world.rng.randint(0, 80)])
    world.onlooker.edited(None, lease.partition)

    world.garbled.add(stored_under)
    asyncio.get_running_loop().call_later(world.rng.random() * world.timing.patience_s, mended, world, stored_under)
    return lease.partition


def mended(world: World, stored_under: str) -> None:
    """Somebody deletes it."""
    if stored_under in world.garbled:
        world.garbled.remove(stored_under)
        world.store._documents.pop(stored_under, None)


FAULTS: tuple[Fault, ...] = (
    *(
        kill,
        kill,
        stop,
        stop,
        stop,
        snare,
        snare,
        succession,
        succession,
        relay,
        relay,
        relay,
        leave,
        join,
        join,
        double,
    ),
    *(outage, outage, outage, fade, hang, burst, split, split, revoke, reset, reset, rewrite, delete, garble),
)


async def run_faults(world: World, until_s: float) -> None:
    """So many as the setup says, at moments that the seed draws."""
    moments = sorted(world.rng.random() * until_s for _ in range(world.setup.faults))
    for moment in moments:
        await asyncio.sleep(max(0.0, moment - world.now))
        fault = world.rng.choice(FAULTS)
        did = await fault(world)
        if did is not None:
            world.faults[fault.__name__] = world.faults.get(fault.__name__, 0) + 1
            world.tell("FAULT", f"{fault.__name__}: {did}")


def calm(world: World) -> None:
    """Faults stop: from now on every request goes well, and every process runs."""
    for host, where in list(world.skies.outages):
        over(world, host, where)
    for stored_under in sorted(world.garbled):
        mended(world, stored_under)
    put_right(world)
    world.skies.hanging.clear()
    world.skies.slow.clear()
    world.skies.snares.clear()
    world.skies.cuts.clear()
    world.skies.holds.clear()
    world.onlooker.calm()
    world.skies.is_calm = True
    if world.setup.has_quota:
        world.skies.quota = narrow(world)
    for running in world.hosts:
        if not running.task.done():
            running.process.resume()


def narrow(world: World) -> Quota:
    """The container refuses everybody for a while, and from then on has little more than what the group needs when it is calm.

    It saves up for a balance interval at most: a host's scan fits in, as it does in what a real container saves up.
    """
    timing, hosts, leases = world.timing, len(world.alive) + 1, len(world.leases) + 1
    listings_s = (1 + len(world.setup.pipelines)) * hosts / timing.balance_s  # of hosts, and of each pipeline's leases
    writes_s = hosts / timing.balance_s + leases / timing.balance_s
    listings_s += hosts / timing.look_s
    writes_s += hosts / timing.beat_s
    return Quota(
        QUOTA * (QUOTA_PAGES * listings_s + writes_s),
        list_pages=QUOTA_PAGES,
        closes=world.now,
        opens=world.now + 10 * timing.patience_s / 60,
        burst_s=timing.balance_s,
    )


def _stopped(host: Running, for_s: float) -> None:
    host.process.stop()
    asyncio.get_running_loop().call_later(for_s, host.process.resume)


def _stopped_long(world: World, host: Running) -> None:
    _stopped(host, world.rng.choice((1.1, 2.0)) * world.timing.patience_s)


def _killed(world: World, host: Running) -> None:
    asyncio.get_running_loop().create_task(host.kill())
    _restart_perhaps(world, host.name)


def _left_alone(world: World, host: Running) -> None:
    """Its request was enough."""


def _one(world: World, *, least: int = 1) -> Running | None:
    """A live host, where there are so many that run."""
    alive = [running for running in world.alive if not running.host.is_draining]
    return world.rng.choice(alive) if len(alive) >= least else None


def _restart_perhaps(world: World, name: str) -> None:
    """Under the same name, soon or late; or somebody else comes, or nobody."""
    rng = world.rng
    after_s = rng.choice((0.01, 0.3, 1.5)) * world.timing.patience_s * rng.random()
    name = rng.choice((name, name, _new_name(world), ""))

    def restarted() -> None:
        if name and not world.skies.is_calm and name not in {running.name for running in world.alive}:
            world.started(name)

    asyncio.get_running_loop().call_later(after_s, restarted)


def _new_name(world: World) -> str:
    return f"host-{len(world.hosts)}"


def _any_lease(world: World) -> Lease | None:
    partitions = world.open_partitions()
    return world.lease(world.rng.choice(partitions)) if partitions else None


def _put(world: World, lease: Lease) -> None:
    world.put(lease_id(*lease.key), encode_lease(lease))
