"""What every lease store promises, by a server that nobody here wrote: @vercel/cosmosdb-server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from patience import PATIENCE_S
from plugins_node import ending, script

from leasehold.common.azure import CosmosAccount
from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.store import LeaseStore
from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer

ANY_KEY = "YW55IGtleQ=="
DATABASES = map("bank-{}".format, count())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command = script("cosmosdb_server_http.mjs")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with ending(process):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["endpoint"]


class TestCosmosStore(LeaseStoreContract):
    @pytest.fixture
    def container(self) -> CosmosContainerAddress:
        return CosmosContainerAddress(database=next(DATABASES), container="leases")

    @pytest.fixture
    async def store(self, endpoint: str, container: CosmosContainerAddress) -> AsyncIterator[LeaseStore]:
        store = CosmosStore(
            LeaseContainer(CosmosAccount(endpoint=endpoint, key=ANY_KEY), container, call_timeout_s=PATIENCE_S)
        )
        yield store
        await store.close()

    @pytest.fixture
    async def other(
        self, store: LeaseStore, endpoint: str, container: CosmosContainerAddress
    ) -> AsyncIterator[LeaseStore]:
        other = CosmosStore(
            LeaseContainer(CosmosAccount(endpoint=endpoint, key=ANY_KEY), container, call_timeout_s=PATIENCE_S)
        )
        yield other
        await other.close()
