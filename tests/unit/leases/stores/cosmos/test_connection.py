"""The private part of azure-cosmos that lease stores use: a release without it is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.cosmos.aio import CosmosClient

from leasehold.common.azure import CosmosAccount
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.stores.cosmos.connection import _check_consistency

ACCOUNT = CosmosAccount(endpoint="https://bank.example", key="a2V5")


def client_of(level: str) -> Any:
    async def read() -> Any:
        return SimpleNamespace(ConsistencyPolicy={"defaultConsistencyLevel": level})

    return SimpleNamespace(_get_database_account=read)


def test_the_sdk_that_is_installed_has_it() -> None:
    assert hasattr(CosmosClient, "_get_database_account")


async def test_without_it_the_store_does_not_open() -> None:
    refused = r"^azure-cosmos [0-9.]+ lacks CosmosClient\._get_database_account, .*: pip install 'azure-cosmos=="
    with pytest.raises(StoreUnavailable, match=refused):
        await _check_consistency(SimpleNamespace(), ACCOUNT)  # type: ignore[arg-type]


async def test_a_consistency_that_is_too_weak_is_refused() -> None:
    await _check_consistency(client_of("Session"), ACCOUNT)
    with pytest.raises(StoreUnavailable, match="has the default consistency Eventual"):
        await _check_consistency(client_of("Eventual"), ACCOUNT)
