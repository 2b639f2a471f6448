"""A namespace as a process: its ports, its journal, and what clients need to find it."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from leasehold_emulators.eventhubs.control import Control
from leasehold_emulators.eventhubs.edge import Edges
from leasehold_emulators.eventhubs.namespace import MESSAGE_BYTES_MAX, Namespace
from leasehold_emulators.eventhubs.persistence import restore
from leasehold_emulators.eventhubs.tokens import Keys
from leasehold_emulators.eventhubs.tunnel import serve_tunnel
from leasehold_emulators.hosting import Clock, Place, open_control, open_port, open_tls, refused_port
from leasehold_emulators.journal import Journal

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
"""The key of Microsoft's emulator, which is public."""
TOKEN = "a token for tests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Place):
    """port: for AMQP; tls_port: for AMQP with TLS; ws_port, wss_port: for WebSockets, None for none.

    hubs: name -> partitions. groups: consumer groups of new hubs, without $Default. events_max: events that a partition keeps.
    """

    hubs: dict[str, int] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    events_max: int | None = None
    message_bytes_max: int = MESSAGE_BYTES_MAX
    ws_port: int | None = None
    wss_port: int | None = None
    key_name: str = KEY_NAME
    key: str = KEY
    token: str = TOKEN


@asynccontextmanager
async def serve(options: Options) -> AsyncIterator[dict[str, Any]]:
    """Serve, and yield the addresses. Raises PortTaken, Unusable."""
    journal = Journal(options.data / "eventhubs.db" if options.data else None)
    clock = Clock(time.time)
    namespace = Namespace(
        keys=Keys(keys={options.key_name: options.key}, jwt=options.token),
        now_ms=clock.now_ms,
        message_bytes_max=options.message_bytes_max,
        journal=journal,
    )
    restore(namespace, journal.replay())
    edges = Edges(namespace)
    hubs = {name: (count, set(options.groups), options.events_max) for name, count in options.hubs.items()}
    control = Control(edges=edges, clock=clock, hubs=hubs)
    control.make_hubs()
    async with AsyncExitStack() as stack:
        stack.callback(journal.close)
        stack.callback(_abort, edges)
        said = await _open_ports(stack, options, edges)
        said["control"] = await open_control(stack, options, control.serve, control.read_state)
        said["hubs"] = [hub.name for hub in namespace.hubs.values()]
        quieten_gc()
        yield said


def _abort(edges: Edges) -> None:
    for edge in list(edges.open):
        edge.connection.abort()


async def _open_ports(stack: AsyncExitStack, options: Options, edges: Edges) -> dict[str, Any]:
    host, tunnels = options.host, partial(serve_tunnel, edges)
    port = await open_socket(stack, edges, host, options.port)
    said: dict[str, Any] = {
        "host": options.address,
        "port": port,
        "key_name": options.key_name,
        "key": options.key,
        "token": options.token,
        "connection_string": f"Endpoint=sb://{options.address}:{port};SharedAccessKeyName={options.key_name};"
        f"SharedAccessKey={options.key};UseDevelopmentEmulator=true",
    }
    if options.ws_port is not None:
        said["ws_port"] = await open_port(stack, web.Server(tunnels, access_log=None), host, options.ws_port)
    if options.tls_port is None and options.wss_port is None:
        return said
    tls, said["ca"] = open_tls(stack, options)
    if options.tls_port is not None:
        said["tls_port"] = await open_socket(stack, edges, host, options.tls_port, tls)
    if options.wss_port is not None:
        said["wss_port"] = await open_port(stack, web.Server(tunnels, access_log=None), host, options.wss_port, tls)
    return said


async def open_socket(
    stack: AsyncExitStack, edges: Edges, host: str, port: int, tls: ssl.SSLContext | None = None
) -> int:
    """Serve AMQP on a port until the stack ends, and return the port's number. Raises PortTaken."""
    try:
        server = await asyncio.get_running_loop().create_server(edges.socket, host, port, ssl=tls)
    except OSError as error:
        raise refused_port(host, port, error) from error
    stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


def quieten_gc() -> None:
    """Millions of events live long, so collecting garbage among them is a waste."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
