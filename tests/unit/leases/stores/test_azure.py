"""The private part of aiohttp that lease stores use: a release without it is refused by name."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from azure.core.pipeline.transport import AioHttpTransport

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.stores.azure import OnceOverTls, send_once


async def test_a_session_of_the_aiohttp_that_is_installed_sends_each_request_once() -> None:
    transport = OnceOverTls(ssl.create_default_context(), lambda status, headers, attempt: None)
    await transport.open()
    try:
        assert isinstance(transport.session, aiohttp.ClientSession)
        assert transport.session._retry_connection is False
    finally:
        await transport.close()


def test_another_aiohttp_is_refused() -> None:
    session: Any = SimpleNamespace()
    refused = r"^aiohttp [0-9.]+ lacks ClientSession\._retry_connection, .*: pip install 'aiohttp=="
    with pytest.raises(StoreUnavailable, match=refused):
        send_once(session)


async def test_nothing_is_sent_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_without(self: Any) -> None:
        self.session = SimpleNamespace()

    monkeypatch.setattr(AioHttpTransport, "open", open_without)
    transport = OnceOverTls(ssl.create_default_context(), lambda status, headers, attempt: None)
    with pytest.raises(StoreUnavailable, match="lacks ClientSession"):
        await transport.open()
