"""One event hub, as the SDK's AMQP clients need it: address, transport, tokens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from leasehold.common.azure import credential_of
from leasehold.common.cancellation import heeding
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import (
    authenticator_of,
    connection_of,
    create_auth,
    note_token_answers,
    public_options,
    sdk,
    tls_context,
    transport_of,
)

GROUP = "$Default"
CLOSING_TIMEOUT_S = 2.0


class Hub:
    """credential: an existing one of azure-identity's kind, which the hub does not close."""

    def __init__(self, account: EventHubAccount, *, credential: Any = None) -> None:
        """Raises HooksMoved, so that the start of a host fails. Otherwise the host would try to connect again and again."""
        sdk()
        self.account = account
        self.name = account.name
        self._credential = credential
        self._own: Any = None
        self._client: Any = None
        self._context: Any = None

    def address(self, path: str = "") -> str:
        """The address of the hub, or of something in it: `Partitions/0`."""
        return f"amqps://{self.account.host}/{self.account.hub}" + (f"/{path}" if path else "")

    def options(self) -> dict[str, Any]:
        """The arguments that all of the SDK's AMQP clients take, except `auth`, which `make_auth()` returns.

        Raises ValueError if `ca_file` cannot be used.
        """
        names = ("hostname", "transport_type", "http_proxy", "custom_endpoint_address", "socket_timeout", "use_tls")
        return public_options(self._public(), names) | {
            "ssl_context": self._trusted(),
            "retry_policy": sdk().RetryPolicy(retry_total=0),  # pauses are ours
        }

    async def make_auth(self) -> Any:
        """The object that makes and renews tokens for the hub."""
        return await create_auth(self._public())

    async def close(self) -> None:
        own, self._own, self._client = self._own, None, None
        if own is not None:
            await own.close()

    def _public(self) -> Any:
        """A client of the SDK's public part, never opened: it derives transports, tokens and addresses."""
        if self._client is None:
            account = self.account
            options = {
                "transport_type": _transport_type(account.transport),
                "custom_endpoint_address": account.custom_endpoint,
                "http_proxy": account.http_proxy,
            }
            clients = sdk().EventHubConsumerClient
            if account.connection_string is None:
                who = self._credential or self._identity()
                self._client = clients(account.host.partition(":")[0], account.hub, GROUP, who, **options)
            else:
                self._client = clients.from_connection_string(
                    account.connection_string, GROUP, eventhub_name=account.hub, **options
                )
        return self._client

    def _trusted(self) -> Any:
        """The TLS context of all connections: the SDK would create one for each, and so block the event loop."""
        if self._context is None and not self.account.is_emulator:
            try:
                self._context = tls_context(self.account.ca_file)
            except OSError as error:
                raise ValueError(
                    f"`ca_file` {self.account.ca_file} cannot be used: {error.strerror or error}"
                ) from error
        return self._context

    def _identity(self) -> Any:
        if self._own is None:
            self._own = credential_of(self.account.identity)
        return self._own


def _transport_type(transport: str) -> Any:
    from azure.eventhub import TransportType

    return TransportType.AmqpOverWebsocket if transport == "websockets" else TransportType.Amqp


class HubTokenRefused(Exception):
    """The service refused the token. status_code, status_description: its answer."""

    def __init__(self, status_code: int, status_description: str) -> None:
        super().__init__(f"{status_code} {status_description}")
        self.status_code = status_code
        self.status_description = status_description


async def connect(client: Any) -> None:
    """Open one of the SDK's AMQP clients, and wait until its link is attached. Raises HubTokenRefused, and the SDK's errors."""
    await heeding(client.open_async())
    answers = note_token_answers(authenticator_of(client))
    try:
        while not await heeding(client.client_ready_async()):
            pass
    except sdk().TokenAuthFailure:
        if not answers:
            raise
        raise HubTokenRefused(*answers[-1]) from None


async def disconnect(client: Any) -> None:
    """Close one of the SDK's AMQP clients and its transport, properly if the other side listens. Failures are ignored."""
    connection = connection_of(client)
    try:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSING_TIMEOUT_S):
                await heeding(client.close_async())
    finally:
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSING_TIMEOUT_S):
                    await transport_of(connection).close()
