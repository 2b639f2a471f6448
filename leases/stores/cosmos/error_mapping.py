"""What the SDK raises -> what a store says: done or not, surely or perhaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from azure.core.exceptions import ClientAuthenticationError
from azure.cosmos.exceptions import CosmosHttpResponseError

from leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leases.stores.azure.http import first_line, is_unreached, is_untrusted

RETRY_WITH_FIRST_S = 0.01
RETRY_WITH_MAX_S = 0.5
THROTTLED_S = 0.1
"""Where the service does not say how long to wait."""

_NEVER_DONE = frozenset((400, 401, 403, 413, 429, 449))
"""Answers that say: this write was not carried out. After every other failure it may have been."""
_NOT_THE_DOCUMENT = frozenset((1002, 1003, 1013))
"""Of a 404: the session is ahead of the replica, the container is gone, the container is being made."""
REMEDIES = {
    401: "look at the key, and at this machine's clock, which may be 15 minutes off at most",
    403: "give this identity the role 'Cosmos DB Built-in Data Contributor', and let this machine through the firewall",
    429: "it is out of request units; give it more",
}


def is_gone(error: Exception) -> bool:
    """Whether the container itself is not there."""
    return isinstance(error, CosmosHttpResponseError) and (error.status_code, error.sub_status) == (404, 1003)


def pause_s(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """As `leases.stores.azure.http.PauseS`."""
    if status == 429:
        return retry_after_s(headers) or THROTTLED_S
    if status == 449:
        return min(RETRY_WITH_FIRST_S * 2.0 ** min(attempt, 16), RETRY_WITH_MAX_S)
    return None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["x-ms-retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        return None


def translated(error: Exception, doing: str, *, is_write: bool) -> StoreError:
    """`doing`: what, to which document, where."""
    if isinstance(error, CosmosHttpResponseError):
        return _answered(error, doing, is_write)
    if is_untrusted(error):
        return StoreUnavailable(
            f"{doing}: the server's certificate is not trusted ({first_line(error)}): set `ca_file` if it is one of your own"
        )
    if isinstance(error, ClientAuthenticationError):
        return StoreUnavailable(f"{doing}: nobody to come as ({first_line(error)}): log in, or set a key")
    if is_unreached(error):
        return StoreUnavailable(f"{doing}: the account cannot be reached ({first_line(error)}): look at its endpoint")
    return _lost(f"{doing}: the answer was lost ({first_line(error)})", is_write)


def _answered(error: CosmosHttpResponseError, doing: str, is_write: bool) -> StoreError:
    status, substatus = error.status_code or 0, error.sub_status or 0
    if status in (409, 412):
        return StoreConflict(f"{doing}: somebody else wrote first; read it again")
    if status == 404 and substatus not in _NOT_THE_DOCUMENT:
        return StoreMissing(f"{doing}: there is no such document; it was deleted, or never created")
    answer = f"{doing}: Cosmos DB answered {status}" + (f" (substatus {substatus})" if substatus else "")
    if status == 400:
        return StoreUnavailable(f"{answer}: {first_line(error)}")
    if status in _NEVER_DONE or status == 404:
        remedy = REMEDIES.get(status, "try again later")
        return StoreUnavailable(f"{answer}: {remedy}", retry_after_s=retry_after_s(error.headers or {}))
    return _lost(answer, is_write)


def _lost(what: str, is_write: bool) -> StoreError:
    return StoreAmbiguous(f"{what}: it may or may not be done") if is_write else StoreUnavailable(what)
