"""What programs write: `mypy --strict` and pyright in strict mode take it as it is, without a plugin. It is never run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, assert_type

from azure.identity import DefaultAzureCredential
from pydantic import SecretStr

from leasehold import (
    Api,
    Backlog,
    BlobLeases,
    CloseReason,
    Context,
    CosmosFeed,
    CosmosLeases,
    CosmosSink,
    Estimate,
    Event,
    EventHubsFeed,
    FilesFeed,
    FilesSink,
    Handler,
    HostSettings,
    HttpSink,
    LeaseAcquired,
    LogLetters,
    LogSettings,
    LogSink,
    MemoryFeed,
    MemoryLeases,
    MemorySink,
    Notifications,
    PartitionFailing,
    Pipeline,
    PostgresLeases,
    PostgresSink,
    Processor,
    Retry,
    Spark,
    Sql,
    SqliteLeases,
)

shop: dict[str, Any] = {"connection_string": os.environ["SHOP_COSMOS"], "database": "shop"}
dsn = os.environ["LEASEHOLD_POSTGRES_DSN"]


async def on_changes(changes: list[dict[str, Any]], context: Context) -> None:
    for document in changes:
        print(context.partition, document["id"], context.request_charge)


def on_events(changes: list[Event], context: Context) -> None:
    if changes[0].json()["n"] < 0:
        raise Retry(after_s=1)


class Readings(Handler):
    async def open(self, context: Context) -> None: ...

    async def process(self, changes: list[Event], context: Context) -> None:
        await context.checkpoint(changes[-1])

    async def close(self, context: Context, reason: CloseReason) -> None:
        print(context.partition, reason)


class Watch(Notifications):
    async def on_lease_acquired(self, event: LeaseAcquired) -> None: ...

    def on_partition_failing(self, event: PartitionFailing) -> None: ...


orders = Pipeline("orders", feed=CosmosFeed(**shop, container="orders"), handler=on_changes, batch_events_max=20)
credential = DefaultAzureCredential()
by_identity = CosmosFeed(endpoint="https://a.documents.azure.com", credential=credential, database="a", container="b")
hub = EventHubsFeed(connection_string=os.environ["HUB"], event_hub="readings", start="earliest")
readings = Pipeline("readings", feed=hub, handler=Readings, checkpoint_s="manual")
totals = Pipeline(
    "totals",
    feed=FilesFeed(path="sales-*.csv"),
    transform=Sql("SELECT * FROM events", schema="customer STRING NOT NULL"),
    sink=PostgresSink(dsn=dsn, table="totals"),
    dead_letters=LogLetters(path="state/dead"),
)
side_by_side = Pipeline("side", feed=hub, handler=on_events, parallel={"key": "key", "max": 64}, checkpoint_s=5)
sinks = (
    LogSink(path="state/words"),
    LogSink(path=Path("state/words")),
    FilesSink(path="state/files", format="parquet"),
    HttpSink(url="https://a.example", headers={"Authorization": "Bearer a"}, ca_file="ca.pem"),
    CosmosSink(endpoint="https://a.documents.azure.com", key="a2V5", database="a", container="b"),
    MemorySink(),
)
stores = (
    SqliteLeases(path="leases.db"),
    PostgresLeases(dsn=SecretStr(dsn)),
    CosmosLeases(**shop, container="leases"),
    BlobLeases(account_url="https://a.blob.core.windows.net", container="leases", credential=credential),
    MemoryLeases(),
)
assert_type(FilesFeed(path=Path("words-*.jsonl")).path, str)
assert_type(stores[0].path, Path)
assert_type(sinks[3].ca_file, Path | None)
assert_type(stores[1].dsn, SecretStr)


async def main() -> None:
    host = HostSettings(name="pod-1")
    log = LogSettings(level="warning", file="host.log")
    processor = Processor(orders, readings, leases=stores[2], api=Api(port=0), host=host, on=Watch(), log=log)
    await processor.start()
    await processor.stop()
    memory = Pipeline("memory", feed=MemoryFeed(changes={"0": [{"n": 1}]}), handler=on_events)
    async with Processor(totals, side_by_side, memory, leases=stores[0], spark=Spark()) as running:
        assert_type(await running.idle(), Backlog)
        assert_type(await running.lag(), tuple[Estimate, ...])
        assert_type(running.to_yaml(), str)
    await Processor.from_yaml("orders.yaml", handlers={"orders:handle": on_events}).run()


if __name__ == "__main__":
    asyncio.run(main())
