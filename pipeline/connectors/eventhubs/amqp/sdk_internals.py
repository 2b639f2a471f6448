"""The private parts of azure-eventhub that are used. No other module touches them. A missing one is reported by name.

Its public clients neither receive fast enough nor publish with sequence numbers of ours. So its private AMQP clients are used,
which handle the rest: TLS, WebSockets, SASL, tokens, sessions, links. Add every further part that is used to TAKEN or KEPT.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import azure.eventhub

TESTED = ("5.15.0", "5.15.1")
"""The oldest and the newest release that `make dist` tries."""
AMQP = "azure.eventhub._pyamqp"

TAKEN = {
    "EventHubConsumerClient": "azure.eventhub.aio",
    "AMQPClientAsync": f"{AMQP}.aio",
    "ReceiveClientAsync": f"{AMQP}.aio",
    "SendClientAsync": f"{AMQP}.aio",
    "Connection": f"{AMQP}.aio",
    "PendingDelivery": f"{AMQP}.aio._sender_async",
    "SASLTransport": f"{AMQP}.aio",
    "SASLWithWebSocket": f"{AMQP}.aio._sasl_async",
    "CBSAuthenticator": f"{AMQP}.aio._cbs_async",
    "ReceiverSettleMode": f"{AMQP}.constants",
    "CbsAuthState": f"{AMQP}.constants",
    "LinkState": f"{AMQP}.constants",
    "LinkDeliverySettleReason": f"{AMQP}.constants",
    "SEND_DISPOSITION_ACCEPT": f"{AMQP}.constants",
    "SEND_DISPOSITION_REJECT": f"{AMQP}.constants",
    "Source": f"{AMQP}.endpoints",
    "ApacheFilters": f"{AMQP}.endpoints",
    "TokenAuthFailure": f"{AMQP}.error",
    "RetryPolicy": f"{AMQP}.error",
    "Message": f"{AMQP}.message",
    "AMQPTypes": f"{AMQP}.types",
    "TYPE": f"{AMQP}.types",
    "VALUE": f"{AMQP}.types",
    "decode_frame": f"{AMQP}._decode",
}
"""Name -> its module."""

KEPT = {
    "EventHubConsumerClient": ("_create_auth_async", "_config", "_address"),
    "AMQPClientAsync": (
        "_ssl_opts",
        "_connection",
        "open_async",
        "close_async",
        "client_ready_async",
        "mgmt_request_async",
    ),
    "ReceiveClientAsync": (
        "open_async",
        "close_async",
        "client_ready_async",
        "_connection",
        "_session",
        "_link",
        "_cbs_authenticator",
    ),
    "SendClientAsync": (
        "open_async",
        "close_async",
        "client_ready_async",
        "do_work_async",
        "_client_ready_async",
        "target",
        "_connection",
        "_session",
        "_link",
        "_link_credit",
        "_link_properties",
        "_max_message_size",
        "_send_settle_mode",
        "_receive_settle_mode",
    ),
    "Connection": (
        "_transport",
        "_error",
        "_idle_timeout",
        "_incoming_endpoints",
        "_process_incoming_frame",
        "_get_remote_timeout",
    ),
    "SASLTransport": ("reader", "_read_buffer", "_build_ssl_opts", "close"),
    "SASLWithWebSocket": ("sock", "_read_buffer", "close"),
    "CBSAuthenticator": ("handle_token", "auth_state", "_on_execute_operation_complete"),
    "Session": (
        "next_incoming_id",
        "incoming_window",
        "target_incoming_window",
        "remote_incoming_window",
        "create_sender_link",
        "_outgoing_transfer",
    ),
    "SenderLink": (
        "attach",
        "get_state",
        "handle",
        "delivery_count",
        "current_link_credit",
        "_pending_deliveries",
        "remote_properties",
        "remote_max_message_size",
        "desired_capabilities",
    ),
    "ReceiverLink": (
        "get_state",
        "flow",
        "remote_handle",
        "current_link_credit",
        "delivery_count",
    ),
}
"""Class -> which of its attributes are used; those that begin with an underscore are private."""


class HooksMoved(ValueError):
    """The installed azure-eventhub lacks private parts that reading and idempotent publishing need.

    Its public clients cannot replace them: they publish without numbers of ours, and hide why a link was refused.
    """

    def __init__(self, missing: list[str]) -> None:
        super().__init__(
            f"azure-eventhub {azure.eventhub.__version__} lacks {', '.join(missing)}, which the Event Hubs connector"
            f" needs: pip install azure-eventhub=={TESTED[-1]}"
        )
        self.missing = missing


@cache
def sdk() -> Any:
    """All of TAKEN, by name. Raises HooksMoved, which names what is missing of TAKEN and KEPT."""
    missing = missing_hooks()
    if missing:
        raise HooksMoved(missing)
    return SimpleNamespace(**{name: getattr(importlib.import_module(module), name) for name, module in TAKEN.items()})


def missing_hooks() -> list[str]:
    """What the installed SDK lacks."""
    gone = [f"{module}.{name}" for name, module in TAKEN.items() if not _has(module, name)]
    return gone or [
        f"{kind}.{attribute}"
        for kind, specimen in _specimens()
        for attribute in KEPT[kind]
        if not hasattr(specimen, attribute)
    ]


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def _specimens() -> Iterator[tuple[str, Any]]:
    """One instance of each class in KEPT, because only an instance shows all of its attributes. None of them is connected."""
    taken = SimpleNamespace(**{name: getattr(importlib.import_module(module), name) for name, module in TAKEN.items()})
    connection = taken.Connection("amqps://localhost", sasl_credential=None)
    session = connection.create_session()
    authenticated = SimpleNamespace(auth_type=None)
    yield "EventHubConsumerClient", taken.EventHubConsumerClient("localhost", "hub", "$Default", authenticated)
    yield "AMQPClientAsync", taken.AMQPClientAsync("localhost")
    yield "ReceiveClientAsync", taken.ReceiveClientAsync("localhost", "source")
    yield "SendClientAsync", taken.SendClientAsync("localhost", "target")
    yield "Connection", connection
    yield "SASLTransport", taken.SASLTransport("localhost", None)
    yield "SASLWithWebSocket", taken.SASLWithWebSocket("localhost", None)
    yield "CBSAuthenticator", taken.CBSAuthenticator(session, authenticated, auth_timeout=60)
    yield "Session", session
    yield "SenderLink", session.create_sender_link("target")
    yield "ReceiverLink", session.create_receiver_link("source", on_transfer=None)


def public_options(client: Any, names: Iterable[str]) -> dict[str, Any]:
    """The options that a public client of the SDK derived from its arguments."""
    return {name: getattr(client._config, name) for name in names}


async def create_auth(client: Any) -> Any:
    """The object that makes and renews tokens for the hub of a public client."""
    return await client._create_auth_async()


def tls_context(ca_file: str | None) -> Any:
    """The TLS context that the SDK would create for each connection. Raises OSError."""
    options = sdk().AMQPClientAsync("localhost", connection_verify=ca_file)._ssl_opts
    return sdk().SASLTransport("localhost", None)._build_ssl_opts(options)


def connection_of(client: Any) -> Any:
    return client._connection


def session_of(client: Any) -> Any:
    return client._session


def link_of(client: Any) -> Any:
    """None until the client is open."""
    return client._link


def authenticator_of(client: Any) -> Any:
    return client._cbs_authenticator


def note_token_answers(authenticator: Any) -> list[tuple[int, str]]:
    """Status and description of the service's answers to tokens, as they arrive: the SDK drops those of a refusal."""
    found: list[tuple[int, str]] = []
    done = authenticator._on_execute_operation_complete

    async def note(result: Any, status: Any, description: Any, *more: Any, **others: Any) -> None:
        if isinstance(status, int):
            found.append(
                (status, description.decode("utf-8", "replace") if isinstance(description, bytes) else str(description))
            )
        await done(result, status, description, *more, **others)

    authenticator._on_execute_operation_complete = note
    return found


