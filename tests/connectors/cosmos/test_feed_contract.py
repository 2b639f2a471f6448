"""The change feed keeps what every feed promises, in both modes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from connectors.cosmos.bank import Bank, banked
from plugins_cosmos import Cosmos

from leasehold.pipeline.connectors.cosmos import PageLimits, Pauses
from leasehold.pipeline.contract import ChangeFeedContract, FeedHarness

VARIABLE = "LEASEHOLD_TEST_KEY"
PAUSES = Pauses(first_s=0.01, longest_s=0.05, patience_s=3.0)


@pytest.fixture(autouse=True)
def variable(cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, cosmos.key)


class CosmosHarness(FeedHarness):
    partitions = ("0", "1", "2", "3")
    events_max = 8
    bytes_max = 8 * 1024
    times_are_apart = True

    def __init__(self, bank: Bank, **options: Any) -> None:
        pages = PageLimits(items_max=self.events_max, bytes_max=self.bytes_max)
        self.feed = bank.feed(pages=pages, executors_env=VARIABLE, pauses=PAUSES, **options)
        self.secrets = (bank.cosmos.key,)
        self._bank = bank
        self._accounts = {name: bank.account_in(name) for name in self.partitions}

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        self._bank.cosmos.control.move_clock(2)
        for body in bodies:
            await self._bank.create(self._accounts[partition], **json.loads(body))


class TestCosmosFeed(ChangeFeedContract):
    @pytest.fixture
    async def harness(self, cosmos: Cosmos) -> AsyncIterator[CosmosHarness]:
        async with banked(cosmos) as bank:
            harness = CosmosHarness(bank)
            yield harness
            await harness.feed.close()


class TestAllVersions(ChangeFeedContract):
    """From now on alone: `"0"` is the position of a range before anything was written to it."""

    @pytest.fixture
    async def harness(self, cosmos: Cosmos) -> AsyncIterator[CosmosHarness]:
        async with banked(cosmos) as bank:
            harness = CosmosHarness(bank, mode="all_versions")
            harness.beginning = '"0"'
            yield harness
            await harness.feed.close()
