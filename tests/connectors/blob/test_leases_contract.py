"""What every lease store promises, on a server that is not ours, Azurite, and on our emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
from patience import PATIENCE_S
from plugins_node import ON_BOTH

from leasehold.common.azure import storage_account_of
from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.store import LeaseStore
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer

pytestmark = ON_BOTH

CONTAINERS = map("contract-{}".format, count())


def store_in(azurite: str, container: str) -> LeaseStore:
    account = storage_account_of(connection_string=azurite)
    return BlobStore(LeaseBlobContainer(account, BlobContainerAddress(container=container), call_timeout_s=PATIENCE_S))


class TestBlobStore(LeaseStoreContract):
    @pytest.fixture
    def container(self) -> str:
        return next(CONTAINERS)

    @pytest.fixture
    async def store(self, azurite: str, container: str) -> AsyncIterator[LeaseStore]:
        store = store_in(azurite, container)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: LeaseStore, azurite: str, container: str) -> AsyncIterator[LeaseStore]:
        other = store_in(azurite, container)
        yield other
        await other.close()
