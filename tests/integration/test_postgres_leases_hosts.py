"""Hosts whose leases are in PostgreSQL: how soon a lease is handed over, and what an outage of the database does."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import psycopg
import pytest
from lab.simulation.group import logger
from plugins_pg import Postgres

from leasehold.common.clock import BootClock
from leases.errors import StoreError
from leases.keeper import Keeper
from leases.lease import Lease
from leases.session import Bell
from leases.store import Hint
from leases.stores.postgres import PostgresAddress, PostgresStore, Table
from leases.timing import SessionTiming, Timing, derived_session
from pipeline.connectors.memory import MemoryDestination, MemoryFeed, MemorySink
from pipeline.transform import NoTransform
from service.group.actions import pause_pipeline, resume_pipeline
from service.pipeline import Pipeline
from service.processor import Processor

HANDOFFS = 21
HANDOFF_S = 0.2
"""The promise: half of the leases are handed over within this time."""
OUTAGE_S = 10.0
"""Longer than a session. `make outage` stops the database for 30 s, with hosts that are processes."""
TRUST_S = SessionTiming().trust_s + 0.5
"""With what was sent just before its end."""


class Group:
    """Hosts of this process, each with connections of its own."""

    def __init__(self, postgres: Postgres, partitions: int, timing: Timing | None = None) -> None:
        self.postgres = postgres
        self.timing = timing
        self.feed = MemoryFeed(str(number) for number in range(partitions))
        self.destination = MemoryDestination()
        self.hosts: dict[str, Processor] = {}
        self.log: list[dict[str, object]] = []
        self.operator = self.store()
        self.bell = Bell(self.operator)
        self.keeper = Keeper(
            self.operator, host="leasehold", incarnation="0", clock=BootClock(), timing=Timing(), bell=self.bell
        )

    def store(self) -> PostgresStore:
        return PostgresStore(PostgresAddress(dsn=self.postgres.dsn, table=Table()))

    async def start(self, *names: str) -> None:
        for name in names:
            pipeline = Pipeline(
                name="orders", feed=self.feed, sink=MemorySink(self.destination), transform=NoTransform()
            )
            self.hosts[name] = Processor([pipeline], self.store(), host=name, timing=self.timing, log=logger(self.log))
        await asyncio.gather(*(self.hosts[name].start() for name in names))

    def owned_by(self, name: str) -> set[str]:
        return {key.partition for key in self.hosts[name].host.workers}

    async def until(self, condition: Callable[[], bool], within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 -- what hosts do has no event for tests
                await asyncio.sleep(0.001)

    async def hand_over(self, partition: str, to: str) -> float:
        """As an operator's command does. The seconds until the other host works on it."""
        seen = await self.keeper.read("orders", partition)
        began = time.monotonic()
        await self.keeper.rewrite(seen, seen.lease.handoff_requested(to))
        await self.bell.write()
        await self.until(lambda: partition in self.owned_by(to))
        return time.monotonic() - began

    async def leases(self) -> dict[str, Lease]:
        return {key.partition: seen.lease for key, seen in (await self.keeper.scan(["orders"])).seen.items()}

    async def close(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))
        await self.operator.close()


@pytest.fixture
async def group(postgres: Postgres) -> AsyncIterator[Group]:
    group = Group(postgres, partitions=1)
    yield group
    await group.close()


async def hand_over_many(group: Group) -> list[float]:
    """One lease, from host to host. Shares stay even, so no host requests it back."""
    await group.start("a", "b")
    await group.until(lambda: group.owned_by("a") | group.owned_by("b") == {"0"})
    await group.until(lambda: all(host.host.session.is_agreed for host in group.hosts.values()))  # type: ignore[union-attr]
    there = bool(group.owned_by("a"))
    return [await group.hand_over("0", "ab"[(there + number) % 2]) for number in range(HANDOFFS)]


@pytest.mark.alone
async def test_half_of_the_handoffs_take_a_fifth_of_a_second_at_most(group: Group) -> None:
    took = await hand_over_many(group)
    print("handoff: median", round(statistics.median(took), 3), "s, longest", round(max(took), 3), "s")  # noqa: T201
    assert statistics.median(took) <= HANDOFF_S


