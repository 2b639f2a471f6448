"""What tests of operators' actions share."""

from __future__ import annotations

import httpx

from leasehold.leases.tenure import OwnedLease

LEASE = "/api/leases/bank/a"


async def taken(running, partition: str = "a") -> OwnedLease:
    owned = await running.keeper.take(await running.keeper.read("bank", partition), lambda state: state)
    assert owned is not None
    return owned


async def reset(client: httpx.AsyncClient, to: object, etag: str | None = None, path: str = LEASE) -> httpx.Response:
    """With the present ETag, where none is given."""
    etag = (await client.get(path)).headers["etag"] if etag is None else etag
    return await client.put(f"{path}/continuation", json={"to": to}, headers={"if-match": etag})
