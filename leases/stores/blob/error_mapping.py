"""What the SDK raises -> what a store says: done or not, surely or perhaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leases.stores.azure.http import first_line, is_unreached, is_untrusted

BUSY_FIRST_S = 0.1
BUSY_MAX_S = 1.0
"""Where a service that is busy does not say how long to wait."""
RETRY_AFTER_MAX_S = 3600.0

_NEVER_DONE = frozenset((400, 401, 403, 404, 405, 409, 411, 412, 413, 416, 429))
"""Answers that say: this write was not carried out. After every other failure it may have been."""
_CHANGED = frozenset(("ConditionNotMet", "BlobAlreadyExists"))
_REMEDIES = {
    "AuthenticationFailed": "look at the key, and at this machine's clock, which may be 15 minutes off at most",
    "AuthorizationFailure": "look at the key, and let this machine through the account's firewall",
    "AuthorizationPermissionMismatch": "give this identity the role 'Storage Blob Data Contributor'",
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys: set `account_url` and `identity` instead",
    "LeaseIdMissing": "somebody holds an Azure lease on the blob: break it",
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
    """The service's own, like BlobNotFound; empty where it gave none."""
    if not isinstance(error, HttpResponseError):
        return ""
    found = getattr(error, "error_code", None)
    if found is None:
        found = _headers(error).get("x-ms-error-code")
    return str(getattr(found, "value", found) or "")


def is_no_container(error: Exception) -> bool:
    """Whether the container itself is not there."""
    return isinstance(error, HttpResponseError) and error.status_code == 404 and code_of(error) == "ContainerNotFound"


def is_changed(error: Exception) -> bool:
    """Whether a condition did not hold. Of a blob that is not there, a write with If-Match says the same."""
    if not isinstance(error, HttpResponseError) or error.status_code not in (409, 412):
        return False
    return code_of(error) in _CHANGED or (error.status_code == 412 and not code_of(error))


def pause_s(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """As `leases.stores.azure.http.PauseS`."""
    if not _is_busy(status, headers.get("x-ms-error-code", "")):
        return None
    said = retry_after_s(headers)
    return min(BUSY_FIRST_S * 2.0 ** min(attempt, 16), BUSY_MAX_S) if said is None else said


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """A date instead of seconds is no use to us: it stands on another machine's clock."""
    try:
        return min(max(0.0, float(headers.get("Retry-After", ""))), RETRY_AFTER_MAX_S)
    except ValueError:
        return None


def _headers(error: HttpResponseError) -> Mapping[str, str]:
    return getattr(error.response, "headers", {})


def translated(error: Exception, doing: str, *, is_write: bool) -> StoreError:
    """`doing`: what, to which document, where."""
    if isinstance(error, HttpResponseError) and error.status_code:
        return _answered(error, doing, is_write)
    if is_untrusted(error):
        return StoreUnavailable(
            f"{doing}: the server's certificate is not trusted ({first_line(error)}): set `ca_file` if it is one of your own"
        )
    if isinstance(error, ClientAuthenticationError):
        return StoreUnavailable(f"{doing}: nobody to come as ({first_line(error)}): log in, or set a key")
    if is_unreached(error):
        return StoreUnavailable(f"{doing}: the account cannot be reached ({first_line(error)}): look at its address")
    return _lost(f"{doing}: the answer was lost ({first_line(error)})", is_write)


def _answered(error: HttpResponseError, doing: str, is_write: bool) -> StoreError:
    status, code = error.status_code or 0, code_of(error)
    if is_changed(error):
        return StoreConflict(f"{doing}: somebody else wrote first; read it again")
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
    """A 503 of something between us and the service may come after the work; the service's own says that it took none on."""
    return status == 429 or (status == 503 and code == "ServerBusy")


def _lost(what: str, is_write: bool) -> StoreError:
    return StoreAmbiguous(f"{what}: it may or may not be done") if is_write else StoreUnavailable(what)
