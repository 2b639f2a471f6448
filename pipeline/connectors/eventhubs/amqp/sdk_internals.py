"""The private parts of azure-eventhub that are used, by name, so that a missing one is reported.

Its public clients neither receive fast enough nor publish with sequence numbers of ours. So its private AMQP clients are taken,
below which everything is public: TLS, WebSockets, SASL, tokens, sessions, links. Add every further part that is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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
    "BatchMessage": f"{AMQP}.message",
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
    "Session": ("next_incoming_id", "incoming_window", "target_incoming_window", "create_sender_link"),
    "SenderLink": (
        "attach",
        "get_state",
        "send_transfer",
        "current_link_credit",
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
    """What the SDK that is installed does not have."""
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
    """One of each class in KEPT: what an instance holds is seen on an instance alone. None of them is connected to anything."""
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
