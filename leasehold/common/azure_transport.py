"""HTTP for Azure's SDKs for asyncio: one TLS context for all requests, and a wrong key is reported at once."""

from __future__ import annotations

import ssl
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport


class Unauthorized(Exception):
    """The account does not accept the key."""


class Transport(AioHttpTransport):  # type: ignore[misc]  # the SDK exports it in a way that type checkers do not see
    """tls: None for the SDK's default. A context for each request would mean a connection for each.

    is_opening: `send` raises Unauthorized at the first 401. The SDK for Cosmos DB would repeat its request for the account, and
    report a wrong key only seconds later.
    """

    def __init__(self, tls: ssl.SSLContext | None, *, is_opening: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls
        self.is_opening = is_opening

    async def send(self, request: Any, **config: Any) -> Any:
        response = await super().send(request, **config)
        if self.is_opening and response.status_code == 401:
            raise Unauthorized
        return response

    def _build_ssl_config(self, cert: Any, verify: Any) -> Any:
        return super()._build_ssl_config(cert, verify) if self._tls is None else self._tls
