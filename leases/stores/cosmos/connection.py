"""The connection to the container: credentials, TLS, and an SDK that repeats nothing by itself.

By default, the SDK would wait for half a minute if it is throttled, and would repeat a write if the answer was lost
(`leasehold.leases.stores.azure`).

All requests go to the given address, which leads to the account's write region, so reads are as fresh as possible.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import azure.cosmos
from azure.core.exceptions import AzureError
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.documents import ConnectionPolicy
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceExistsError, CosmosResourceNotFoundError

from leasehold.common.azure import WRONG_KEY, CosmosAccount, cosmos_retry_after_s, credential_of, first_line
from leasehold.common.azure_transport import Unauthorized
from leasehold.common.clock import Backoff
from leasehold.leases.errors import StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.stores.azure import OnceOverTls, in_doubt, unanswered
from leasehold.leases.stores.cosmos.documents import PARTITION_KEY

# SDK errors -> store errors: done or not done, certainly or perhaps. Pure.


RETRY_WITH = Backoff(first_s=0.01, max_s=0.5)
THROTTLED_S = 0.1
"""Used if the service does not say how long to wait."""

_NEVER_DONE = frozenset((400, 401, 403, 413, 429, 449))
"""Answers that mean that this write was not carried out. After any other failure it may have been."""
_NOT_THE_DOCUMENT = frozenset((1002, 1003, 1013))
"""Substatuses of a 404: the session is ahead of the replica, the container is gone, the container is being created."""
REMEDIES = {
    401: WRONG_KEY,
    403: "give this identity the role 'Cosmos DB Built-in Data Contributor', and let this machine through the firewall",
    429: "it is out of request units; give it more",
}


def is_gone(error: Exception) -> bool:
    """Whether the container itself does not exist."""
    return isinstance(error, CosmosHttpResponseError) and (error.status_code, error.sub_status) == (404, 1003)


def pause_s(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """As `leasehold.leases.stores.azure.PauseS`."""
    if status == 429:
        return cosmos_retry_after_s(headers) or THROTTLED_S
    if status == 449:
        return RETRY_WITH.pause_s(attempt + 1, 0.0)
    return None


def translated(error: Exception, doing: str, *, is_write: bool) -> StoreError:
    """doing: the action, the document and the place."""
    if isinstance(error, CosmosHttpResponseError):
        return _answered(error, doing, is_write)
    return unanswered(error, doing, is_write=is_write, address="endpoint")


def _answered(error: CosmosHttpResponseError, doing: str, is_write: bool) -> StoreError:
    status, substatus = error.status_code or 0, error.sub_status or 0
    if status in (409, 412):
        return StoreConflict(f"{doing}: another writer was first; read it again")
    if status == 404 and substatus not in _NOT_THE_DOCUMENT:
        return StoreMissing(f"{doing}: there is no such document; it was deleted, or never created")
    answer = f"{doing}: Cosmos DB answered {status}" + (f" (substatus {substatus})" if substatus else "")
    if status == 400:
        return StoreUnavailable(f"{answer}: {first_line(error)}")
    if status in _NEVER_DONE or status == 404:
        remedy = REMEDIES.get(status, "try again later")
        return StoreUnavailable(f"{answer}: {remedy}", retry_after_s=cosmos_retry_after_s(error.headers or {}))
    return in_doubt(answer, is_write=is_write)


TESTED = "4.17.*"
"""The newest azure-cosmos whose private part is known."""
TOO_WEAK = ("ConsistentPrefix", "Eventual")
_NOTHING_INDEXED: dict[str, Any] = {
    "indexingMode": "consistent",
    "includedPaths": [],
    "excludedPaths": [{"path": "/*"}],
}
"""Queries use only ids, which are always indexed. Any other index would make each write of a lease more expensive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosContainerAddress:
    """Database and container by name."""

    database: str
    container: str
    creates: bool = True

    def __str__(self) -> str:
        return f"Cosmos DB container '{self.database}/{self.container}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosConnection:
    """An open container. rid: its resource id, which another container of its name would not have."""

    client: CosmosClient
    credential: Any
    proxy: ContainerProxy
    has_own_keys: bool
    rid: str

    async def close(self) -> None:
        await _close_client(self.client, self.credential)


