"""The JetStream lease store keeps what every lease store must hold, on a real server, over two connections."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest_asyncio
from plugins.jetstream import JetStreamLeases
from plugins_nats import NatsMachine

from leasehold.testing import LeaseStoreContract


class TestJetStreamLeases(LeaseStoreContract):
    @pytest_asyncio.fixture
    async def store(self, nats_server: NatsMachine) -> AsyncIterator[JetStreamLeases]:
        self.stream = f"leases{uuid.uuid4().hex[:12]}"
        store = JetStreamLeases(nats_server.url, self.stream)
        yield store
        await store._connection.api(f"STREAM.DELETE.{self.stream}")
        await store.close()

    @pytest_asyncio.fixture
    async def other(self, store: JetStreamLeases, nats_server: NatsMachine) -> AsyncIterator[JetStreamLeases]:
        other = JetStreamLeases(nats_server.url, self.stream)
        yield other
        await other.close()
