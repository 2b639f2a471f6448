"""HTTP for the lease stores on Azure's SDKs: a request is repeated only if it was certainly not carried out.

The SDKs, and aiohttp below them, would repeat a write whose answer was lost. The second write conflicts with the first,
and an owner would believe that it lost its lease. The SDKs also would not verify the certificate of a server on this
machine.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol

import aiohttp
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestTimeoutError

from leasehold.common.azure import first_line
from leasehold.common.azure_transport import Transport
from leasehold.common.cancellation import await_shielded
from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable

AIOHTTP_TESTED = "3.14.*"
"""The newest release whose private part is known."""
_UNTRUSTED = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)


PauseS = Callable[[int, Mapping[str, str], int], float | None]
"""(status, headers, attempt from 0) -> the seconds after which the same request may be repeated, because it was
certainly not carried out; None otherwise.
"""
_retried_until: ContextVar[float] = ContextVar("retried_until", default=-inf)


@contextmanager
def retrying_for(seconds: float) -> Iterator[None]:
    """Requests sent within this context may be repeated for this long."""
    token = _retried_until.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _retried_until.reset(token)


class RetryBudget:
    """How many requests may be repeated: a few at once, and then one for each request that was not refused.

    While a service refuses everything, repeating requests here would multiply those of the callers, who back off
    themselves.
    """

    FULL = 10.0
    EARNED = 1.0

    def __init__(self) -> None:
        self._left = self.FULL

    def earn(self) -> None:
        self._left = min(self.FULL, self._left + self.EARNED)

    def spend(self) -> bool:
        """Whether a request may be repeated now."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class OnceOverTls(Transport):
    """Repeats a request only if it was certainly not carried out (`pause_s`), within `retrying_for` and a budget.

    Requests are repeated here so that a listing of several pages repeats only the refused page. The SDK's iterators
    cannot do that: Cosmos DB's forgets a range whose page was refused, and the listing would end without it.
    """

    def __init__(self, tls: ssl.SSLContext, pause_s: PauseS, **options: Any) -> None:
        super().__init__(tls, **options)
        self._pause_s = pause_s
        self._budget = RetryBudget()

    async def send(self, request: Any, **config: Any) -> Any:
        attempt = 0
        while True:
            response = await super().send(request, **config)
            pause = self._pause_s(response.status_code, response.headers, attempt)
            if pause is None:
                self._budget.earn()
                return response
            if asyncio.get_running_loop().time() + pause > _retried_until.get() or not self._budget.spend():
                return response
            response.internal_response.release()  # drop the body, if any: it is not read
            await asyncio.sleep(pause)
            attempt += 1

    async def open(self) -> None:
        """Raises StoreUnavailable if it is not certain that requests are sent only once."""
        await super().open()
        if self.session is not None:
            send_once(self.session)


class Credential(Protocol):
    """The part of azure-identity that is used."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken: ...

    async def close(self) -> None: ...


class PatientCredential:
    """A credential whose search continues after a caller has timed out, for the next callers.

    Finding the identity can take longer than a call to a store may. If every call started over, the search would never end.
    """

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._searches: dict[tuple[str, ...], asyncio.Task[AccessToken]] = {}

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        if (search := self._searches.get(scopes)) is None:
            search = asyncio.create_task(self._credential.get_token(*scopes, **options), name="asking for a token")
            self._searches[scopes] = search
            search.add_done_callback(lambda ended: self._ended(scopes, ended))
        return await await_shielded(search)

    async def close(self) -> None:
        if searches := set(self._searches.values()):
            for search in searches:
                search.cancel()
            await asyncio.wait(searches)
        await self._credential.close()

    def _ended(self, scopes: tuple[str, ...], search: asyncio.Task[AccessToken]) -> None:
        del self._searches[scopes]
        if not search.cancelled():
            search.exception()  # retrieve it: all callers may have left


def send_once(session: aiohttp.ClientSession) -> None:
    """aiohttp sends a PUT again if a connection breaks, and has no public setting for that. Raises StoreUnavailable."""
    if not hasattr(session, "_retry_connection"):
        raise StoreUnavailable(
            f"aiohttp {aiohttp.__version__} lacks ClientSession._retry_connection, without which a lost answer would repeat a"
            f" write of a lease: pip install 'aiohttp=={AIOHTTP_TESTED}'"
        )
    session._retry_connection = False  # noqa: SLF001


def unanswered(error: Exception, doing: str, *, is_write: bool, address: str) -> StoreError:
    """The error for a request without an answer. address: the setting with the account's address."""
    cause, why = getattr(error, "inner_exception", None), first_line(error)
    if isinstance(cause, _UNTRUSTED):
        return StoreUnavailable(
            f"{doing}: the server's certificate is not trusted ({why}): set `ca_file` if it is one of your own"
        )
    if isinstance(error, ClientAuthenticationError):
        return StoreUnavailable(f"{doing}: no Azure credentials found ({why}): run `az login`, or set `key`")
    # The SDK itself reports a broken connection like one that was never established.
    if isinstance(cause, aiohttp.ClientConnectorError) or isinstance(error, ServiceRequestTimeoutError):
        return StoreUnavailable(f"{doing}: the account cannot be reached ({why}): look at its {address}")
    return in_doubt(f"{doing}: the answer was lost ({why})", is_write=is_write)


def in_doubt(what: str, *, is_write: bool) -> StoreError:
    """A failure after which the service may have carried out the request."""
    return StoreAmbiguous(f"{what}: it may or may not have been done") if is_write else StoreUnavailable(what)
