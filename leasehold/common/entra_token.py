"""Access tokens of Microsoft Entra ID, which Azure Database for PostgreSQL takes as passwords."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from leasehold.common.azure import Identity, credential_of, first_line

SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
RENEW_BEFORE_S = 300
"""A token that expires sooner than this is renewed before it is used for a connection."""
TIMEOUT_S = 60


class AccessToken(Protocol):
    """The used part of azure-core's interface."""

    @property
    def token(self) -> str: ...

    @property
    def expires_on(self) -> int: ...


class TokenCredential(Protocol):
    """The part of azure-identity that is used."""

    async def get_token(self, *scopes: str) -> AccessToken: ...


class NoToken(Exception):
    """There is no token that could be used."""


class TokenSource:
    """Keeps one token, which all connections share until it has to be renewed.

    A renewal continues after a caller has timed out, for the next callers. Finding the identity can take longer than a call
    about leases may. If every call started over, the renewal would never end.
    """

    def __init__(
        self, identity: Identity, *, credential: TokenCredential | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """identity: DEFAULT, a managed identity's client id, or a credential. credential: used instead, and not closed."""
        self._identity = identity
        self._credential = credential
        self._own: Any = None
        self._now = now
        self._token: AccessToken | None = None
        self._renewal: asyncio.Task[str] | None = None

    @property
    def is_renewing(self) -> bool:
        return self._renewal is not None

    async def fetch(self) -> str:
        """A token. If a renewal fails, the present one is used until it expires. Raises NoToken."""
        if self._token is not None and self._left_s() > RENEW_BEFORE_S:
            return self._token.token
        if (renewal := self._renewal) is None:
            self._renewal = renewal = asyncio.create_task(self._renew(), name="fetching an access token")
            renewal.add_done_callback(self._end_renewal)
        await asyncio.wait({renewal})
        if renewal.cancelled():
            raise NoToken("the request for it was cancelled")
        return renewal.result()

    def forget(self, token: str) -> None:
        """Forget a token that the server has refused, so that the next connection gets another one."""
        if self._token is not None and self._token.token == token:
            self._token = None

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait({self._renewal})
        if self._own is not None:
            await self._own.close()

    async def _renew(self) -> str:
        """Raises NoToken."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._token = await self._chosen().get_token(SCOPE)
        except TimeoutError:
            return self._present(f"no answer within {TIMEOUT_S} s")
        except Exception as error:  # whatever a credential raises
            return self._present(first_line(error))
        return self._token.token

    def _end_renewal(self, renewal: asyncio.Task[str]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # retrieve it: all callers may have left

    def _present(self, why: str) -> str:
        """The present token. Raises NoToken if it has expired, or if there is none."""
        if self._token is None or self._left_s() <= 0:
            raise NoToken(why) from None
        return self._token.token

    def _left_s(self) -> float:
        return 0.0 if self._token is None else self._token.expires_on - self._now()

    def _chosen(self) -> TokenCredential:
        if self._credential is not None:
            return self._credential
        if self._own is None:
            self._own = credential_of(self._identity)
        own: TokenCredential = self._own
        return own
