"""What a host's calls come back with, by way of the limit that it puts on every store."""

from __future__ import annotations

import pytest

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.store import TimedStore
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore

TIMEOUT_S = 2.0


async def test_a_write_that_had_no_connection_is_not_in_doubt_although_the_host_has_a_limit_of_its_own(
    silent: int,
) -> None:
    address = PostgresAddress(
        dsn=f"host=127.0.0.1 port={silent} connect_timeout=9 user=u sslmode=disable gssencmode=disable",
        table=LeaseTable(),
    )
    store = TimedStore(PostgresStore(address, call_timeout_s=TIMEOUT_S), TIMEOUT_S)
    with pytest.raises(
        StoreUnavailable, match=r"replacing 'a/leases/b' had no connection within 1\.8 s, and was not sent"
    ):
        await store.replace("a/leases/b", "{}", "x")
    await store.close()
