"""Hosts whose leases are in PostgreSQL: how soon a lease is handed over, and what an outage of the database does."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import psycopg
import pytest
from integration.postgres_group import Group
from patience import until_async
from plugins_pg import Line, Network, Postgres

from leasehold.leases.errors import StoreError
from leasehold.leases.timing import Timing
from leasehold.service.group.actions import pause_pipeline, resume_pipeline

HANDOFFS = 21
HANDOFF_S = 0.2
"""The promise: half of the leases are handed over within this time."""
OUTAGE_S = 10.0
"""Longer than a session. `make outage` stops the database for 30 s, with hosts that are processes."""
TRUST_S = Timing().trust_s + 0.5
"""With what was sent just before its end."""

SLOW_S, WRITES = 2.0, 10


@pytest.fixture
async def group(postgres: Postgres) -> AsyncIterator[Group]:
    group = Group(postgres, partitions=1)
    yield group
    await group.close()


async def hand_over_many(group: Group) -> list[float]:
    """One lease, from host to host. Shares stay even, so no host requests it back."""
    await group.start("a", "b")
    await until_async(lambda: group.owned_by("a") | group.owned_by("b") == {"0"})
    there = bool(group.owned_by("a"))
    return [await group.hand_over("0", "ab"[(there + number) % 2]) for number in range(HANDOFFS)]


async def test_half_of_the_handoffs_take_a_fifth_of_a_second_at_most(group: Group) -> None:
    took = await hand_over_many(group)
    print("handoff: median", round(statistics.median(took), 3), "s, longest", round(max(took), 3), "s")  # noqa: T201
    assert statistics.median(took) <= HANDOFF_S


async def test_a_host_that_joins_has_its_share_sooner_than_it_would_look(postgres: Postgres) -> None:
    group = Group(postgres, partitions=8)
    try:
        await group.start("a")
        await until_async(lambda: len(group.owned_by("a")) == 8)
        await group.start("b")
        await until_async(lambda: len(group.owned_by("b")) == 4)
        assert len(group.owned_by("a")) == 4
    finally:
        await group.close()


async def test_orders_of_a_command_are_carried_out_at_once(postgres: Postgres) -> None:
    timing = Timing(duration_s=70.0)
    group = Group(postgres, partitions=1, timing=timing)
    try:
        await group.start("a")
        await until_async(lambda: group.owned_by("a") == {"0"})
        for order, owned in ((pause_pipeline, set()), (resume_pipeline, {"0"})):
            await order(group.keeper, "orders", by="test", at="2026-11-27T00:00:00+00:00")
            await group.bell.write()
            at_once_s = timing.look_s / 3
            assert await until_async(lambda owned=owned: group.owned_by("a") == owned) < at_once_s  # type: ignore[misc]
    finally:
        await group.close()


@pytest.mark.timeout(180)
async def test_no_lease_moves_while_the_database_is_away_and_work_resumes(postgres: Postgres) -> None:
    group = Group(postgres, partitions=6)
    numbers = [0]

    async def load() -> None:
        while True:
            numbers[0] += 1
            for partition in range(6):
                group.feed.append(str(partition), [str(numbers[0]).encode()])
            await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    try:
        await group.start("a", "b", "c")
        await until_async(lambda: all(len(group.owned_by(name)) == 2 for name in "abc"))
        before = await group.leases()
        delivered = len(group.destination.commits)
        postgres.server.stop()
        began = time.monotonic()
        suspended_at = 0
        while (left := began + OUTAGE_S - time.monotonic()) > 0:
            if left < OUTAGE_S - TRUST_S and not suspended_at:
                suspended_at = len(group.destination.commits)
            await asyncio.sleep(0.2)
        assert len(group.destination.commits) == suspended_at > delivered, "trust ended, and not at once"
        postgres.start()
        await until_async(lambda: len(group.destination.commits) > suspended_at + 12)
        loading.cancel()
        await until_async(lambda: all(len(group.destination.rows(str(number))) == numbers[0] for number in range(6)))
        after = await group.leases()
        assert {name: (lease.owner, lease.incarnation, lease.epoch) for name, lease in after.items()} == {
            name: (lease.owner, lease.incarnation, lease.epoch) for name, lease in before.items()
        }
        for number in range(6):
            bodies = [int(row["body"]) for row in group.destination.rows(str(number))]
            assert bodies == list(range(1, numbers[0] + 1)), "each once, in order"
    finally:
        loading.cancel()
        with suppress(psycopg.Error, StoreError):
            postgres.start()
        await group.close()


@pytest.mark.timeout(300)
async def test_hosts_work_on_with_a_database_that_takes_two_seconds_for_each_write(
    postgres: Postgres, postgres_network: Network
) -> None:
    """Heartbeats included. Leases stay where they are, and no trust lapses."""
    writes = 0

    async def delay(line: Line, message: bytes) -> None:
        nonlocal writes
        if any(word in message for word in (b"UPDATE", b"INSERT", b"DELETE")):
            writes += 1
            await asyncio.sleep(SLOW_S)

    postgres_network.before = delay
    group = Group(postgres, partitions=6, network=postgres_network)
    try:
        await group.start("a", "b", "c")
        await until_async(lambda: all(len(group.owned_by(name)) == 2 for name in "abc"))
        before = {name: (lease.owner, lease.epoch) for name, lease in (await group.leases()).items()}
        writes = 0
        for number in range(WRITES):
            for partition in range(6):
                group.feed.append(str(partition), [str(number).encode()])
            await until_async(lambda number=number: all(len(group.delivered(str(each))) > number for each in range(6)))  # type: ignore[misc]
            await asyncio.sleep(SLOW_S)
        assert writes > WRITES, "heartbeats and checkpoints were slow"
        assert all(group.delivered(str(each)) == list(range(WRITES)) for each in range(6))
        assert {name: (lease.owner, lease.epoch) for name, lease in (await group.leases()).items()} == before
        assert not [line for line in group.log if line["event"] in ("trust lapsed", "suspended")]
    finally:
        postgres_network.before = None
        await group.close()
