"""A connection to NATS: the only place that knows nats-py. What goes wrong there has one of three names here.

NatsError
├── Unreachable   not sent, or nobody there to take it: surely not done
├── Unanswered    sent, and no answer came: perhaps done
└── Refused       JetStream said no; `number` is its own for the reason
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, Error, NoRespondersError
from nats.errors import TimeoutError as NoAnswer
from pydantic import SecretStr

from leasehold import heeding

Headers: TypeAlias = Mapping[str, str]
RECONNECTS_MAX = 3
"""After these a connection is given up; the next call opens another."""
RECONNECT_PAUSE_S = 0.2


class NatsError(Exception):
    """Base of these."""


class Unreachable(NatsError):
    """Surely not done."""


class Unanswered(NatsError):
    """Perhaps done."""


class Refused(NatsError):
    """status: as of HTTP. number: of the reason."""

    def __init__(self, what: str, status: int, number: int, reason: str) -> None:
        super().__init__(f"{what}: {reason} ({number})")
        self.status = status
        self.number = number


class Connection:
    """Opened by the first call. servers: addresses with commas between them, without user or password."""

    def __init__(
        self,
        servers: str,
        *,
        user: str | None = None,
        password: SecretStr | None = None,
        token: SecretStr | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        if "@" in servers:
            raise ValueError("`servers` holds a user or a token: give them as `user` and `password`, or as `token`")
        self.servers = servers
        self.timeout_s = timeout_s
        self._access = {
            "user": user,
            "password": password and password.get_secret_value(),
            "token": token and token.get_secret_value(),
        }
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    async def api(self, call: str, **what: Any) -> dict[str, Any]:
        """A call of JetStream's API, `STREAM.INFO.orders` say."""
        return await self.told(f"$JS.API.{call}", json.dumps(what).encode() if what else b"", what=call)

    async def told(self, subject: str, payload: bytes, headers: Headers | None = None, *, what: str) -> dict[str, Any]:
        """JetStream's answer to a message. Raises NatsError."""
        client = await self.client()
        try:
            answer = await heeding(client.request(subject, payload, timeout=self.timeout_s, headers=_own(headers)))
        except NoRespondersError as error:
            raise Unreachable(
                f"{what}: nobody answers at {self.servers}: is JetStream on, and the stream there?"
            ) from error
        except NoAnswer as error:
            raise Unanswered(f"{what}: no answer from {self.servers} within {self.timeout_s:g} s") from error
        except ConnectionClosedError as error:
            raise Unanswered(f"{what}: the connection to {self.servers} was closed") from error
        except Error as error:
            raise Unreachable(f"{what}: {_words(error)}") from error
        return _checked(what, answer)

    async def send(self, subject: str, payload: bytes, *, headers: Headers | None = None, reply: str = "") -> None:
        """Without an answer. Raises Unreachable."""
        client = await self.client()
        try:
            await heeding(client.publish(subject, payload, reply=reply, headers=_own(headers)))
        except Error as error:
            raise Unreachable(f"'{subject}' at {self.servers}: {_words(error)}") from error

    async def subscribed(self, subject: str) -> Subscription:
        client = await self.client()
        try:
            return await heeding(client.subscribe(subject))
        except Error as error:
            raise Unreachable(f"'{subject}' at {self.servers}: {_words(error)}") from error

    async def client(self) -> Client:
        """One that is connected. Raises Unreachable."""
        return await heeding(self._connected())

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is None or self._client.is_closed:
                self._client = await self._opened()
            if not self._client.is_connected:
                raise Unreachable(f"the connection to {self.servers} is lost, and being made again")
            return self._client

    async def _opened(self) -> Client:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await nats.connect(
                    self.servers.split(","),
                    name="leasehold",
                    error_cb=_ignored,
                    connect_timeout=self.timeout_s,
                    max_reconnect_attempts=RECONNECTS_MAX,
                    reconnect_time_wait=RECONNECT_PAUSE_S,
                    **{name: value for name, value in self._access.items() if value is not None},
                )
        except (Error, OSError, TimeoutError) as error:
            raise Unreachable(f"NATS at {self.servers} cannot be reached: {_words(error)}") from error

    async def is_nowhere(self) -> bool:
        """Whether no server's name exists. A name server that is away is an outage."""
        ask = asyncio.get_running_loop().getaddrinfo
        hosts = [urlsplit(server if "//" in server else f"//{server}").hostname for server in self.servers.split(",")]
        found = await asyncio.gather(*(ask(host or "", None) for host in hosts), return_exceptions=True)
        return all(isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME for each in found)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            await client.close()


def _checked(what: str, answer: Msg) -> dict[str, Any]:
    try:
        told = json.loads(answer.data)
    except ValueError as error:
        raise Unanswered(f"{what}: the answer is no JSON") from error
    if (refusal := told.get("error")) is not None:
        raise Refused(what, int(refusal["code"]), int(refusal.get("err_code", 0)), str(refusal.get("description")))
    return dict(told)


def _own(headers: Headers | None) -> dict[str, str] | None:
    return None if headers is None else dict(headers)


async def _ignored(error: Exception) -> None:
    """Whoever waits for an answer is told; nobody else needs to know."""


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
