"""A sink's output and positions are restored to an earlier state, and an operator resets the leases that this made useless."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Protocol

from lab.simulation.faults import move

from leasehold.leases.lease import Lease

if TYPE_CHECKING:
    from lab.simulation.world import World


class Vault(Protocol):
    """What a sink keeps output and positions in."""

    def backup(self) -> object: ...

    def restore(self, backup: Any) -> None: ...

    def has_lost(self, lease: Lease) -> bool:
        """Whether the lease has seen more of it than there is: then its owner refuses to go on until it is reset."""
        ...


async def run_restores(world: World, vault: Vault, until_s: float) -> None:
    """Once a seed, to what there was at some moment before, or to nothing."""
    rng = random.Random(f"{world.setup.seed} restores")
    restored_at = until_s * (0.2 + 0.8 * rng.random())
    backed_up_at = restored_at * rng.choice((0.0, rng.random(), rng.random()))
    await asyncio.sleep(backed_up_at)
    output, books = vault.backup(), world.onlooker.backup()
    await asyncio.sleep(restored_at - backed_up_at)
    are_ended = world.setup.sink == "files" or rng.random() < 0.5
    stopped = [running for running in world.alive if are_ended]
    for running in stopped:
        await running.kill()
    vault.restore(output)
    world.onlooker.restored(books)
    world.faults["restore"] = world.faults.get("restore", 0) + 1
    world.tell("FAULT", f"what the sink holds is as it was at {backed_up_at:.1f} s, hosts ended: {are_ended}")
    for name in sorted({running.name for running in stopped}):
        world.started(name)
    if not are_ended:
        _release_all(world)


async def mind(world: World, vault: Vault) -> None:
    """An operator resets each lease that the sink refuses, after a while: that is what its error advises."""
    seen: dict[tuple[str, int], float] = {}
    while True:
        await asyncio.sleep(world.timing.balance_s)
        for partition in world.open_partitions():
            lease = world.lease(partition)
            if lease is None or not vault.has_lost(lease):
                continue
            since = seen.setdefault((partition, lease.generation), world.now)
            if world.skies.is_calm or world.now >= since + world.timing.patience_s / 2:
                world.tell("FAULT", f"output is lost: {move(world, partition, 0)}")


def _release_all(world: World) -> None:
    """An operator makes hosts look at the sink again: one that has nothing to write would notice nothing."""
    for partition in world.open_partitions():
        lease = world.lease(partition)
        if lease is not None and lease.owner is not None:
            world.edit(partition, Lease.revoked)
            world.onlooker.edited(world.leases[partition], partition)
