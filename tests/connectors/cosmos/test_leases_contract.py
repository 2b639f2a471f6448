"""What every lease store promises, by a container of our wire server: keyed by id, and by a key of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from patience import PATIENCE_S
from plugins_cosmos import Cosmos

from leasehold.common.azure import CosmosAccount
from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.store import LeaseStore
from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer


def store_in(account: CosmosAccount) -> CosmosStore:
    return CosmosStore(
        LeaseContainer(account, CosmosContainerAddress(database="bank", container="leases"), call_timeout_s=PATIENCE_S)
    )


class TestCosmosStore(LeaseStoreContract):
    @pytest.fixture
    def account(self, cosmos: Cosmos) -> CosmosAccount:
        return CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)

    @pytest.fixture
    async def store(self, account: CosmosAccount) -> AsyncIterator[LeaseStore]:
        store = store_in(account)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: LeaseStore, account: CosmosAccount) -> AsyncIterator[LeaseStore]:
        other = store_in(account)
        yield other
        await other.close()


class TestCosmosStoreOverTls(TestCosmosStore):
    @pytest.fixture
    def account(self, cosmos: Cosmos) -> CosmosAccount:
        return CosmosAccount(endpoint=cosmos.https, key=cosmos.key, ca_file=Path(cosmos.ca))


class TestCosmosStoreWithKeysOfItsOwn(TestCosmosStore):
    @pytest.fixture
    async def account(self, cosmos: Cosmos) -> CosmosAccount:
        async with cosmos.client() as client:
            database = await client.create_database("bank")
            await database.create_container("leases", {"paths": ["/partitionKey"], "kind": "Hash"})
        return CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key)
