"""Leases for every partition, made in blobs: by whoever begins, wherever it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Literal

import pytest
from lab.servers.blob_wire import Wire, between

from leasehold.common.azure import storage_account_of
from leasehold.common.clock import BootClock
from leasehold.leases.bootstrap import Bootstrap, Identity, decode_info, info_id
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.keeper import Keeper
from leasehold.leases.lineage import Partition
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer
from leasehold.leases.timing import Timing

PARTITIONS = [Partition(name) for name in ("0", "1", "a/b.")]
REQUESTS = 12
"""No more than a round takes on an empty account: 4 looks, the container, 4 creations, and `info` completed."""
CONTAINERS = map("bootstrap-{}".format, count())


@asynccontextmanager
async def hosted(wire: Wire, container: str, host: str) -> AsyncIterator[Bootstrap]:
    place = BlobContainerAddress(container=container)
    store = BlobStore(
        LeaseBlobContainer(storage_account_of(connection_string=wire.connection_string), place, call_timeout_s=60)
    )
    keeper = Keeper(store, host=host, incarnation=host, clock=BootClock(), timing=Timing())
    try:
        yield Bootstrap(keeper, "orders", Identity("feed", "sink"))
    finally:
        await store.close()


async def a_round(bootstrap: Bootstrap) -> None:
    async def start_of(partition: str) -> str:
        return f"latest of {partition}"

    keeper = bootstrap._keeper
    await bootstrap.open()
    await bootstrap.reconcile(PARTITIONS, await keeper.scan(["orders"]), start_of)


async def expect_all(wire: Wire, container: str) -> None:
    async with hosted(wire, container, "late") as bootstrap:
        keeper = bootstrap._keeper
        leases = (await keeper.scan(["orders"])).leases
        assert {lease.partition: lease.continuation for lease in leases} == {
            each.name: f"latest of {each.name}" for each in PARTITIONS
        }
        assert decode_info(info_id("orders"), (await keeper.store.read(info_id("orders"))).body).complete


@pytest.mark.parametrize("do", ["cut", "lose_reply"])
async def test_wherever_a_host_dies_the_next_one_makes_what_is_missing(
    azurite: str, do: Literal["cut", "lose_reply"]
) -> None:
    died = 0
    async with between(azurite) as wire:
        for number in range(REQUESTS):
            container = next(CONTAINERS)
            wire.fault(do, after=number)
            async with hosted(wire, container, "first") as first:
                try:
                    await a_round(first)
                except (StoreAmbiguous, StoreUnavailable):
                    died += 1
            wire.heal()
            async with hosted(wire, container, "second") as second:
                await a_round(second)
            await expect_all(wire, container)
    assert died > 8


async def test_hosts_that_begin_at_once_make_each_lease_once(azurite: str) -> None:
    container = next(CONTAINERS)
    async with between(azurite) as wire:

        async def begin(host: str) -> None:
            async with hosted(wire, container, host) as bootstrap:
                for _ in range(5):
                    try:
                        await a_round(bootstrap)
                    except StoreConflict:  # another one was quicker: a host tries again
                        continue
                    return

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(begin(f"host-{number}"))
        await expect_all(wire, container)
