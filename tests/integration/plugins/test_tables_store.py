"""The lease store over a table keeps what every lease store must hold, over two connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from plugins.tables import TableLeases

from leasehold.testing import LeaseStoreContract


class TestTableLeases(LeaseStoreContract):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[TableLeases]:
        store = TableLeases(str(tmp_path / "leases.db"))
        yield store
        await store.close()

    @pytest_asyncio.fixture
    async def other(self, tmp_path: Path) -> AsyncIterator[TableLeases]:
        other = TableLeases(str(tmp_path / "leases.db"))
        yield other
        await other.close()
