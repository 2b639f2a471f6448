"""A container on the wire server, and documents that lie in the range that a test wants them in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from plugins_cosmos import Cosmos

from leasehold.common.azure import cosmos_account_of
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, Pauses
from leasehold_emulators.cosmos.epk import epk_of

KEY = {"paths": ["/account"], "kind": "Hash", "version": 2}
QUICK = Pauses(first_s=0.01, longest_s=0.05, patience_s=20.0)


class Bank:
    """The container `transactions`, partitioned by `/account`."""

    name = "transactions"

    def __init__(self, cosmos: Cosmos, container: ContainerProxy) -> None:
        self.cosmos = cosmos
        self.container = container
        self._made = 0

    def account(self, min: str = "", max: str = "FF") -> str:
        """One whose documents lie between the bounds."""
        return next(name for name in map("a{}".format, range(10_000)) if min <= epk_of([name], KEY) < max)

    def account_in(self, range_id: str) -> str:
        place = next(each for each in self.cosmos.control.ranges(self.name) if each.id == range_id)
        return self.account(place.min, place.max)

    async def create(self, account: str, **fields: Any) -> dict[str, Any]:
        self._made += 1
        document = {"id": f"d{self._made:05}", "account": account, **fields}
        return dict(await self.container.create_item(document))

    async def create_together(self, account: str, count: int) -> None:
        """In one transaction."""
        documents = [{"id": f"t{self._made + n}", "account": account} for n in range(1, count + 1)]
        self._made += count
        await self.container.execute_item_batch([("create", (document,)) for document in documents], account)

    def feed(self, **options: Any) -> CosmosChangeFeed:
        account = cosmos_account_of(endpoint=self.cosmos.endpoint, key=self.cosmos.key)
        usual = {"poll_interval_s": 0.02, "pauses": QUICK}
        return CosmosChangeFeed(account, "bank", self.name, **{**usual, **options})


@asynccontextmanager
async def banked(cosmos: Cosmos) -> AsyncIterator[Bank]:
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        container = await database.create_container(Bank.name, PartitionKey("/account"))
        yield Bank(cosmos, container)