async def connect(
    account: CosmosAccount, place: CosmosContainerAddress, tls: ssl.SSLContext, timeout_s: float
) -> CosmosConnection:
    """Raises StoreUnavailable (also if the account's consistency is too weak), StoreMissing (does not exist, and must
    not be created).
    """
    credential = None if account.key else credential_of(account.identity)
    transport = OnceOverTls(tls, pause_s, is_opening=True)
    client = _client(account, credential, transport, timeout_s)
    try:
        await client.__aenter__()
        transport.is_opening = False
        await _check_consistency(client, account)
        proxy = client.get_database_client(place.database).get_container_client(place.container)
        properties = await _check_properties(client, proxy, place)
        has_own_keys = properties["partitionKey"]["paths"] != ["/id"]
        rid = str(properties.get("_rid", ""))
        return CosmosConnection(client=client, credential=credential, proxy=proxy, has_own_keys=has_own_keys, rid=rid)
    except Unauthorized:
        await _close_client(client, credential)
        raise StoreUnavailable(f"opening {place}: Cosmos DB answered 401: {REMEDIES[401]}") from None
    except AzureError as error:
        await _close_client(client, credential)
        raise translated(error, f"opening {place}", is_write=False) from error
    except BaseException:
        await _close_client(client, credential)
        raise


async def _check_consistency(client: CosmosClient, account: CosmosAccount) -> None:
    """Java's processor refuses the same levels: with less, a read may miss this host's own write, and compare-and-swap
    fails often.
    """
    read_account = getattr(client, "_get_database_account", None)  # nothing public returns it
    if read_account is None:
        raise StoreUnavailable(
            f"azure-cosmos {azure.cosmos.__version__} lacks CosmosClient._get_database_account, by which the consistency that"
            f" leases need is checked: pip install 'azure-cosmos=={TESTED}'"
        )
    policy = (await read_account()).ConsistencyPolicy or {}
    level = policy.get("defaultConsistencyLevel")
    if level in TOO_WEAK:
        raise StoreUnavailable(
            f"the Cosmos DB account {account.endpoint} has the default consistency {level}, and leases need Session or a stronger"
            " one: raise the account's default consistency, or keep the leases in another account"
        )


def _client(account: CosmosAccount, credential: Any, transport: OnceOverTls, timeout_s: float) -> CosmosClient:
    policy = ConnectionPolicy()
    policy.RetryOptions = type(policy.RetryOptions)(max_retry_attempt_count=0)  # as an argument, 0 would mean 9
    return CosmosClient(
        account.endpoint,
        credential or account.key or "",
        connection_policy=policy,
        enable_endpoint_discovery=False,
        retry_connect=0,
        retry_read=0,
        connection_timeout=timeout_s / 2,
        read_timeout=timeout_s,
        transport=transport,
    )


async def _check_properties(
    client: CosmosClient, proxy: ContainerProxy, place: CosmosContainerAddress
) -> dict[str, Any]:
    properties = await _properties(client, proxy, place)
    paths = properties.get("partitionKey", {}).get("paths")
    if paths not in (["/id"], [f"/{PARTITION_KEY}"]):
        raise StoreUnavailable(
            f"{place} has the partition key {paths}, and leases need /id (or /{PARTITION_KEY}): name another container"
        )
    if (properties.get("defaultTtl") or 0) > 0:
        raise StoreUnavailable(
            f"{place} removes documents after {properties['defaultTtl']} s, but leases must not expire: turn off its time to live"
        )
    return properties


async def _properties(client: CosmosClient, proxy: ContainerProxy, place: CosmosContainerAddress) -> dict[str, Any]:
    try:
        return await proxy.read()
    except CosmosResourceNotFoundError:
        if not place.creates:
            raise StoreMissing(f"no leases yet in {place}: no host has run this configuration") from None
    try:
        database = await client.create_database_if_not_exists(place.database)
        await database.create_container(place.container, PartitionKey(path="/id"), indexing_policy=_NOTHING_INDEXED)
    except CosmosResourceExistsError:
        pass  # another host was quicker
    except AzureError as error:
        raise StoreUnavailable(
            f"{place} does not exist and cannot be created ({_why_not_made(error)}): create it, with the partition key /id"
        ) from error
    return await proxy.read()


def _why_not_made(error: AzureError) -> str:
    if getattr(error, "status_code", None) == 403:  # no data role helps: such roles are for the contents of containers
        return "Cosmos DB answered 403: no data role allows an identity to create containers"
    return str(translated(error, "creating it", is_write=False))


async def _close_client(client: CosmosClient, credential: Any) -> None:
    await client.close()
    if credential is not None:
        await credential.close()
