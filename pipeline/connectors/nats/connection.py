"""A connection to NATS, and the meaning of what goes wrong there.

NatsError
├── Unreachable      nothing was sent, or nothing received it: surely not done
│   └── Forbidden    the server refused this client, or what it wanted to publish
├── Unanswered       sent, and no answer came: perhaps done
└── RefusedRequest   JetStream refused it; `number` is its code for the reason
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, Error, NoRespondersError
from nats.errors import TimeoutError as NoAnswer

from leasehold.common.cancellation import heeding, insisting
from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.servers import Servers
from leasehold.pipeline.limits import JSON_LEVELS_MAX

ATTEMPTS_MAX = 1
"""How often each server that refuses a connection is tried again, before the call fails."""
PAUSE_S = 0.2
CLOSE_S = 1.0
"""A connection that does not close within this time is abandoned: after a failed TLS handshake, nats-py would wait forever."""
_LOGIN = ("authorization violation", "authentication", "nkey", "credentials")


class NatsError(Exception):
    """The base of these errors."""


class Unreachable(NatsError):
    """Surely not done."""


class Forbidden(Unreachable):
    """A wrong password, or a missing permission."""


class Unanswered(NatsError):
    """Perhaps done."""


class RefusedRequest(NatsError):
    """status: as in HTTP. number: JetStream's code for the reason."""

    def __init__(self, what: str, status: int, number: int, reason: str) -> None:
        super().__init__(f"{what}: {reason} ({number})")
        self.status = status
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess(Servers):
    """login: arguments of nats-py. certificates: the client's certificate, and its key."""

    system = "nats"
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    ca_file: Path | None = None
    certificates: tuple[Path, Path] | None = None

    def make_tls(self) -> ssl.SSLContext:
        """Raises OSError for a file that cannot be read."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificates is not None:
            context.load_cert_chain(*self.certificates)
        return context


class _NatsClient(Client):
    """It refuses plain text if TLS is set. nats-py would continue in plain text if the server does not require TLS."""

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise Error("the server offers no TLS, and `tls: true` is set")
        return super()._connect_command()


class NatsConnection:
    """The first call opens it, and so does the first call after a loss. All calls raise NatsError."""

    def __init__(self, access: NatsAccess, *, timeout_s: float = 5.0) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._trouble, self._troubled_at = "", 0.0

    async def ask(self, call: str, **what: Any) -> dict[str, Any]:
        """Call JetStream's API."""
        return await self.request(f"$JS.API.{call}", json.dumps(what).encode() if what else b"", what=call)

    async def request(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, what: str
    ) -> dict[str, Any]:
        """JetStream's answer to a message."""
        client = await self.client()
        began_at = asyncio.get_running_loop().time()
        try:
            own = None if headers is None else dict(headers)
            answer = await heeding(client.request(subject, payload, timeout=self.timeout_s, headers=own))
        except NoRespondersError as error:
            raise Unreachable(
                f"{what}: nothing answers at {self.access.servers}: is JetStream enabled, and does a stream take '{subject}'?"
            ) from error
        except NoAnswer as error:
            if self._troubled_at >= began_at and f'"{subject.lower()}"' in self._trouble:
                raise Forbidden(f"{what}: {self._trouble}") from error
            raise Unanswered(f"{what}: no answer from {self.access.servers} in {self.timeout_s:g} s") from error
        except ConnectionClosedError as error:
            raise Unanswered(f"{what}: the connection to {self.access.servers} was closed") from error
        except Error as error:
            raise Unreachable(f"{what}: {_text_of(error)}") from error
        return _answer_in(what, answer)

    def explained(self, since: float) -> str:
        """The last error that the server sent beside its answers, such as a missing permission. since: on the loop's clock."""
        return f" ({self._trouble})" if self._troubled_at >= since and self._trouble else ""

    async def send(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send a message that gets no answer."""
        client = await self.client()
        try:
            own = None if headers is None else dict(headers)
            await heeding(client.publish(subject, payload, reply=reply, headers=own))
        except Error as error:
            raise Unreachable(f"'{subject}' at {self.access.servers}: {_text_of(error)}") from error

    async def subscribe(self, subject: str) -> Subscription:
        client = await self.client()
        try:
            return await heeding(client.subscribe(subject))
        except Error as error:
            raise Unreachable(f"'{subject}' at {self.access.servers}: {_text_of(error)}") from error

    async def client(self) -> Client:
        """The connected client."""
        return await heeding(self._connect())

    async def _connect(self) -> Client:
        async with self._opening:
            if self._client is None or self._client.is_closed:
                self._client = await self._open()
            return self._client

    async def _open(self) -> Client:
        self._trouble, client = "", _NatsClient()
        try:
            tls = {"tls": await asyncio.to_thread(self.access.make_tls)} if self.access.tls else {}
            connecting = client.connect(
                [_url_of(server) for server in self.access.servers.split(",")],
                name="leasehold",
                error_cb=self._note,
                allow_reconnect=False,
                connect_timeout=self.timeout_s,  # type: ignore[arg-type]  # it is given to wait_for
                max_reconnect_attempts=ATTEMPTS_MAX,
                reconnect_time_wait=PAUSE_S,  # type: ignore[arg-type]  # and this to sleep
                **tls,  # type: ignore[arg-type]
                **self.access.login,  # type: ignore[arg-type]
            )
            async with asyncio.timeout(self.timeout_s):
                await insisting(connecting)
        except BaseException as error:
            await _close(client)
            if not isinstance(error, Exception):
                raise
            told = [
                each for each in (self._trouble, _text_of(error)) if each
            ]  # an invalid key raises errors of its own
            # A server that refuses a login closes the connection, which the client may note after the refusal.
            refusal = next((each for each in told if any(word in each.lower() for word in _LOGIN)), None)
            kind, why = (Unreachable, told[0]) if refusal is None else (Forbidden, refusal)
            raise kind(f"NATS at {self.access.servers} cannot be reached: {why}") from error
        return client

    async def _note(self, error: Exception) -> None:
        self._trouble, self._troubled_at = _text_of(error), asyncio.get_running_loop().time()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            await _close(client)


async def _close(client: Client) -> None:
    with suppress(Error, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await insisting(client.close())


def _url_of(server: str) -> str:
    return f"nats://{server.strip().removeprefix('nats://')}"


def _answer_in(what: str, answer: Msg) -> dict[str, Any]:
    try:
        found = parsed_json(answer.data, JSON_LEVELS_MAX)
    except ValueError as error:
        raise Unanswered(f"{what}: the answer is not JSON") from error
    if not isinstance(found, dict):
        raise Unanswered(f"{what}: the answer is not one of JetStream")
    if (refusal := found.get("error")) is None:
        return found
    try:
        code, number, text = int(refusal["code"]), int(refusal.get("err_code", 0)), str(refusal.get("description"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(f"{what}: the answer's error is not one of JetStream") from error
    raise RefusedRequest(what, code, number, text)


def _text_of(error: BaseException) -> str:
    return (str(error) or type(error).__name__).removeprefix("nats: ")
