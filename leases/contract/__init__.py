"""What every lease store must guarantee, as a test class to inherit from.

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        async def store(self, tmp_path):
            store = MyStore(tmp_path)          # on an empty container
            yield store
            await store.close()

        @pytest.fixture
        async def other(self, store, tmp_path):
            ...                                # a second handle on the same container, as for another host

Needs pytest with pytest-asyncio.
"""

import pytest

pytest.register_assert_rewrite("leasehold.leases.contract.store")

from leasehold.leases.contract.store import LeaseStoreContract  # noqa: E402  # asserts are rewritten first

__all__ = ["LeaseStoreContract"]
