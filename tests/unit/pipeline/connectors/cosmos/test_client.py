"""The private part of azure-cosmos that the feed uses: a release without it is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.cosmos.aio import CosmosClient

from leasehold.common.azure import CosmosAccount
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.errors import FeedError

ACCOUNT = CosmosAccount(endpoint="https://bank.example", key="a2V5")


async def test_the_sdk_that_is_installed_has_it() -> None:
    client = CosmosClient(ACCOUNT.endpoint, credential=ACCOUNT.key)
    assert hasattr(client.client_connection, "_ReadPartitionKeyRanges")


async def test_without_it_the_ranges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    container = CosmosContainer(ACCOUNT, "bank", "accounts", timeout_s=5.0)

    async def open_another() -> Any:
        return SimpleNamespace(client_connection=SimpleNamespace(), container_link="dbs/bank/colls/accounts")

    monkeypatch.setattr(container, "_open", open_another)
    with pytest.raises(
        FeedError, match=r"^azure-cosmos [0-9.]+ lacks _ReadPartitionKeyRanges .*: pip install 'azure-cosmos=="
    ):
        await container.list_ranges()