@pytest.mark.alone
async def test_a_host_that_joins_has_its_share_sooner_than_it_would_look(postgres: Postgres) -> None:
    group = Group(postgres, partitions=8)
    try:
        await group.start("a")
        await group.until(lambda: len(group.owned_by("a")) == 8)
        await group.start("b")
        await group.until(lambda: len(group.owned_by("b")) == 4)
        assert len(group.owned_by("a")) == 4
    finally:
        await group.close()


async def test_orders_of_a_command_are_carried_out_at_once(postgres: Postgres) -> None:
    timing = Timing(session=derived_session(70.0))
    assert timing.session is not None
    group = Group(postgres, partitions=1, timing=timing)
    try:
        await group.start("a")
        await group.until(lambda: group.owned_by("a") == {"0"})
        for order, owned in ((pause_pipeline, set()), (resume_pipeline, {"0"})):
            await order(group.keeper, "orders", by="test", at="2026-11-27T00:00:00+00:00")
            await group.bell.write()
            at_once_s = timing.session.look_s / 3
            await group.until(lambda owned=owned: group.owned_by("a") == owned, within_s=at_once_s)  # type: ignore[misc]
    finally:
        await group.close()


async def test_hosts_whose_notifications_are_lost_hand_over_at_their_looks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(self: PostgresStore, hints: object) -> None:
        """As a server that restarts right then."""

    monkeypatch.setattr(PostgresStore, "notify", lose)
    await group.start("a", "b")
    await group.until(lambda: group.owned_by("a") | group.owned_by("b") == {"0"})
    to = "b" if group.owned_by("a") else "a"
    await group.hand_over("0", to)


async def test_a_lost_listener_is_replaced_and_both_are_in_the_log(group: Group) -> None:
    await group.start("a")
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"
    await group.until(lambda: len(group.postgres.fetch(listening)) == 1)
    [(pid,)] = group.postgres.fetch(listening)
    group.postgres.fetch(f"SELECT pg_terminate_backend({pid})")
    await group.until(lambda: any(line["event"] == "hints from other hosts recovered" for line in group.log))
    assert any(str(line["event"]).startswith("no hints") for line in group.log)
    assert len(group.postgres.fetch(listening)) == 1


async def test_hints_reach_every_other_process_and_what_is_not_a_hint_is_one_for_anybody(postgres: Postgres) -> None:
    one, other = Group(postgres, 1).operator, Group(postgres, 1).operator
    watched = other.watch()
    assert await anext(watched) == Hint(), "what came before is lost"
    hints = [Hint("a", "orders"), Hint(None, "Bestellungen ü"), Hint("a'; --", None), Hint()]
    await one.notify(hints)
    await one.notify([Hint("x" * 9000)])
    postgres.fetch("SELECT pg_notify('public.leasehold_leases', 'anything')")
    async with asyncio.timeout(20):
        assert [await anext(watched) for _ in range(6)] == [*hints, Hint(), Hint()]
    await watched.aclose()
    await one.close()
    await other.close()


async def test_a_group_with_another_table_hears_nothing(postgres: Postgres) -> None:
    one = Group(postgres, 1).operator
    other = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=Table(name="others")))
    watched = other.watch()
    await anext(watched)
    await one.notify([Hint("a")])
    await other.notify([Hint("b")])
    assert await anext(watched) == Hint("b")
    await watched.aclose()
    await one.close()
    await other.close()


# Outages


@pytest.mark.alone
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
        await group.until(lambda: all(len(group.owned_by(name)) == 2 for name in "abc"))
        await group.until(lambda: all(host.host.session.is_agreed for host in group.hosts.values()))  # type: ignore[union-attr]
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
        await group.until(lambda: len(group.destination.commits) > suspended_at + 12, within_s=20)
        loading.cancel()
        await group.until(
            lambda: all(len(group.destination.rows(str(number))) == numbers[0] for number in range(6)), within_s=30
        )
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
