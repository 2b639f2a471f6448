"""Access tokens of Microsoft Entra ID, which Azure Database for PostgreSQL takes as passwords."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from leasehold.common.azure import credential_of, first_line

SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
RENEW_BEFORE_S = 300
"""A token that ends sooner is renewed before a connection is made with it."""
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
    """Keeps one token, which all connections share until it has to be renewed."""

    def __init__(
        self, identity: str, *, credential: TokenCredential | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """identity: `default`, or a managed identity's client id. credential: used instead, and not closed."""
        self._identity = identity
        self._credential = credential
        self._own: Any = None
        self._now = now
        self._token: AccessToken | None = None
        self._fetching = asyncio.Lock()

    async def fetch(self) -> str:
        """If a renewal fails, the present token is used until it ends. Raises NoToken."""
        async with self._fetching:
            if self._left_s() <= RENEW_BEFORE_S:
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        self._token = await self._chosen().get_token(SCOPE)
                except TimeoutError:
                    self._excuse(f"no answer within {TIMEOUT_S} s")
                except Exception as error:  # whatever a credential raises
                    self._excuse(first_line(error))
            assert self._token is not None
            return self._token.token

    def forget(self, token: str) -> None:
        """The server refused it: the next connection gets another one."""
        if self._token is not None and self._token.token == token:
            self._token = None

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()

    def _left_s(self) -> float:
        return 0.0 if self._token is None else self._token.expires_on - self._now()

    def _excuse(self, why: str) -> None:
        """Raises NoToken unless the present token still holds."""
        if self._left_s() <= 0:
            raise NoToken(why) from None

    def _chosen(self) -> TokenCredential:
        if self._credential is not None:
            return self._credential
        if self._own is None:
            self._own = credential_of(self._identity)
        own: TokenCredential = self._own
        return own
