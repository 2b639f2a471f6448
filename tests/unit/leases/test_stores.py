from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.store import LeaseStore, TimedStore
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.stores.sqlite import SqliteStore


class TestMemoryStore(LeaseStoreContract):
    @pytest.fixture
    def store(self) -> LeaseStore:
        return MemoryStore()


class TestTimedStore(LeaseStoreContract):
    @pytest.fixture
    def store(self) -> LeaseStore:
        return TimedStore(MemoryStore(), timeout_s=60)


class TestSqliteStore(LeaseStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[LeaseStore]:
        store = SqliteStore(tmp_path / "leases.db")
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: LeaseStore, tmp_path: Path) -> AsyncIterator[LeaseStore]:
        other = SqliteStore(tmp_path / "leases.db")
        yield other
        await other.close()
