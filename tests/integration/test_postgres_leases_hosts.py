"""Hosts whose leases are in PostgreSQL: handoffs, and what they hear of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from integration.postgres_group import Group
from patience import PATIENCE_S, until_async
from plugins_pg import Postgres

from leasehold.leases.store import Hint
from leasehold.leases.stores.postgres import PostgresAddress, PostgresStore, Table


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
