"""The connection to a storage account, and what its answers mean."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import HttpResponseError
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from leasehold.common.azure import (
    NO_STORAGE_ROLE,
    WRONG_KEY,
    StorageAccount,
    credential_of,
    first_line,
    headers_of,
    is_refused_by_storage,
    storage_code_of,
    storage_retry_after_s,
)
from leasehold.common.clock import Backoff
from leasehold.leases.errors import StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.stores.azure import OnceOverTls, PatientCredential, in_doubt, unanswered

# The SDK's errors -> a store's: done or not, certainly or perhaps. Pure.


BUSY = Backoff(first_s=0.1, max_s=1.0)
"""Used if a busy service does not say how long to wait."""
_CHANGED = frozenset(("ConditionNotMet", "BlobAlreadyExists"))
_REMEDIES = {
    "AuthenticationFailed": WRONG_KEY,
    "AuthorizationFailure": "look at the key, and let this machine through the account's firewall",
    "AuthorizationPermissionMismatch": "give this identity the role 'Storage Blob Data Contributor'",
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys: set `account_url` and `identity` instead",
    "LeaseIdMissing": "another client holds an Azure lease on the blob: break it",
    "BlobImmutableDueToPolicy": "the container has a policy that keeps blobs as they are: use another container",
    "ContainerBeingDeleted": "it is being deleted, which takes half a minute: try again later",
    "AccountIsDisabled": "enable the storage account",
    "ServerBusy": "the account is throttled: give the leases an account of their own",
}
_REMEDY_OF = {
    401: WRONG_KEY,
    403: NO_STORAGE_ROLE,
    429: _REMEDIES["ServerBusy"],
}


def is_no_container(error: Exception) -> bool:
    """Whether the container itself does not exist."""
    return (
        isinstance(error, HttpResponseError)
        and error.status_code == 404
        and storage_code_of(error) == "ContainerNotFound"
    )


def is_changed(error: Exception) -> bool:
    """Whether a condition did not hold. A write with If-Match to a missing blob gets the same answer."""
    if not isinstance(error, HttpResponseError) or error.status_code not in (409, 412):
        return False
    code = storage_code_of(error)
    return code in _CHANGED or (error.status_code == 412 and not code)


def pause_s(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """As `leasehold.leases.stores.azure.PauseS`."""
    is_busy = status == 429 or (status == 503 and headers.get("x-ms-error-code") == "ServerBusy")
    if not is_busy:
        return None
    asked_s = storage_retry_after_s(headers)
    return BUSY.pause_s(attempt + 1, 0.0) if asked_s is None else asked_s


def translated(error: Exception, doing: str, *, is_write: bool) -> StoreError:
    """doing: the action, the document and the place."""
    if isinstance(error, HttpResponseError) and error.status_code:
        return _answered(error, doing, is_write)
    return unanswered(error, doing, is_write=is_write, address="address")


def _answered(error: HttpResponseError, doing: str, is_write: bool) -> StoreError:
    status, code = error.status_code or 0, storage_code_of(error)
    if is_changed(error):
        return StoreConflict(f"{doing}: another writer was first; read it again")
    if status == 404 and code in ("BlobNotFound", "ResourceNotFound", ""):
        return StoreMissing(f"{doing}: there is no such document; it was deleted, or never created")
    answer = f"{doing}: Azure Storage answered {status}" + (f" ({code})" if code else "")
    if is_refused_by_storage(status, code):
        remedy = _REMEDIES.get(code) or _REMEDY_OF.get(status) or first_line(error)
        return StoreUnavailable(f"{answer}: {remedy}", retry_after_s=storage_retry_after_s(headers_of(error)))
    return in_doubt(answer, is_write=is_write)


# The connection to the container: credentials, TLS, and no retries by the SDK.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobContainerAddress:
    """A container by name."""

    container: str
    creates: bool = True

    def __str__(self) -> str:
        return f"blob container '{self.container}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobConnection:
    service: BlobServiceClient
    container: ContainerClient
    credential: PatientCredential | None

    async def close(self) -> None:
        await self.service.close()
        if self.credential is not None:
            await self.credential.close()


def connect(
    account: StorageAccount, place: BlobContainerAddress, tls: ssl.SSLContext, timeout_s: float
) -> BlobConnection:
    """Nothing is sent yet. Raises ValueError if the SDK does not accept the connection string."""
    # By default, the SDK would repeat a request three times, 15 to 40 s later.
    transport = OnceOverTls(tls, pause_s, connection_timeout=timeout_s / 2, read_timeout=timeout_s)
    credential = None
    if account.connection_string is not None:
        service = BlobServiceClient.from_connection_string(
            account.connection_string, transport=transport, retry_total=0
        )
    else:
        assert account.url is not None
        credential = None if account.key else PatientCredential(credential_of(account.identity))
        who: Any = account.key or credential
        service = BlobServiceClient(account.url, credential=who, transport=transport, retry_total=0)
    return BlobConnection(
        service=service, container=service.get_container_client(place.container), credential=credential
    )