def transport_of(connection: Any) -> Any:
    return connection._transport


def take_unparsed(connection: Any) -> bytes:
    """The bytes that the SDK has read from the connection and not parsed. It will not see them."""
    transport = connection._transport
    left = transport._read_buffer.read()
    transport._read_buffer = type(transport._read_buffer)()
    return bytes(left)


def expect_no_frames(connection: Any) -> None:
    """The SDK must not wait for signs of life, because it does not see what we read from the connection."""
    connection._idle_timeout = None


async def send_sign_of_life(connection: Any, now: float) -> None:
    """Send a sign of life if one is due. Raises what ended the connection."""
    await connection._get_remote_timeout(now)


async def process_frame(connection: Any, channel: int, octets: bytes) -> None:
    await connection._process_incoming_frame(channel, sdk().decode_frame(memoryview(octets)))


def channel_of(connection: Any, session: Any) -> int:
    """The service's number of the session."""
    return next(int(channel) for channel, each in connection._incoming_endpoints.items() if each is session)


def error_of(connection: Any) -> Exception | None:
    """What ended the connection."""
    error: Exception | None = connection._error
    return error


def has_credit(client: Any) -> bool:
    """Whether a transfer could go out now."""
    return bool(client._link.current_link_credit > 0 and client._session.remote_incoming_window > 0)


async def send_encoded(client: Any, octets: bytes, message_format: int, note_answer: Any) -> None:
    """Send an encoded message as a sender of the SDK does. The client `has_credit`: this does not wait for credit.

    note_answer: called with the reason and the state of the delivery, once it is settled.
    """
    link = client._link
    delivery = sdk().PendingDelivery(on_delivery_settled=note_answer)
    delivery.frame = dict.fromkeys(("rcv_settle_mode", "state", "resume", "aborted", "batchable")) | {
        "handle": link.handle,
        "delivery_tag": (link.delivery_count + 1).to_bytes(4, "big"),
        "message_format": message_format,
        "settled": False,
        "more": False,
        "payload": octets,
    }
    await client._session._outgoing_transfer(delivery, None)
    link.delivery_count += 1
    link.current_link_credit -= 1
    delivery.sent = True
    link._pending_deliveries.append(delivery)


def is_attached(client: Any) -> bool:
    link = client._link
    return bool(link is not None and link.get_state() == sdk().LinkState.ATTACHED)


@cache
def sender_class(capability: bytes) -> Any:
    """The SDK's sender, with a capability that the SDK's own would not pass on to its link."""
    sender: Any = sdk().SendClientAsync

    class CapableSender(sender):  # type: ignore[misc]  # the SDK's classes are Any
        _link: Any

        async def _client_ready_async(self) -> bool:
            if not self._link:
                self._link = self._session.create_sender_link(
                    target_address=self.target,
                    link_credit=self._link_credit,
                    send_settle_mode=self._send_settle_mode,
                    rcv_settle_mode=self._receive_settle_mode,
                    max_message_size=self._max_message_size,
                    properties=self._link_properties,
                    desired_capabilities=[capability],
                )
                await self._link.attach()
                return False
            return is_attached(self)

    return CapableSender
