"""The connection to a storage account, and what its answers mean."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from leasehold.common.azure import StorageAccount, credential_of
from leasehold.common.clock import Backoff
from leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leases.stores.azure import OnceOverTls, PatientCredential, first_line, is_unreached, is_untrusted

# The SDK's errors -> a store's: done or not, certainly or perhaps. Pure.


BUSY = Backoff(first_s=0.1, max_s=1.0)
"""Used if a busy service does not say how long to wait."""
RETRY_AFTER_MAX_S = 3600.0

_NEVER_DONE = frozenset((400, 401, 403, 404, 405, 409, 411, 412, 413, 416, 429))
"""Answers that mean that this write was not carried out. After any other failure it may have been."""
_CHANGED = frozenset(("ConditionNotMet", "BlobAlreadyExists"))
_REMEDIES = {
    "AuthenticationFailed": "look at the key, and at this machine's clock, which may be 15 minutes off at most",
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
    401: _REMEDIES["AuthenticationFailed"],
    403: "look at the key or the role of this identity ('Storage Blob Data Contributor'), and at the account's firewall",
    429: _REMEDIES["ServerBusy"],
}


def code_of(error: Exception) -> str:
    """The service's own code, like BlobNotFound; empty if it gave none."""
    if not isinstance(error, HttpResponseError):
        return ""
    found = getattr(error, "error_code", None)
    if found is None:
        found = _headers(error).get("x-ms-error-code")
    return str(getattr(found, "value", found) or "")


def is_no_container(error: Exception) -> bool:
    """Whether the container itself does not exist."""
    return isinstance(error, HttpResponseError) and error.status_code == 404 and code_of(error) == "ContainerNotFound"


def is_changed(error: Exception) -> bool:
    """Whether a condition did not hold. A write with If-Match to a missing blob gets the same answer."""
    if not isinstance(error, HttpResponseError) or error.status_code not in (409, 412):
        return False
    return code_of(error) in _CHANGED or (error.status_code == 412 and not code_of(error))


def pause_s(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """As `leases.stores.azure.PauseS`."""
    if not _is_busy(status, headers.get("x-ms-error-code", "")):
        return None
    asked_s = retry_after_s(headers)
    return BUSY.pause_s(attempt + 1, 0.0) if asked_s is None else asked_s


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """None for a date instead of seconds, because it refers to another machine's clock."""
    try:
        return min(max(0.0, float(headers.get("Retry-After", ""))), RETRY_AFTER_MAX_S)
    except ValueError:
        return None


def _headers(error: HttpResponseError) -> Mapping[str, str]:
    return getattr(error.response, "headers", {})


def translated(error: Exception, doing: str, *, is_write: bool) -> StoreError:
    """doing: the action, the document and the place."""
    if isinstance(error, HttpResponseError) and error.status_code:
        return _answered(error, doing, is_write)
    if is_untrusted(error):
        return StoreUnavailable(
            f"{doing}: the server's certificate is not trusted ({first_line(error)}): set `ca_file` if it is one of your own"
        )
    if isinstance(error, ClientAuthenticationError):
        return StoreUnavailable(
            f"{doing}: no Azure credentials found ({first_line(error)}): run `az login`, or set `key`"
        )
    if is_unreached(error):
        return StoreUnavailable(f"{doing}: the account cannot be reached ({first_line(error)}): look at its address")
    return _lost(f"{doing}: the answer was lost ({first_line(error)})", is_write)


def _answered(error: HttpResponseError, doing: str, is_write: bool) -> StoreError:
    status, code = error.status_code or 0, code_of(error)
    if is_changed(error):
        return StoreConflict(f"{doing}: another writer was first; read it again")
    if status == 404 and code in ("BlobNotFound", "ResourceNotFound", ""):
        return StoreMissing(f"{doing}: there is no such document; it was deleted, or never created")
    answer = f"{doing}: Azure Storage answered {status}" + (f" ({code})" if code else "")
    if _is_busy(status, code):
        return StoreUnavailable(f"{answer}: {_REMEDIES['ServerBusy']}", retry_after_s=retry_after_s(_headers(error)))
    if status in _NEVER_DONE:
        remedy = _REMEDIES.get(code) or _REMEDY_OF.get(status) or first_line(error)
        return StoreUnavailable(f"{answer}: {remedy}", retry_after_s=retry_after_s(_headers(error)))
    return _lost(answer, is_write)


def _is_busy(status: int, code: str) -> bool:
    """A 503 from an intermediary may come after the work was done; the service's own means that it was not started."""
    return status == 429 or (status == 503 and code == "ServerBusy")


def _lost(what: str, is_write: bool) -> StoreError:
    return StoreAmbiguous(f"{what}: it may or may not be done") if is_write else StoreUnavailable(what)


# The connection to the container: credentials, TLS, and no retries by the SDK.


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAddress:
    """A container by name."""

    container: str
    creates: bool = True

    def __str__(self) -> str:
        return f"blob container '{self.container}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    service: BlobServiceClient
    container: ContainerClient
    credential: PatientCredential | None

    async def close(self) -> None:
        await self.service.close()
        if self.credential is not None:
            await self.credential.close()


def connect(account: StorageAccount, place: ContainerAddress, tls: ssl.SSLContext, timeout_s: float) -> Connection:
    """Nothing is sent yet. Raises ValueError if the SDK does not accept the connection string."""
    # Left alone, the SDK would send a request three times again, 15 to 40 s later.
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
    return Connection(service=service, container=service.get_container_client(place.container), credential=credential)
