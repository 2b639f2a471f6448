"""Hosts whose leases are in PostgreSQL: handoffs, and what they hear of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from integration.postgres_group import Group
from patience import PATIENCE_S, until_async
from plugins_pg import PORT, Line, Network, Postgres

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.store import Hint
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore


@pytest.fixture
async def group(postgres: Postgres) -> AsyncIterator[Group]:
    group = Group(postgres, partitions=1)
    yield group
    await group.close()


async def test_hosts_whose_notifications_are_lost_hand_over_at_their_looks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(self: PostgresStore, hints: object) -> None:
        """As a server that restarts right then."""

    monkeypatch.setattr(PostgresStore, "notify", lose)
    await group.start("a", "b")
    await until_async(lambda: group.owned_by("a") | group.owned_by("b") == {"0"})
    to = "b" if group.owned_by("a") else "a"
    await group.hand_over("0", to)


async def test_a_lost_listener_is_replaced_and_both_are_in_the_log(group: Group) -> None:
    await group.start("a")
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"
    await until_async(lambda: len(group.postgres.fetch(listening)) == 1)
    [(pid,)] = group.postgres.fetch(listening)
    group.postgres.fetch(f"SELECT pg_terminate_backend({pid})")
    await until_async(lambda: any(line["event"] == "hints from other hosts recovered" for line in group.log))
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
    async with asyncio.timeout(PATIENCE_S):
        assert [await anext(watched) for _ in range(6)] == [*hints, Hint(), Hint()]
    await watched.aclose()
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    ("listen_dsn", "why"),
    [
        ("host=127.0.0.1 port=1 dbname=bank", r"127.0.0.1:1/bank cannot be reached: .*: look at `listen_dsn`"),
        ("{socket} dbname=nowhere", r"/nowhere refused the connection: .*: correct `listen_dsn`"),
        ("{socket} dbname=template1", r"/template1: notifications do not arrive, .*another database: set `listen_dsn`"),
    ],
    ids=["away", "wrong", "another database"],
)
async def test_a_listener_that_leads_elsewhere_names_its_own_server_and_setting(
    postgres: Postgres, listen_dsn: str, why: str
) -> None:
    socket = f"host={postgres.socket_dir} user=postgres port={PORT}"
    place = PostgresAddress(dsn=postgres.dsn, table=LeaseTable(), listen_dsn=listen_dsn.format(socket=socket))
    store = PostgresStore(place)
    with pytest.raises(StoreUnavailable, match=why):
        await anext(store.watch())
    await store.close()


async def test_a_group_with_another_table_hears_nothing(postgres: Postgres) -> None:
    one = Group(postgres, 1).operator
    other = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable(name="others")))
    watched = other.watch()
    await anext(watched)
    await one.notify([Hint("a")])
    await other.notify([Hint("b")])
    assert await anext(watched) == Hint("b")
    await watched.aclose()
    await one.close()
    await other.close()


async def test_a_failover_to_a_server_that_lags_behind_loses_and_repeats_nothing(
    postgres: Postgres, postgres_network: Network
) -> None:
    """Epochs and positions in the leases move back. The sink has its own, and knows a higher epoch."""
    group = Group(postgres, 1, network=postgres_network)
    try:
        await group.start("a", "b")
        await until_async(lambda: group.owned_by("a") | group.owned_by("b") == {"0"})
        first, second = ("a", "b") if group.owned_by("a") else ("b", "a")
        await append(group, range(10))
        postgres.fetch("CREATE TABLE lagging AS TABLE leasehold_leases")
        await group.hand_over("0", second)
        await group.hand_over("0", first)
        await append(group, range(10, 20))
        ahead = (await group.leases())["0"].epoch
        await fail_over(postgres, postgres_network)
        await append(group, range(20, 30))

        async def has_outranked() -> bool:
            return (await group.leases())["0"].epoch > ahead

        await until_async(has_outranked)
        await append(group, range(30, 40))
        assert sorted(len(group.owned_by(name)) for name in "ab") == [0, 1]
    finally:
        postgres_network.before = None
        await group.close()


async def append(group: Group, numbers: range) -> None:
    """Returns once they are delivered, each once and in order."""
    group.feed.append("0", [str(number).encode() for number in numbers])
    await until_async(lambda: len(group.delivered("0")) >= numbers.stop)
    assert group.delivered("0") == list(range(numbers.stop))


async def fail_over(postgres: Postgres, network: Network) -> None:
    """The primary is gone, and the server that takes its place has not received its last commits."""

    async def cut(line: Line, message: bytes) -> None:
        line.cut()

    network.before = cut
    postgres.fetch(
        "WITH gone AS (DELETE FROM leasehold_leases WHERE id NOT IN (SELECT id FROM lagging))"
        " UPDATE leasehold_leases AS now SET body = lagging.body, version = lagging.version, changed_in = lagging.changed_in"
        " FROM lagging WHERE lagging.id = now.id"
    )
    postgres.stop()
    postgres.start()
    network.before = None
