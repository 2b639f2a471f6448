"""KEDA's scalers for Cosmos DB and PostgreSQL, with the triggers that the chart renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from interop.bench import Bench
from patience import until_async
from plugins_cosmos import Cosmos
from plugins_pg import Postgres

from leasehold.service.group.actions import pause_pipeline, resume_pipeline


@pytest.fixture
def account(cosmos: Cosmos, tmp_path: Path) -> Bench:
    """The pipeline over a change feed, with leases in Cosmos DB."""
    feed = {"type": "cosmos", "connection_string": "${COSMOS}", "database": "bank", "container": "transactions"}
    feed |= {"poll_interval_s": 0.1}
    leases = {"type": "cosmos", "connection_string": "${COSMOS}", "database": "bank", "container": "leases"}
    env = {"COSMOS": f"AccountEndpoint={cosmos.endpoint};AccountKey={cosmos.key};"}
    return Bench("cosmos", leases, feed, env, tmp_path)


async def write(container: Any, numbers: range) -> None:
    for number in numbers:
        await container.upsert_item({"id": str(number), "account": str(number)})


async def test_keda_sees_the_lag_of_a_change_feed_from_zero_to_zero(go: str, account: Bench, cosmos: Cosmos) -> None:
    async with cosmos.client() as client:
        bank = await client.create_database("bank")
        container = await bank.create_container("transactions", PartitionKey("/account"))
        await bank.create_container("leases", PartitionKey("/id"))
        await write(container, range(20))
        assert await account.lag(go) == 0  # without leases KEDA knows of no partition: the first start is yours
        await account.drain()
        assert await account.lag(go) == 0
        await write(container, range(20, 33))
        assert await account.lag(go) == 13
        async with account.host() as host:
            await account.until_lag(go, 0)
            await pause_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:00:00Z")
            await until_async(lambda: not host.host.workers)
            await write(container, range(33, 40))
            assert await account.lag(go) == 7
            await resume_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:01:00Z")
            await account.until_lag(go, 0)
    assert len(await account.delivered()) == 40


async def test_keda_sends_a_query_to_postgresql(go: str, postgres: Postgres, tmp_path: Path) -> None:
    postgres.fetch("CREATE TABLE outbox (id int, delivered boolean)")
    postgres.fetch("INSERT INTO outbox SELECT n, n > 7 FROM generate_series(1, 10) n")
    values = {"postgres": {"query": "SELECT count(*) FROM outbox WHERE NOT delivered", "connectionEnv": "OUTBOX"}}
    bench = Bench(
        "postgres",
        {"type": "blob", "connection_string": "${B}"},
        {"type": "eventhubs"},
        {"OUTBOX": postgres.dsn},
        tmp_path,
        values,
    )
    assert await bench.lag(go) == 7
    postgres.fetch("UPDATE outbox SET delivered = true")
    assert await bench.lag(go) == 0
